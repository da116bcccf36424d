package artifacts

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"lockstep.dev/lockstep/internal/workflow/execapi"
	"lockstep.dev/lockstep/internal/workflow/executor/archive"
)

// TestMain makes the certificate of test servers one that the process trusts.
func TestMain(m *testing.M) {
	server := httptest.NewTLSServer(nil)
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	ca := filepath.Join(dir, "ca")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		panic(err)
	}
	server.Close()
	os.Setenv("SSL_CERT_FILE", ca)
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// upload stores a file of the given text at l.
func upload(t *testing.T, l execapi.Location, text string) *execapi.Report {
	t.Helper()
	dir := t.TempDir()
	staged := filepath.Join(dir, "outputs", "main", "out")
	if err := os.MkdirAll(filepath.Dir(staged), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := archive.Pack(file(t, text, dir, "made"), staged, execapi.ArchiveNone, nil); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	close(stop)
	report := Upload(t.Context(), &execapi.ArtifactPlan{
		After: []string{"main"}, Upload: []execapi.Upload{{Name: "out", From: staged, To: l, Report: json.RawMessage(`{}`)}},
	}, dir, stop)
	return &report
}

// recordedS3 is an S3 server without a bucket that records the headers of requests, by method. It
// takes the encryption of a bucket, which the fake does not know.
type recordedS3 struct {
	mu      sync.Mutex
	headers map[string]http.Header
	backend *s3mem.Backend
	at      func(key string) execapi.Location
}

func newRecordedS3(t *testing.T) *recordedS3 {
	t.Helper()
	r := &recordedS3{headers: map[string]http.Header{}, backend: s3mem.New()}
	inner := gofakes3.New(r.backend).Server()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		name := q.Method
		if q.URL.Query().Has("encryption") {
			name += " encryption"
		} else if strings.Trim(q.URL.Path, "/") == "bucket" {
			name += " bucket"
		}
		r.mu.Lock()
		r.headers[name] = q.Header.Clone()
		r.mu.Unlock()
		if name != "PUT encryption" {
			inner.ServeHTTP(w, q)
		}
	}))
	t.Cleanup(server.Close)
	access, secret := file(t, "access", t.TempDir(), "access"), file(t, "s3cret", t.TempDir(), "secret")
	r.at = func(key string) execapi.Location {
		return execapi.Location{S3: &execapi.S3{
			Endpoint: strings.TrimPrefix(server.URL, "http://"), Bucket: "bucket", Key: key, Region: "us-east-1", Insecure: true,
			AccessKey: access, SecretKey: secret,
		}}
	}
	return r
}

// TestBucketsAreCreated checks that a missing bucket is created only if the location says so, with
// its encryption and lock.
func TestBucketsAreCreated(t *testing.T) {
	r := newRecordedS3(t)
	l := r.at("k")
	if report := upload(t, l, "x"); !report.Failed || !strings.Contains(report.Message, "s3://bucket/k") {
		t.Fatalf("without a bucket: %+v", report)
	}
	l.S3.CreateBucket, l.S3.LockObjects, l.S3.Encryption = true, true, &execapi.S3Encryption{}
	for range 2 { // the second time, the bucket exists
		if report := upload(t, l, "x"); report.Failed {
			t.Fatal(report.Message)
		}
	}
	if r.headers["PUT encryption"] == nil || r.headers["PUT bucket"].Get("X-Amz-Bucket-Object-Lock-Enabled") != "true" {
		t.Errorf("the bucket was created with %v, encryption set: %t", r.headers["PUT bucket"], r.headers["PUT encryption"] != nil)
	}
}

// TestObjectsAreEncrypted checks that requests name the key that the location names, and that no
// request of other locations names one.
func TestObjectsAreEncrypted(t *testing.T) {
	const prefix = "X-Amz-Server-Side-Encryption"
	key := file(t, "a customer's key", t.TempDir(), "key")
	for name, test := range map[string]struct {
		encryption *execapi.S3Encryption
		put        map[string]string // headers; "*": any value
		get        []string
	}{
		"not":                {nil, nil, nil},
		"by the store":       {&execapi.S3Encryption{}, map[string]string{"": "AES256"}, nil},
		"by a key of KMS":    {&execapi.S3Encryption{KMSKey: "k-1"}, map[string]string{"": "aws:kms", "-Aws-Kms-Key-Id": "k-1"}, nil},
		"with a KMS context": {&execapi.S3Encryption{KMSKey: "k-1", KMSContext: map[string]string{"a": "b"}}, map[string]string{"": "aws:kms", "-Aws-Kms-Key-Id": "k-1", "-Context": "eyJhIjoiYiJ9"}, nil},
		"by a key of requests": {&execapi.S3Encryption{CustomerKey: key}, map[string]string{
			"-Customer-Algorithm": "AES256", "-Customer-Key": "*", "-Customer-Key-Md5": "*",
		}, []string{"-Customer-Algorithm", "-Customer-Key", "-Customer-Key-Md5"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRecordedS3(t)
			if err := r.backend.CreateBucket("bucket"); err != nil {
				t.Fatal(err)
			}
			l := r.at("deep/k")
			l.S3.Encryption = test.encryption
			if report := upload(t, l, "content"); report.Failed {
				t.Fatal(report.Message)
			}
			to := filepath.Join(t.TempDir(), "in")
			if err := Load(t.Context(), &execapi.ArtifactPlan{Load: []execapi.Load{{Name: "in", From: l, To: to}}}); err != nil {
				t.Fatal(err)
			}
			if content(t, to) != "content" {
				t.Error("content differs")
			}
			sent := func(method string) map[string]string {
				out := map[string]string{}
				for header := range r.headers[method] {
					if rest, found := strings.CutPrefix(header, prefix); found {
						out[rest] = r.headers[method].Get(header)
					}
				}
				return out
			}
			put := sent("PUT")
			if len(put) != len(test.put) {
				t.Errorf("PUT has %v", put)
			}
			for header, want := range test.put {
				if put[header] != want && (want != "*" || put[header] == "") {
					t.Errorf("PUT has %v", put)
				}
			}
			for _, method := range []string{"HEAD", "GET"} {
				got := sent(method)
				if len(got) != len(test.get) {
					t.Errorf("%s has %v", method, got)
				}
				for _, header := range test.get {
					if got[header] == "" || got[header] != put[header] {
						t.Errorf("%s has %v", method, got)
					}
				}
			}
		})
	}
}

func TestAddressingStyles(t *testing.T) {
	for want, at := range map[string]execapi.S3{
		"https://bucket.store.example/k":     {BucketInHost: true},
		"https://store.example/bucket/k":     {BucketInPath: true},
		"https://store.example/bucket/k?any": {},
	} {
		at.Endpoint, at.Bucket, at.Key, at.Region = "store.example", "bucket", "k", "us-east-1"
		access := file(t, "access", t.TempDir(), "access")
		at.AccessKey, at.SecretKey = access, access
		s, err := openS3(&at)
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.client.PresignedGetObject(t.Context(), at.Bucket, at.Key, time.Minute, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got.RawQuery = ""; got.String() != strings.TrimSuffix(want, "?any") {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// TestHTTPAuth checks basic authentication, certificates of clients and tokens, each against a
// server that requires it.
func TestHTTPAuth(t *testing.T) {
	dir := t.TempDir()
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, secret, _ := r.BasicAuth()
		if r.FormValue("grant_type") != "client_credentials" || id+":"+secret != "me:s3cret" ||
			r.FormValue("scope") != "read write" || r.FormValue("audience") != "store" {
			http.Error(w, `{"error":"invalid_client","s3cret":"t0ken"}`, http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte(`{"access_token":"t0ken","token_type":"bearer"}`))
	}))
	t.Cleanup(tokens.Close)
	serve := func(allowed func(*http.Request) bool) string {
		var kept []byte
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case !allowed(r):
				http.Error(w, "who?", http.StatusUnauthorized)
			case r.Method == http.MethodPut:
				kept = make([]byte, r.ContentLength)
				if _, err := r.Body.Read(kept); err != nil && err.Error() != "EOF" {
					t.Error(err)
				}
			default:
				w.Write(kept)
			}
		}))
		server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
		server.StartTLS()
		t.Cleanup(server.Close)
		return server.URL + "/x"
	}
	cert, key := clientCertificate(t, dir)
	user, secret := file(t, "me", dir, "user"), file(t, "s3cret\n", dir, "secret")
	oauth := func(secret string) *execapi.OAuth2 {
		return &execapi.OAuth2{
			ClientID: user, ClientSecret: secret, TokenURL: file(t, tokens.URL+"/t0ken", dir, "url"), Scopes: []string{"read", "write"},
			Parameters: map[string][]string{"audience": {"store"}},
		}
	}
	basic := func(r *http.Request) bool {
		name, password, _ := r.BasicAuth()
		return name+":"+password == "me:s3cret"
	}
	certified := func(r *http.Request) bool {
		return len(r.TLS.PeerCertificates) == 1 && r.TLS.PeerCertificates[0].Subject.CommonName == "client"
	}
	bearer := func(r *http.Request) bool { return r.Header.Get("Authorization") == "Bearer t0ken" }
	for name, test := range map[string]struct {
		at    execapi.HTTP
		fault string
	}{
		"basic":                         {execapi.HTTP{URL: serve(basic), Username: user, Password: secret}, ""},
		"a certificate":                 {execapi.HTTP{URL: serve(certified), ClientCert: cert, ClientKey: key}, ""},
		"no certificate":                {execapi.HTTP{URL: serve(certified)}, "401"},
		"a certificate of another form": {execapi.HTTP{URL: serve(certified), ClientCert: secret, ClientKey: key}, "http.auth.clientCert"},
		"a token":                       {execapi.HTTP{URL: serve(bearer), OAuth2: oauth(secret)}, ""},
		"a token and a certificate": {execapi.HTTP{
			URL: serve(func(r *http.Request) bool { return bearer(r) && certified(r) }), OAuth2: oauth(secret), ClientCert: cert, ClientKey: key,
		}, ""},
		"no token": {execapi.HTTP{URL: serve(bearer), OAuth2: oauth(user)}, "http.auth.oauth2: no token: 401"},
	} {
		t.Run(name, func(t *testing.T) {
			l := execapi.Location{HTTP: &test.at}
			report := upload(t, l, "content")
			if test.fault != "" {
				if !report.Failed || !strings.Contains(report.Message, test.fault) {
					t.Errorf("%+v", report)
				}
				for _, s := range []string{"s3cret", "t0ken"} {
					if strings.Contains(report.Message, s) {
						t.Errorf("%q is in: %s", s, report.Message)
					}
				}
				return
			}
			if report.Failed {
				t.Fatal(report.Message)
			}
			to := filepath.Join(t.TempDir(), "in")
			if err := Load(t.Context(), &execapi.ArtifactPlan{Load: []execapi.Load{{Name: "in", From: l, To: to}}}); err != nil {
				t.Fatal(err)
			}
			if content(t, to) != "content" {
				t.Error("content differs")
			}
		})
	}
}

// clientCertificate writes a certificate and its key, and returns the paths of the files.
func clientCertificate(t *testing.T, dir string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	about.Subject.CommonName = "client"
	der, err := x509.CreateCertificate(rand.Reader, about, about, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return file(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), dir, "cert"),
		file(t, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})), dir, "private")
}
