package controller_test

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"sync"
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
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/config"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/controller"
)

// startMultiTenant runs a controller that acts as authors, for the applications of a namespace.
func startMultiTenant(t *testing.T) *env {
	e := connect(t)
	elsewhere.Store(e.ns, true)
	for _, o := range config.MultiTenant() {
		gvr := o.GroupVersionKind().GroupVersion().WithResource(strings.ToLower(o.GetKind()) + "s")
		if _, err := e.dyn.Resource(gvr).Create(t.Context(), o, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
	writer, err := apiwriter.New(apiwriter.Config{REST: e.c.ManagerRESTConfig(), Scheme: scheme.Scheme, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	ctl, err := controller.New(controller.Config{
		REST: e.c.ManagerRESTConfig(), Writer: writer, Log: log, MultiTenant: true,
		Owns: func(key string) bool { return strings.HasPrefix(key, e.ns+"/") },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = writer.Run(ctx) })
	running.Go(func() { ctl.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return e
}

// user is a client that acts as somebody with the rights of a role in the namespace.
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
	e := startMultiTenant(t)
	alice := e.user("alice", "edit")
	alice.eventually("alice may write applications", func() error {
		return alice.tryApp("own", placedLocally("own", "v"))
	})
	alice.until("own", inPhase(oam.PhaseRunning))
	app := e.application("own")
	if app.Annotations[oam.UsernameAnnotation] != "alice" {
		t.Errorf("the author is %q", app.Annotations[oam.UsernameAnnotation])
	}
	// The editor of a namespace may not give rights away, and so neither may her application.
	alice.app("rights", roleApplication)
	alice.until("rights", says(oam.ConditionReady, "roles.rbac.authorization.k8s.io", `User "alice" cannot create`))
	if _, err := e.get(roles, "all"); !apierrors.IsNotFound(err) {
		t.Errorf("the role: %v", err)
	}
	// Nor in somebody else's name.
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
	// Without it she has what she asks for.
	alice.app("rights", strings.Join(strings.Split(roleApplication, "\n")[:7], "\n"))
	alice.until("rights", inPhase(oam.PhaseRunning))
	// Who changes it is its author from then on.
	carol := e.user("carol", "cluster-admin")
	carol.eventually("carol may", func() error { return carol.tryPatch("rights", `{"metadata":{"labels":{"by":"carol"}}}`) })
	if app := e.application("rights"); app.Annotations[oam.UsernameAnnotation] != "carol" {
		t.Errorf("the author is %q", app.Annotations[oam.UsernameAnnotation])
	}
	// What is recorded goes, whatever its author may do.
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
	_, err := e.dyn.Resource(applications).Namespace(e.ns).Patch(e.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}
