package manager_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

var (
	appResource       = oam.GroupVersion.WithResource("applications")
	trackerResource   = oam.GroupVersion.WithResource("resourcetrackers")
	workflowResource  = schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "workflows"}
	configMapResource = corev1.SchemeGroupVersion.WithResource("configmaps")
	podResource       = corev1.SchemeGroupVersion.WithResource("pods")
	secretResource    = corev1.SchemeGroupVersion.WithResource("secrets")
	bindingResource   = rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings")
)

// hiddenValue is in a Secret of another namespace, which only administrators may read.
const hiddenValue = "hidden-from-all-but-administrators"

// tenant is a client of a service account with a role in its namespace. It authenticates with a
// token issued by the API server.
type tenant struct {
	*env
	user string
}

// tenant creates a service account, binds it to a ClusterRole in the test's namespace, and returns
// a client with its token.
func (e *env) tenant(name, role string) *tenant {
	e.Helper()
	accounts := e.core.CoreV1().ServiceAccounts(e.ns)
	if _, err := accounts.Create(e.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		e.Fatal(err)
	}
	_, err := e.core.RbacV1().RoleBindings(e.ns).Create(e.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: e.ns, Name: name}},
	}, metav1.CreateOptions{})
	if err != nil {
		e.Fatal(err)
	}
	token, err := accounts.CreateToken(e.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		e.Fatal(err)
	}
	admin := e.c.RESTConfig()
	as := *e
	as.dyn = dynamic.NewForConfigOrDie(&rest.Config{
		Host: admin.Host, BearerToken: token.Status.Token,
		TLSClientConfig: rest.TLSClientConfig{CAData: admin.CAData, CAFile: admin.CAFile},
	})
	user := "system:serviceaccount:" + e.ns + ":" + name
	verb := "create"
	if role == "view" {
		verb = "list"
	}
	localtest.UntilAllowed(e, e.core, user, verb, "jobs.batch.volcano.sh", e.ns)
	return &tenant{&as, user}
}

// try creates or updates objects given in YAML, in the test's namespace unless they name another.
func (e *env) try(manifests string) error {
	for doc := range strings.SplitSeq(manifests, "\n---\n") {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &u.Object); err != nil {
			return err
		}
		gvr, _ := meta.UnsafeGuessKindToResource(u.GroupVersionKind())
		var at dynamic.ResourceInterface = e.dyn.Resource(gvr)
		everywhere := []string{"Namespace", "Queue", "PriorityClass", "StorageClass", "PersistentVolume", "HyperNode", "APIService", "DeviceClass", "ResourceSlice"}
		if !slices.Contains(everywhere, u.GetKind()) && !strings.HasPrefix(u.GetKind(), "Cluster") {
			if u.GetNamespace() == "" {
				u.SetNamespace(e.ns)
			}
			at = e.dyn.Resource(gvr).Namespace(u.GetNamespace())
		}
		if _, err := at.Apply(e.Context(), u.GetName(), u, metav1.ApplyOptions{FieldManager: "user", Force: true}); err != nil {
			return fmt.Errorf("%s %s: %w", u.GetKind(), u.GetName(), err)
		}
	}
	return nil
}

// apply is try that must succeed.
func (e *env) apply(manifests string) {
	e.Helper()
	if err := e.try(manifests); err != nil {
		e.Fatal(err)
	}
}

// application returns an Application with this spec.
func application(name, spec string) string {
	return "apiVersion: core.oam.dev/v1beta1\nkind: Application\nmetadata: {name: " + name + "}\nspec:\n  " +
		strings.ReplaceAll(strings.TrimSpace(spec), "\n", "\n  ") + "\n"
}

// raw returns an application of one object.
func raw(name, object string) string {
	return application(name, "components: [{name: one, type: raw, properties: "+object+"}]")
}

// says waits until an object's status contains all parts, and returns the status as text.
func (e *env) says(gvr schema.GroupVersionResource, name string, parts ...string) string {
	e.Helper()
	var text string
	e.eventually(gvr.Resource+" "+name, func() error {
		u, err := e.dyn.Resource(gvr).Namespace(e.ns).Get(e.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		data, err := json.Marshal(u.Object["status"])
		text = strings.ReplaceAll(string(data), `\"`, `"`)
		for _, part := range parts {
			if err == nil && !strings.Contains(text, part) {
				err = fmt.Errorf("the status lacks %q: %s", part, text)
			}
		}
		return err
	})
	return text
}

func (e *env) absent(gvr schema.GroupVersionResource, namespace, name string) {
	e.Helper()
	if _, err := e.dyn.Resource(gvr).Namespace(namespace).Get(e.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		e.Errorf("%s %s/%s: %v; want that it does not exist", gvr.Resource, namespace, name, err)
	}
}

func (e *env) present(gvr schema.GroupVersionResource, namespace, name string) {
	e.Helper()
	e.eventually(gvr.Resource+" "+name, func() error {
		_, err := e.dyn.Resource(gvr).Namespace(namespace).Get(e.Context(), name, metav1.GetOptions{})
		return err
	})
}

// other creates another user's namespace, with a Secret.
func (e *env) other() string {
	e.Helper()
	ns := localtest.NamespaceForPods(e, e.core)
	e.apply("apiVersion: v1\nkind: Secret\nmetadata: {name: hidden, namespace: " + ns + "}\nstringData: {value: " + hiddenValue + ", values.yaml: \"value: " + hiddenValue + "\"}")
	return ns
}

func (e *env) hides(text string) {
	e.Helper()
	if strings.Contains(text, hiddenValue) || strings.Contains(text, base64.StdEncoding.EncodeToString([]byte(hiddenValue))) {
		e.Errorf("what was not to be read is in the status: %s", text)
	}
}

// TestNamespaceEditorsWriteNothingElsewhere checks the writes of applications: in the default
// installation, an application of a namespace's editor creates nothing that the editor could not
// create, and that of an administrator does.
func TestNamespaceEditorsWriteNothingElsewhere(t *testing.T) {
	e := start(t)
	other := e.other()
	mallory := e.tenant("mallory", "edit")
	mallory.mayWriteApplications()
	for _, attempt := range []struct {
		name, object, refusal string
		resource              schema.GroupVersionResource
		namespace, made       string
	}{
		{"other-namespace", `{apiVersion: v1, kind: ConfigMap, metadata: {name: planted, namespace: ` + other + `}}`,
			`cannot create resource "configmaps" in API group "" in the namespace "` + other + `"`, configMapResource, other, "planted"},
		{"kube-system-pod", `{apiVersion: v1, kind: Pod, metadata: {name: planted-` + e.ns + `, namespace: kube-system},
  spec: {nodeName: kwok-node-0, containers: [{name: c, image: busybox, securityContext: {privileged: true}}]}}`,
			`cannot create resource "pods" in API group "" in the namespace "kube-system"`, podResource, "kube-system", "planted-" + e.ns},
		{"token-secret", `{apiVersion: v1, kind: Secret, type: kubernetes.io/service-account-token, metadata: {name: planted-` + e.ns + `, namespace: kube-system,
  annotations: {kubernetes.io/service-account.name: clusterrole-aggregation-controller}}}`,
			`cannot create resource "secrets" in API group "" in the namespace "kube-system"`, secretResource, "kube-system", "planted-" + e.ns},
		{"binding", `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: planted-` + e.ns + `},
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: lockstep-manager}, subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: mallory}]}`,
			`cannot create resource "clusterrolebindings"`, bindingResource, "", "planted-" + e.ns},
	} {
		t.Run(attempt.name, func(t *testing.T) {
			e, mallory := e.in(t), mallory.in(t)
			mallory.apply(raw(attempt.name, attempt.object))
			e.says(appResource, attempt.name, attempt.refusal)
			e.absent(attempt.resource, attempt.namespace, attempt.made)
			e.apply(raw(attempt.name+"-by-admin", attempt.object))
			e.present(attempt.resource, attempt.namespace, attempt.made)
			e.says(appResource, attempt.name+"-by-admin", `"status":"running"`)
		})
	}
}

// TestDriftRepairActsForTheAuthor checks that an administrator's object is repaired until a user
// who may not create it changes the application.
func TestDriftRepairActsForTheAuthor(t *testing.T) {
	e := start(t)
	mallory := e.tenant("mallory", "edit")
	mallory.mayWriteApplications()
	name := "repaired-" + e.ns
	e.apply(raw("drift", `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: `+name+`},
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: lockstep-manager}, subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: a}]}`))
	e.says(appResource, "drift", `"status":"running"`)
	if err := e.dyn.Resource(bindingResource).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	e.present(bindingResource, "", name)
	mallory.patch(appResource, "drift", `{"metadata":{"annotations":{"changed-by":"mallory"}}}`)
	// The manager may see the deletion before it sees who has changed the application, and then acts for the
	// author before.
	e.eventually("the repair acts for mallory", func() error {
		if err := e.dyn.Resource(bindingResource).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		u, err := e.dyn.Resource(appResource).Namespace(e.ns).Get(t.Context(), "drift", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if status := asJSON(u.Object["status"]); !strings.Contains(status, `User \"`+mallory.user+`\" cannot create resource \"clusterrolebindings\"`) {
			return fmt.Errorf("the status lacks the refusal: %s", status)
		}
		return nil
	})
	e.absent(bindingResource, "", name)
}

// TestNamespaceEditorsReadNothingElsewhere checks what applications, workflows and jobs show of
// objects that their author may not read.
func TestNamespaceEditorsReadNothingElsewhere(t *testing.T) {
	e := start(t)
	other := e.other()
	mallory := e.tenant("mallory", "edit")
	mallory.mayWriteApplications()
	e.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: plain, namespace: " + other + "}\ndata: {value: " + hiddenValue + "}")

	t.Run("template", func(t *testing.T) {
		e, mallory := e.in(t), mallory.in(t)
		mallory.apply(`apiVersion: core.oam.dev/v1beta1
kind: ComponentDefinition
metadata: {name: peek}
spec:
  workload: {type: autodetects.core.oam.dev}
  schematic: {cue: {template: 'output: {apiVersion: "v1", kind: "Secret", metadata: {name: "hidden", namespace: "` + other + `"}}'}}
  status:
    customStatus: 'message: context.output.data.value'
`)
		mallory.apply(application("peek", "components: [{name: one, type: peek}]\npolicies: [{name: ro, type: read-only, properties: {rules: [{selector: {componentNames: [one]}}]}}]"))
		e.hides(e.says(appResource, "peek", `cannot get resource "secrets"`))
	})
	t.Run("step", func(t *testing.T) {
		e, mallory := e.in(t), mallory.in(t)
		mallory.apply(`apiVersion: core.oam.dev/v1beta1
kind: WorkflowStepDefinition
metadata: {name: peek}
spec:
  schematic:
    cue:
      template: |
        import "vela/kube"
        read: kube.#Read & {$params: value: {apiVersion: "v1", kind: "Secret", metadata: {name: "hidden", namespace: "` + other + `"}}}
        message: read.$returns.value.data.value
`)
		mallory.apply(application("peek-step", "components: []\nworkflow: {steps: [{name: one, type: peek}]}"))
		e.hides(e.says(appResource, "peek-step", "applications do not reach objects of namespace "+other))
	})
	t.Run("ref-objects", func(t *testing.T) {
		e, mallory := e.in(t), mallory.in(t)
		mallory.apply(application("ref", "components: [{name: one, type: ref-objects, properties: {objects: [{resource: secrets, namespace: "+other+", name: hidden}]}}]"))
		e.hides(e.says(appResource, "ref", "applications do not reach objects of namespace "+other))
		e.absent(secretResource, e.ns, "hidden")
	})
	t.Run("chart", func(t *testing.T) {
		e, mallory := e.in(t), mallory.in(t)
		mallory.apply(application("chart", `components:
- name: one
  type: helmchart
  properties:
    chart: {source: any, repoURL: "https://charts.invalid", version: 1.0.0}
    valuesFrom: [{kind: Secret, name: hidden, namespace: `+other+`}]`))
		e.hides(e.says(appResource, "chart", "applications do not reach objects of namespace "+other))
	})
	t.Run("http-step", func(t *testing.T) {
		e, mallory := e.in(t), mallory.in(t)
		// The manager sends no credentials of its own, and does not connect to its own machine.
		mallory.apply(application("http", `components: []
workflow: {steps: [{name: one, type: request, properties: {url: "`+e.c.RESTConfig().Host+`/api/v1/namespaces/`+other+`/secrets/hidden", method: GET}}]}`))
		e.hides(e.says(appResource, "http", "does not connect to 127.0.0.1"))
	})
	t.Run("repository", func(t *testing.T) {
		e, mallory := e.in(t), mallory.in(t)
		e.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: plain, namespace: lockstep-system}\ndata: {value: \"s3: {bucket: " + hiddenValue + "}\"}")
		mallory.apply(`apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: repository}
spec:
  entrypoint: main
  artifactRepositoryRef: {configMap: plain, key: value}
  templates: [{name: main, container: {image: busybox}, outputs: {artifacts: [{name: a, path: /a}]}}]
`)
		e.hides(e.says(workflowResource, "repository", "not found"))
	})
	t.Run("semaphore", func(t *testing.T) {
		e, mallory := e.in(t), mallory.in(t)
		mallory.apply(`apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: peek}
spec:
  entrypoint: main
  synchronization: {semaphores: [{namespace: ` + other + `, configMapKeyRef: {name: plain, key: value}}]}
  templates: [{name: main, container: {image: busybox}}]
`)
		e.hides(e.says(workflowResource, "peek", "namespace "+other))
	})
}

// TestWorkflowsRunAsServiceAccountsOfTheirNamespace checks that neither a step nor a resource
// template gets more rights than a pod created by the user.
func TestWorkflowsRunAsServiceAccountsOfTheirNamespace(t *testing.T) {
	e := start(t)
	t.Cleanup(func() {
		_ = e.dyn.Resource(workflowResource).Namespace(e.ns).DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{})
	})
	mallory := e.tenant("mallory", "edit")
	mallory.apply(`apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: borrowed}
spec:
  entrypoint: main
  serviceAccountName: clusterrole-aggregation-controller
  templates: [{name: main, container: {image: busybox}}]
`)
	e.says(workflowResource, "borrowed", `serviceaccount "clusterrole-aggregation-controller" not found`)
	mallory.apply(`apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: resource}
spec:
  entrypoint: main
  templates:
  - name: main
    resource:
      action: create
      manifest: |
        {apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: planted-` + e.ns + `},
         roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}, subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: mallory}]}
`)
	// The manifest is applied in a pod of the namespace, with that pod's own service account.
	e.eventually("the pod of the resource template", func() error {
		for _, p := range e.pods() {
			if p.Labels["workflows.argoproj.io/workflow"] == "resource" {
				if p.Spec.ServiceAccountName != "default" {
					t.Errorf("the pod runs as %s", p.Spec.ServiceAccountName)
				}
				return nil
			}
		}
		return fmt.Errorf("there is none")
	})
	e.absent(bindingResource, "", "planted-"+e.ns)
}

// in returns the environment for a subtest.
func (e *env) in(t *testing.T) *env {
	part := *e
	part.TB = t
	return &part
}

func (m *tenant) in(t *testing.T) *tenant { return &tenant{m.env.in(t), m.user} }

func (e *env) patch(gvr schema.GroupVersionResource, name, patch string) {
	e.Helper()
	if _, err := e.dyn.Resource(gvr).Namespace(e.ns).Patch(e.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		e.Fatal(err)
	}
}

// mayWriteApplications waits until the API server admits the tenant's applications and records
// their author.
func (m *tenant) mayWriteApplications() {
	m.Helper()
	localtest.UntilAllowed(m, m.core, m.user, "create", "applications.core.oam.dev", m.ns)
	m.eventually("applications are admitted", func() error { return m.try(raw("first", "{apiVersion: v1, kind: ConfigMap, metadata: {name: first}}")) })
}
