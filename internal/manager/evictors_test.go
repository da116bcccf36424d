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
	"k8s.io/utils/ptr"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
)

// TestPodsOfOthersTakeThePlaceOfLowerPriority has pods of a Deployment, of a Job of Kubernetes and of a
// workflow evict pods of an elastic job, one each.
func TestPodsOfOthersTakeThePlaceOfLowerPriority(t *testing.T) {
	e, _ := startEvicting(t)
	e.deletesWorkflows()
	e.apply(jobYAML("low", 8, "minAvailable: 1", ""))
	e.runs("low", 8)
	const container = `{name: main, image: busybox, resources: {requests: {cpu: "4"}}}`
	t.Cleanup(func() { // before their pods are deleted
		background := metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}
		if err := e.core.AppsV1().Deployments(e.ns).Delete(context.Background(), "urgent", background); err != nil {
			t.Error(err)
		}
		if err := e.core.BatchV1().Jobs(e.ns).Delete(context.Background(), "urgent", background); err != nil {
			t.Error(err)
		}
	})
	left := int32(8)
	for kind, manifest := range map[string]string{
		"deployment": `
apiVersion: apps/v1
kind: Deployment
metadata: {name: urgent}
spec:
  replicas: 1
  selector: {matchLabels: {app: urgent-deployment}}
  template:
    metadata: {labels: {app: urgent-deployment}}
    spec: {schedulerName: volcano, priorityClassName: urgent, terminationGracePeriodSeconds: 0, containers: [` + container + `]}`,
		"job": `
apiVersion: batch/v1
kind: Job
metadata: {name: urgent}
spec:
  template:
    metadata: {labels: {app: urgent-job}}
    spec: {schedulerName: volcano, priorityClassName: urgent, restartPolicy: Never, terminationGracePeriodSeconds: 0, containers: [` + container + `]}`,
		"workflow": `
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: urgent}
spec:
  entrypoint: main
  podPriorityClassName: urgent
  podMetadata: {labels: {app: urgent-workflow}}
  templates:
  - {name: main, container: {image: busybox, command: [sleep], args: ["1000"], resources: {requests: {cpu: "4"}}}}`,
	} {
		e.apply(manifest)
		e.eventually("the pod of the "+kind+" has a node", func() error {
			for _, p := range e.pods() {
				if p.Labels["app"] == "urgent-"+kind && p.Spec.NodeName != "" {
					return nil
				}
			}
			return fmt.Errorf("no pod has one")
		})
		left--
		e.runs("low", left)
	}
}

// TestVictimsComeBackOldestFirst evicts two jobs, and then makes room for one of them.
func TestVictimsComeBackOldestFirst(t *testing.T) {
	e, _ := startEvicting(t)
	e.apply(jobYAML("z-old", 4, "", ""))
	created := e.runs("z-old", 4).CreationTimestamp
	e.eventually("a second has passed", func() error { // creation times have no fractions
		if time.Now().Unix() <= created.Unix() {
			return fmt.Errorf("it is %v", time.Now())
		}
		return nil
	})
	e.apply(jobYAML("a-new", 4, "", ""))
	e.runs("a-new", 4)
	for _, name := range []string{"first", "second"} {
		e.apply(jobYAML(name, 4, "priorityClassName: urgent", ""))
		e.runs(name, 4)
	}
	e.waits("z-old", "cpu")
	e.waits("a-new", "cpu")
	e.deleteJob("second")
	e.runs("z-old", 4)
	e.hasNoPods("a-new")
	e.deleteJob("first")
	e.runs("a-new", 4)
	for _, name := range []string{"z-old", "a-new"} {
		if j := e.job(name); j.Status.RetryCount != 0 {
			t.Errorf("status of %s: %s", name, asJSON(j.Status))
		}
	}
}

// TestReclaimGoesThroughTheTree has two departments that deserve half of the cluster each. What a team
// may claim back is what its department deserves, and within the department what the team does.
func TestReclaimGoesThroughTheTree(t *testing.T) {
	e, _ := startEvicting(t)
	name := func(n string) string { return e.ns + "-" + n }
	parents := map[string]string{"a1": "a", "a2": "a", "b1": "b"}
	for n, deserved := range map[string]string{"a": "16", "b": "16"} {
		e.apply(fmt.Sprintf("apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: %s}\nspec: {deserved: {cpu: %s}}", name(n), deserved))
	}
	for n, deserved := range map[string]string{"a1": "", "a2": "deserved: {cpu: 8}, ", "b1": ""} {
		e.apply(fmt.Sprintf("apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: %s}\nspec: {%sparent: %s}", name(n), deserved, name(parents[n])))
	}
	t.Cleanup(func() {
		for _, n := range []string{"a1", "a2", "b1", "a", "b"} {
			_ = e.dyn.Resource(queues).Delete(context.Background(), name(n), metav1.DeleteOptions{})
		}
	})
	for i := range 8 {
		e.apply(jobYAML(fmt.Sprint("one", i), 1, "queue: "+name("a1"), ""))
		e.runs(fmt.Sprint("one", i), 1)
	}
	of := func(queue string) func() int {
		return func() int {
			return len(slices.DeleteFunc(e.pods(), func(p corev1.Pod) bool {
				return p.DeletionTimestamp != nil || p.Annotations[batch.QueueNameKey] != name(queue)
			}))
		}
	}
	//   1. Department b gets its 4 places of 4 CPUs, and no more.
	for i := range 4 {
		e.apply(jobYAML(fmt.Sprint("b", i), 1, "queue: "+name("b1"), ""))
		e.runs(fmt.Sprint("b", i), 1)
	}
	e.apply(jobYAML("b4", 1, "queue: "+name("b1"), ""))
	e.waits("b4", "nothing is evicted for it")
	//   2. Team a2 gets its 2 places, from team a1.
	for i := range 2 {
		e.apply(jobYAML(fmt.Sprint("two", i), 1, "queue: "+name("a2"), ""))
		e.runs(fmt.Sprint("two", i), 1)
	}
	e.apply(jobYAML("two2", 1, "queue: "+name("a2"), ""))
	e.waits("two2", "nothing is evicted for it")
	for queue, want := range map[string]int{"a1": 2, "a2": 2, "b1": 4} {
		if got := of(queue)(); got != want {
			t.Errorf("queue %s has %d pods, want %d", queue, got, want)
		}
	}
}

// TestATaskOfHigherPriorityTakesThePlaceOfAnother adds a pod of an important task to a job that fills the
// cluster: a pod of another task of the job leaves for it, unless a policy would restart the job then.
func TestATaskOfHigherPriorityTakesThePlaceOfAnother(t *testing.T) {
	e, _ := startEvicting(t)
	job := func(name string, workers int, more string) string {
		const pod = `{terminationGracePeriodSeconds: 0, restartPolicy: Never, %scontainers: [{name: main, image: busybox, resources: {requests: {cpu: "4"}}}]}`
		return fmt.Sprintf(`
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: %s}
spec:
  minAvailable: 1
  %s
  tasks:
  - {name: worker, replicas: %d, template: {spec: %s}}
  - {name: lead, replicas: 0, template: {spec: %s}}`, name, more, workers, fmt.Sprintf(pod, ""), fmt.Sprintf(pod, "priorityClassName: urgent, "))
	}
	counts := func(workers, leads int32) func(*batch.Job) error {
		return func(j *batch.Job) error {
			s := j.Status.TaskStatusCount
			if w, l := s["worker"].Phase[corev1.PodRunning], s["lead"].Phase[corev1.PodRunning]; w != workers || l != leads || j.Status.RetryCount != 0 {
				return fmt.Errorf("%d workers and %d leads run", w, l)
			}
			return nil
		}
	}
	const lead = `[{"op": "replace", "path": "/spec/tasks/1/replicas", "value": 1}]`
	e.apply(job("careful", 2, "policies: [{event: PodEvicted, action: RestartJob}]"))
	e.until("careful", counts(2, 0))
	e.apply(job("elastic", 6, ""))
	e.until("elastic", counts(6, 0))
	e.patchJob("careful", lead)
	e.until("careful", says(batch.JobSurplusScheduled, "NotEnoughResources", "cpu"))
	e.patchJob("elastic", lead)
	e.until("elastic", counts(5, 1))
	e.until("elastic", says(batch.JobSurplusScheduled, "NotEnoughResources", "cpu")) // the sixth worker waits
	e.until("careful", counts(2, 0))
}

// TestSurplusOfAnUrgentJobTakesThePlaceOfSurplus has two elastic jobs. What the urgent one has above its
// minimum takes the places of what the other one has above its own, and the other way about nothing moves.
func TestSurplusOfAnUrgentJobTakesThePlaceOfSurplus(t *testing.T) {
	e, _ := startEvicting(t)
	elastic := func(name, more string) string {
		return fmt.Sprintf(`
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: %s}
spec:
  minAvailable: 2
  %s
  tasks:
  - name: main
    replicas: 2
    template:
      spec:
        restartPolicy: Never
        terminationGracePeriodSeconds: 0
        containers: [{name: main, image: busybox, resources: {requests: {cpu: "4"}}}]`, name, more)
	}
	grow := func(name string, replicas int) {
		e.patchJob(name, fmt.Sprintf(`[{"op": "replace", "path": "/spec/tasks/0/replicas", "value": %d}]`, replicas))
	}
	e.apply(elastic("urgent", "priorityClassName: urgent"))
	e.runs("urgent", 2)
	e.apply(elastic("low", ""))
	e.runs("low", 2)
	grow("low", 6)
	e.runs("low", 6)
	grow("urgent", 10)
	e.runs("urgent", 6)
	e.runs("low", 2)
	waits := says(batch.JobSurplusScheduled, "NotEnoughResources", "nothing is evicted for it")
	e.until("urgent", waits)
	e.until("low", says(batch.JobSurplusScheduled, "NotEnoughResources", "cpu"))
	for _, name := range []string{"urgent", "low"} {
		if j := e.job(name); j.Status.RetryCount != 0 || j.Status.State.Phase != batch.Running {
			t.Errorf("status of %s: %s", name, asJSON(j.Status))
		}
	}
	grow("urgent", 2) // what the urgent job gives back, the other one gets
	e.runs("low", 6)
}

// TestALargeJobStartsBehindAnEndlessStream has a gang that needs all of 16 places wait behind small jobs,
// which are created as fast as they end. Without capacity that is kept for it, it would wait for ever.
func TestALargeJobStartsBehindAnEndlessStream(t *testing.T) {
	e, _ := startEvicting(t)
	job := func(name string, pods int, more, annotations string) string {
		return fmt.Sprintf(`
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: %s%s}
spec:
  minAvailable: %d
  ttlSecondsAfterFinished: 0
  tasks:
  - name: main
    replicas: %d
    template:
      metadata: {annotations: {%s}}
      spec:
        restartPolicy: Never
        terminationGracePeriodSeconds: 0
        containers: [{name: main, image: busybox, resources: {requests: {cpu: "2"}}}]`, name, more, pods, pods, annotations)
	}
	number := 0
	feed := func() { // keeps 32 small jobs, of which 16 can run
		list, err := e.dyn.Resource(jobs).Namespace(e.ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for n := len(list.Items); n < 33; n++ {
			number++
			e.apply(job(fmt.Sprint("small-", number), 1, "", "lockstep.dev/sim-duration: 500ms"))
		}
	}
	running := func(prefix string) (n int) {
		for _, p := range e.pods() {
			if strings.HasPrefix(p.Name, prefix) && p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
				n++
			}
		}
		return n
	}
	e.eventually("the small jobs run", func() error {
		feed()
		if n := running("small-"); n < 8 {
			return fmt.Errorf("%d pods", n)
		}
		return nil
	})
	e.apply(job("large", 16, ", annotations: {"+scheduling.SLAWaitingTimeAnnotation+": 1s}", ""))
	e.eventually("the large job runs", func() error {
		feed()
		if n := running("large-"); n != 16 {
			return fmt.Errorf("%d pods", n)
		}
		return nil
	})
	e.deleteJob("large")
}
