package manager_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/internal/manager"
)

// applyQueue creates the queue NAMESPACE-NAME, and deletes it after the test.
func (e *env) applyQueue(name, annotations, spec string) string {
	e.Helper()
	name = e.ns + "-" + name
	e.apply(fmt.Sprintf("apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: %s, annotations: {%s}}\nspec: %s", name, annotations, spec))
	e.Cleanup(func() { _ = e.dyn.Resource(queues).Delete(context.Background(), name, metav1.DeleteOptions{}) })
	return name
}

// queueShows waits until the status of a queue has all parts.
func (e *env) queueShows(name string, parts ...string) {
	e.Helper()
	e.eventually("queue "+name, func() error {
		u, err := e.dyn.Resource(queues).Get(e.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		text := asJSON(u.Object["status"])
		for _, part := range parts {
			if !strings.Contains(text, part) {
				return fmt.Errorf("the status lacks %q: %s", part, text)
			}
		}
		return nil
	})
}

// oneByOne submits n jobs of one pod.
func (e *env) oneByOne(prefix, queue string, n int) {
	e.Helper()
	for i := range n {
		e.apply(jobYAML(fmt.Sprint(prefix, i), 1, "queue: "+queue, ""))
	}
	for i := range n {
		e.waits(fmt.Sprint(prefix, i), "cpu")
	}
}

// running returns how many pods there are of jobs whose names begin with a prefix.
func (e *env) running(prefix string) (n int) {
	for _, p := range e.pods() {
		if strings.HasPrefix(p.Name, prefix) {
			n++
		}
	}
	return n
}

// TestAQueueRunsSoManyJobs checks the limit of the number of jobs of a queue, and of the queues below one, and
// what is said of numbers that are none.
func TestAQueueRunsSoManyJobs(t *testing.T) {
	e, _ := startEvicting(t)
	above := e.applyQueue("above", "", "{capability: {count/jobs.batch.volcano.sh: 2}}")
	two := e.applyQueue("two", "", "{capability: {count/jobs.batch.volcano.sh: 1}, parent: "+above+"}")
	one := e.applyQueue("one", "", "{parent: "+above+"}")
	e.apply(jobYAML("a", 2, "queue: "+two, ""))
	e.runs("a", 2)
	e.apply(jobYAML("b", 1, "priorityClassName: urgent\n  queue: "+two, ""))
	e.until("b", both(inPhase(batch.Pending), says(batch.JobScheduled, "QueueOverJobs", `spec.queue: queue "`+two+`" may run 1 jobs at a time`)))
	e.apply(jobYAML("c", 1, "queue: "+one, ""))
	e.runs("c", 1)
	e.apply(jobYAML("d", 1, "queue: "+one, ""))
	e.until("d", says(batch.JobScheduled, "QueueOverJobs", `spec.queue: queue "`+above+`" may run 2 jobs at a time`))
	if n := len(e.leaving()); n > 0 {
		t.Errorf("%d pods leave so that the number of jobs becomes less", n)
	}
	e.deleteJob("a")
	e.runs("b", 1)
	e.hasNoPods("d")
	e.deleteJob("c")
	e.runs("d", 1)

	wrong := e.applyQueue("wrong", "lockstep.dev/fair-share-by: team", "{capability: {count/jobs.batch.volcano.sh: 1500m, count/pods: 3},"+
		" deserved: {count/jobs.batch.volcano.sh: 1}}")
	e.queueShows(wrong, "not acted on: metadata.annotations[lockstep.dev/fair-share-by] (want namespace or user), "+
		"spec.capability[count/jobs.batch.volcano.sh] (want a whole number), "+
		"spec.capability (of numbers of objects, only count/jobs.batch.volcano.sh), spec.deserved (of numbers of objects)")
}

// TestNamespacesAndUsersShareTheirQueue has jobs of three namespaces wait in one queue, two of which belong to
// one user. What becomes free is divided by namespace, or by user.
func TestNamespacesAndUsersShareTheirQueue(t *testing.T) {
	e := startUnmanaged(t)
	t.Cleanup(e.letAllGo)
	envs := []*env{e}
	for range 2 {
		other := newEnv(t, e.c)
		t.Cleanup(func() { // the manager has ended by then
			_ = e.core.CoreV1().Pods(other.ns).DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{})
			other.clean()
		})
		envs = append(envs, other)
	}
	for _, other := range envs[1:] {
		label := []byte(`{"metadata":{"labels":{"lockstep.dev/user":"ann"}}}`)
		if _, err := e.core.CoreV1().Namespaces().Patch(t.Context(), other.ns, types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	e.apply(priorityClasses)
	e.run()
	for by, ok := range map[string]func(first, second, third int) bool{
		"namespace": func(first, second, third int) bool {
			return min(first, second, third) == 2 && max(first, second, third) == 3
		},
		"user": func(first, second, third int) bool { return first == 4 && second+third == 4 },
	} {
		queue := e.applyQueue(by, "lockstep.dev/fair-share-by: "+by, "{weight: 1}")
		e.apply(jobYAML("before-"+by, 8, "", ""))
		e.runs("before-"+by, 8)
		for i := 2; i >= 0; i-- { // the jobs of the first namespace are the youngest
			envs[i].oneByOne(by, queue, 5)
		}
		e.deleteJob("before-" + by)
		e.eventually("the places are divided by "+by, func() error {
			n := [3]int{}
			for i := range n {
				n[i] = envs[i].running(by)
			}
			if !ok(n[0], n[1], n[2]) {
				return fmt.Errorf("%v pods", n)
			}
			return nil
		})
		// An urgent job is next, whoever's it is.
		e.apply(jobYAML("urgent-"+by, 1, "priorityClassName: patient\n  queue: "+queue, ""))
		e.waits("urgent-"+by, "cpu")
		e.deleteJob(by + "0")
		e.runs("urgent-"+by, 1)
		e.deleteJob("urgent-" + by)
		for i, one := range envs {
			for k := range 5 {
				if i > 0 || k > 0 {
					one.deleteJob(fmt.Sprint(by, k))
				}
			}
		}
	}
}

// TestATeamThatHasUsedTheClusterStandsBehind starts a manager on queues whose statuses say what they have
// used, as an earlier manager has left them.
func TestATeamThatHasUsedTheClusterStandsBehind(t *testing.T) {
	e := startUnmanaged(t)
	t.Cleanup(e.letAllGo)
	busy, idle := e.applyQueue("busy", "", "{weight: 1}"), e.applyQueue("idle", "", "{weight: 1}")
	status := fmt.Sprintf(`{"status": {"state": "Open", "usage": {"at": %q, "average": {"cpu": "20"}}}}`, time.Now().UTC().Format(time.RFC3339))
	if _, err := e.dyn.Resource(queues).Patch(t.Context(), busy, types.MergePatchType, []byte(status), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	e.run(func(c *manager.Config) { c.UsageHalfLife = 7 * 24 * time.Hour })
	e.apply(jobYAML("before", 8, "", ""))
	e.runs("before", 8)
	e.oneByOne("busy-", busy, 8)
	e.oneByOne("idle-", idle, 8)
	e.deleteJob("before")
	// The busy team has used 20 of 32 CPUs: the idle one gets 5 places of 4 CPUs before it gets one.
	e.eventually("the places are divided", func() error {
		if b, i := e.running("busy-"), e.running("idle-"); b != 2 || i != 6 {
			return fmt.Errorf("%d and %d pods; want 2 and 6", b, i)
		}
		return nil
	})
}

// TestAnUrgentJobTakesThePlaceOfAnotherQueues checks that priorities count across queues if the manager is told
// so, and otherwise do not.
func TestAnUrgentJobTakesThePlaceOfAnotherQueues(t *testing.T) {
	e := startUnmanaged(t)
	t.Cleanup(e.letAllGo)
	e.apply(priorityClasses)
	stop := e.run()
	theirs := e.applyQueue("theirs", "", "{weight: 1}")
	e.apply(jobYAML("low", 8, "minAvailable: 1\n  queue: "+theirs, ""))
	e.runs("low", 8)
	e.apply(jobYAML("high", 2, "priorityClassName: urgent", ""))
	e.waits("high", "cpu")
	if c := e.job("high").Status.Condition(batch.JobScheduled); c == nil || strings.Contains(c.Message, "evicted") {
		t.Errorf("without the setting it says %s", asJSON(c))
	}
	stop()
	e.run(func(c *manager.Config) { c.PreemptAcross = true })
	e.runs("high", 2)
	e.runs("low", 6)
}
