package install_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/config"
	"lockstep.dev/lockstep/internal/install"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// multiTenant is the right to impersonate all users, as an earlier version installed it.
const multiTenant = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: lockstep-manager-multi-tenant, annotations: {lockstep.dev/applied: an-older-hash}}
rules:
- {apiGroups: [""], resources: [users, groups, serviceaccounts], verbs: [impersonate]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: lockstep-manager-multi-tenant}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: lockstep-manager-multi-tenant}
subjects:
- {kind: ServiceAccount, name: lockstep-manager, namespace: lockstep-system}
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: lockstep-manager}`

// ofOthers has the name of an object of an earlier version and nothing else in common with it.
const ofOthers = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: lockstep-manager-multi-tenant}
rules:
- {apiGroups: [""], resources: [pods], verbs: [get]}`

// TestInstallRemovesWhatEarlierVersionsInstalled checks that Install removes rights that this
// version does not need, whether they were installed or applied with kubectl from printed
// manifests. An object of another party with such a name stays.
func TestInstallRemovesWhatEarlierVersionsInstalled(t *testing.T) {
	cfg := localtest.Shared(t).RESTConfig()
	const name = "lockstep-manager-multi-tenant"
	said := func(opts install.Options) map[string]install.Change {
		t.Helper()
		out := map[string]install.Change{}
		err := install.Install(t.Context(), cfg, opts, func(o *unstructured.Unstructured, c install.Change) {
			if o.GetName() == name {
				out[o.GetKind()] = c
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	create(t, cfg, multiTenant)
	// 1. A dry run reports the removal and does nothing.
	if got := said(install.Options{DryRun: true}); got["ClusterRole"] != install.Removed || got["ClusterRoleBinding"] != install.Removed {
		t.Errorf("a dry run says %v", got)
	}
	if there(t, cfg, "ClusterRole", "", name) == nil || there(t, cfg, "ClusterRoleBinding", "", name) == nil {
		t.Error("a dry run has removed something")
	}
	// 2. The removal is independent of the rights that applications act with.
	for _, opts := range []install.Options{{}, {ActAsManager: true}} {
		if got := said(opts); got["ClusterRole"] != install.Removed || got["ClusterRoleBinding"] != install.Removed {
			t.Errorf("%+v: it says %v", opts, got)
		}
		if there(t, cfg, "ClusterRole", "", name) != nil || there(t, cfg, "ClusterRoleBinding", "", name) != nil {
			t.Errorf("%+v: the role or its binding is there", opts)
		}
		if got := said(opts); len(got) > 0 {
			t.Errorf("%+v: the second time it says %v", opts, got)
		}
		create(t, cfg, multiTenant)
	}
	// 3. An uninstallation that comes first would also remove what was installed.
	gone := removed(t, cfg, install.RemoveOptions{DryRun: true})
	if kept, ok := gone["ClusterRole/"+name]; !ok || kept != "" {
		t.Errorf("an uninstallation: %v", gone)
	}
	said(install.Options{})
	// 4. An object of another party.
	create(t, cfg, ofOthers)
	if got := said(install.Options{}); got["ClusterRole"] != install.Kept {
		t.Errorf("of somebody else: it says %v", got)
	}
	if there(t, cfg, "ClusterRole", "", name) == nil {
		t.Error("somebody else's role is gone")
	}
	if err := resource(cfg, "ClusterRole", "").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestThePolicyOnServedKindsComesAndGoes checks that the list of served kinds, its policy and its rights
// are there after an installation that says so, until one that does not, that another installation
// keeps what the list says, and that an uninstallation removes them.
func TestThePolicyOnServedKindsComesAndGoes(t *testing.T) {
	cfg := localtest.Shared(t).RESTConfig()
	wanted := install.Options{RefuseUnservedKinds: true}
	for i, opts := range []install.Options{wanted, wanted, {}, wanted} {
		if err := install.Install(t.Context(), cfg, opts, func(*unstructured.Unstructured, install.Change) {}); err != nil {
			t.Fatal(err)
		}
		list := there(t, cfg, "ConfigMap", "vela-system", config.ServedKindsName)
		role := there(t, cfg, "ClusterRole", "", "lockstep-manager-served-kinds")
		if (list != nil) != opts.RefuseUnservedKinds || (role != nil) != opts.RefuseUnservedKinds {
			t.Errorf("%+v: the list is %v, the role is %v", opts, list, role)
		}
		if list == nil {
			continue
		}
		if (list.Object["data"] != nil) != (i == 1) {
			t.Errorf("installation %d: the list says %v", i, list.Object["data"])
		}
		list.Object["data"] = map[string]any{"kinds": "v1/ConfigMap"}
		if _, err := resource(cfg, "ConfigMap", "vela-system").Update(t.Context(), list, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	gone := removed(t, cfg, install.RemoveOptions{DryRun: true})
	for _, o := range config.ServedKinds() {
		if kept, ok := gone[o.GetKind()+"/"+o.GetName()]; !ok || kept != "" {
			t.Errorf("an uninstallation leaves %s %s: %q", o.GetKind(), o.GetName(), kept)
		}
	}
	if err := install.Install(t.Context(), cfg, install.Options{}, func(*unstructured.Unstructured, install.Change) {}); err != nil {
		t.Fatal(err)
	}
}

// TestTheRightToEveryKindComesAndGoes checks that the manager may watch every kind after an
// installation that says so, until one that does not, and that an uninstallation takes it back.
func TestTheRightToEveryKindComesAndGoes(t *testing.T) {
	cfg := localtest.Shared(t).RESTConfig()
	const name = "lockstep-manager-application-any-kind"
	for _, opts := range []install.Options{{AnyKind: true}, {}, {AnyKind: true, ActAsManager: true}} {
		if err := install.Install(t.Context(), cfg, opts, func(*unstructured.Unstructured, install.Change) {}); err != nil {
			t.Fatal(err)
		}
		role := there(t, cfg, "ClusterRole", "", name)
		if (role != nil) != opts.AnyKind {
			t.Errorf("%+v: the role is %v", opts, role)
		}
		if role != nil && role.GetLabels()[oam.AggregateLabel] != "true" {
			t.Errorf("%+v: the role has the labels %v", opts, role.GetLabels())
		}
	}
	if kept, ok := removed(t, cfg, install.RemoveOptions{DryRun: true})["ClusterRole/"+name]; !ok || kept != "" {
		t.Errorf("an uninstallation leaves the role: %q", kept)
	}
	if err := install.Install(t.Context(), cfg, install.Options{}, func(*unstructured.Unstructured, install.Change) {}); err != nil {
		t.Fatal(err)
	}
}
