package operators

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/manager/managertest"
)

var (
	podGroups = schema.GroupVersionResource{Group: "scheduling.volcano.sh", Version: "v1beta1", Resource: "podgroups"}
	queues    = podGroups.GroupVersion().WithResource("queues")
	crds      = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	classes   = schema.GroupVersionResource{Group: "scheduling.k8s.io", Version: "v1", Resource: "priorityclasses"}
)

// env is a namespace of the cluster with a manager and an operator.
type env struct {
	*testing.T
	c    *localcluster.Cluster
	ns   string
	core kubernetes.Interface
	dyn  dynamic.Interface
}

// start returns a namespace of a cluster with the operator's CRDs, or skips the test. The namespace
// has the queue and the priority class "NAMESPACE-q".
func start(t *testing.T, operator string) *env {
	if _, err := os.Stat(filepath.Join(fetched, operator, "version")); err != nil {
		t.Skipf("%s is not there: run make test-operators", operator)
	}
	if os.Geteuid() != 0 {
		t.Skip("operators run in a network of their own, which needs root")
	}
	e := &env{T: t, c: managertest.Shared(t)}
	e.core, e.dyn = kubernetes.NewForConfigOrDie(e.c.RESTConfig()), dynamic.NewForConfigOrDie(e.c.RESTConfig())
	e.ns = localtest.NamespaceForPods(t, e.core)
	files, err := filepath.Glob(filepath.Join(fetched, operator, "crds", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no CRDs of %s: %v", operator, err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		name := e.apply(crds, string(text))
		e.until(crds, name, func(u *unstructured.Unstructured) error {
			if text := asJSON(u.Object["status"]); !strings.Contains(text, `"status":"True","type":"Established"`) {
				return errors.New(text)
			}
			return nil
		})
	}
	e.apply(queues, fmt.Sprintf("apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: %s-q}\nspec: {weight: 1}", e.ns))
	e.apply(classes, fmt.Sprintf("apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: %s-q}\nvalue: 100", e.ns))
	return e
}

const fetched = "../../bin/operators"

// run runs an operator until the end of the test.
func (e *env) run(operator string, args ...string) {
	e.Helper()
	api, err := url.Parse(e.c.RESTConfig().Host)
	if err != nil {
		e.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "ls-op-") // short, as the path of a socket has to be
	if err != nil {
		e.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "api"))
	if err != nil {
		e.Fatal(err)
	}
	go forward(l, "tcp", api.Host)
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		e.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], append([]string{"alone", l.Addr().String(), api.Host, filepath.Join(fetched, operator, "program"),
		"--kubeconfig=" + e.c.Kubeconfig()}, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+dir, "POD_NAMESPACE="+e.ns, "ENABLE_WEBHOOKS=false")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		l.Close()
		if e.Failed() {
			_, _ = log.Seek(0, io.SeekStart)
			text, _ := io.ReadAll(log)
			e.Logf("%s:\n%s", operator, text[max(0, len(text)-6000):])
		}
		log.Close()
		os.RemoveAll(dir)
	})
}

// apply creates an object, in the namespace unless it is one of the cluster, and returns its name.
func (e *env) apply(gvr schema.GroupVersionResource, text string) string {
	e.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), u); err != nil {
		e.Fatalf("%v:\n%s", err, text)
	}
	// By server-side apply, since tests may install the same CRDs.
	_, err := e.of(gvr).Apply(e.Context(), u.GetName(), u, metav1.ApplyOptions{FieldManager: "test", Force: true})
	if err != nil {
		e.Fatal(err)
	}
	return u.GetName()
}

func (e *env) of(gvr schema.GroupVersionResource) dynamic.ResourceInterface {
	if gvr == crds || gvr == classes || gvr == queues {
		return e.dyn.Resource(gvr)
	}
	return e.dyn.Resource(gvr).Namespace(e.ns)
}

// patch changes an object by a merge patch.
func (e *env) patch(gvr schema.GroupVersionResource, name, patch string, subresources ...string) {
	e.Helper()
	if _, err := e.of(gvr).Patch(e.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...); err != nil {
		e.Fatal(err)
	}
}

// until waits until ok returns nil for the object.
func (e *env) until(gvr schema.GroupVersionResource, name string, ok func(*unstructured.Unstructured) error) {
	e.Helper()
	localtest.Eventually(e, gvr.Resource+" "+name, func() error {
		u, err := e.of(gvr).Get(e.Context(), name, metav1.GetOptions{})
		if err == nil {
			err = ok(u)
		}
		return err
	})
}

// says waits until the object contains all parts, as JSON.
func (e *env) says(gvr schema.GroupVersionResource, name string, parts ...string) {
	e.Helper()
	e.until(gvr, name, func(u *unstructured.Unstructured) error {
		u.SetManagedFields(nil)
		text := asJSON(u.Object)
		for _, p := range parts {
			if !strings.Contains(text, p) {
				return fmt.Errorf("lacks %s: %s", p, text)
			}
		}
		return nil
	})
}

func asJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// pods returns the pods of the namespace with this prefix that are not being deleted.
func (e *env) pods(prefix string) (out []corev1.Pod) {
	e.Helper()
	list, err := e.core.CoreV1().Pods(e.ns).List(e.Context(), metav1.ListOptions{})
	if err != nil {
		e.Fatal(err)
	}
	for _, p := range list.Items {
		if strings.HasPrefix(p.Name, prefix) && p.DeletionTimestamp == nil {
			out = append(out, p)
		}
	}
	return out
}

// untilPods waits until so many pods with this prefix exist, and so many of them have nodes.
func (e *env) untilPods(prefix string, exist, bound int) {
	e.Helper()
	localtest.Eventually(e, "the pods of "+prefix, func() error {
		pods, on := e.pods(prefix), e.bound(prefix)
		if len(pods) != exist || on != bound {
			return fmt.Errorf("%d exist, not %d; %d have nodes, not %d: %s", len(pods), exist, on, bound, said(pods))
		}
		return nil
	})
}

func (e *env) bound(prefix string) (n int) {
	e.Helper()
	for _, p := range e.pods(prefix) {
		if p.Spec.NodeName != "" {
			n++
		}
		if p.Spec.SchedulerName != "volcano" {
			e.Errorf("pod %s is for scheduler %s", p.Name, p.Spec.SchedulerName)
		}
	}
	return n
}

func said(pods []corev1.Pod) string {
	var out []string
	for _, p := range pods {
		out = append(out, fmt.Sprintf("%s %s %v", p.Name, p.Status.Phase, p.Status.Conditions))
	}
	return strings.Join(out, "; ")
}

// down deletes an object, and waits until no pod and no PodGroup of the namespace is left.
func (e *env) down(gvr schema.GroupVersionResource, name string) {
	e.Helper()
	if err := e.of(gvr).Delete(e.Context(), name, metav1.DeleteOptions{}); err != nil {
		e.Fatal(err)
	}
	localtest.Eventually(e, "everything is gone", func() error { return e.left(e.Context()) })
}

func (e *env) left(ctx context.Context) error {
	groups, err := e.of(podGroups).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	pods, err := e.core.CoreV1().Pods(e.ns).List(ctx, metav1.ListOptions{})
	if err == nil && len(groups.Items)+len(pods.Items) > 0 {
		err = fmt.Errorf("left are %d PodGroups and %s", len(groups.Items), said(pods.Items))
	}
	return err
}
