package artifacts

import (
	"bytes"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep.dev/lockstep/internal/workflow/artifacts/artifactstest"
	"lockstep.dev/lockstep/internal/workflow/execapi"
)

// fakeOSS is a server of OSS and the locations on it.
type fakeOSS struct {
	*artifactstest.OSS
	at func(key string) execapi.Location
}

func newFakeOSS(t *testing.T) *fakeOSS {
	t.Helper()
	f := &fakeOSS{OSS: artifactstest.NewOSS()}
	server := httptest.NewServer(f)
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
			if err := f.Backend.CreateBucket("bucket"); err != nil {
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
			if !slices.Equal(f.Signers(), []string{c.signer}) {
				t.Errorf("signed by %q, want %q", f.Signers(), c.signer)
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
