package hostile

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/manager/managertest"
)

func TestMain(m *testing.M) { managertest.Main(m) }

// world is a cluster with a manager that can be restarted.
type world struct {
	*testing.T
	c      *localcluster.Cluster
	core   kubernetes.Interface
	dyn    dynamic.Interface
	mapper meta.RESTMapper
	ns     string // namespace of the hostile user
	stop   func() error
	round  int // number of the last round of canaries
}

// newWorld starts a cluster without a manager.
func newWorld(t *testing.T) *world {
	t.Helper()
	c := localtest.Start(t, localtest.WithControllerManager(), localtest.WithApplications(),
		localtest.WithNodes(localcluster.Nodes{Count: 8, CPU: "32", Memory: "64Gi", Pods: 500}))
	cfg := rest.CopyConfig(c.RESTConfig())
	cfg.QPS, cfg.WarningHandler = -1, rest.NoWarnings{}
	w := &world{T: t, c: c, core: kubernetes.NewForConfigOrDie(cfg), dyn: dynamic.NewForConfigOrDie(cfg)}
	groups, err := restmapper.GetAPIGroupResources(discovery.NewDiscoveryClientForConfigOrDie(cfg))
	if err != nil {
		t.Fatal(err)
	}
	w.mapper = restmapper.NewDiscoveryRESTMapper(groups)
	w.ns = localtest.NamespaceForPods(t, w.core)
	t.Cleanup(w.stopManager)
	return w
}

func (w *world) startManager() {
	w.Helper()
	var err error
	if w.stop, err = managertest.Run(w.c); err != nil {
		w.Fatal(err)
	}
}

func (w *world) stopManager() {
	if w.stop == nil {
		return
	}
	if err := w.stop(); err != nil {
		w.Error(err)
	}
	w.stop = nil
}

func (w *world) restart() {
	w.Helper()
	w.stopManager()
	w.startManager()
}

// parse reads a manifest as a user writes it.
func (w *world) parse(manifest string) *unstructured.Unstructured {
	w.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &u.Object); err != nil {
		w.Fatalf("%v in\n%s", err, manifest)
	}
	return u
}

// in returns the client for objects of a kind, in a namespace if the kind is namespaced.
func (w *world) in(gvk schema.GroupVersionKind, namespace string) dynamic.ResourceInterface {
	w.Helper()
	m, err := w.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		w.Fatal(err)
	}
	if m.Scope.Name() == meta.RESTScopeNameRoot {
		return w.dyn.Resource(m.Resource)
	}
	return w.dyn.Resource(m.Resource).Namespace(namespace)
}

// at returns the client for an object's resource.
func (w *world) at(u *unstructured.Unstructured) dynamic.ResourceInterface {
	w.Helper()
	return w.in(u.GroupVersionKind(), u.GetNamespace())
}

// create creates an object from a manifest. namespace is ignored if the kind is cluster-scoped.
func (w *world) create(namespace, manifest string) *unstructured.Unstructured {
	w.Helper()
	u := w.parse(manifest)
	made, err := w.in(u.GroupVersionKind(), namespace).Create(w.Context(), u, metav1.CreateOptions{})
	if err != nil {
		w.Fatalf("%v in\n%s", err, manifest)
	}
	return made
}

// merge changes an object by a merge patch.
func (w *world) merge(u *unstructured.Unstructured, patch string) {
	w.Helper()
	data, err := yaml.YAMLToJSON([]byte(patch))
	if err != nil {
		w.Fatal(err)
	}
	if _, err := w.at(u).Patch(w.Context(), u.GetName(), types.MergePatchType, data, metav1.PatchOptions{}); err != nil {
		w.Fatalf("%s %s: %v", u.GetKind(), u.GetName(), err)
	}
}

func (w *world) get(u *unstructured.Unstructured) *unstructured.Unstructured {
	w.Helper()
	now, err := w.at(u).Get(w.Context(), u.GetName(), metav1.GetOptions{})
	if err != nil {
		w.Fatalf("%s %s: %v", u.GetKind(), u.GetName(), err)
	}
	return now
}

// delete deletes an object and waits until it no longer exists.
func (w *world) delete(u *unstructured.Unstructured) {
	w.Helper()
	background := metav1.DeletePropagationBackground
	err := w.at(u).Delete(w.Context(), u.GetName(), metav1.DeleteOptions{PropagationPolicy: &background})
	if err != nil && !apierrors.IsNotFound(err) {
		w.Fatal(err)
	}
	w.eventually(u.GetKind()+" "+u.GetName()+" is gone", func() error {
		_, err := w.at(u).Get(w.Context(), u.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is still there: %v", err)
	})
}

func (w *world) eventually(what string, f func() error) {
	w.Helper()
	localtest.Eventually(w, what, f)
}

// field returns a string field of an object, or "".
func field(u *unstructured.Unstructured, path ...string) string {
	s, _, _ := unstructured.NestedString(u.Object, path...)
	return s
}

// canaries are objects of other users, one of each system. phase is the path of the field with the
// progress, and done its last value.
var canaries = []struct {
	manifest, done string
	phase          []string
}{
	{`
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: canary}
spec:
  tasks:
  - name: main
    replicas: 2
    template:
      metadata: {annotations: {lockstep.dev/sim-duration: 100ms}}
      spec: {restartPolicy: Never, containers: [{name: main, image: busybox}]}
`, "Completed", []string{"status", "state", "phase"}},
	{`
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: canary}
spec:
  entrypoint: main
  templates:
  - name: main
    metadata: {annotations: {lockstep.dev/sim-duration: 100ms}}
    container: {image: busybox, command: [echo]}
`, "Succeeded", []string{"status", "phase"}},
	{`
apiVersion: core.oam.dev/v1beta1
kind: Application
metadata: {name: canary}
spec:
  components:
  - name: settings
    type: k8s-objects
    properties:
      objects:
      - {apiVersion: v1, kind: ConfigMap, metadata: {name: canary}, data: {a: b}}
`, "running", []string{"status", "status"}},
}

// canariesLive runs one object of each system to its end, each in the namespace of another user. It
// returns an error that names those that did not end in time.
func (w *world) canariesLive(within time.Duration) error {
	w.round++
	namespace, err := w.core.CoreV1().Namespaces().Create(w.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("canaries-%d", w.round)},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	err = localtest.Await(w.Context(), time.Minute, func() error {
		_, err := w.core.CoreV1().ServiceAccounts(namespace.Name).Get(w.Context(), "default", metav1.GetOptions{})
		return err
	})
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	failures := make([]error, len(canaries))
	for i, c := range canaries {
		running.Go(func() {
			u := w.parse(c.manifest)
			u, err := w.in(u.GroupVersionKind(), namespace.Name).Create(w.Context(), u, metav1.CreateOptions{})
			if err == nil {
				err = localtest.Await(w.Context(), within, func() error {
					now, err := w.at(u).Get(w.Context(), u.GetName(), metav1.GetOptions{})
					if err == nil && field(now, c.phase...) != c.done {
						status, _ := json.Marshal(now.Object["status"])
						err = fmt.Errorf("it is not %s: %s", c.done, status)
					}
					return err
				})
			}
			if err != nil {
				failures[i] = fmt.Errorf("the canary of kind %s: %w", w.parse(c.manifest).GetKind(), err)
			}
		})
	}
	running.Wait()
	// The test need not wait until the namespace is deleted.
	_ = w.core.CoreV1().Namespaces().Delete(context.Background(), namespace.Name, metav1.DeleteOptions{})
	var all []string
	for _, err := range failures {
		if err != nil {
			all = append(all, err.Error())
		}
	}
	if len(all) > 0 {
		return fmt.Errorf("%s", strings.Join(all, "\n"))
	}
	return nil
}
