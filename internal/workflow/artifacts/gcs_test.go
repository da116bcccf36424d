package artifacts

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"lockstep.dev/lockstep/internal/workflow/execapi"
)

// fakeGCS has the parts of the API of Google Cloud Storage that the client uses. It wants a token,
// and loses requests and answers as it is told.
type fakeGCS struct {
	mu       sync.Mutex
	token    string
	objects  map[string][]byte
	sessions map[string]*gcsSession
	// faults are how the next requests are lost: "before" (not carried out), "after" (carried out
	// and not answered), "half" (the half of a chunk arrives). The others are served.
	faults []string
	chunks int // PUT requests with content
}

type gcsSession struct {
	name, sum string
	content   []byte
}

func (f *fakeGCS) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.Header.Get("Authorization") != "Bearer "+f.token {
		http.Error(w, `{"error": {"message": "who?"}}`, http.StatusUnauthorized)
		return
	}
	fault := ""
	if len(f.faults) > 0 {
		fault, f.faults = f.faults[0], f.faults[1:]
	}
	if fault == "before" {
		http.Error(w, "busy", http.StatusServiceUnavailable)
		return
	}
	answer := httptest.NewRecorder()
	f.serve(answer, r, fault == "half")
	if fault == "after" || fault == "half" {
		http.Error(w, "busy", http.StatusServiceUnavailable)
		return
	}
	for key, values := range answer.Header() {
		w.Header()[key] = values
	}
	w.WriteHeader(answer.Code)
	w.Write(answer.Body.Bytes())
}

func (f *fakeGCS) serve(w http.ResponseWriter, r *http.Request, half bool) {
	const objects = "/storage/v1/b/bucket/o"
	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, objects), "/")
	switch {
	case strings.HasPrefix(r.URL.Path, "/upload/") && r.Method == http.MethodPost:
		var about struct{ Name, CRC32c string }
		if err := json.NewDecoder(r.Body).Decode(&about); err != nil || about.Name != r.URL.Query().Get("name") {
			http.Error(w, "names differ", http.StatusBadRequest)
			return
		}
		id := fmt.Sprint(len(f.sessions))
		f.sessions[id] = &gcsSession{name: about.Name, sum: about.CRC32c}
		w.Header().Set("Location", "http://"+r.Host+"/session?id="+id)
	case r.URL.Path == "/session":
		f.chunk(w, r, f.sessions[r.URL.Query().Get("id")], half)
	case !strings.HasPrefix(r.URL.Path, objects):
		http.Error(w, `{"error": {"message": "The specified bucket does not exist."}}`, http.StatusNotFound)
	case name == "":
		var items []map[string]string
		for key := range f.objects {
			if strings.HasPrefix(key, r.URL.Query().Get("prefix")) {
				items = append(items, map[string]string{"name": key})
			}
		}
		if page := map[string]any{"items": items}; len(items) > 1 && r.URL.Query().Get("pageToken") == "" {
			page["items"], page["nextPageToken"] = items[:0], "2"
			json.NewEncoder(w).Encode(page)
		} else {
			json.NewEncoder(w).Encode(page)
		}
	case f.objects[name] == nil:
		http.Error(w, `{"error": {"message": "No such object: `+name+`"}}`, http.StatusNotFound)
	case r.Method == http.MethodDelete:
		delete(f.objects, name)
		w.WriteHeader(http.StatusNoContent)
	default:
		w.Header().Set("X-Goog-Hash", "crc32c="+encodeSum(crc32.Checksum(f.objects[name], crc32.MakeTable(crc32.Castagnoli))))
		w.Write(f.objects[name])
	}
}

func (f *fakeGCS) chunk(w http.ResponseWriter, r *http.Request, s *gcsSession, half bool) {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	what, total, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Content-Range"), "bytes "), "/")
	if what != "*" {
		f.chunks++
		if first, _, _ := strings.Cut(what, "-"); first != fmt.Sprint(len(s.content)) {
			http.Error(w, fmt.Sprintf("chunk at %s, have %d", first, len(s.content)), http.StatusBadRequest)
			return
		}
		if half {
			data = data[:len(data)/2]
		}
		s.content = append(s.content, data...)
	}
	if fmt.Sprint(len(s.content)) != total {
		if len(s.content) > 0 {
			w.Header().Set("Range", fmt.Sprintf("bytes=0-%d", len(s.content)-1))
		}
		w.WriteHeader(http.StatusPermanentRedirect)
		return
	}
	if s.sum != encodeSum(crc32.Checksum(s.content, crc32.MakeTable(crc32.Castagnoli))) {
		http.Error(w, "the sum differs", http.StatusBadRequest)
		return
	}
	f.objects[s.name] = append([]byte{}, s.content...)
}

func newFakeGCS(t *testing.T, token string) (*fakeGCS, string) {
	t.Helper()
	f := &fakeGCS{token: token, objects: map[string][]byte{}, sessions: map[string]*gcsSession{}}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	return f, server.URL
}

// TestGCSCredentials checks the credentials of Google: the key of a service account, and those of
// the pod's service account or of the machine.
func TestGCSCredentials(t *testing.T) {
	t.Setenv("STORAGE_EMULATOR_HOST", "")
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", "")
	t.Setenv("HOME", t.TempDir())
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/token" && r.FormValue("grant_type") == "urn:ietf:params:oauth:grant-type:jwt-bearer" && strings.Count(r.FormValue("assertion"), ".") == 2,
			strings.HasSuffix(r.URL.Path, "/service-accounts/default/token") && r.Header.Get("Metadata-Flavor") == "Google":
			w.Header().Set("Content-Type", "application/json")
			w.Write([]byte(`{"access_token": "t0ken", "token_type": "Bearer", "expires_in": 3600}`))
		case strings.Contains(r.URL.Path, "universe"):
			http.NotFound(w, r) // Google's own
		default:
			http.Error(w, `{"error": "invalid_grant", "error_description": "s3cret"}`, http.StatusBadRequest)
		}
	}))
	t.Cleanup(tokens.Close)
	account := func(address string) string {
		text, err := json.Marshal(map[string]string{
			"type": "service_account", "client_email": "me@p.iam.gserviceaccount.com", "private_key_id": "1", "token_uri": address, "universe_domain": "cloud.example",
			"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		})
		if err != nil {
			t.Fatal(err)
		}
		return file(t, string(text), t.TempDir(), "account")
	}
	_, address := newFakeGCS(t, "t0ken")
	for name, c := range map[string]struct{ account, metadata, base, fault string }{
		"the key of a service account":   {account(tokens.URL + "/token"), "", "https://storage.cloud.example", ""},
		"a key that is refused":          {account(tokens.URL + "/other"), "", "https://storage.cloud.example", "gcs: no token: 400"},
		"a key of another form":          {file(t, "s3cret", t.TempDir(), "x"), "", "", "gcs.serviceAccountKeySecret"},
		"the identity of pod or machine": {"", strings.TrimPrefix(tokens.URL, "http://"), "https://storage.googleapis.com", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if c.metadata != "" {
				t.Setenv("GCE_METADATA_HOST", c.metadata)
			}
			b, err := openGCS(&execapi.GCS{Bucket: "bucket", Account: c.account})
			if err == nil {
				if b.base != c.base {
					t.Errorf("the API is at %s, want %s", b.base, c.base)
				}
				b.base = address
				for _, err = range b.list(t.Context(), "") {
					break
				}
			}
			if c.fault == "" && err != nil || c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault) || strings.Contains(err.Error(), "s3cret")) {
				t.Errorf("%v, want %q", err, c.fault)
			}
		})
	}
}

// TestGCSUploadsContinue checks that a lost request or answer costs one chunk, and that the content
// arrives unchanged.
func TestGCSUploadsContinue(t *testing.T) {
	text := bytes.Repeat([]byte("0123456789"), 1000)
	for name, c := range map[string]struct {
		size   int
		faults []string
		chunks int
		fault  string
	}{
		"without faults":                {size: 10000, chunks: 3},
		"a whole number of chunks":      {size: 8192, chunks: 2},
		"one byte":                      {size: 1, chunks: 1},
		"nothing":                       {size: 0, chunks: 0},
		"the start is lost":             {size: 10000, faults: []string{"after"}, chunks: 3},
		"a chunk is lost":               {size: 10000, faults: []string{"", "", "before"}, chunks: 3},
		"an answer is lost":             {size: 10000, faults: []string{"", "", "after"}, chunks: 3},
		"half of a chunk":               {size: 10000, faults: []string{"", "half"}, chunks: 3},
		"the last answer, and the next": {size: 10000, faults: []string{"", "", "", "after", "before", "after"}, chunks: 3},
		"the server does not answer":    {size: 10000, faults: []string{"", "before", "before", "before", "before", "before"}, fault: "503"},
	} {
		t.Run(name, func(t *testing.T) {
			f, address := newFakeGCS(t, "t")
			f.faults = c.faults
			b := &gcsBucket{name: "bucket", base: address, client: &http.Client{Transport: authorized("t")}, chunk: 4096}
			made, err := os.Open(file(t, string(text[:c.size]), t.TempDir(), "made"))
			if err != nil {
				t.Fatal(err)
			}
			defer made.Close()
			err = b.put(t.Context(), "dir/a b%", made, int64(c.size))
			if c.fault != "" {
				if err == nil || !strings.Contains(err.Error(), c.fault) {
					t.Errorf("%v, want %q", err, c.fault)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if f.chunks != c.chunks {
				t.Errorf("%d chunks were sent, want %d", f.chunks, c.chunks)
			}
			to := filepath.Join(t.TempDir(), "got")
			f.faults = []string{"after"}
			if err := b.get(t.Context(), "dir/a b%", to); err != nil || content(t, to) != string(text[:c.size]) {
				t.Errorf("the content differs, %v", err)
			}
		})
	}
}

// authorized is a transport that sets a token.
type authorized string

func (a authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(a))
	return http.DefaultTransport.RoundTrip(r)
}

// TestGCSErrors checks that a missing bucket is not taken for a missing object.
func TestGCSErrors(t *testing.T) {
	_, address := newFakeGCS(t, "t")
	for bucket, missing := range map[string]bool{"bucket": true, "another": false} {
		b := &gcsBucket{name: bucket, base: address, client: &http.Client{Transport: authorized("t")}}
		err := objectStore{b, "k"}.load(t.Context(), filepath.Join(t.TempDir(), "x"))
		if err == nil || os.IsNotExist(err) || strings.Contains(err.Error(), "file does not exist") != missing || !strings.Contains(err.Error(), "gs://"+bucket+"/k") {
			t.Errorf("%v", err)
		}
	}
}
