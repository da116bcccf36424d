package install_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/config"
	"lockstep.dev/lockstep/internal/cputopology/agent/systemd"
	"lockstep.dev/lockstep/internal/install"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

func TestMain(m *testing.M) { localtest.Main(m) }

// writes counts the requests that change something.
type writes struct {
	next  http.RoundTripper
	count int
}

func (w *writes) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet {
		w.count++
	}
	return w.next.RoundTrip(r)
}

func TestInstallWritesOnlyWhatDiffers(t *testing.T) {
	cfg := localtest.Shared(t).RESTConfig()
	counter := &writes{}
	counted := rest.CopyConfig(cfg)
	counted.Wrap(func(next http.RoundTripper) http.RoundTripper {
		counter.next = next
		return counter
	})
	opts := install.Options{Image: "registry.example/lockstep:1", Agent: true}
	objects, err := install.Objects(opts)
	if err != nil {
		t.Fatal(err)
	}
	apply := func() map[install.Change]int {
		t.Helper()
		counter.count = 0
		changes := map[install.Change]int{}
		if err := install.Install(t.Context(), counted, opts, func(_ *unstructured.Unstructured, c install.Change) { changes[c]++ }); err != nil {
			t.Fatal(err)
		}
		if n := changes[install.Created] + changes[install.Configured]; counter.count != n {
			t.Errorf("%d writes, %v", counter.count, changes)
		}
		return changes
	}
	if got := apply(); got[install.Created] != len(objects) {
		t.Errorf("the first time: %v, want %d created", got, len(objects))
	}
	if got := apply(); got[install.Unchanged] != len(objects) {
		t.Errorf("the second time: %v, want %d unchanged", got, len(objects))
	}
	opts.Image = "registry.example/lockstep:2"
	if got := apply(); got[install.Configured] != 2 {
		t.Errorf("with another image: %v, want the manager and the agents configured", got)
	}
	if err := install.AwaitApplications(t.Context(), cfg); err != nil {
		t.Error(err)
	}
}

// TestPodsAreCheckedOnlyWhereCPUsAreChosen checks that the policies on new and changed pods are optional,
// because each policy that matches pods makes every such write more expensive. The one on deletions is not:
// it has a condition, and only the manager's requests meet it.
func TestPodsAreCheckedOnlyWhereCPUsAreChosen(t *testing.T) {
	for _, c := range []struct {
		opts install.Options
		want bool
	}{
		{install.Options{}, false},
		{install.Options{ActAsManager: true}, false},
		{install.Options{CPUs: true}, true},
		{install.Options{Image: "registry.example/lockstep:1", Agent: true}, true},
	} {
		objects, err := install.Objects(c.opts)
		if err != nil {
			t.Fatal(err)
		}
		matches := false
		for _, o := range objects {
			rules, _, err := unstructured.NestedSlice(o.Object, "spec", "matchConstraints", "resourceRules")
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range rules {
				if slices.Equal(r.(map[string]any)["operations"].([]any), []any{"DELETE"}) {
					continue
				}
				for _, resource := range r.(map[string]any)["resources"].([]any) {
					matches = matches || resource == "pods" || resource == "*" || resource == "*/*"
				}
			}
		}
		if matches != c.want {
			t.Errorf("%+v: a policy matches pods: %v, want %v", c.opts, matches, c.want)
		}
	}
}

// TestAwaitApplicationsWaitsForThePolicyThatFillsAuthorsIn covers an API server that knows the
// policy that checks authors earlier than the policy that fills them in.
func TestAwaitApplicationsWaitsForThePolicyThatFillsAuthorsIn(t *testing.T) {
	cfg := localtest.Shared(t).RESTConfig()
	if err := errors.Join(install.Apply(t.Context(), cfg), install.AwaitApplications(t.Context(), cfg)); err != nil {
		t.Fatal(err)
	}
	client := dynamic.NewForConfigOrDie(cfg)
	for _, o := range config.Policies() {
		if o.GetKind() != "MutatingAdmissionPolicyBinding" {
			continue
		}
		gvr, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
		if err := client.Resource(gvr).Delete(t.Context(), o.GetName(), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	app := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "core.oam.dev/v1beta1", "kind": "Application", "metadata": map[string]any{"name": "a"},
		"spec": map[string]any{"components": []any{map[string]any{"name": "c", "type": "raw"}}},
	}}
	localtest.Eventually(t, "applications are refused", func() error {
		_, err := client.Resource(schema.GroupVersionResource{Group: "core.oam.dev", Version: "v1beta1", Resource: "applications"}).
			Namespace("default").Create(t.Context(), app, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if !apierrors.IsForbidden(err) {
			return fmt.Errorf("the answer is %v", err)
		}
		return nil
	})
	waited := make(chan error)
	go func() { waited <- install.AwaitApplications(t.Context(), cfg) }()
	if err := errors.Join(install.Apply(t.Context(), cfg), <-waited); err != nil {
		t.Error(err)
	}
}

// TestInstallOnAnAPIServerWithoutMutatingPolicies covers Kubernetes before 1.36, which the API
// server emulates.
func TestInstallOnAnAPIServerWithoutMutatingPolicies(t *testing.T) {
	c := localtest.Start(t, localtest.WithConfig(func(c *localcluster.Config) {
		c.ExtraArgs = map[localcluster.Component][]string{localcluster.APIServer: {"--emulated-version=kube=1.33"}}
	}))
	if err := errors.Join(install.Apply(t.Context(), c.RESTConfig()), install.AwaitApplications(t.Context(), c.RESTConfig())); err != nil {
		t.Error(err)
	}
	// Applications are off there, and not part of the users' roles.
	role, err := kubernetes.NewForConfigOrDie(c.RESTConfig()).RbacV1().ClusterRoles().Get(t.Context(), config.ApplicationEditRole, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range role.Labels {
		if strings.Contains(key, "aggregate-to") && value != "false" {
			t.Errorf("label %s is %s", key, value)
		}
	}
}

// TestNobodyEditsApplicationsByDefaultWhereTheyActAsTheManager checks the edit role, because every
// user who writes an application there has the manager's rights.
func TestNobodyEditsApplicationsByDefaultWhereTheyActAsTheManager(t *testing.T) {
	for _, asManager := range []bool{false, true} {
		objects, err := install.Objects(install.Options{ActAsManager: asManager})
		if err != nil {
			t.Fatal(err)
		}
		creates := false
		for _, o := range objects {
			if o.GetName() == config.ApplicationEditRole {
				if got := o.GetLabels()["rbac.authorization.k8s.io/aggregate-to-edit"]; got != fmt.Sprint(!asManager) {
					t.Errorf("ActAsManager %t: %s is a part of edit: %s", asManager, o.GetName(), got)
				}
			}
			if o.GetKind() == "ClusterRole" && o.GetName() == "lockstep-manager-applications" {
				data, err := json.Marshal(o.Object["rules"])
				if err != nil {
					t.Fatal(err)
				}
				creates = creates || strings.Contains(string(data), `"clusterrolebindings"],"verbs":["get","list","watch","create"`)
			}
		}
		if creates != asManager {
			t.Errorf("ActAsManager %t: the manager may make bindings by itself: %t", asManager, creates)
		}
	}
}

func TestAgentsGetFurtherArguments(t *testing.T) {
	objects, err := install.Objects(install.Options{Image: "registry.example/lockstep:1", Agent: true, AgentArgs: []string{"--take-over-kubelet", "--reserved-percent=5"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if o.GetKind() != "DaemonSet" && o.GetKind() != "Deployment" {
			continue
		}
		data, err := json.Marshal(o.Object)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(string(data), `"--take-over-kubelet","--reserved-percent=5"]`); got != (o.GetKind() == "DaemonSet") {
			t.Errorf("%s %s has the arguments: %v", o.GetKind(), o.GetName(), got)
		}
	}
}

// TestAgentsReachSystemd checks that the agent's container has the directory of systemd's socket at
// the same path as the node, so that the agent finds the socket also after systemd has made a new one.
func TestAgentsReachSystemd(t *testing.T) {
	objects, err := install.Objects(install.Options{Image: "registry.example/lockstep:1", Agent: true})
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, o := range objects {
		if o.GetKind() != "DaemonSet" {
			continue
		}
		agents := &appsv1.DaemonSet{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, agents); err != nil {
			t.Fatal(err)
		}
		pod, dir := agents.Spec.Template.Spec, path.Dir(systemd.DefaultSocket)
		for _, m := range pod.Containers[0].VolumeMounts {
			for _, v := range pod.Volumes {
				found = found || m.MountPath == dir && m.SubPath == "" && v.Name == m.Name && v.HostPath != nil && v.HostPath.Path == dir
			}
		}
	}
	if !found {
		t.Errorf("no agent has the node's directory of %s", systemd.DefaultSocket)
	}
}
