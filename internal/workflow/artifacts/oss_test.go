package artifacts

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"lockstep.dev/lockstep/internal/workflow/execapi"
)

// fakeOSS is a server of objects whose API is that of OSS as far as the client uses it: S3's, with
// other headers. It records who signed requests, and their tokens.
type fakeOSS struct {
	mu      sync.Mutex
	signers []string
	backend *s3mem.Backend
	at      func(key string) execapi.Location
}

func newFakeOSS(t *testing.T) *fakeOSS {
	t.Helper()
	f := &fakeOSS{backend: s3mem.New()}
	inner := gofakes3.New(f.backend).Server()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, rest, _ := strings.Cut(r.Header.Get("Authorization"), "OSS ")
		who, _, _ := strings.Cut(rest, ":")
		if token := r.Header.Get("X-Oss-Security-Token"); token != "" {
			who += " " + token
		}
		f.mu.Lock()
		if !slices.Contains(f.signers, who) {
			f.signers = append(f.signers, who)
		}
		f.mu.Unlock()
		r.Header.Del("Authorization")
		if r.ContentLength < 0 { // OSS takes content of a length that is not announced
			text, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(text))
			r.Header.Set("Content-Length", strconv.Itoa(len(text)))
		}
		if r.URL.Query().Has("acl") {
			if found, err := f.backend.BucketExists(strings.Trim(r.URL.Path, "/")); err != nil || !found {
				w.WriteHeader(http.StatusNotFound)
				w.Write([]byte(`<Error><Code>NoSuchBucket</Code></Error>`))
				return
			}
			w.Write([]byte(`<AccessControlPolicy><AccessControlList><Grant>private</Grant></AccessControlList></AccessControlPolicy>`))
			return
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	access, secret := file(t, "access\n", t.TempDir(), "access"), file(t, "s3cret\n", t.TempDir(), "secret")
	f.at = func(key string) execapi.Location {
		return execapi.Location{OSS: &execapi.OSS{Endpoint: server.URL, Bucket: "bucket", Key: key, AccessKey: access, SecretKey: secret}}
	}
	return f
}

// TestOSS stores, loads, lists and deletes, small and in parts, and as whom the location says.
func TestOSS(t *testing.T) {
	for _, name := range []string{"ALIBABA_CLOUD_ACCESS_KEY_ID", "ALIBABA_CLOUD_ACCESS_KEY_SECRET", "ALIBABA_CLOUD_SECURITY_TOKEN"} {
		t.Setenv(name, "env")
	}
	for name, c := range map[string]struct {
		change func(*execapi.OSS)
		size   int
		signer string
	}{
		"with keys":                      {func(*execapi.OSS) {}, 10, "access"},
		"with a security token":          {func(o *execapi.OSS) { o.SecurityToken = "t" }, 10, "access t"},
		"with those of the machine":      {func(o *execapi.OSS) { o.FromMachine = true }, 10, "env env"},
		"without any":                    {func(o *execapi.OSS) { o.AccessKey, o.SecretKey = "", "" }, 10, ""},
		"in parts":                       {func(*execapi.OSS) {}, 15 << 20, "access"},
		"an empty file":                  {func(*execapi.OSS) {}, 0, "access"},
		"a bucket that is to be created": {func(o *execapi.OSS) { o.Bucket, o.CreateBucket = "fresh", true }, 10, "access"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeOSS(t)
			if err := f.backend.CreateBucket("bucket"); err != nil {
				t.Fatal(err)
			}
			l := f.at("dir/a b")
			c.change(l.OSS)
			text := string(bytes.Repeat([]byte("x"), c.size))
			for range 2 { // the second time, the bucket and the object exist
				if report := upload(t, l, text); report.Failed {
					t.Fatal(report.Message)
				}
			}
			to := filepath.Join(t.TempDir(), "in")
			load := &execapi.ArtifactPlan{Load: []execapi.Load{{Name: "in", From: l, To: to, AsIs: true}}}
			if err := Load(t.Context(), load); err != nil {
				t.Fatal(err)
			}
			if content(t, to) != text {
				t.Error("the content differs")
			}
			above := *l.OSS
			above.Key = "dir"
			if paths, err := Paths(t.Context(), execapi.Location{OSS: &above}); err != nil || !slices.Equal(paths, []string{"dir/a b"}) {
				t.Errorf("%q %v", paths, err)
			}
			if report := Delete(t.Context(), &execapi.ArtifactPlan{Delete: []execapi.Delete{{Name: "x", At: l}}}); report.Failed {
				t.Fatal(report.Message)
			}
			if err := Load(t.Context(), load); err == nil || !strings.Contains(err.Error(), os.ErrNotExist.Error()) {
				t.Errorf("deleted, and still there: %v", err)
			}
			if !slices.Equal(f.signers, []string{c.signer}) {
				t.Errorf("signed by %q, want %q", f.signers, c.signer)
			}
		})
	}
	t.Run("no bucket", func(t *testing.T) {
		report := upload(t, newFakeOSS(t).at("k"), "x")
		if !report.Failed || !strings.Contains(report.Message, "NoSuchBucket") || strings.Contains(report.Message, "\n") {
			t.Errorf("%+v", report)
		}
	})
}

func TestRegionsOfOSS(t *testing.T) {
	for host, want := range map[string]string{
		"oss-cn-zhangjiakou.aliyuncs.com": "cn-zhangjiakou", "oss-cn-hangzhou-internal.aliyuncs.com": "cn-hangzhou", "oss-us-west-1.aliyuncs.com": "us-west-1",
		"oss-cn-hangzhou-zmf.aliyuncs.com": "cn-hangzhou-zmf", "files.example.com": "", "oss-cn-x.aliyuncs.com.example.com": "",
	} {
		got := ""
		if match := ossRegion.FindStringSubmatch(host); match != nil {
			got = match[1]
		}
		if got != want {
			t.Errorf("%s: %q, want %q", host, got, want)
		}
	}
}
