package observe_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/observe"
	"lockstep.dev/lockstep/internal/localcluster/faultproxy"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

var jobs = batchv1.SchemeGroupVersion.WithResource("jobs")

// agree is how far the curves of two observers may be apart.
const agree = 50 * time.Millisecond

// TestAuditLogAndWatchAgree has both observers see one load: pods that are created bound, pods that
// are bound afterwards, pods that are deleted, and a create that is refused.
func TestAuditLogAndWatchAgree(t *testing.T) {
	cluster := localtest.Start(t)
	client, err := kubeclient.Clientset(cluster.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	ns := localtest.Namespace(t, client)
	audit, err := observe.FollowAudit(cluster.AuditLogPath())
	if err != nil {
		t.Fatal(err)
	}
	watch, err := observe.StartWatch(t.Context(), cluster.RESTConfig(), ns, jobs)
	if err != nil {
		t.Fatal(err)
	}
	logs := map[string]*observe.Log{"audit log": {Source: audit, Namespace: ns}, "watch": {Source: watch, Namespace: ns}}

	const pods = 60
	pod := func(i int) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p-%02d", i)}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		if i%2 == 0 {
			p.Spec.NodeName = "n1"
		}
		return p
	}
	for i := range pods {
		p, err := client.CoreV1().Pods(ns).Create(t.Context(), pod(i), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			continue
		}
		if err := client.CoreV1().Pods(ns).Bind(t.Context(), &corev1.Binding{ObjectMeta: p.ObjectMeta, Target: corev1.ObjectReference{Kind: "Node", Name: "n2"}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.CoreV1().Pods(ns).Create(t.Context(), pod(0), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Fatalf("a second %s: %v", pod(0).Name, err)
	}
	for i := range 5 {
		if err := client.CoreV1().Pods(ns).Delete(t.Context(), pod(2*i+1).Name, *metav1.NewDeleteOptions(0)); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]int{"pods/create": pods, "pods/binding": pods / 2, "pods/delete": 5}
	stamps := map[string]map[string]time.Time{}
	for name, log := range logs {
		localtest.Eventually(t, "the events of the "+name, func() error {
			if err := log.Collect(); err != nil {
				t.Fatal(err)
			}
			counts := map[string]int{}
			stamps[name] = map[string]time.Time{}
			for i := range log.Events {
				if e := &log.Events[i]; e.Resource == "pods" && e.OK() {
					counts[e.Kind()]++
					stamps[name][e.Kind()+" "+e.Name] = e.Time
				}
			}
			if diff := cmp.Diff(want, counts); diff != "" {
				return errors.New("counts (-want +got):\n" + diff)
			}
			return nil
		})
		if lost := log.Lost(); lost != "" {
			t.Errorf("%s: lost %s", name, lost)
		}
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	}
	// Both curves rise event by event, so their distance at a count is that of the stamps there. A
	// few events may be late on a busy machine: half of the curve has to be close.
	for _, kind := range []string{"pods/create", "pods/binding"} {
		curve := func(name string) (times []time.Time) {
			for key, at := range stamps[name] {
				if key[:len(kind)+1] == kind+" " {
					times = append(times, at)
				}
			}
			slices.SortFunc(times, time.Time.Compare)
			return times
		}
		a, w := curve("audit log"), curve("watch")
		var apart []time.Duration
		for i := range a {
			apart = append(apart, w[i].Sub(a[i]).Abs())
		}
		slices.Sort(apart)
		t.Logf("%s: median distance %s, greatest %s", kind, apart[len(apart)/2], apart[len(apart)-1])
		if median := apart[len(apart)/2]; median > agree {
			t.Errorf("%s: the curves are %s apart", kind, median)
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(stamps["audit log"])), slices.Sorted(maps.Keys(stamps["watch"]))); diff != "" {
		t.Errorf("events (-audit log +watch):\n%s", diff)
	}
}

// TestAnInterruptedWatchHasLostEvents cuts the connection of a watch, which cannot continue from the
// version that it has seen.
func TestAnInterruptedWatchHasLostEvents(t *testing.T) {
	cluster := localtest.Start(t)
	client, err := kubeclient.Clientset(cluster.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	ns := localtest.Namespace(t, client)
	proxy, err := localtest.Proxy(cluster)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	watch, err := observe.StartWatch(t.Context(), proxy.REST(cluster.RESTConfig()), ns, jobs)
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	log := observe.Log{Source: watch, Namespace: ns}
	seen := func(name string) {
		t.Helper()
		localtest.Eventually(t, "pod "+name, func() error {
			if err := log.Collect(); err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(log.Events, func(e analyse.Event) bool { return e.Name == name }) {
				return fmt.Errorf("no event of %s", name)
			}
			return nil
		})
	}
	create := func(name string) {
		t.Helper()
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		if _, err := client.CoreV1().Pods(ns).Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create("first")
	seen("first")
	if lost := log.Lost(); lost != "" {
		t.Errorf("a watch without faults lost events: %s", lost)
	}
	proxy.Decide(func(r *faultproxy.Request) faultproxy.Fault {
		expired := r.Verb == "watch" && r.URL.Query().Get("sendInitialEvents") != "true"
		return faultproxy.Fault{Watch: faultproxy.WatchFault{Expired: expired}}
	})
	proxy.Cut()
	create("second")
	seen("second")
	if want := "the watch was interrupted and had to list everything again"; log.Lost() != want {
		t.Errorf("lost %q, want %q", log.Lost(), want)
	}
}
