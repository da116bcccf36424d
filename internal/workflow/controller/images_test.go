package controller_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/manager"
	"lockstep.dev/lockstep/internal/manager/managertest"
)

// imageServer starts a registry with an image "tool" that runs /tool serve. Repositories below
// private/ want the user puller and the password right. It returns the registry's host, and the
// number of requests.
func imageServer(t *testing.T) (string, *atomic.Int64) {
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	var requests atomic.Int64
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		user, password, _ := r.BasicAuth()
		if strings.HasPrefix(r.URL.Path, "/v2/private/") && (user != "puller" || password != "right") {
			w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	send := func(method, path, kind string, body []byte) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, web.URL+path, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", kind)
		r.SetBasicAuth("puller", "right")
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusCreated {
			t.Fatalf("%s %s: %s", method, path, res.Status)
		}
	}
	config := []byte(`{"config":{"Entrypoint":["/tool"],"Cmd":["serve"]}}`)
	sum := fmt.Sprintf("sha256:%x", sha256.Sum256(config))
	manifest := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":`+
		`"application/vnd.oci.image.config.v1+json","digest":%q,"size":%d},"layers":[]}`, sum, len(config))
	for _, repository := range []string{"public/tool", "private/tool"} {
		send(http.MethodPost, "/v2/"+repository+"/blobs/uploads/?digest="+sum, "application/octet-stream", config)
		send(http.MethodPut, "/v2/"+repository+"/manifests/1", "application/vnd.oci.image.manifest.v1+json", manifest)
	}
	requests.Store(0)
	return strings.TrimPrefix(web.URL, "http://"), &requests
}

// TestCommandsOfImages checks that steps without a command run what their image's registry says,
// with the credentials of the pod or of its service account, and that the message says what to do
// where no registry does.
func TestCommandsOfImages(t *testing.T) {
	cluster := localtest.Start(t, localtest.WithControllerManager(), localtest.WithInstall(),
		localtest.WithNodes(localcluster.Nodes{Count: 1, Pods: 100}))
	managertest.Start(t, cluster, func(cfg *manager.Config) { cfg.AllowRequestsTo = []string{"127.0.0.1"} })
	e := newEnv(t, cluster)
	host, requests := imageServer(t)
	for name, password := range map[string]string{"pull": "right", "stale": "old"} {
		both := base64.StdEncoding.EncodeToString([]byte("puller:" + password))
		if _, err := e.core.CoreV1().Secrets(e.ns).Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, host, both)},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := e.core.CoreV1().ServiceAccounts(e.ns).Create(t.Context(), &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: "puller"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.core.CoreV1().ServiceAccounts(e.ns).Patch(t.Context(), "puller", types.StrategicMergePatchType,
		[]byte(`{"imagePullSecrets":[{"name":"missing"},{"name":"pull"}]}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	step := func(image, more string) string {
		return "entrypoint: main\n" + more + `
templates:
- name: main
  steps: [[{name: a, template: tool, withItems: [1, 2, 3]}], [{name: b, template: say, arguments: {parameters: [{name: text, value: "{{steps.a.outputs.result}}"}]}}]]
- name: tool
  metadata: {annotations: {lockstep.dev/sim-duration: 50ms, lockstep.dev/sim-message: '{"lockstep":1,"result":"x"}'}}
  container: {image: "` + image + `"}
` + stepTemplates
	}
	runs := func(name string) {
		t.Helper()
		e.until(name, inPhase(wf.WorkflowSucceeded))
		for _, p := range e.pods(name) {
			c := p.Spec.Containers[0]
			if c.Image == "a" {
				continue
			}
			at := slices.Index(c.Command, "--")
			if got := c.Command[at+1:]; at < 0 || !slices.Equal(got, []string{"/tool"}) || !slices.Equal(c.Args, []string{"serve"}) {
				t.Errorf("%s: the pod runs %q %q", name, c.Command, c.Args)
			}
		}
	}
	e.submit("public", step(host+"/public/tool:1", ""))
	runs("public")
	if n := requests.Load(); n == 0 || n > 9 {
		t.Errorf("%d requests for one image", n)
	}
	e.submit("private", step(host+"/private/tool:1", "imagePullSecrets: [{name: pull}]"))
	e.submit("account", step(host+"/private/tool:1", "serviceAccountName: puller"))
	runs("private")
	runs("account")
	for name, c := range map[string]struct{ image, more, want string }{
		"secretless": {host + "/private/tool:1", "", "wants credentials, and no pull secret has them"},
		"stale":      {host + "/private/tool:1", "imagePullSecrets: [{name: stale}]", "answered 401 Unauthorized"},
		"unknown":    {host + "/public/none:1", "", "does not have it"},
		"nowhere":    {"127.0.0.1:1/tool:1", "", "the registry 127.0.0.1:1 was asked in vain"},
		"internal":   {"10.0.0.1/tool:1", "", "the manager does not connect to 10.0.0.1"},
	} {
		e.submit(name, step(c.image, c.more))
		w := e.until(name, func(w *wf.Workflow) error {
			if !w.Status.Phase.Completed() {
				return fmt.Errorf("it is %s", w.Status.Phase)
			}
			return nil
		})
		if text := table(w); w.Status.Phase == wf.WorkflowSucceeded || !strings.Contains(text, c.want) || !strings.Contains(text, "set command, or give") {
			t.Errorf("%s: %s\n%s", name, w.Status.Phase, text)
		}
	}
}
