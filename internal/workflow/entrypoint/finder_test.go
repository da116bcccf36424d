package entrypoint

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"

	"lockstep.dev/lockstep/internal/egress"
)

// server is a registry on loopback that counts the requests.
type server struct {
	*testing.T
	host     string
	requests atomic.Int64
}

// start starts a registry. password is that of the user "puller"; "" lets everybody pull.
func start(t *testing.T, password string) *server {
	s := &server{T: t}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		if user, given, _ := r.BasicAuth(); password != "" && (user != "puller" || given != password) {
			w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"secret text of the registry"}]}`, http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	s.host = strings.TrimPrefix(web.URL, "http://")
	return s
}

func (s *server) repository(name, password string) *remote.Repository {
	s.Helper()
	r, err := remote.NewRepository(s.host + "/" + name)
	if err != nil {
		s.Fatal(err)
	}
	r.PlainHTTP = true
	r.Client = &auth.Client{Credential: auth.StaticCredential(s.host, auth.Credential{Username: "puller", Password: password})}
	return r
}

// image pushes a manifest with the configuration, and returns its descriptor.
func (s *server) image(r *remote.Repository, config, tag string) ocispec.Descriptor {
	s.Helper()
	put := func(kind string, data []byte) ocispec.Descriptor {
		d := ocispec.Descriptor{MediaType: kind, Digest: digest.FromBytes(data), Size: int64(len(data))}
		if err := r.Push(s.Context(), d, bytes.NewReader(data)); err != nil {
			s.Fatal(err)
		}
		return d
	}
	own := put(ocispec.MediaTypeImageConfig, []byte(config))
	m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Config: own, Layers: []ocispec.Descriptor{}}
	m.SchemaVersion = 2
	data, err := json.Marshal(m)
	if err != nil {
		s.Fatal(err)
	}
	d := put(ocispec.MediaTypeImageManifest, data)
	if tag != "" {
		if _, err := oras.Tag(s.Context(), r, d.Digest.String(), tag); err != nil {
			s.Fatal(err)
		}
	}
	return d
}

func finder(t *testing.T, allow ...string) (*Finder, *clocktesting.FakePassiveClock) {
	t.Helper()
	guard, err := egress.New(egress.Config{Allow: allow})
	if err != nil {
		t.Fatal(err)
	}
	clock := clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))
	f, err := New(Config{Requests: guard, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	return f, clock
}

func secret(host, password string) *corev1.Secret {
	both := base64.StdEncoding.EncodeToString([]byte("puller:" + password))
	return &corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{
		corev1.DockerConfigJsonKey: fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, host, both),
	}}
}

func (s *server) look(f *Finder, image string, secrets ...*corev1.Secret) string {
	s.Helper()
	e, err := f.Look(s.Context(), s.host+"/"+image, secrets)
	if err != nil {
		var own *Error
		if !errors.As(err, &own) {
			s.Errorf("%s: the error is a %T", image, err)
		}
		return strings.ReplaceAll(err.Error(), s.host, "HOST")
	}
	return fmt.Sprintf("%q %q", e.Command, e.Args)
}

func TestLook(t *testing.T) {
	s := start(t, "")
	r := s.repository("team/tool", "")
	pinned := s.image(r, `{"config":{"Entrypoint":["/tool"],"Cmd":["serve"]}}`, "v1")
	s.image(r, `{"config":{"Cmd":["/bin/sh"]}}`, "latest")
	s.image(r, `{"config":{}}`, "empty")
	other := s.image(r, `{"config":{"Entrypoint":["/arm"]}}`, "")
	list, _ := json.Marshal(ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{
		{MediaType: other.MediaType, Digest: other.Digest, Size: other.Size, Platform: &ocispec.Platform{OS: "linux", Architecture: "arm64"}},
		{MediaType: pinned.MediaType, Digest: pinned.Digest, Size: pinned.Size, Platform: &ocispec.Platform{OS: "linux", Architecture: "amd64"}},
	}})
	list = slices.Concat([]byte(`{"schemaVersion":2,`), bytes.TrimPrefix(bytes.Replace(list, []byte(`"schemaVersion":0,`), nil, 1), []byte("{")))
	d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromBytes(list), Size: int64(len(list))}
	if err := r.PushReference(t.Context(), d, bytes.NewReader(list), "many"); err != nil {
		t.Fatal(err)
	}
	f, clock := finder(t, "127.0.0.1")
	for image, want := range map[string]string{
		"team/tool:v1":                           `["/tool"] ["serve"]`,
		"team/tool":                              `[] ["/bin/sh"]`,
		"team/tool:many":                         `["/tool"] ["serve"]`,
		"team/tool@" + pinned.Digest.String():    `["/tool"] ["serve"]`,
		"team/tool:v1@" + pinned.Digest.String(): `["/tool"] ["serve"]`,
		"team/tool:empty":                        "the image has neither entrypoint nor cmd",
		"team/tool:none":                         "the registry HOST does not have it",
		"Team/Tool":                              `"HOST/Team/Tool" is not the name of an image`,
	} {
		if got := s.look(f, image); got != want {
			t.Errorf("%s: %s, want %s", image, got, want)
		}
	}
	// Answers are cached; a tag is looked up again later.
	before := s.requests.Load()
	s.look(f, "team/tool:v1")
	s.look(f, "team/tool@"+pinned.Digest.String())
	if n := s.requests.Load() - before; n != 0 {
		t.Errorf("%d requests for known images", n)
	}
	s.image(r, `{"config":{"Entrypoint":["/newer"]}}`, "v1")
	clock.SetTime(clock.Now().Add(tagFresh + time.Second))
	if got := s.look(f, "team/tool:v1"); got != `["/newer"] []` {
		t.Errorf("after %s the tag is %s", tagFresh, got)
	}
}

func TestPrivateRegistries(t *testing.T) {
	s := start(t, "right")
	s.image(s.repository("private/tool", "right"), `{"config":{"Entrypoint":["/private"]}}`, "v1")
	f, _ := finder(t, "127.0.0.1")
	image := "private/tool:v1"
	for _, step := range []struct {
		what    string
		secrets []*corev1.Secret
		want    string
	}{
		{"no secret", nil, "the registry HOST wants credentials, and no pull secret has them"},
		{"a secret of another registry", []*corev1.Secret{secret("other.example", "right")}, "the registry HOST wants credentials, and no pull secret has them"},
		{"a wrong secret", []*corev1.Secret{secret(s.host, "wrong")}, "the registry HOST answered 401 Unauthorized"},
		{"the right secret", []*corev1.Secret{secret("other.example", "x"), secret("https://"+s.host+"/v2/", "right")}, `["/private"] []`},
		{"a secret of a longer path", []*corev1.Secret{secret(s.host, "wrong"), secret(s.host+"/private", "right")}, `["/private"] []`},
		{"no secret, after the answer was cached", nil, "the registry HOST wants credentials, and no pull secret has them"},
	} {
		if got := s.look(f, image, step.secrets...); got != step.want {
			t.Errorf("%s: %s, want %s", step.what, got, step.want)
		}
	}
}

func TestRegistriesThatMustNotBeAsked(t *testing.T) {
	s := start(t, "")
	f, _ := finder(t)
	got := s.look(f, "team/tool:v1")
	if !strings.Contains(got, "the manager does not connect to 127.0.0.1") || s.requests.Load() != 0 {
		t.Errorf("%s, with %d requests", got, s.requests.Load())
	}
}

func TestReferences(t *testing.T) {
	for image, want := range map[string]string{
		"alpine":                       "docker.io/library/alpine:latest",
		"alpine:3.20":                  "docker.io/library/alpine:3.20",
		"team/tool":                    "docker.io/team/tool:latest",
		"index.docker.io/library/busy": "docker.io/library/busy:latest",
		"localhost/tool:1":             "localhost/tool:1",
		"host:5000/tool":               "host:5000/tool:latest",
		"host.example/a/b/c:tag":       "host.example/a/b/c:tag",
	} {
		if ref, err := reference(image); err != nil || ref.String() != want {
			t.Errorf("%s: %s, %v; want %s", image, ref, err, want)
		}
	}
	for _, image := range []string{"", "a b", "host.example/", "UPPER", "x@sha256:12"} {
		if ref, err := reference(image); err == nil {
			t.Errorf("%q is %s", image, ref)
		}
	}
}
