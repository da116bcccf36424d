package resource_test

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/workflow/execapi"
	"lockstep.dev/lockstep/internal/workflow/executor/incluster"
	"lockstep.dev/lockstep/internal/workflow/resource"
)

func TestMain(m *testing.M) { localtest.Main(m) }

// place is a namespace, with the administrator's client for it.
type place struct {
	t    *testing.T
	cfg  *rest.Config
	core kubernetes.Interface
	name string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	cfg := localtest.Shared(t).RESTConfig()
	core := kubernetes.NewForConfigOrDie(cfg)
	return &place{t, cfg, core, localtest.Namespace(t, core)}
}

// client returns what a pod of the namespace with this token has.
func (p *place) client(base, token string, ca []byte) *incluster.Client {
	p.t.Helper()
	dir := p.t.TempDir()
	for name, data := range map[string][]byte{"namespace": []byte(p.name), "token": []byte(token), "ca.crt": ca} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			p.t.Fatal(err)
		}
	}
	c, err := incluster.NewFor(base, dir)
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

func (p *place) admin() *incluster.Client {
	p.t.Helper()
	return p.client(p.cfg.Host, p.cfg.BearerToken, p.cfg.CAData)
}

// behind returns an administrator's client that reaches the API server through handle, which gets
// the handler that forwards a request.
func (p *place) behind(handle func(w http.ResponseWriter, r *http.Request, server http.Handler)) *incluster.Client {
	p.t.Helper()
	to, err := url.Parse(p.cfg.Host)
	if err != nil {
		p.t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(to)
	if forward.Transport, err = rest.TransportFor(p.cfg); err != nil {
		p.t.Fatal(err)
	}
	proxy := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handle(w, r, forward) }))
	p.t.Cleanup(proxy.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: proxy.Certificate().Raw})
	return p.client(proxy.URL, p.cfg.BearerToken, ca)
}

// mayOnly returns the client of a service account that may only do verbs on ConfigMaps.
func (p *place) mayOnly(verbs ...string) *incluster.Client {
	p.t.Helper()
	ctx := p.t.Context()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "step"}}
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "step"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: verbs},
	}}
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "step"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "step"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "step", Namespace: p.name}}}
	if _, err := p.core.CoreV1().ServiceAccounts(p.name).Create(ctx, account, metav1.CreateOptions{}); err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.core.RbacV1().Roles(p.name).Create(ctx, role, metav1.CreateOptions{}); err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.core.RbacV1().RoleBindings(p.name).Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		p.t.Fatal(err)
	}
	token, err := p.core.CoreV1().ServiceAccounts(p.name).
		CreateToken(ctx, "step", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	for _, verb := range verbs {
		localtest.UntilAllowed(p.t, p.core, "system:serviceaccount:"+p.name+":step", verb, "configmaps", p.name)
	}
	return p.client(p.cfg.Host, token.Status.Token, p.cfg.CAData)
}

// act carries out a plan within ten seconds.
func (p *place) act(client *incluster.Client, plan execapi.ResourcePlan) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(p.t.Context(), 10*time.Second)
	defer cancel()
	return resource.Act(ctx, client, &plan, io.Discard)
}

func (p *place) mustAct(client *incluster.Client, plan execapi.ResourcePlan) {
	p.t.Helper()
	if _, err := p.act(client, plan); err != nil {
		p.t.Fatal(err)
	}
}

// patch changes a ConfigMap as another client does.
func (p *place) patch(name, change string) {
	_, err := p.core.CoreV1().ConfigMaps(p.name).
		Patch(p.t.Context(), name, types.MergePatchType, []byte(change), metav1.PatchOptions{})
	if err != nil {
		p.t.Error(err)
	}
}

// maps returns the data of the ConfigMaps that the test created, by name.
func (p *place) maps() map[string]map[string]string {
	p.t.Helper()
	list, err := p.core.CoreV1().ConfigMaps(p.name).List(p.t.Context(), metav1.ListOptions{LabelSelector: "test"})
	if err != nil {
		p.t.Fatal(err)
	}
	out := map[string]map[string]string{}
	for _, m := range list.Items {
		out[m.Name] = m.Data
	}
	return out
}

// configMap returns the manifest of a ConfigMap.
func configMap(metadata, data string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {labels: {test: \"\"}, %s}\ndata: {%s}\n", metadata, data)
}

func TestEachObjectHasToMeetTheConditions(t *testing.T) {
	const done, failed = "state: done", "state: failed"
	for name, c := range map[string]struct{ first, last, fails string }{
		"both are done":        {first: done, last: done},
		"the first has failed": {first: failed, last: done, fails: "failure condition"},
		"the last has failed":  {first: done, last: failed, fails: "failure condition"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			out, err := p.act(p.admin(), execapi.ResourcePlan{
				Action: "create", Manifest: configMap("name: first", c.first) + "---\n" + configMap("name: last", c.last),
				Success: "data.state=done", Failure: "data.state=failed",
				Parameters: []execapi.Field{{Name: "of", JSONPath: "{.metadata.name}"}},
			})
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Errorf("error %v, want %q", err, c.fails)
				}
				return
			}
			if err != nil || out["of"] != "last" {
				t.Errorf("outputs %v, error %v", out, err)
			}
		})
	}
}

func TestDeleteWithoutTheRightToReadDoesNotWait(t *testing.T) {
	p := newPlace(t)
	held := configMap("name: a, finalizers: [test/held]", "")
	p.mustAct(p.admin(), execapi.ResourcePlan{Action: "create", Manifest: held})
	step := p.mayOnly("delete")
	if _, err := p.act(step, execapi.ResourcePlan{Action: "delete", Manifest: configMap("name: a", "")}); err != nil {
		t.Error(err)
	}
}

func TestDeleteWaitsUnlessTheFlagsSayOtherwise(t *testing.T) {
	p := newPlace(t)
	held := configMap("name: a, finalizers: [test/held]", "")
	p.mustAct(p.admin(), execapi.ResourcePlan{Action: "create", Manifest: held})
	remove := execapi.ResourcePlan{Action: "delete", Manifest: configMap("name: a", ""), Flags: []string{"--wait=false"}}
	if _, err := p.act(p.admin(), remove); err != nil {
		t.Errorf("without waiting: %v", err)
	}
	remove.Flags = []string{"--wait=maybe"}
	if _, err := p.act(p.admin(), remove); err == nil || !strings.Contains(err.Error(), "--wait") {
		t.Errorf("--wait=maybe: %v", err)
	}
	// The object is deleted when the step has looked at it once after its request.
	requested, looked := false, false
	client := p.behind(func(w http.ResponseWriter, r *http.Request, server http.Handler) {
		server.ServeHTTP(w, r)
		requested = requested || r.Method == http.MethodDelete
		if requested && r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/a") && !looked {
			looked = true
			p.patch("a", `{"metadata": {"finalizers": null}}`)
		}
	})
	remove.Flags = nil
	p.mustAct(client, remove)
	if len(p.maps()) != 0 {
		t.Errorf("left: %v", p.maps())
	}
}

func TestALongManifestIsRefusedAndNotCut(t *testing.T) {
	p := newPlace(t)
	file := filepath.Join(t.TempDir(), "manifest")
	comments := strings.Repeat("# a comment\n", 8<<20/12)
	text := configMap("name: first", "") + "---\n" + comments + "---\n" + configMap("name: last", "")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := p.act(p.admin(), execapi.ResourcePlan{Action: "create", ManifestFile: file})
	if err == nil || !strings.Contains(err.Error(), "manifestFrom") || len(p.maps()) != 0 {
		t.Errorf("error %v, created %v", err, p.maps())
	}
}

// TestCreateIsNotRepeated answers the first request in the server's place. Only a request that the
// server has certainly not carried out may be sent again.
func TestCreateIsNotRepeated(t *testing.T) {
	for name, c := range map[string]struct {
		metadata string
		worked   bool // the server has carried out the first request
		code     int  // of the answer to it; 0 means no answer
		fails    bool
	}{
		"the answer is lost":                    {metadata: "generateName: a-", worked: true, fails: true},
		"the answer for a fixed name is lost":   {metadata: "name: a", worked: true, fails: true},
		"the server has failed after its work":  {metadata: "generateName: a-", worked: true, code: http.StatusGatewayTimeout, fails: true},
		"the server is too busy to do anything": {metadata: "generateName: a-", code: http.StatusTooManyRequests},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			first := true
			client := p.behind(func(w http.ResponseWriter, r *http.Request, server http.Handler) {
				if r.Method != http.MethodPost || !first {
					server.ServeHTTP(w, r)
					return
				}
				first = false
				if c.worked {
					server.ServeHTTP(httptest.NewRecorder(), r)
				}
				if c.code == 0 {
					panic(http.ErrAbortHandler)
				}
				w.WriteHeader(c.code)
			})
			_, err := p.act(client, execapi.ResourcePlan{Action: "create", Manifest: configMap(c.metadata, "")})
			if (err != nil) != c.fails || incluster.Is(err, http.StatusConflict) {
				t.Errorf("error %v", err)
			}
			if len(p.maps()) != 1 {
				t.Errorf("the objects are %v", p.maps())
			}
		})
	}
}

// TestDeleteIsRepeated does not answer the first DELETE. A repeated one deletes only the object that
// the step has found, and succeeds if that is gone.
func TestDeleteIsRepeated(t *testing.T) {
	for name, c := range map[string]struct{ worked, again bool }{
		"the server has not deleted the object": {},
		"the server has deleted the object":     {worked: true},
		"another object has its name":           {worked: true, again: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			p.mustAct(p.admin(), execapi.ResourcePlan{Action: "create", Manifest: configMap("name: a", "")})
			first := true
			client := p.behind(func(w http.ResponseWriter, r *http.Request, server http.Handler) {
				if r.Method != http.MethodDelete || !first {
					server.ServeHTTP(w, r)
					return
				}
				first = false
				if c.worked {
					server.ServeHTTP(httptest.NewRecorder(), r)
				}
				if c.again {
					if _, err := p.act(p.admin(), execapi.ResourcePlan{Action: "create", Manifest: configMap("name: a", "")}); err != nil {
						t.Error(err)
					}
				}
				panic(http.ErrAbortHandler)
			})
			if _, err := p.act(client, execapi.ResourcePlan{Action: "delete", Manifest: configMap("name: a", "")}); err != nil {
				t.Errorf("error %v", err)
			}
			if left := len(p.maps()); (left == 1) != c.again {
				t.Errorf("%d objects are left", left)
			}
			_, err := p.act(p.admin(), execapi.ResourcePlan{Action: "delete", Manifest: configMap("name: b", "")})
			if !incluster.Is(err, http.StatusNotFound) {
				t.Errorf("an object that does not exist: %v", err)
			}
		})
	}
}

// TestDeleteWaitsForTheObjectAndNotForItsName creates another object of the same name as soon as the
// first is deleted.
func TestDeleteWaitsForTheObjectAndNotForItsName(t *testing.T) {
	p := newPlace(t)
	p.mustAct(p.admin(), execapi.ResourcePlan{Action: "create", Manifest: configMap("name: a", "")})
	client := p.behind(func(w http.ResponseWriter, r *http.Request, server http.Handler) {
		server.ServeHTTP(w, r)
		if r.Method == http.MethodDelete {
			if _, err := p.act(p.admin(), execapi.ResourcePlan{Action: "create", Manifest: configMap("name: a", "")}); err != nil {
				t.Error(err)
			}
		}
	})
	if _, err := p.act(client, execapi.ResourcePlan{Action: "delete", Manifest: configMap("name: a", "")}); err != nil {
		t.Error(err)
	}
	if len(p.maps()) != 1 {
		t.Errorf("the objects are %v", p.maps())
	}
}

// TestFlagsOfApply checks the flags that change what an apply does to fields of other clients.
func TestFlagsOfApply(t *testing.T) {
	for flag, want := range map[string]string{
		"":                        "",
		"--server-side":           "",
		"--force-conflicts=true":  "",
		"--force-conflicts=false": "conflict",
		"--force-conflicts=maybe": "--force-conflicts: 'maybe' is neither true nor false",
		"--server-side=false":     "--server-side=false is not supported",
	} {
		t.Run(flag, func(t *testing.T) {
			p := newPlace(t)
			p.mustAct(p.admin(), execapi.ResourcePlan{Action: "create", Manifest: configMap("name: a", "k: old")})
			p.patch("a", `{"data": {"k": "other"}}`)
			_, err := p.act(p.admin(), execapi.ResourcePlan{
				Action: "apply", Manifest: configMap("name: a", "k: new"), Flags: strings.Fields(flag),
			})
			if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("the error is %v, want %q", err, want)
			}
			if got := p.maps()["a"]["k"]; (got == "new") != (want == "") {
				t.Errorf("the value is %s", got)
			}
		})
	}
}

// TestDeleteOfAnObjectThatIsReplaced replaces the object after the step has read it and before it
// deletes it.
func TestDeleteOfAnObjectThatIsReplaced(t *testing.T) {
	p := newPlace(t)
	p.mustAct(p.admin(), execapi.ResourcePlan{Action: "create", Manifest: configMap("name: a", "")})
	reads := 0
	client := p.behind(func(w http.ResponseWriter, r *http.Request, server http.Handler) {
		server.ServeHTTP(w, r)
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/a") {
			if reads++; reads == 1 {
				for _, action := range []string{"delete", "create"} {
					if _, err := p.act(p.admin(), execapi.ResourcePlan{Action: action, Manifest: configMap("name: a", "")}); err != nil {
						t.Error(err)
					}
				}
			}
		}
	})
	if _, err := p.act(client, execapi.ResourcePlan{Action: "delete", Manifest: configMap("name: a", "")}); err != nil {
		t.Error(err)
	}
	if len(p.maps()) != 0 {
		t.Errorf("left: %v", p.maps())
	}
}

// TestUnknownFields checks that fields that the server does not know are refused unless the flag
// --validate says otherwise.
func TestUnknownFields(t *testing.T) {
	p := newPlace(t)
	p.mustAct(p.admin(), execapi.ResourcePlan{Action: "create", Manifest: configMap("name: replaced", "")})
	for flag, want := range map[string]string{
		"":                  "unknown field",
		"--validate":        "unknown field",
		"--validate=true":   "unknown field",
		"--validate=strict": "unknown field",
		"--validate=warn":   "",
		"--validate=ignore": "",
		"--validate=false":  "",
		"--validate=maybe":  "--validate: 'maybe' is none of strict",
	} {
		for action, metadata := range map[string]string{"create": "generateName: a-", "apply": "name: applied", "replace": "name: replaced"} {
			// Apply finds such a field by its types, whatever the flag says.
			if action == "apply" && want == "" {
				continue
			}
			_, err := p.act(p.admin(), execapi.ResourcePlan{
				Action: action, Manifest: configMap(metadata, "") + "datta: {}\n", Flags: strings.Fields(flag),
			})
			if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) && action != "apply" {
				t.Errorf("%s %s: the error is %v, want %q", action, flag, err, want)
			}
		}
	}
	_, err := p.act(p.admin(), execapi.ResourcePlan{Action: "delete", Manifest: configMap("name: a", ""), Flags: []string{"--validate"}})
	if err == nil || !strings.Contains(err.Error(), "--validate has no effect on delete") {
		t.Errorf("delete: %v", err)
	}
}

func TestReplace(t *testing.T) {
	p := newPlace(t)
	p.mustAct(p.admin(), execapi.ResourcePlan{Action: "create", Manifest: configMap("name: a", "old: x")})
	// Another client changes the object between the read and the write.
	reads := 0
	client := p.behind(func(w http.ResponseWriter, r *http.Request, server http.Handler) {
		server.ServeHTTP(w, r)
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/a") {
			if reads++; reads == 1 {
				p.patch("a", `{"data": {"other": "y"}}`)
			}
		}
	})
	p.mustAct(client, execapi.ResourcePlan{Action: "replace", Manifest: configMap("name: a", "new: z")})
	if diff := cmp.Diff(map[string]map[string]string{"a": {"new": "z"}}, p.maps()); diff != "" {
		t.Error(diff)
	}
	// A manifest that has a resource version replaces only that version.
	old := configMap(`name: a, resourceVersion: "1"`, "")
	_, err := p.act(p.admin(), execapi.ResourcePlan{Action: "replace", Manifest: old})
	if !incluster.Is(err, http.StatusConflict) {
		t.Errorf("an old version: %v", err)
	}
	_, err = p.act(p.admin(), execapi.ResourcePlan{Action: "replace", Manifest: configMap("name: none", "")})
	if !incluster.Is(err, http.StatusNotFound) {
		t.Errorf("an object that does not exist: %v", err)
	}
}
