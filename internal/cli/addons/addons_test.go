package addons_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"lockstep.dev/lockstep/internal/application/chart/charttest"
	"lockstep.dev/lockstep/internal/cli"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/manager/managertest"
)

func TestMain(m *testing.M) {
	managertest.Main(m, localtest.WithControllerManager(), localtest.WithApplications())
}

const system = "vela-system"

var (
	configMaps   = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	secrets      = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	applications = schema.GroupVersionResource{Group: "core.oam.dev", Version: "v1beta1", Resource: "applications"}
	components   = schema.GroupVersionResource{Group: "core.oam.dev", Version: "v1beta1", Resource: "componentdefinitions"}
)

// env is a cluster with a manager, and a namespace for one test.
type env struct {
	*testing.T
	ns, kubeconfig string
	dyn            dynamic.Interface
}

func connect(t *testing.T) *env {
	t.Helper()
	c := managertest.Shared(t)
	return &env{t, localtest.Namespace(t, kubernetes.NewForConfigOrDie(c.RESTConfig())), c.Kubeconfig(), dynamic.NewForConfigOrDie(c.RESTConfig())}
}

// lockstep runs a command line with a text on standard input.
func (e *env) lockstep(in string, args ...string) (code int, out, errOut string) {
	e.Helper()
	var o, x bytes.Buffer
	code = cli.Run(append(args, "--kubeconfig", e.kubeconfig), strings.NewReader(in), &o, &x)
	return code, o.String(), x.String()
}

// works runs a command line that must succeed.
func (e *env) works(args ...string) (out, errOut string) {
	e.Helper()
	code, out, errOut := e.lockstep("", args...)
	if code != 0 {
		e.Fatalf("%v: exit code %d\n%s%s", args, code, out, errOut)
	}
	return out, errOut
}

// fails runs a command line whose error must contain all wants.
func (e *env) fails(args []string, wants ...string) {
	e.Helper()
	code, out, errOut := e.lockstep("", args...)
	if code != 1 {
		e.Fatalf("%v: exit code %d\n%s%s", args, code, out, errOut)
	}
	e.has(errOut, wants...)
}

func (e *env) has(text string, wants ...string) {
	e.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			e.Errorf("%q is not in:\n%s", want, text)
		}
	}
}

// folder writes files to a new folder and returns its path. The keys are paths such as ADDON/metadata.yaml.
func (e *env) folder(files map[string]string) string {
	e.Helper()
	dir := e.TempDir()
	for name, text := range files {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			e.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			e.Fatal(err)
		}
	}
	return dir
}

func (e *env) get(gvr schema.GroupVersionResource, ns, name string) (*unstructured.Unstructured, error) {
	return e.dyn.Resource(gvr).Namespace(ns).Get(e.Context(), name, metav1.GetOptions{})
}

func (e *env) there(gvr schema.GroupVersionResource, ns, name string) *unstructured.Unstructured {
	e.Helper()
	u, err := e.get(gvr, ns, name)
	if err != nil {
		e.Fatal(err)
	}
	return u
}

func (e *env) gone(gvr schema.GroupVersionResource, ns, name string) {
	e.Helper()
	localtest.Eventually(e, gvr.Resource+" "+name+" is gone", func() error {
		_, err := e.get(gvr, ns, name)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %v", err)
	})
}

// definition is a component of the type NAME: a ConfigMap with a text.
func definition(name string) string {
	return name + `: {type: "component", attributes: workload: type: "autodetects.core.oam.dev"}
template: {
	output: {apiVersion: "v1", kind: "ConfigMap", metadata: name: context.name, data: text: parameter.text}
	parameter: text: string
}
`
}

// TestAnAddonIsEnabledUsedAndDisabled checks the life of an addon that depends on another one.
func TestAnAddonIsEnabledUsedAndDisabled(t *testing.T) {
	e := connect(t)
	dir := e.folder(map[string]string{
		"base/metadata.yaml":        "name: base\nversion: 1.2.0\n",
		"base/definitions/base.cue": definition("base"),
		"notes/metadata.yaml": `
name: notes
version: 1.0.0
description: notes of users
dependencies: [{name: base, version: ">=v1.0.0"}]
system: {kubernetes: ">=1.20", vela: ">=v1.5.0"}
needNamespace: [` + e.ns + `-notes]
`,
		"notes/template.cue": `package main
output: spec: {
	components: [greeting]
	workflow: steps: [{name: "all", type: "deploy"}]
}
outputs: info: {apiVersion: "v1", kind: "ConfigMap", metadata: name: "notes-info", data: version: context.metadata.version}
`,
		"notes/resources/greeting.cue": `package main
greeting: {name: "greeting", type: "base", properties: text: parameter.greeting}
`,
		"notes/resources/more.yaml":    "{apiVersion: v1, kind: ConfigMap, metadata: {name: notes-more}}",
		"notes/resources/far.cue":      `output: {type: "k8s-objects", properties: objects: [{apiVersion: "v1", kind: "ConfigMap", metadata: {name: "far", namespace: "` + e.ns + `-notes"}}]}`,
		"notes/parameter.cue":          "parameter: {\n\t// +usage=What it says\n\tgreeting: string\n\tsize: *1 | int\n}\n",
		"notes/definitions/note.cue":   definition("note"),
		"notes/views/notes-view.cue":   "parameter: {}\nstatus: {}\n",
		"notes/schemas/note-form.yaml": "- {jsonKey: text}\n",
		"notes/NOTES.cue":              "package main\nnotes: \"It says \\(parameter.greeting).\"\n",
	})

	// Nobody agrees.
	code, _, errOut := e.lockstep("\n", "addon", "enable", "notes", "greeting=hello", "--registry", dir)
	if code != 1 {
		t.Fatalf("exit code %d: %s", code, errOut)
	}
	e.has(errOut, "base 1.2.0, notes 1.0.0:", "KIND", "core.oam.dev/ComponentDefinition", "Enable base 1.2.0, notes 1.0.0? [y/N]", "nothing was done")
	e.gone(applications, system, "addon-base")
	e.fails([]string{"addon", "enable", "notes", "--registry", dir, "--yes"}, "parameter.greeting")
	e.fails([]string{"addon", "status", "notes"}, "is not enabled")

	code, out, errOut := e.lockstep("y\n", "addon", "enable", "notes", "greeting=hello", "sise=2", "--registry", dir, "--wait")
	if code != 0 {
		t.Fatalf("exit code %d: %s%s", code, out, errOut)
	}
	e.has(errOut, "the parameter sise has no effect")
	e.has(out, "addon/base enabled: version 1.2.0", "addon/notes enabled: version 1.0.0, application vela-system/addon-notes", "It says hello.")
	if text, _, _ := unstructured.NestedString(e.there(configMaps, system, "greeting").Object, "data", "text"); text != "hello" {
		t.Errorf("the component says %q", text)
	}
	for _, name := range []string{"notes-info", "notes-view", "note-form", "notes-more"} {
		e.there(configMaps, system, name)
	}
	e.there(configMaps, e.ns+"-notes", "far")

	// It is used, seen, and kept while it is used.
	app := `{apiVersion: core.oam.dev/v1beta1, kind: Application, metadata: {name: user}, spec: {components: [{name: mine, type: note, properties: {text: a}}]}}`
	e.works("app", "up", "--wait", "-n", e.ns, "-f", filepath.Join(e.folder(map[string]string{"app.yaml": app}), "app.yaml"))
	out, _ = e.works("addon", "list", "--registry", dir)
	e.has(out, "base", "1.2.0", "running", "notes of users")
	out, _ = e.works("addon", "status", "notes", "-o", "json")
	var st map[string]any
	if err := json.Unmarshal([]byte(out), &st); err != nil || st["enabled"] != "1.0.0" || st["phase"] != "running" || fmt.Sprint(st["parameters"]) != "map[greeting:hello sise:2]" {
		t.Errorf("the status is %v, %v", out, err)
	}
	e.fails([]string{"addon", "disable", "notes"}, "is used by "+e.ns+"/user")
	e.works("app", "delete", "user", "-n", e.ns, "--wait")

	e.works("addon", "disable", "notes", "--wait")
	for _, name := range []string{"greeting", "notes-info", "notes-view", "note-form", "notes-more"} {
		e.gone(configMaps, system, name)
	}
	e.gone(components, system, "note")
	e.gone(secrets, system, "addon-secret-notes")
	e.there(components, system, "base")
	e.works("addon", "disable", "base", "--wait")
	e.gone(components, system, "base")
}

// TestAnAddonIsUpgraded checks that the parameters are kept, and that definitions of the earlier
// version are deleted.
func TestAnAddonIsUpgraded(t *testing.T) {
	e := connect(t)
	s := &charttest.Server{}
	for version, files := range map[string]map[string]string{
		"1.0.0": {"definitions/early.cue": definition("early"), "definitions/both.cue": definition("both")},
		"1.1.0": {"definitions/late.cue": definition("late"), "definitions/both.cue": definition("both")},
	} {
		files["metadata.yaml"] = "name: grows\nversion: " + version + "\n"
		files["parameter.cue"] = "parameter: {color: *\"red\" | string, size: {width: *1 | int, height: *1 | int}}\n"
		files["resources/state.cue"] = `output: {type: "k8s-objects", properties: objects: [{apiVersion: "v1", kind: "ConfigMap", metadata: name: "grows-state",
	data: text: "\(context.metadata.version) \(parameter.color) \(parameter.size.width) \(parameter.size.height)"}]}`
		s.Publish("grows", version, charttest.Pack("grows", version, files))
	}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	out, _ := e.works("addon", "registry", "add", "upgrades", server.URL+"/charts")
	e.has(out, "registry/upgrades added")
	out, _ = e.works("addon", "registry", "list")
	e.has(out, "upgrades", "helm", server.URL+"/charts")
	state := func(want string) {
		t.Helper()
		localtest.Eventually(t, "the state", func() error {
			u, err := e.get(configMaps, system, "grows-state")
			if err != nil {
				return err
			}
			if text, _, _ := unstructured.NestedString(u.Object, "data", "text"); text != want {
				return fmt.Errorf("it is %q, not %q", text, want)
			}
			return nil
		})
	}
	e.fails([]string{"addon", "upgrade", "grows", "--yes"}, "is not enabled")
	e.works("addon", "enable", "grows", "color=blue", "size.width=2", "--version", "1.0.0", "--yes", "--wait")
	state("1.0.0 blue 2 1")
	e.works("addon", "upgrade", "grows", "size.height=3", "--yes", "--wait")
	state("1.1.0 blue 2 3")
	e.there(components, system, "late")
	e.there(components, system, "both")
	if _, err := e.get(components, system, "early"); !apierrors.IsNotFound(err) {
		t.Errorf("the definition of the earlier version: %v", err)
	}
	out, _ = e.works("addon", "list", "-o", "json")
	e.has(out, `"registry": "upgrades"`, `"enabled": "1.1.0"`)
	e.works("addon", "disable", "grows", "--wait")
	out, _ = e.works("addon", "registry", "delete", "upgrades")
	e.has(out, "registry/upgrades deleted")
	e.fails([]string{"addon", "enable", "grows", "--yes"}, "there is no registry")
}

// as returns an env whose kubeconfig impersonates a user with the rights of rules.
func (e *env) as(user, rules string) *env {
	e.Helper()
	for _, manifest := range []string{
		`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: %[1]s}, rules: %[2]s}`,
		`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: %[1]s}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[1]s},
 subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %[1]s}]}`,
	} {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(fmt.Appendf(nil, manifest, user, rules), &u.Object); err != nil {
			e.Fatal(err)
		}
		gvr := schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: strings.ToLower(u.GetKind()) + "s"}
		if _, err := e.dyn.Resource(gvr).Create(e.Context(), u, metav1.CreateOptions{}); err != nil {
			e.Fatal(err)
		}
	}
	cfg, err := clientcmd.LoadFromFile(e.kubeconfig)
	if err != nil {
		e.Fatal(err)
	}
	for _, a := range cfg.AuthInfos {
		a.Impersonate = user
	}
	out := *e
	out.kubeconfig = filepath.Join(e.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, out.kubeconfig); err != nil {
		e.Fatal(err)
	}
	return &out
}

// TestMissingRightsAreNamed checks an addon with a kind of its own, which the manager may not read,
// and a user who may not make what an addon makes.
func TestMissingRightsAreNamed(t *testing.T) {
	e := connect(t)
	group := e.ns + ".example"
	dir := e.folder(map[string]string{
		"metadata.yaml": "name: gadgets\nversion: 1.0.0\n",
		"resources/crd.yaml": `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.` + group + `}
spec:
  group: ` + group + `
  scope: Namespaced
  names: {kind: Gadget, plural: gadgets, singular: gadget, listKind: GadgetList}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`,
		"resources/gadget.cue": `output: {type: "k8s-objects", properties: objects: [{apiVersion: "` + group + `/v1", kind: "Gadget", metadata: name: "one"}]}`,
	})
	enable := []string{"addon", "enable", dir, "--yes"}
	e.fails(enable, group+"/Gadget", "the manager may not get, list, watch, delete gadgets."+group, "lockstep.dev/aggregate-to-applications", "--any-kind")
	e.gone(applications, system, "addon-gadgets")
	out, _ := e.works(append(enable, "--dry-run=client")...)
	e.has(out, "kind: Application", "name: addon-gadgets", "type: k8s-objects")

	user := e.as(e.ns, `[{apiGroups: ["*"], resources: ["*"], verbs: [get, list, watch]}, {apiGroups: [core.oam.dev], resources: ["*"], verbs: ["*"]},
 {apiGroups: [authorization.k8s.io], resources: ["*"], verbs: [create]}]`)
	user.fails(enable, "you may not create, patch, delete customresourcedefinitions.apiextensions.k8s.io in all namespaces, and the application acts with your rights",
		"you may not create, patch, delete gadgets."+group+" in namespace vela-system")

	_, _, errOut := e.lockstep("", enable...)
	roles := e.dyn.Resource(schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"})
	given := 0
	for text := range strings.SplitSeq(errOut, "This ClusterRole gives the rights: ") {
		manifest, _, ok := strings.Cut(text, "; for all kinds")
		if !ok {
			continue
		}
		role := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(manifest), &role.Object); err != nil {
			t.Fatalf("%v: %s", err, manifest)
		}
		if _, err := roles.Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		given++
	}
	if given != 2 { // of the kind, and of the object that defines it
		t.Errorf("%d roles are given:\n%s", given, errOut)
	}
	localtest.Eventually(t, "the manager has the rights", func() error {
		if code, out, errOut := e.lockstep("", append(enable, "--wait")...); code != 0 {
			return fmt.Errorf("exit code %d: %s%s", code, out, errOut)
		}
		return nil
	})
	e.there(schema.GroupVersionResource{Group: group, Version: "v1", Resource: "gadgets"}, system, "one")
	e.works("addon", "disable", "gadgets", "--wait")
}

// TestAnAddonOfKubeVelaIsTakenOver checks an addon whose objects KubeVela has made: it is listed
// with its parameters, upgraded and disabled.
func TestAnAddonOfKubeVelaIsTakenOver(t *testing.T) {
	e := connect(t)
	create := func(gvr schema.GroupVersionResource, manifest string) {
		t.Helper()
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(manifest), &u.Object); err != nil {
			t.Fatal(err)
		}
		if _, err := e.dyn.Resource(gvr).Namespace(system).Create(t.Context(), u, metav1.CreateOptions{FieldManager: "vela"}); err != nil {
			t.Fatal(err)
		}
	}
	create(applications, `
apiVersion: core.oam.dev/v1beta1
kind: Application
metadata:
  name: addon-theirs
  labels: {addons.oam.dev/name: theirs, addons.oam.dev/version: 1.0.0, addons.oam.dev/registry: KubeVela}
spec: {components: [{name: theirs-resources, type: k8s-objects, properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: theirs}, data: {text: old, size: "1"}}]}}]}
`)
	create(secrets, `{apiVersion: v1, kind: Secret, metadata: {name: addon-secret-theirs}, stringData: {addonParameterDataKey: '{"text":"kept"}'}}`)
	out, _ := e.works("addon", "list")
	e.has(out, "theirs", "KubeVela", "1.0.0")
	out, _ = e.works("addon", "status", "theirs")
	e.has(out, "1.0.0", "vela-system/addon-theirs", `{"text":"kept"}`)
	dir := e.folder(map[string]string{
		"metadata.yaml": "name: theirs\nversion: 1.1.0\n", "parameter.cue": "parameter: {text: string, size: *1 | int}\n",
		"resources/theirs-resources.cue": `output: {type: "k8s-objects", properties: objects: [{apiVersion: "v1", kind: "ConfigMap", metadata: name: "theirs", data: {text: parameter.text, size: "\(parameter.size)"}}]}`,
	})
	e.works("addon", "upgrade", dir, "size=2", "--yes", "--wait")
	data, _, _ := unstructured.NestedStringMap(e.there(configMaps, system, "theirs").Object, "data")
	if data["text"] != "kept" || data["size"] != "2" {
		t.Errorf("the object has %v", data)
	}
	e.works("addon", "disable", "theirs", "--wait")
	e.gone(configMaps, system, "theirs")
}

// refused has addons that are not enabled.
var refused = map[string]struct {
	files map[string]string
	want  string
}{
	"a definition of others":         {map[string]string{"definitions/worker.cue": definition("worker")}, "ComponentDefinition worker: there are such definitions already"},
	"a newer Kubernetes":             {map[string]string{"metadata.yaml": "name: hostile\nversion: 1.0.0\nsystem: {kubernetes: \">=9.0\"}\n"}, "requires Kubernetes >=9.0"},
	"a newer KubeVela":               {map[string]string{"metadata.yaml": "name: hostile\nversion: 1.0.0\nsystem: {vela: \">=v9.0.0\"}\n"}, "requires KubeVela >=v9.0.0"},
	"a dependency that is none":      {map[string]string{"metadata.yaml": "name: hostile\nversion: 1.0.0\ndependencies: [{name: none}]\n"}, "depends on none"},
	"a dependency on itself":         {map[string]string{"metadata.yaml": "name: hostile\nversion: 1.0.0\ndependencies: [{name: hostile}]\n"}, "in a circle"},
	"a program that is hostile":      {map[string]string{"template.cue": "import \"strings\"\noutput: spec: components: [{name: strings.Repeat(strings.Repeat(strings.Repeat(\"x\", 4096), 4096), 4096)}]\n"}, "512 MiB of memory"},
	"an object without a namespace":  {map[string]string{"template.cue": "output: spec: components: []\noutputs: ns: {apiVersion: \"v1\", kind: \"Namespace\", metadata: name: \"hostile\"}\n"}, "has no namespace, and cannot belong to"},
	"a component type that is none":  {map[string]string{"resources/a.cue": "output: {type: \"none-such\", properties: {}}\n"}, "none-such"},
	"a file that leads out of it":    {map[string]string{"resources/a.cue": "import \"../../x\"\noutput: {}\n"}, "addon hostile"},
	"a template that is no template": {map[string]string{"template.yaml": "kind: Secret\n"}, "the template is a Secret"},
}

// TestAddonsAreRefused checks addons that are wrong or hostile. Nothing of them is applied.
func TestAddonsAreRefused(t *testing.T) {
	e := connect(t)
	for what, c := range refused {
		t.Run(what, func(t *testing.T) {
			files := map[string]string{"hostile/metadata.yaml": "name: hostile\nversion: 1.0.0\n"}
			for name, text := range c.files {
				files["hostile/"+name] = text
			}
			e := *e
			e.T = t
			dir := e.folder(files)
			code, out, errOut := e.lockstep("n\n", "addon", "enable", filepath.Join(dir, "hostile"), "--registry", dir)
			if code != 1 || !strings.Contains(errOut, c.want) {
				t.Errorf("exit code %d, want %q in:\n%s%s", code, c.want, out, errOut)
			}
			if _, err := e.get(applications, system, "addon-hostile"); !apierrors.IsNotFound(err) {
				t.Errorf("the application: %v", err)
			}
		})
	}
}

// TestPasswordsOfRegistriesAreInSecrets checks that the list of registries, which many may read,
// has none.
func TestPasswordsOfRegistriesAreInSecrets(t *testing.T) {
	e := connect(t)
	s := &charttest.Server{User: "me", Password: "s3cret"}
	s.Publish("closed", "1.0.0", charttest.Pack("closed", "1.0.0", map[string]string{"metadata.yaml": "name: closed\nversion: 1.0.0\n"}))
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	code, out, errOut := e.lockstep("s3cret\n", "addon", "registry", "add", "closed", server.URL+"/closed", "--username", "me", "--password-stdin")
	if code != 0 {
		t.Fatalf("exit code %d: %s%s", code, out, errOut)
	}
	list := e.there(configMaps, system, "vela-addon-registry")
	text, _, _ := unstructured.NestedString(list.Object, "data", "registries")
	e.has(text, `"closed":{"name":"closed","helm":{"url":"`+server.URL+`/closed","username":"me"}}`)
	e.there(secrets, system, "addon-registry-closed")
	out, _ = e.works("addon", "list", "-o", "name")
	e.has(out, "addon/closed")
	e.works("addon", "enable", "closed", "--registry", "closed", "--yes", "--dry-run=server")
	e.works("addon", "registry", "delete", "closed")
	e.gone(secrets, system, "addon-registry-closed")
	for _, args := range [][]string{{"closed", "ftp://a.example"}, {"local", "https://a.example"}, {"a", "https://me:secret@a.example"}, {"a", "."}} {
		if code, _, _ := e.lockstep("", append([]string{"addon", "registry", "add"}, args...)...); code != 2 {
			t.Errorf("%v: exit code %d", args, code)
		}
	}
}
