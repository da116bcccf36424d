package manager_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
)

func TestAJobRunsAndCompletes(t *testing.T) {
	e := start(t)
	e.create(newJob("hello", 3, "100m", endsAfter("1s")))
	j := e.until("hello", inPhase(batch.Running))
	if j.Status.MinAvailable != 3 {
		t.Errorf("status.minAvailable is %d; the default is the sum of the tasks'", j.Status.MinAvailable)
	}
	j = e.until("hello", inPhase(batch.Completed))
	s := j.Status
	if s.Succeeded != 3 || s.Running != 0 || s.Pending != 0 || s.Failed != 0 || s.TaskStatusCount["main"].Phase[corev1.PodSucceeded] != 3 {
		t.Errorf("counts at the end: %s", asJSON(s))
	}
	for _, p := range e.podsOf("hello") {
		if p.Spec.SchedulerName != "lockstep" || p.Labels[batch.TaskSpecKey] != "main" || p.Annotations[batch.JobNameKey] != "hello" {
			t.Errorf("pod %s: scheduler %s, labels %v, annotations %v", p.Name, p.Spec.SchedulerName, p.Labels, p.Annotations)
		}
	}
	writes := managerWrites(t, e.c, e.ns)
	if writes["pods create"] != 3 || writes["pods/binding create"] != 0 || writes["jobs/status update"]+writes["jobs/status patch"] > 3 {
		t.Errorf("writes: %v", writes)
	}
}

func TestAOnePodJobTakesThreeWrites(t *testing.T) {
	e := start(t)
	e.create(newJob("one", 1, "100m", endsAfter("1s")))
	e.until("one", inPhase(batch.Running))
	if w := managerWrites(t, e.c, e.ns); sum(w) > 2 {
		t.Errorf("writes until it ran: %v", w)
	}
	e.until("one", inPhase(batch.Completed))
	if w := managerWrites(t, e.c, e.ns); sum(w) > 3 {
		t.Errorf("writes until it was complete: %v", w)
	}
}

// TestAWatchShowsEveryPhase checks what clients rely on that follow a Job by a watch: a new Job is Pending,
// and a phase in which pods are being deleted counts them in the status that begins it.
func TestAWatchShowsEveryPhase(t *testing.T) {
	const held = `[{"op":"add","path":"/metadata/finalizers","value":["lockstep.dev/held"]}]`
	const released = `[{"op":"remove","path":"/metadata/finalizers"}]`
	for _, tc := range []struct {
		event  bus.Event
		action bus.Action
		status corev1.PodPhase // of a pod, once the job runs
		want   []string        // the phases; a star means that pods are terminating
	}{
		{bus.PodFailedEvent, bus.RestartJobAction, corev1.PodFailed, []string{"Pending", "Running", "Restarting *"}},
		{bus.PodFailedEvent, bus.AbortJobAction, corev1.PodFailed, []string{"Pending", "Running", "Aborting *", "Aborted"}},
		{bus.PodFailedEvent, bus.TerminateJobAction, corev1.PodFailed, []string{"Pending", "Running", "Terminating *", "Terminated"}},
		{bus.TaskCompletedEvent, bus.CompleteJobAction, corev1.PodSucceeded, []string{"Pending", "Running", "Completing *", "Completed"}},
	} {
		t.Run(string(tc.action), func(t *testing.T) {
			e := start(t)
			other := func(ctx context.Context, patch string) error {
				_, err := e.core.CoreV1().Pods(e.ns).Patch(ctx, "j-other-0", types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
				return err
			}
			created := e.create(newJob("j", 1, "100m", withTask("other", 1, nil), withPolicies(on(tc.event, tc.action))))
			t.Cleanup(func() { _ = other(context.Background(), released) })
			w, err := e.dyn.Resource(jobs).Namespace(e.ns).Watch(e.Context(), metav1.ListOptions{
				ResourceVersion: created.ResourceVersion, TimeoutSeconds: ptr.To[int64](60),
			})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			last := created.Status.State.Phase
			got := []string{string(last)}
			for len(got) < len(tc.want) {
				change := <-w.ResultChan()
				u, ok := change.Object.(*unstructured.Unstructured)
				if !ok {
					t.Fatalf("the watch has ended with %v after %v; the job: %s", change, got, asJSON(e.job("j").Status))
				}
				s := e.asJob(u).Status
				if s.State.Phase == last {
					continue
				}
				last = s.State.Phase
				shown := string(last)
				if s.Terminating > 0 {
					shown += " *"
				}
				got = append(got, shown)
				switch len(got) {
				case 2: // as long as a pod is held, the next phase lasts
					if err := other(e.Context(), held); err != nil {
						t.Fatal(err)
					}
					e.setPodStatus("j-main-0", corev1.PodStatus{Phase: tc.status})
				case 3:
					if err := other(e.Context(), released); err != nil {
						t.Fatal(err)
					}
				}
			}
			if diff := gocmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestAJobWhosePodsFailFails(t *testing.T) {
	e := start(t)
	e.create(newJob("failing", 2, "100m", endsAfter("100ms"), annotated(batch.SimExitCodeAnnotation, "3")))
	j := e.until("failing", inPhase(batch.Failed))
	if j.Status.Failed != 2 || j.Status.State.Reason == "" || j.Status.State.Message == "" {
		t.Errorf("status: %s", asJSON(j.Status))
	}
}

func TestMinSuccessCompletesAndStopsTheRest(t *testing.T) {
	e := start(t)
	j := newJob("first", 1, "100m", endsAfter("100ms"), func(j *batch.Job) {
		rest := newJob("", 2, "100m").Spec.Tasks[0]
		rest.Name = "rest"
		j.Spec.Tasks = append(j.Spec.Tasks, rest)
		j.Spec.MinSuccess = ptr.To[int32](1)
	})
	e.create(j)
	e.until("first", inPhase(batch.Completed))
	e.eventually("the rest is stopped", func() error {
		if n := len(e.podsOf("first")); n != 1 {
			return fmt.Errorf("%d pods", n)
		}
		return nil
	})
}

func TestGangsThatDoNotFitTogetherTakeTurns(t *testing.T) {
	e := start(t)
	// 32 CPUs: each gang of 20 fits alone.
	e.create(newJob("a", 20, "1", endsAfter("2s")))
	e.create(newJob("b", 20, "1", endsAfter("2s")))
	ran := map[string]bool{}
	e.eventually("one runs, the other holds nothing and says why", func() error {
		for _, pair := range [][2]string{{"a", "b"}, {"b", "a"}} {
			first, second := e.job(pair[0]), e.job(pair[1])
			if first.Status.Running != 20 {
				continue
			}
			if n := len(e.podsOf(pair[1])); n != 0 {
				t.Fatalf("both hold nodes: %s has %d pods", pair[1], n)
			}
			c := second.Status.Condition(batch.JobScheduled)
			if c == nil {
				return errors.New("it does not say why")
			}
			if c.Status != "False" || !strings.Contains(c.Message, "cpu") || second.Status.State.Phase != batch.Pending || second.Status.State.Message == "" {
				return fmt.Errorf("status %s", asJSON(second.Status))
			}
			ran[pair[0]] = true
			return nil
		}
		return errors.New("neither runs")
	})
	e.until("a", inPhase(batch.Completed))
	j := e.until("b", inPhase(batch.Completed))
	if c := j.Status.Condition(batch.JobScheduled); c != nil {
		t.Errorf("the condition outlived its cause: %+v", c)
	}
}

func TestAJobThatCannotFitSaysWhatIsShort(t *testing.T) {
	e := start(t)
	e.create(newJob("big", 40, "1"))
	j := e.until("big", func(j *batch.Job) error {
		if j.Status.Condition(batch.JobScheduled) == nil {
			return errors.New("no condition")
		}
		return nil
	})
	c := j.Status.Condition(batch.JobScheduled)
	if !strings.Contains(c.Message, "cpu") || !strings.Contains(c.Message, "8") {
		t.Errorf("the message does not say that 8 CPUs are short: %s", c.Message)
	}
	if n := len(e.podsOf("big")); n != 0 {
		t.Errorf("it holds %d pods", n)
	}
}

func TestAnElasticJobTakesWhatThereIs(t *testing.T) {
	e := start(t)
	e.create(newJob("elastic", 40, "1", minAvailable(2)))
	e.until("elastic", func(j *batch.Job) error {
		if j.Status.Running != 32 || j.Status.State.Phase != batch.Running {
			return errors.New("not yet at 32")
		}
		return nil
	})
}

func TestScaling(t *testing.T) {
	e := start(t)
	e.create(newJob("scale", 2, "100m"))
	e.until("scale", inPhase(batch.Running))
	scale := func(n int) {
		patch := fmt.Sprintf(`[{"op":"replace","path":"/spec/tasks/0/replicas","value":%d}]`, n)
		if _, err := e.dyn.Resource(jobs).Namespace(e.ns).Patch(t.Context(), "scale", types.JSONPatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		e.until("scale", func(j *batch.Job) error {
			if int(j.Status.Running) != n || len(e.podsOf("scale")) != n {
				return fmt.Errorf("not yet at %d", n)
			}
			return nil
		})
	}
	scale(5)
	scale(1)
	scale(3)
}

// TestAJobWithoutReplicasSaysSo checks a job whose task has no replicas, which means 0 as with Volcano.
func TestAJobWithoutReplicasSaysSo(t *testing.T) {
	e, _ := startEvicting(t)
	e.apply(`
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: none}
spec:
  tasks:
  - template: {spec: {terminationGracePeriodSeconds: 0, containers: [{name: main, image: busybox}]}}`)
	scale := func(replicas int) {
		t.Helper()
		e.patchJob("none", fmt.Sprintf(`[{"op": "add", "path": "/spec/tasks/0/replicas", "value": %d}]`, replicas))
	}
	noReplicas := says(batch.JobScheduled, batch.ReasonNoReplicas, "spec.tasks: no task has replicas")
	e.until("none", both(inPhase(batch.Pending), noReplicas))
	e.hasNoPods("none")
	scale(2)
	j := e.runs("none", 2)
	if c := j.Status.Condition(batch.JobScheduled); c != nil || j.Status.State.Phase != batch.Running {
		t.Errorf("status %s", asJSON(j.Status))
	}
	// A job that runs stays Running without pods, and says why it has none.
	scale(0)
	e.until("none", both(inPhase(batch.Running), noReplicas))
	e.eventually("its pods are gone", func() error {
		if n := len(e.podsOf("none")); n > 0 {
			return fmt.Errorf("%d pods", n)
		}
		return nil
	})
}

// TestAJobOfAThousandTasks has a pod in every fifth task.
func TestAJobOfAThousandTasks(t *testing.T) {
	e, _ := startEvicting(t)
	e.create(newJob("many", 1, "1m", func(j *batch.Job) {
		for i := 1; i < 1000; i++ {
			task := *j.Spec.Tasks[0].DeepCopy()
			task.Name, task.Replicas = fmt.Sprint("t", i), 0
			if i%5 == 0 {
				task.Replicas = 1
			}
			j.Spec.Tasks = append(j.Spec.Tasks, task)
		}
	}))
	j := e.runs("many", 200)
	if n := len(j.Status.TaskStatusCount); n != 200 || j.Status.MinAvailable != 200 {
		t.Errorf("%d tasks have pods, and the minimum is %d", n, j.Status.MinAvailable)
	}
}

// both checks that a job meets two conditions at once.
func both(a, b func(*batch.Job) error) func(*batch.Job) error {
	return func(j *batch.Job) error { return cmp.Or(a(j), b(j)) }
}

func TestADeletedPodIsReplaced(t *testing.T) {
	e := start(t)
	e.create(newJob("j", 3, "100m"))
	e.until("j", inPhase(batch.Running))
	before := e.podsOf("j")[0]
	if err := e.core.CoreV1().Pods(e.ns).Delete(t.Context(), before.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	e.eventually("a new pod of that name runs", func() error {
		p, err := e.core.CoreV1().Pods(e.ns).Get(t.Context(), before.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if p.UID == before.UID || p.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("pod %s is %s", p.UID, p.Status.Phase)
		}
		return nil
	})
	if j := e.job("j"); j.Status.Failed != 0 || j.Status.State.Phase != batch.Running {
		t.Errorf("status: %s", asJSON(j.Status))
	}
}

func TestAFinishedJobIsDeletedWhenItsTimeIsOver(t *testing.T) {
	e := start(t)
	e.create(newJob("ttl", 1, "100m", endsAfter("100ms"), func(j *batch.Job) { j.Spec.TTLSecondsAfterFinished = ptr.To[int32](1) }))
	e.eventually("the job and its pod are gone", func() error {
		list, err := e.dyn.Resource(jobs).Namespace(e.ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		if n, p := len(list.Items), len(e.pods()); n+p > 0 {
			return fmt.Errorf("%d jobs, %d pods", n, p)
		}
		return nil
	})
}

func TestADeletedJobGivesEverythingBack(t *testing.T) {
	e := start(t)
	e.create(newJob("waiting", 40, "1"))
	e.create(newJob("running", 30, "1"))
	e.until("running", inPhase(batch.Running))
	for _, name := range []string{"waiting", "running"} {
		if err := e.dyn.Resource(jobs).Namespace(e.ns).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// All resources are free again.
	e.create(newJob("next", 32, "1"))
	e.until("next", inPhase(batch.Running))
}

func TestAJobThatIsCreatedAgainGetsItsPods(t *testing.T) {
	e := start(t)
	for range 3 {
		e.create(newJob("again", 4, "100m"))
		e.until("again", inPhase(batch.Running))
		if err := e.dyn.Resource(jobs).Namespace(e.ns).Delete(t.Context(), "again", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}
