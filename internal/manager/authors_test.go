package manager_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/config"
	"lockstep.dev/lockstep/internal/install"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/manager"
	"lockstep.dev/lockstep/internal/manager/managertest"
)

const oneConfigMap = "{apiVersion: v1, kind: ConfigMap, metadata: {name: made}}"

const oneJob = `apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: job}
spec: {tasks: [{name: main, replicas: 1, template: {spec: {containers: [{name: c, image: busybox}]}}}]}
`

// TestApplicationsAreOffWhereAuthorsAreNotRecorded checks that, with an API server before 1.36,
// which cannot record who wrote an application, applications do nothing and say why, and jobs are
// not affected.
func TestApplicationsAreOffWhereAuthorsAreNotRecorded(t *testing.T) {
	t.Parallel()
	c := localtest.Start(t, localtest.WithControllerManager(), localtest.WithInstall(), localtest.WithNodes(localcluster.Nodes{Count: 1}),
		localtest.WithConfig(func(c *localcluster.Config) {
			c.ExtraArgs = map[localcluster.Component][]string{localcluster.APIServer: {"--emulated-version=kube=1.33"}}
		}))
	stop, err := managertest.Run(c)
	if err != nil {
		t.Fatal(err)
	}
	e := newEnv(t, c)
	editor := e.tenant("editor", "edit")
	if err := editor.try(raw("by-editor", oneConfigMap)); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("an application of an editor: %v; want that it is forbidden", err)
	}
	// An author that a user names in the manifest is ignored.
	e.apply(strings.Replace(raw("unsigned", oneConfigMap), "metadata: {name: unsigned}", `metadata: {name: unsigned, annotations: {app.oam.dev/username: root, app.oam.dev/group: "system:masters"}}`, 1))
	e.says(appResource, "unsigned", "applications are off: there is no MutatingAdmissionPolicy "+config.AuthorsPolicy)
	editor.apply(oneJob)
	e.says(jobs, "job", `"phase":"Running"`)
	e.absent(configMapResource, e.ns, "made")
	if err := stop(); err != nil {
		t.Fatal(err)
	}

	// An administrator can choose that applications act as the manager. An application that names a
	// service account acts as that account even then.
	if err := install.With(install.Options{ActAsManager: true})(t.Context(), c.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	managertest.Start(t, c, func(cfg *manager.Config) { cfg.ActAsManager = true })
	if err := editor.try(raw("by-editor", oneConfigMap)); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("an application of an editor: %v; want that it is forbidden", err)
	}
	e.present(configMapResource, e.ns, "made")
	confined := raw("confined", "{apiVersion: v1, kind: ConfigMap, metadata: {name: not-made}}")
	e.apply(strings.Replace(confined, "{name: confined}", "{name: confined, annotations: {app.oam.dev/service-account-name: default}}", 1))
	e.says(appResource, "confined", `User "system:serviceaccount:`+e.ns+`:default" cannot create resource "configmaps"`)
	e.absent(configMapResource, e.ns, "not-made")
}

// TestApplicationsAreOffWhileThePoliciesAreNotAsInstalled checks that applications are off without
// the policies, or with changed ones, because then anybody could name another author.
func TestApplicationsAreOffWhileThePoliciesAreNotAsInstalled(t *testing.T) {
	t.Parallel()
	c := localtest.Start(t, localtest.WithControllerManager(), localtest.WithApplications())
	managertest.Start(t, c, func(cfg *manager.Config) { cfg.AuthorsInterval = 50 * time.Millisecond })
	e := newEnv(t, c)
	e.apply(raw("first", oneConfigMap))
	e.says(appResource, "first", `"status":"running"`)
	admission := e.core.AdmissionregistrationV1()
	for name, v := range map[string]struct {
		spoil func() error
		says  string
	}{
		"deleted": {func() error {
			return admission.ValidatingAdmissionPolicyBindings().Delete(t.Context(), config.AuthorsPolicy, metav1.DeleteOptions{})
		}, "there is no ValidatingAdmissionPolicyBinding " + config.AuthorsPolicy},
		"selective": {func() error {
			_, err := admission.ValidatingAdmissionPolicies().Patch(t.Context(), config.AccountsPolicy, types.MergePatchType,
				[]byte(`{"spec":{"matchConstraints":{"namespaceSelector":{"matchLabels":{"a":"b"}}}}}`), metav1.PatchOptions{})
			return err
		}, "is not as this version of Lockstep installs it (spec.matchConstraints.namespaceSelector"},
		"conditional": {func() error {
			_, err := admission.MutatingAdmissionPolicies().Patch(t.Context(), config.AuthorsPolicy, types.MergePatchType,
				[]byte(`{"spec":{"matchConditions":[{"name":"never","expression":"false"}]}}`), metav1.PatchOptions{})
			return err
		}, "is not as this version of Lockstep installs it (spec.matchConditions"},
	} {
		if err := v.spoil(); err != nil {
			t.Fatal(err)
		}
		e.says(appResource, "first", "applications are off: ", v.says)
		if err := install.Apply(t.Context(), c.RESTConfig()); err != nil {
			t.Fatal(err)
		}
		e.eventually(name+": the application runs again", func() error {
			return e.try(raw("first", "{apiVersion: v1, kind: ConfigMap, metadata: {name: made}, data: {after: "+name+"}}"))
		})
		e.says(appResource, "first", `"status":"running"`)
	}

	// An application written meanwhile has no author. A write without changes does not make its
	// user the author; a change does.
	if err := errors.Join(admission.MutatingAdmissionPolicyBindings().Delete(t.Context(), config.AuthorsPolicy, metav1.DeleteOptions{}),
		admission.ValidatingAdmissionPolicyBindings().Delete(t.Context(), config.AuthorsPolicy, metav1.DeleteOptions{})); err != nil {
		t.Fatal(err)
	}
	e.eventually("an application without an author is admitted", func() error {
		_ = e.dyn.Resource(appResource).Namespace(e.ns).Delete(t.Context(), "older", metav1.DeleteOptions{})
		if err := e.try(raw("older", "{apiVersion: v1, kind: ConfigMap, metadata: {name: older}}")); err != nil {
			return err
		}
		u, err := e.dyn.Resource(appResource).Namespace(e.ns).Get(t.Context(), "older", metav1.GetOptions{})
		if err == nil && u.GetAnnotations()[oam.UsernameAnnotation] != "" {
			err = errors.New("it has one")
		}
		return err
	})
	if err := errors.Join(install.Apply(t.Context(), c.RESTConfig()), install.AwaitApplications(t.Context(), c.RESTConfig())); err != nil {
		t.Fatal(err)
	}
	e.says(appResource, "older", "nobody is recorded as its author")
	e.patch(appResource, "older", `{"metadata":{"labels":{"controller.core.oam.dev/pause":"false"}}}`)
	u, err := e.dyn.Resource(appResource).Namespace(e.ns).Get(t.Context(), "older", metav1.GetOptions{})
	if err != nil || u.GetAnnotations()[oam.UsernameAnnotation] != "" {
		t.Errorf("annotations %v, error %v; want no author", u.GetAnnotations(), err)
	}
	e.absent(configMapResource, e.ns, "older")
	e.patch(appResource, "older", `{"metadata":{"annotations":{"mine":"now"}}}`)
	e.says(appResource, "older", `"status":"running"`)
}

// TestApplicationsCanBeDeletedWhileTheyAreOff checks that the manager removes the objects of an
// application, even of one whose author is unknown, and that shared objects go to the other
// applications.
func TestApplicationsCanBeDeletedWhileTheyAreOff(t *testing.T) {
	t.Parallel()
	c := localtest.Start(t, localtest.WithControllerManager(), localtest.WithApplications())
	managertest.Start(t, c, func(cfg *manager.Config) { cfg.AuthorsInterval = 50 * time.Millisecond })
	e := newEnv(t, c)
	editor := e.tenant("editor", "edit")
	sharing := func(name string) string {
		return application(name, `
components: [{name: one, type: raw, properties: {apiVersion: v1, kind: ConfigMap, metadata: {name: shared}}}]
policies: [{name: share, type: shared-resource, properties: {rules: [{selector: {resourceTypes: [ConfigMap]}}]}}]`)
	}
	editor.apply(raw("alone", "{apiVersion: v1, kind: ConfigMap, metadata: {name: alone}}"))
	e.says(appResource, "alone", `"status":"running"`)
	for _, name := range []string{"first", "second", "third"} {
		editor.apply(sharing(name))
		e.says(appResource, name, `"status":"running"`)
	}
	// The author loses all rights, and applications are turned off.
	if err := e.core.RbacV1().RoleBindings(e.ns).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	admission := e.core.AdmissionregistrationV1()
	if err := errors.Join(admission.MutatingAdmissionPolicyBindings().Delete(t.Context(), config.AuthorsPolicy, metav1.DeleteOptions{}),
		admission.ValidatingAdmissionPolicyBindings().Delete(t.Context(), config.AuthorsPolicy, metav1.DeleteOptions{})); err != nil {
		t.Fatal(err)
	}
	e.says(appResource, "alone", "applications are off: ")
	deleted := func(name string) {
		t.Helper()
		if err := e.dyn.Resource(appResource).Namespace(e.ns).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		e.eventually(name+" is gone", func() error {
			u, err := e.dyn.Resource(appResource).Namespace(e.ns).Get(t.Context(), name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("it is there: %v, %v", u.Object["status"], err)
		})
	}
	deleted("alone")
	e.absent(configMapResource, e.ns, "alone")
	deleted("first")
	owner := func() string {
		cm, err := e.core.CoreV1().ConfigMaps(e.ns).Get(t.Context(), "shared", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		return cm.Labels[oam.AppNameLabel]
	}
	if got := owner(); got != "first" {
		t.Errorf("what is shared is labelled as %s's, by whom?", got)
	}
	// With the policies present again the author is known, and may do nothing.
	if err := install.Apply(t.Context(), c.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	e.says(appResource, "third", `"status":"running"`)
	deleted("second")
	e.present(configMapResource, e.ns, "shared")
	deleted("third")
	e.absent(configMapResource, e.ns, "shared")
}
