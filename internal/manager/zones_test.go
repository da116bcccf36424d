package manager_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/internal/manager"
	"lockstep.dev/lockstep/internal/scheduler/config"
)

// labelNodes sets a label of nodes of a cluster that no other test uses, until the test ends. It
// returns the value by the name of the node.
func (e *env) labelNodes(key string, values ...string) map[string]string {
	e.Helper()
	list, err := e.core.CoreV1().Nodes().List(e.Context(), metav1.ListOptions{})
	if err != nil {
		e.Fatal(err)
	}
	set := func(node, value string) {
		data := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, key, value)
		if _, err := e.core.CoreV1().Nodes().Patch(context.Background(), node, types.MergePatchType, data, metav1.PatchOptions{}); err != nil {
			e.Error(err)
		}
	}
	of := map[string]string{}
	for i, value := range values {
		node := list.Items[i].Name
		of[node] = value
		set(node, `"`+value+`"`)
		e.Cleanup(func() { set(node, "null") })
	}
	return of
}

// configured runs a manager with a scheduler configuration.
func (e *env) configured(text string) (stop func()) {
	e.Helper()
	settings, _, err := config.Parse([]byte(text))
	if err != nil {
		e.Fatal(err)
	}
	return e.run(func(c *manager.Config) {
		c.Zones = settings.Zones
		c.NoPreemption, c.NoReclaim = settings.NoPreemption, settings.NoReclaim
	})
}

// revocable is a configuration with a zone that is open now, for hours, one that is closed, and, by
// its label only, one without hours.
func revocable(actions string) string {
	now := time.Now().UTC()
	at := func(d time.Duration) string { return now.Add(d).Format("15:04") }
	return fmt.Sprintf(`
actions: %q
tiers:
- plugins:
  - name: priority
  - name: tdm
    arguments:
      tdm.revocable-zone.open: %s-%s UTC
      tdm.revocable-zone.shut: %s-%s UTC
      tdm.evict.period: 1s
`, actions, at(-2*time.Hour), at(6*time.Hour), at(3*time.Hour), at(9*time.Hour))
}

// TestRevocableZones checks which pods go to nodes of revocable zones, by annotations of Jobs, of
// templates, of PodGroups and of pods. There are four nodes with room for two pods each.
func TestRevocableZones(t *testing.T) {
	e := startUnmanaged(t)
	t.Cleanup(e.letAllGo)
	zone := e.labelNodes("volcano.sh/revocable-zone", "open", "shut", "other")
	e.configured(revocable("enqueue, allocate, backfill, preempt"))
	zones := func(job string) map[string]int {
		t.Helper()
		n := map[string]int{}
		for _, p := range e.podsOf(job) {
			n[zone[p.Spec.NodeName]]++
		}
		return n
	}
	expect := func(job string, pods int32, want map[string]int) {
		t.Helper()
		e.runs(job, pods)
		if got := zones(job); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: pods by zone: %v; want %v", job, got, want)
		}
		e.deleteJob(job)
	}
	job := func(name string, pods int, annotations, template string) {
		t.Helper()
		e.apply(fmt.Sprintf(`
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: %s, annotations: {%s}}
spec:
  minAvailable: 1
  tasks:
  - name: main
    replicas: %d
    template:
      metadata: {annotations: {%s}}
      spec:
        restartPolicy: Never
        containers: [{name: main, image: busybox, resources: {requests: {cpu: "4"}}}]`, name, annotations, pods, template))
	}

	//   1. Other pods use ordinary nodes only, and say why they find no more room.
	job("plain", 2, "", "")
	expect("plain", 2, map[string]int{"": 2})
	for name, tc := range map[string]struct{ zone, annotations, why string }{
		"inside":  {"open", "", "in a revocable zone that the pod does not allow"},
		"another": {"open", "volcano.sh/revocable-zone: shut", "in a revocable zone that the pod does not allow"},
		"late":    {"shut", "volcano.sh/revocable-zone: shut", "in a revocable zone outside of its hours"},
		"never":   {"other", `volcano.sh/revocable-zone: "*"`, "in a revocable zone outside of its hours"},
	} {
		text := strings.Replace(jobYAML(name, 1, "", "annotations: {"+tc.annotations+"}"), "containers:",
			"nodeSelector: {volcano.sh/revocable-zone: "+tc.zone+"}\n        containers:", 1)
		e.apply(text)
		e.waits(name, tc.why)
		e.deleteJob(name)
	}

	//   2. Pods that allow zones prefer those that are open, and use ordinary nodes, too.
	job("any", 4, `volcano.sh/revocable-zone: "*"`, "")
	expect("any", 4, map[string]int{"open": 2, "": 2})
	job("named", 1, "", "volcano.sh/revocable-zone: open")
	expect("named", 1, map[string]int{"open": 1})
	job("closed", 1, "", "volcano.sh/revocable-zone: shut")
	expect("closed", 1, map[string]int{"": 1})
	job("preemptable", 1, `volcano.sh/preemptable: "true"`, "")
	expect("preemptable", 1, map[string]int{"open": 1})

	//   3. Pods of a PodGroup have what the group says, unless they say something themselves.
	e.apply(`
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: group, annotations: {volcano.sh/revocable-zone: open}}
spec: {minMember: 2}
`)
	for _, pod := range []string{"grouped", "own"} {
		annotation := ""
		if pod == "own" {
			annotation = `, volcano.sh/preemptable: "false"`
		}
		e.apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, annotations: {scheduling.k8s.io/group-name: group%s}}
spec:
  schedulerName: volcano
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: busybox, resources: {requests: {cpu: "4"}}}]`, pod, annotation))
	}
	e.eventually("the pods of the group have nodes", func() error {
		a, b := e.pod("grouped"), e.pod("own")
		if a.Spec.NodeName == "" || b.Spec.NodeName == "" {
			return fmt.Errorf("%q and %q", a.Spec.NodeName, b.Spec.NodeName)
		}
		if zone[a.Spec.NodeName] != "open" || zone[b.Spec.NodeName] != "" {
			t.Errorf("zones %q and %q", zone[a.Spec.NodeName], zone[b.Spec.NodeName])
		}
		return nil
	})

	//   4. What is no zone is named.
	job("wrong", 1, "volcano.sh/revocable-zone: a b", "")
	e.until("wrong", says(batch.JobSupported, batch.ReasonNotImplemented, "volcano.sh/revocable-zone", "names of zones"))
}

// TestPodsLeaveRevocableZones runs jobs on a zone that is open, and replaces the manager by one for
// which it is closed.
func TestPodsLeaveRevocableZones(t *testing.T) {
	e := startUnmanaged(t)
	t.Cleanup(e.letAllGo)
	// Two nodes of the zone, with room for two pods each.
	zone := e.labelNodes("volcano.sh/revocable-zone", "night", "night")
	hours := func(open bool, actions string) string {
		now := time.Now().UTC()
		from, to := now.Add(-2*time.Hour), now.Add(6*time.Hour)
		if !open {
			from, to = to, from
		}
		return fmt.Sprintf(`
actions: %q
tiers: [{plugins: [{name: tdm, arguments: {tdm.revocable-zone.night: %s-%s UTC, tdm.evict.period: 1s}}]}]`,
			actions, from.Format("15:04"), to.Format("15:04"))
	}
	job := func(name string, pods int, spec, annotations string) {
		t.Helper()
		e.apply(fmt.Sprintf(`
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: %s, annotations: {volcano.sh/revocable-zone: night, %s}}
spec:
  %s
  maxRetry: 1
  tasks:
  - name: main
    replicas: %d
    template:
      spec:
        restartPolicy: Never
        containers: [{name: main, image: busybox, resources: {requests: {cpu: "4"}}}]`, name, annotations, spec, pods))
		e.runs(name, int32(pods))
	}
	inside := func(job string) (n int) {
		t.Helper()
		for _, p := range e.podsOf(job) {
			if zone[p.Spec.NodeName] != "" {
				n++
			}
		}
		return n
	}
	stop := e.configured(hours(true, "allocate, shuffle"))
	job("stays", 1, "", `a: b`) // it does not say that it is preemptable
	job("leaves", 1, "", `volcano.sh/preemptable: "true"`)
	job("bounded", 2, "", `volcano.sh/preemptable: "true", volcano.sh/jdb-max-unavailable: "1"`)
	if a, b, c := inside("stays"), inside("leaves"), inside("bounded"); a+b+c != 4 {
		t.Fatalf("%d, %d and %d pods in the zone", a, b, c)
	}
	before := e.uids("stays")

	//   1. No action that evicts: everything stays.
	stop()
	stop = e.configured(hours(false, "allocate"))
	job("sentinel", 1, "", `volcano.sh/preemptable: "true"`) // the manager has been at work
	if a, b, c := inside("stays"), inside("leaves"), inside("bounded"); a+b+c != 4 {
		t.Errorf("%d, %d and %d pods in the zone", a, b, c)
	}
	e.deleteJob("sentinel")

	//   2. Preemptable pods leave: a job with a budget one after the other, each when the one before
	//   has found another place. Evictions cost no retry.
	stop()
	e.configured(hours(false, "allocate, shuffle"))
	for _, name := range []string{"leaves", "bounded"} {
		e.until(name, func(j *batch.Job) error {
			if n := inside(name); n != 0 || int(j.Status.Running) != len(e.podsOf(name)) {
				return fmt.Errorf("%d pods in the zone", n)
			}
			return nil
		})
		if j := e.job(name); j.Status.RetryCount != 0 {
			t.Errorf("%s: %d retries", name, j.Status.RetryCount)
		}
	}
	for name, message := range map[string]string{"leaves": "the whole job, 1 pod evicted: the job is", "bounded": "1 pod evicted: the job is"} {
		e.eventually("event of job "+name, func() error {
			events := e.eventsOf(name)
			if !slices.ContainsFunc(events, func(x corev1.Event) bool {
				return x.Reason == "Evicted" && strings.HasPrefix(x.Message, message+" in a revocable zone whose hours are over")
			}) {
				return fmt.Errorf("%+v", events)
			}
			return nil
		})
	}
	if after := e.uids("stays"); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("the job that is not preemptable has the pods %v, and had %v", after, before)
	}
}
