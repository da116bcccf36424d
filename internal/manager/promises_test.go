package manager_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// driverYAML returns a group as Spark makes it: a driver of 2 CPUs, and minResources for executors
// that the driver creates.
func driverYAML(name string) string {
	return fmt.Sprintf(`
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: %[1]s}
spec: {minMember: 1, minResources: {cpu: "8", requests.cpu: "8"}}
---
%[2]s`, name, memberYAML(name, "driver"))
}

// memberYAML returns a pod of 2 CPUs of a group.
func memberYAML(group, pod string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %[1]s-%[2]s, annotations: {scheduling.k8s.io/group-name: %[1]s}}
spec:
  schedulerName: volcano
  containers:
  - {name: main, image: busybox, resources: {requests: {cpu: "2"}}}`, group, pod)
}

// startedDrivers returns the names of the groups whose drivers have nodes.
func (e *env) startedDrivers() []string {
	e.Helper()
	var names []string
	for _, p := range e.pods() {
		if name, driver := strings.CutSuffix(p.Name, "-driver"); driver && p.Spec.NodeName != "" && p.DeletionTimestamp == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// TestDriversAreLetInAsTheirExecutorsFit creates 16 drivers, each of which announces a quarter of the
// cluster. Without the announcement all of them would start, and no executor would find room.
func TestDriversAreLetInAsTheirExecutorsFit(t *testing.T) {
	e := startUnmanaged(t)
	stop := e.run()
	const waits = "spec.minResources: 8 of cpu are not free"
	for i := range 16 {
		e.apply(driverYAML(fmt.Sprintf("app%02d", i)))
	}
	deleted := ""
	others := func(started []string) {
		t.Helper()
		for i := range 16 {
			if name := fmt.Sprintf("app%02d", i); name != deleted && !slices.Contains(started, name) {
				e.says(podGroupResource, name, waits, `"phase":"Pending"`)
			}
		}
	}
	four := func() (started []string) {
		t.Helper()
		e.eventually("four drivers run", func() error {
			if started = e.startedDrivers(); len(started) != 4 {
				return fmt.Errorf("%v have nodes", started)
			}
			return nil
		})
		others(started)
		return started
	}
	first := four()

	// After a restart the promises hold, while executors take their places.
	stop()
	e.run()
	for _, app := range first {
		for i := range 3 {
			e.apply(memberYAML(app, fmt.Sprint("executor", i)))
		}
	}
	e.eventually("all executors have nodes", func() error {
		for _, p := range e.pods() {
			if strings.Contains(p.Name, "-executor") && p.Spec.NodeName == "" {
				return fmt.Errorf("%s has none", p.Name)
			}
		}
		return nil
	})
	if now := four(); !slices.Equal(now, first) {
		t.Errorf("%v have started, before %v", now, first)
	}

	// The next one starts when one has ended.
	for _, pod := range []string{"driver", "executor0", "executor1", "executor2"} {
		if err := e.core.CoreV1().Pods(e.ns).Delete(t.Context(), first[0]+"-"+pod, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.dyn.Resource(podGroupResource).Namespace(e.ns).Delete(t.Context(), first[0], metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	deleted = first[0]
	if now := four(); slices.Contains(now, deleted) {
		t.Errorf("%v have started", now)
	}
}

// TestOperatorsCreatePodsOnceTheirGroupIsInqueue covers operators that create a PodGroup, and its pods
// when it is Inqueue.
func TestOperatorsCreatePodsOnceTheirGroupIsInqueue(t *testing.T) {
	e := startUnmanaged(t)
	e.run()
	owner, err := e.core.CoreV1().ConfigMaps(e.ns).Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "training-job"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	group := func(name, spec string) string {
		return fmt.Sprintf(`
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata:
  name: %s
  ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: training-job, uid: %s, controller: true}]
spec: %s`, name, owner.UID, spec)
	}
	groups := e.dyn.Resource(podGroupResource).Namespace(e.ns)
	// first returns the first status that a group is given, after the CRD's default.
	first := func(manifest, name string) string {
		t.Helper()
		w, err := groups.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		e.apply(manifest)
		for event := range w.ResultChan() {
			u, ok := event.Object.(*unstructured.Unstructured)
			if status := u.Object["status"]; ok && status != nil && asJSON(status) != `{"phase":"Pending"}` {
				return asJSON(status)
			}
		}
		t.Fatal("the watch has ended")
		return ""
	}
	if got := first(group("at-once", `{minMember: 2, minResources: {cpu: "4"}}`), "at-once"); got != `{"phase":"Inqueue"}` {
		t.Errorf("the first status is %s", got)
	}
	for _, pod := range []string{"a", "b"} {
		e.apply(memberYAML("at-once", pod))
	}
	e.says(podGroupResource, "at-once", `"phase":"Running"`, `"running":2`)

	if got := first(group("too-large", `{minMember: 2, minResources: {cpu: "100"}}`), "too-large"); !strings.Contains(got,
		`"phase":"Pending"`) || !strings.Contains(got, "spec.minResources: 100 of cpu are not free") {
		t.Errorf("the first status is %s", got)
	}

	queue := e.ns + "-closed"
	e.apply("apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: " + queue + "}\nspec: {weight: 1, capability: {cpu: \"6\"}}")
	t.Cleanup(func() { _ = e.dyn.Resource(queues).Delete(t.Context(), queue, metav1.DeleteOptions{}) })
	e.command("CloseQueue", "Queue", queue)
	e.eventually("the queue is closed", func() error { return e.queueIs(queue, "Closed") })
	got := first(group("closed", "{minMember: 1, minResources: {cpu: 4}, queue: "+queue+"}"), "closed")
	if !strings.Contains(got, `"phase":"Pending"`) || !strings.Contains(got, "is closed") {
		t.Errorf("the first status is %s", got)
	}
	e.command("OpenQueue", "Queue", queue)
	e.says(podGroupResource, "closed", `"phase":"Inqueue"`)
	got = first(group("over", "{minMember: 1, minResources: {cpu: 4}, queue: "+queue+"}"), "over")
	if !strings.Contains(got, `"phase":"Pending"`) || !strings.Contains(got, "may hold 6 of cpu, and 4 more do not fit") {
		t.Errorf("the first status is %s", got)
	}
}
