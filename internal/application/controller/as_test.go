package controller_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// user returns an env whose dynamic client impersonates a user. The user has the rights of a
// ClusterRole in the namespace.
func (e *env) user(name, clusterRole string) *env {
	e.Helper()
	_, err := e.core.RbacV1().RoleBindings(e.ns).Create(e.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: clusterRole},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}},
	}, metav1.CreateOptions{})
	if err != nil {
		e.Fatal(err)
	}
	cfg := e.c.RESTConfig()
	cfg.Impersonate = rest.ImpersonationConfig{UserName: name}
	as := *e
	as.dyn = dynamic.NewForConfigOrDie(cfg)
	return &as
}

const roleApplication = `
components:
- name: role
  type: k8s-objects
  properties:
    objects:
    - {apiVersion: v1, kind: ConfigMap, metadata: {name: mine}, data: {k: v}}
    - {apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: all}, rules: [{apiGroups: ["*"], resources: ["*"], verbs: ["*"]}]}
`

func TestApplicationsActWithTheRightsOfTheirAuthors(t *testing.T) {
	e := start(t)
	alice := e.user("alice", "edit")
	alice.eventually("alice may write applications", func() error {
		return alice.tryApp("own", placedLocally("own", "v"))
	})
	alice.until("own", inPhase(oam.PhaseRunning))
	app := e.application("own")
	if app.Annotations[oam.UsernameAnnotation] != "alice" {
		t.Errorf("the author is %q", app.Annotations[oam.UsernameAnnotation])
	}
	// The editor of a namespace may not grant rights, so her Application may not either.
	alice.app("rights", roleApplication)
	alice.until("rights", says(oam.ConditionReady, "roles.rbac.authorization.k8s.io", `User "alice" cannot create`))
	if _, err := e.get(roles, "all"); !apierrors.IsNotFound(err) {
		t.Errorf("the role: %v", err)
	}
	// She cannot name another author.
	err := alice.tryPatch("rights", `{"metadata":{"annotations":{"app.oam.dev/username":"lockstep-test-admin","app.oam.dev/group":"system:masters"}}}`)
	if err != nil {
		t.Fatal(err)
	}
	if app := e.application("rights"); app.Annotations[oam.UsernameAnnotation] != "alice" || strings.Contains(app.Annotations[oam.GroupAnnotation], "masters") {
		t.Errorf("annotations %v", app.Annotations)
	}
	err = alice.tryPatch("rights", `{"metadata":{"annotations":{"app.oam.dev/service-account-name":"powerful"}}}`)
	if err != nil && !strings.Contains(err.Error(), "may not act as service account powerful") {
		t.Errorf("a service account that she may not be: %v", err)
	}
	// Without the role, her Application is deployed.
	alice.app("rights", strings.Join(strings.Split(roleApplication, "\n")[:7], "\n"))
	alice.until("rights", inPhase(oam.PhaseRunning))
	// Whoever changes an Application becomes its author.
	carol := e.user("carol", "cluster-admin")
	carol.eventually("carol may", func() error { return carol.tryPatch("rights", `{"metadata":{"labels":{"by":"carol"}}}`) })
	if app := e.application("rights"); app.Annotations[oam.UsernameAnnotation] != "carol" {
		t.Errorf("the author is %q", app.Annotations[oam.UsernameAnnotation])
	}
	// The Application's recorded objects are deleted, whatever its author may do.
	e.delete(applications, "rights")
	e.gone(applications, "rights")
	e.gone(configMaps, "mine")
	e.delete(applications, "own")
	e.gone(applications, "own")
}

var roles = rbacv1.SchemeGroupVersion.WithResource("roles")

func placedLocally(name, value string) string {
	return placed(name, value, "{clusters: [local]}")
}

func (e *env) tryApp(name, spec string) error {
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte("apiVersion: core.oam.dev/v1beta1\nkind: Application\nmetadata: {name: "+name+"}\nspec:\n"+indent(spec)), &u.Object); err != nil {
		return err
	}
	_, err := e.dyn.Resource(applications).Namespace(e.ns).Apply(e.Context(), name, u, metav1.ApplyOptions{FieldManager: "user", Force: true})
	return err
}

func (e *env) tryPatch(name, patch string) error {
	kind := types.MergePatchType
	if strings.HasPrefix(patch, "[") {
		kind = types.JSONPatchType
	}
	_, err := e.dyn.Resource(applications).Namespace(e.ns).Patch(e.Context(), name, kind, []byte(patch), metav1.PatchOptions{})
	return err
}

// greedyTemplate is a template of configs that would give all rights.
const greedyTemplate = `
apiVersion: v1
kind: ConfigMap
metadata: {name: config-template-account, labels: {config.oam.dev/catalog: velacore-config}}
data: {template: 'template: {output: {kind: "Secret"}, outputs: all: {apiVersion: "rbac.authorization.k8s.io/v1", kind: "Role", metadata: name: "stolen", rules: [{apiGroups: ["*"], resources: ["*"], verbs: ["*"]}]}, parameter: {}}'}
`

// stepsBeyondRights has steps for which their author has no rights: they grant rights, read, list,
// delete and send what the author may not read, run a command, and make configs.
const stepsBeyondRights = `
components: []
workflow:
  mode: {steps: DAG}
  steps:
  - {name: give, type: apply-object, properties: {value: {apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: stolen}, rules: [{apiGroups: ["*"], resources: ["*"], verbs: ["*"]}]}}}
  - {name: read, type: read-object, properties: {apiVersion: v1, kind: Secret, name: hidden}}
  - {name: hand, type: reader-of-lists}
  - {name: cut, type: cutter}
  - {name: send, type: webhook, properties: {url: {secretRef: {name: hidden, key: url}}}}
  - {name: run, type: vela-cli, properties: {command: [kubectl, get, secrets, -A], serviceAccountName: kubevela-vela-core}}
  - {name: conf, type: create-config, properties: {name: c, template: account, config: {}}}
  - {name: look, type: create-config, properties: {name: c, template: no-template, config: {}}}
`

const stepDefinitions = `
apiVersion: core.oam.dev/v1beta1
kind: WorkflowStepDefinition
metadata: {name: reader-of-lists}
spec:
  schematic:
    cue:
      template: |
        import "vela/kube"
        list: kube.#List & {$params: {resource: {apiVersion: "v1", kind: "Secret"}, filter: {namespace: context.namespace}}}
        parameter: {}
---
apiVersion: core.oam.dev/v1beta1
kind: WorkflowStepDefinition
metadata: {name: cutter}
spec:
  schematic:
    cue:
      template: |
        import "vela/kube"
        cut: kube.#Delete & {$params: value: {apiVersion: "v1", kind: "Secret", metadata: name: "hidden"}}
        parameter: {}
`

func TestStepsActWithTheRightsOfTheAuthor(t *testing.T) {
	e := start(t)
	e.apply("apiVersion: v1\nkind: Secret\nmetadata: {name: hidden}\nstringData: {url: \"http://127.0.0.1:1/hidden-value\"}\n")
	for _, d := range strings.Split(stepDefinitions, "\n---\n") {
		e.apply(d)
	}
	for _, text := range []string{greedyTemplate, "{apiVersion: v1, kind: ConfigMap, metadata: {name: config-template-no-template}, data: {template: hidden-value}}"} {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
			t.Fatal(err)
		}
		if _, err := e.dyn.Resource(configMaps).Namespace(oam.SystemNamespace).Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	role := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: writes-applications-only},
rules: [{apiGroups: [core.oam.dev], resources: [applications], verbs: ["*"]}, {apiGroups: [""], resources: [configmaps], verbs: ["*"]}]}`), &role.Object); err != nil {
		t.Fatal(err)
	}
	if _, err := e.dyn.Resource(rbacv1.SchemeGroupVersion.WithResource("clusterroles")).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	dave := e.user("dave", "writes-applications-only")
	dave.eventually("dave may write applications", func() error { return dave.tryApp("reach", stepsBeyondRights) })
	refusals := map[string]string{
		"give": `User "dave" cannot create resource "roles"`, "read": `User "dave" cannot get resource "secrets"`,
		"hand": `User "dave" cannot list resource "secrets"`, "cut": `User "dave" cannot delete resource "secrets"`,
		"send": `User "dave" cannot get resource "secrets"`, "run": `User "dave" cannot create resource "jobs"`,
		// Templates of configs are for all namespaces; what they make is made by the author.
		"conf": `User "dave" cannot create resource "secrets"`, "look": "is no config template",
	}
	app := e.until("reach", func(a *oam.Application) error {
		if a.Status.Workflow == nil {
			return errors.New("it has not begun")
		}
		for _, s := range a.Status.Workflow.Steps {
			if want := refusals[s.Name]; !strings.Contains(s.Message, want) {
				return fmt.Errorf("step %s says %q, not %q", s.Name, s.Message, want)
			}
		}
		return nil
	})
	if data, err := json.Marshal(app.Status); err != nil || strings.Contains(string(data), "hidden-value") {
		t.Errorf("the status tells what was not to be read: %s %v", data, err)
	}
	if _, err := e.get(roles, "stolen"); !apierrors.IsNotFound(err) {
		t.Errorf("the role: %v", err)
	}
	if _, err := e.get(secrets, "hidden"); err != nil {
		t.Errorf("the Secret: %v", err)
	}
}

// greedyDefinitions would give their users all rights in the cluster. The editor of a namespace may
// create them.
const greedyDefinitions = `
apiVersion: core.oam.dev/v1beta1
kind: ComponentDefinition
metadata: {name: greedy}
spec: {workload: {type: autodetects.core.oam.dev}, schematic: {cue: {template: 'output: {apiVersion: "rbac.authorization.k8s.io/v1", kind: "ClusterRoleBinding", metadata: name: "more-" + context.namespace, roleRef: {apiGroup: "rbac.authorization.k8s.io", kind: "ClusterRole", name: "cluster-admin"}, subjects: [{apiGroup: "rbac.authorization.k8s.io", kind: "User", name: "mallory"}]}'}}}
---
apiVersion: core.oam.dev/v1beta1
kind: TraitDefinition
metadata: {name: greedy}
spec: {schematic: {cue: {template: 'outputs: more: {apiVersion: "rbac.authorization.k8s.io/v1", kind: "ClusterRoleBinding", metadata: name: "more-" + context.namespace, roleRef: {apiGroup: "rbac.authorization.k8s.io", kind: "ClusterRole", name: "cluster-admin"}, subjects: [{apiGroup: "rbac.authorization.k8s.io", kind: "User", name: "mallory"}]}'}}}
---
apiVersion: core.oam.dev/v1beta1
kind: PolicyDefinition
metadata: {name: greedy}
spec: {schematic: {cue: {template: 'output: {apiVersion: "rbac.authorization.k8s.io/v1", kind: "ClusterRoleBinding", metadata: name: "more-" + context.namespace, roleRef: {apiGroup: "rbac.authorization.k8s.io", kind: "ClusterRole", name: "cluster-admin"}, subjects: [{apiGroup: "rbac.authorization.k8s.io", kind: "User", name: "mallory"}]}'}}}
---
apiVersion: core.oam.dev/v1beta1
kind: WorkflowStepDefinition
metadata: {name: greedy}
spec:
  schematic:
    cue:
      template: |
        import "vela/kube"
        more: kube.#Apply & {$params: value: {apiVersion: "rbac.authorization.k8s.io/v1", kind: "ClusterRoleBinding", metadata: name: "more-" + context.namespace, roleRef: {apiGroup: "rbac.authorization.k8s.io", kind: "ClusterRole", name: "cluster-admin"}, subjects: [{apiGroup: "rbac.authorization.k8s.io", kind: "User", name: "mallory"}]}}
`

func TestNobodyGetsMoreRightsByAnApplication(t *testing.T) {
	e := start(t)
	mallory := e.user("mallory", "edit")
	mallory.eventually("mallory may write definitions", func() error {
		_, err := mallory.dyn.Resource(oam.GroupVersion.WithResource("componentdefinitions")).Namespace(e.ns).List(t.Context(), metav1.ListOptions{Limit: 1})
		return err
	})
	for d := range strings.SplitSeq(greedyDefinitions, "\n---\n") {
		mallory.apply(d)
	}
	const (
		config  = "{apiVersion: v1, kind: ConfigMap, metadata: {name: mine}}"
		binding = `User "mallory" cannot create resource "clusterrolebindings"`
	)
	for name, attempt := range map[string]struct{ spec, says string }{
		"by-a-component": {"components: [{name: one, type: greedy}]", binding},
		"by-a-trait":     {"components: [{name: one, type: raw, properties: " + config + ", traits: [{type: greedy}]}]", binding},
		"by-a-policy":    {"components: []\npolicies: [{name: more, type: greedy}]", binding},
		"by-a-step":      {"components: []\nworkflow: {steps: [{name: more, type: greedy}]}", binding},
		"by-a-built-in-trait": {
			"components: [{name: one, type: worker, properties: {image: a}, traits: [{type: service-account, properties: {name: me, create: true, privileges: [{scope: cluster, apiGroups: ['*'], resources: ['*'], verbs: ['*']}]}}]}]",
			`User "mallory" cannot create resource "clusterroles"`,
		},
		"elsewhere": {
			"components: [{name: one, type: raw, properties: {apiVersion: v1, kind: Secret, metadata: {name: mine, namespace: kube-system}}}]",
			`User "mallory" cannot create resource "secrets" in API group "" in the namespace "kube-system"`,
		},
		"by-a-topology": {
			"components: [{name: one, type: raw, properties: " + config + "}]\npolicies: [{name: there, type: topology, properties: {clusters: [local], namespace: kube-system}}]",
			`User "mallory" cannot create resource "configmaps" in API group "" in the namespace "kube-system"`,
		},
		"by-a-reference": {
			"components: [{name: one, type: ref-objects, properties: {objects: [{resource: secrets, namespace: kube-system, labelSelector: {a: b}}]}}]",
			"applications do not reach objects of namespace kube-system",
		},
		"by-a-reference-to-rights": {
			"components: [{name: one, type: ref-objects, properties: {objects: [{resource: roles, name: any}]}}]",
			`User "mallory" cannot get resource "roles"`,
		},
		"by-reading-only": {
			"components: [{name: one, type: raw, properties: {apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: cluster-admin}}}]\npolicies: [{name: ro, type: read-only, properties: {rules: [{selector: {componentNames: [one]}}]}}]",
			`User "mallory" cannot get resource "clusterrolebindings"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			mallory := *mallory
			mallory.TB = t
			mallory.app(name, attempt.spec)
			mallory.until(name, func(a *oam.Application) error {
				data, err := json.Marshal(a.Status)
				if err == nil && !strings.Contains(strings.ReplaceAll(string(data), `\"`, `"`), attempt.says) {
					err = fmt.Errorf("it does not say %s", attempt.says)
				}
				return err
			})
		})
	}
	if _, err := e.core.RbacV1().ClusterRoleBindings().Get(t.Context(), "more-"+e.ns, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the binding: %v", err)
	}
}

// acting returns an env whose client impersonates a user in groups. The user has the rights of a
// ClusterRole in the namespace.
func (e *env) acting(name, clusterRole string, groups ...string) *env {
	e.Helper()
	as := e.user(name, clusterRole)
	cfg := e.c.RESTConfig()
	cfg.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: groups}
	as.dyn = dynamic.NewForConfigOrDie(cfg)
	return as
}

// TestAGroupWithACommaInItsNameIsOneGroup checks that groups are recorded and impersonated as a
// list.
func TestAGroupWithACommaInItsNameIsOneGroup(t *testing.T) {
	e := start(t)
	eve := e.acting("eve", "edit", "devs,system:masters", `quo"te\`)
	eve.eventually("eve may write applications", func() error { return eve.tryApp("groups", roleApplication) })
	eve.until("groups", says(oam.ConditionReady, "roles.rbac.authorization.k8s.io", `User "eve" cannot create`))
	if got, want := e.application("groups").Annotations[oam.AuthorGroupsAnnotation], `["devs,system:masters","quo\"te\\"]`; got != want {
		t.Errorf("the groups are recorded as %s, want %s", got, want)
	}
	if _, err := e.get(roles, "all"); !apierrors.IsNotFound(err) {
		t.Errorf("the role: %v", err)
	}
	// The Application has the rights of each group.
	_, err := e.core.RbacV1().RoleBindings(e.ns).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "all"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: `quo"te\`}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eve.until("groups", inPhase(oam.PhaseRunning))
}

// TestWhoOnlyCommandsAnApplicationDoesNotBecomeItsAuthor checks that an administrator who pauses,
// resumes or restarts a tenant's Application does not lend it their rights.
func TestWhoOnlyCommandsAnApplicationDoesNotBecomeItsAuthor(t *testing.T) {
	e := start(t)
	alice := e.user("alice", "edit")
	alice.eventually("alice may write applications", func() error { return alice.tryApp("own", placedLocally("own", "v")) })
	author := func() string { return e.application("own").Annotations[oam.UsernameAnnotation] }
	for _, patch := range []string{
		`{"metadata":{"labels":{"controller.core.oam.dev/pause":"true"}}}`,
		`{"metadata":{"labels":{"controller.core.oam.dev/pause":null}}}`,
		`{"metadata":{"annotations":{"lockstep.dev/workflow-command":"restart@1"}}}`,
		`{"metadata":{"annotations":{"app.oam.dev/restart-workflow":"true"}}}`,
		`{"metadata":{"finalizers":["app.oam.dev/resource-tracker-finalizer","test/hold"]}}`,
		`{"metadata":{"annotations":{"app.oam.dev/username":"root","app.oam.dev/group":null,"lockstep.dev/author-groups":null}}}`,
	} {
		if err := e.tryPatch("own", patch); err != nil {
			t.Fatal(err)
		}
		if got := author(); got != "alice" {
			t.Errorf("after %s the author is %q", patch, got)
		}
	}
	// The author cannot be changed while an Application is being deleted either.
	e.delete(applications, "own")
	err := e.tryPatch("own", `{"metadata":{"annotations":{"app.oam.dev/username":"root"}}}`)
	if !apierrors.IsForbidden(err) || author() != "alice" {
		t.Errorf("another author is named: %v; it is %q", err, author())
	}
	e.eventually("nothing else holds it", func() error {
		return e.tryPatch("own", `[{"op":"test","path":"/metadata/finalizers","value":["test/hold"]},{"op":"remove","path":"/metadata/finalizers"}]`)
	})
	e.gone(applications, "own")
}

const twoConfigMaps = `
components:
- {name: one, type: raw, properties: {apiVersion: v1, kind: ConfigMap, metadata: {name: one}}}
- {name: two, type: raw, properties: {apiVersion: v1, kind: ConfigMap, metadata: {name: two}}}
`

// TestAuthorsWhoLoseTheirRights checks that objects that an author may no longer write are neither
// repaired nor removed while the Application exists, and that the status says so. When the
// Application is deleted, its objects are deleted.
func TestAuthorsWhoLoseTheirRights(t *testing.T) {
	e := start(t)
	alice := e.user("alice", "edit")
	alice.eventually("alice may write applications", func() error { return alice.tryApp("own", twoConfigMaps) })
	alice.until("own", inPhase(oam.PhaseRunning))
	if err := e.core.RbacV1().RoleBindings(e.ns).Delete(t.Context(), "alice", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	e.delete(configMaps, "one")
	e.until("own", says(oam.ConditionReady, `User "alice" cannot create resource "configmaps"`))
	if _, err := e.get(configMaps, "one"); !apierrors.IsNotFound(err) {
		t.Errorf("the ConfigMap: %v", err)
	}
	// An author who may create ConfigMaps but not delete them removes the second ConfigMap from the
	// Application.
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "applications"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"core.oam.dev"}, Resources: []string{"applications"}, Verbs: []string{"*"}},
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "create", "patch"}},
	}}
	if _, err := e.core.RbacV1().Roles(e.ns).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := e.core.RbacV1().RoleBindings(e.ns).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "alice"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "applications"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "alice"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	alice.eventually("alice may write applications", func() error {
		return alice.tryApp("own", "components: [{name: one, type: raw, properties: {apiVersion: v1, kind: ConfigMap, metadata: {name: one}}}]")
	})
	e.until("own", says(oam.ConditionReady, `User "alice" cannot delete resource "configmaps"`))
	if _, err := e.get(configMaps, "two"); err != nil {
		t.Errorf("the ConfigMap: %v", err)
	}
	e.delete(applications, "own")
	e.gone(applications, "own")
	e.gone(configMaps, "two")
}
