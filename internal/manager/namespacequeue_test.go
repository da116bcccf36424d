package manager_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/manager"
)

// inTeamQueue gives the namespace a queue, which exists from then on or not.
func (e *env) namespaceQueue(queue string) {
	e.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"scheduling.volcano.sh/queue-name":%q}}}`, queue)
	if queue == "" {
		patch = `{"metadata":{"annotations":{"scheduling.volcano.sh/queue-name":null}}}`
	}
	if _, err := e.core.CoreV1().Namespaces().Patch(context.Background(), e.ns, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		e.Fatal(err)
	}
}

// allocated waits until pods of a queue hold so many CPUs.
func (e *env) allocated(queue, cpus string) {
	e.Helper()
	e.eventually("queue "+queue, func() error {
		u, err := e.dyn.Resource(queues).Get(e.Context(), queue, metav1.GetOptions{})
		if err != nil {
			return err
		}
		status, _ := u.Object["status"].(map[string]any)
		if text := asJSON(status["allocated"]); !strings.Contains(text, `"cpu":"`+cpus+`"`) {
			return fmt.Errorf("%s is allocated, want %s CPUs", text, cpus)
		}
		return nil
	})
}

const plainPod = `apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  schedulerName: volcano
  terminationGracePeriodSeconds: 0
  containers:
  - {name: main, image: busybox, resources: {requests: {cpu: "1"}}}`

// podQueue waits until a pod has a node, and returns the queue that its annotations name.
func (e *env) podQueue(name string) string {
	e.Helper()
	queue := ""
	e.eventually("pod "+name, func() error {
		p, err := e.core.CoreV1().Pods(e.ns).Get(e.Context(), name, metav1.GetOptions{})
		if err == nil && p.Spec.NodeName == "" {
			err = fmt.Errorf("no node: %v", p.Status.Conditions)
		}
		if err == nil {
			if queue = p.Annotations["scheduling.volcano.sh/queue-name"]; queue == "" {
				queue = p.Annotations["volcano.sh/queue-name"]
			}
		}
		return err
	})
	return queue
}

// TestANamespaceHasAQueue submits a Job, a PodGroup, a pod and a workflow that name no queue, in a
// namespace that does, and others that name one.
func TestANamespaceHasAQueue(t *testing.T) {
	e := startUnmanaged(t)
	stop := e.run()
	team, other := e.ns+"-team", e.ns+"-other"
	e.queue(team, func(*scheduling.QueueSpec) {})
	e.queue(other, func(*scheduling.QueueSpec) {})
	e.namespaceQueue(team)
	e.eventually("a job is in the queue of its namespace", func() error { // once the manager has seen the annotation
		e.apply(jobYAML("seen", 1, "", ""))
		defer e.deleteJob("seen")
		if got := e.podQueue("seen-main-0"); got != team {
			return fmt.Errorf("it is in %q", got)
		}
		return nil
	})
	e.apply(jobYAML("j", 1, "", ""))
	e.apply(jobYAML("named", 1, "queue: "+other, ""))
	e.apply(groupYAML("g", "minMember: 1"))
	e.replica("g", "a", 1)
	e.apply(fmt.Sprintf(plainPod, "alone"))
	e.apply(strings.Replace(fmt.Sprintf(plainPod, "own"), "{name: own}", "{name: own, annotations: {scheduling.volcano.sh/queue-name: "+other+"}}", 1))
	e.apply(`
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: w}
spec:
  entrypoint: main
  schedulerName: volcano
  templates:
  - {name: main, container: {image: busybox, command: [sleep], args: ["1000"], resources: {requests: {cpu: "1"}}}}`)
	for pod, want := range map[string]string{"j-main-0": team, "named-main-0": other, "g-a-0": team, "alone": team, "own": other, "w": team} {
		if got := e.podQueue(pod); got != want {
			t.Errorf("pod %s is in queue %q, want %q", pod, got, want)
		}
	}
	e.allocated(team, "10") // 4 each of j and g, 1 each of alone and w
	e.allocated(other, "5")
	// Pods that run stay in their queue, whatever becomes of the annotation, and after a restart.
	e.namespaceQueue(other)
	e.apply(jobYAML("later", 1, "", ""))
	e.eventually("a job is in the new queue", func() error {
		e.deleteJob("later")
		e.apply(jobYAML("later", 1, "", ""))
		if got := e.podQueue("later-main-0"); got != other {
			return fmt.Errorf("it is in %q", got)
		}
		return nil
	})
	gone := e.podsOf("j")[0]
	if err := e.core.CoreV1().Pods(e.ns).Delete(t.Context(), gone.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	e.eventually("the pod is replaced", func() error {
		if now := e.podsOf("j"); len(now) != 1 || now[0].UID == gone.UID {
			return fmt.Errorf("%d pods", len(now))
		}
		return nil
	})
	stop()
	e.run()
	e.allocated(other, "9")
	e.allocated(team, "10")
	if writes := e.job("j").Status.State.Phase; writes != batch.Running {
		t.Errorf("the job is %s", writes)
	}
}

// TestTheQueueOfANamespaceDoesNotExist lets objects wait that say so, until the annotation is right.
func TestTheQueueOfANamespaceDoesNotExist(t *testing.T) {
	e := startUnmanaged(t)
	e.run(func(c *manager.Config) { c.JobPodGroups = true })
	missing := e.ns + "-missing"
	e.namespaceQueue(missing)
	const says = "metadata.annotations[scheduling.volcano.sh/queue-name] of namespace "
	names := func() string { return says + e.ns + `: queue "` + missing + `" does not exist` }
	e.apply(jobYAML("j", 1, "", ""))
	if e.job("j").Spec.Queue != "default" {
		t.Fatal("the queue of a Job has no default: this test tests nothing")
	}
	e.waits("j", names())
	e.apply(groupYAML("g", "minMember: 1"))
	e.replica("g", "a", 1)
	e.says(podGroupResource, "g", names(), "QueueNotFound", `"phase":"Pending"`)
	e.apply(fmt.Sprintf(plainPod, "alone"))
	e.eventually("the pod says why it waits", func() error {
		p, err := e.core.CoreV1().Pods(e.ns).Get(t.Context(), "alone", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && strings.Contains(c.Message, names()) {
				return nil
			}
		}
		return fmt.Errorf("%v", p.Status.Conditions)
	})
	e.says(podGroupResource, "j-"+string(e.job("j").UID), names())
	// A changed annotation applies to what waits.
	team := e.ns + "-team"
	e.queue(team, func(*scheduling.QueueSpec) {})
	e.namespaceQueue(team)
	for _, pod := range []string{"j-main-0", "g-a-0", "alone"} {
		if got := e.podQueue(pod); got != team {
			t.Errorf("pod %s is in queue %q, want %q", pod, got, team)
		}
	}
	e.eventually("the PodGroup of the job", func() error {
		u, err := e.dyn.Resource(podGroupResource).Namespace(e.ns).Get(t.Context(), "j-"+string(e.job("j").UID), metav1.GetOptions{})
		if err == nil && !strings.Contains(asJSON(u.Object["spec"]), `"queue":"`+team+`"`) {
			err = fmt.Errorf("%v", u.Object["spec"])
		}
		return err
	})
	// Without the annotation, what waits is in the default queue.
	e.namespaceQueue("")
	e.eventually("a job is in the default queue", func() error {
		e.apply(jobYAML("default", 1, "", ""))
		defer e.deleteJob("default")
		if got := e.podQueue("default-main-0"); got != "default" {
			return fmt.Errorf("it is in %q", got)
		}
		return nil
	})
}
