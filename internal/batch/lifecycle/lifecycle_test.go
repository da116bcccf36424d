package lifecycle

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
)

func TestNext(t *testing.T) {
	worker := func(replicas, least int32, c Counts) []Task {
		return []Task{{Name: "worker", Replicas: replicas, Min: least, Pods: c}}
	}
	tests := map[string]struct {
		job  Job
		want Step
	}{
		"a new job is pending and starts pods": {
			Job{MinAvailable: 2, Tasks: worker(2, 2, Counts{})},
			Step{Phase: batch.Pending},
		},
		"a job below its minimum stays pending": {
			Job{Phase: batch.Pending, MinAvailable: 2, Tasks: worker(2, 2, Counts{Running: 1, Pending: 1})},
			Step{Phase: batch.Pending},
		},
		"a job at its minimum runs": {
			Job{Phase: batch.Pending, MinAvailable: 2, Tasks: worker(3, 2, Counts{Running: 1, Succeeded: 1, Pending: 1})},
			Step{Phase: batch.Running},
		},
		"a job whose pods all succeeded before anyone looked is complete": {
			Job{MinAvailable: 2, Tasks: worker(2, 2, Counts{Succeeded: 2})},
			Step{Phase: batch.Completed, Pods: Stop},
		},
		"a job without pods stays pending": {
			Job{Phase: batch.Pending, Tasks: worker(0, 0, Counts{})},
			Step{Phase: batch.Pending},
		},
		"one failed pod fails a job that needs all": {
			Job{Phase: batch.Running, MinAvailable: 2, Tasks: worker(2, 2, Counts{Succeeded: 1, Failed: 1})},
			Step{Phase: batch.Failed, Pods: Stop, Reason: "TaskFailed", Message: "task worker: fewer pods succeeded than its minAvailable"},
		},
		"a failed pod above the minimum does not": {
			Job{Phase: batch.Running, MinAvailable: 1, Tasks: worker(2, 1, Counts{Succeeded: 1, Failed: 1})},
			Step{Phase: batch.Completed, Pods: Stop},
		},
		"the tasks' minimums do not count when the job asks for less": {
			Job{Phase: batch.Running, MinAvailable: 1, Tasks: worker(2, 2, Counts{Succeeded: 1, Failed: 1})},
			Step{Phase: batch.Completed, Pods: Stop},
		},
		"minSuccess completes a job early": {
			Job{Phase: batch.Running, MinAvailable: 3, MinSuccess: ptr.To[int32](1), Tasks: worker(3, 3, Counts{Succeeded: 1, Running: 2})},
			Step{Phase: batch.Completed, Pods: Stop},
		},
		"minSuccess not reached fails the job at its end": {
			Job{Phase: batch.Running, MinAvailable: 1, MinSuccess: ptr.To[int32](2), Tasks: worker(2, 1, Counts{Succeeded: 1, Failed: 1})},
			Step{Phase: batch.Failed, Pods: Stop, Reason: "TooFewSucceeded", Message: "fewer pods succeeded than spec.minSuccess"},
		},
		"a running job that lost pods runs on while they are replaced": {
			Job{Phase: batch.Running, MinAvailable: 2, Tasks: worker(2, 2, Counts{Running: 1})},
			Step{Phase: batch.Running},
		},
		"a running job below its minimum and without room is pending again": {
			Job{Phase: batch.Running, MinAvailable: 2, Waiting: true, Tasks: worker(2, 2, Counts{Running: 1})},
			Step{Phase: batch.Pending},
		},
		"aborting waits until the pods are gone": {
			Job{Phase: batch.Running, Action: bus.AbortJobAction, MinAvailable: 1, Tasks: worker(1, 1, Counts{Running: 1})},
			Step{Phase: batch.Aborting, Pods: Stop},
		},
		"an aborted job stays so": {
			Job{Phase: batch.Aborting, MinAvailable: 1, Tasks: worker(2, 1, Counts{Succeeded: 1})},
			Step{Phase: batch.Aborted, Pods: Stop},
		},
		"resuming costs no retry": {
			Job{Phase: batch.Aborted, Action: bus.ResumeJobAction, Retries: 1, MaxRetry: 2, MinAvailable: 1, Tasks: worker(1, 1, Counts{Succeeded: 1})},
			Step{Phase: batch.Restarting, Pods: Clear, Retries: 1, NewRun: true},
		},
		"restarting clears ended pods too, because names are used again": {
			Job{Phase: batch.Restarting, MinAvailable: 1, Tasks: worker(1, 1, Counts{Failed: 1})},
			Step{Phase: batch.Restarting, Pods: Clear},
		},
		"a restarted job without pods is pending": {
			Job{Phase: batch.Restarting, MinAvailable: 1, Tasks: worker(1, 1, Counts{})},
			Step{Phase: batch.Pending},
		},
		"the last restart fails the job": {
			Job{Phase: batch.Running, Action: bus.RestartJobAction, Retries: 2, MaxRetry: 3, MinAvailable: 1, Tasks: worker(1, 1, Counts{Running: 1})},
			Step{Phase: batch.Failed, Pods: Stop, Retries: 3, NewRun: true, Reason: "MaxRetryReached", Message: "the job has used all its runs (spec.maxRetry)"},
		},
		"a restart after an eviction by the scheduler is no retry": {
			Job{Phase: batch.Running, Action: bus.RestartJobAction, Retries: 2, MaxRetry: 3, MinAvailable: 1, Tasks: worker(1, 1, Counts{Running: 1}),
				Cause: Cause{Event: bus.PodEvictedEvent, Message: "pod x was evicted", Free: true}},
			Step{Phase: batch.Restarting, Pods: Clear, Retries: 2, NewRun: true, Reason: "PodEvicted", Message: "pod x was evicted"},
		},
		"a pod that the scheduler evicted is restarted without a retry": {
			Job{Phase: batch.Running, Action: bus.RestartPodAction, Retries: 2, MaxRetry: 3, MinAvailable: 1, Tasks: worker(2, 1, Counts{Running: 1}),
				Cause: Cause{Event: bus.PodEvictedEvent, Message: "pod x was evicted", Free: true}},
			Step{Phase: batch.Running, Retries: 2, Target: true},
		},
		"a policy's reason is the phase's": {
			Job{Phase: batch.Running, Action: bus.CompleteJobAction, Cause: Cause{Event: bus.TaskCompletedEvent, Message: "task worker has completed"},
				MinAvailable: 2, Tasks: worker(2, 2, Counts{Succeeded: 1, Running: 1})},
			Step{Phase: batch.Completing, Pods: Stop, Reason: "TaskCompleted", Message: "task worker has completed"},
		},
		"a task is restarted although all its pods have ended": {
			Job{Phase: batch.Running, Action: bus.RestartTaskAction, Cause: Cause{Event: bus.PodFailedEvent, Message: "pod x failed"}, MaxRetry: 3,
				MinAvailable: 2, Tasks: worker(2, 2, Counts{Succeeded: 1, Failed: 1})},
			Step{Phase: batch.Running, Target: true, Retries: 1},
		},
		"restarting a pod uses up the job's retries, too": {
			Job{Phase: batch.Running, Action: bus.RestartPodAction, Cause: Cause{Event: bus.PodFailedEvent, Message: "pod x failed"}, MaxRetry: 3, Retries: 2,
				MinAvailable: 2, Tasks: worker(2, 2, Counts{Running: 1, Failed: 1})},
			Step{Phase: batch.Failed, Pods: Stop, Retries: 3, Reason: "MaxRetryReached",
				Message: "the job has used all its runs (spec.maxRetry): pod x failed"},
		},
		"a Command cannot restart a task, as it does not say which": {
			Job{Phase: batch.Running, Action: bus.RestartTaskAction, MaxRetry: 3, MinAvailable: 1, Tasks: worker(1, 1, Counts{Running: 1})},
			Step{Phase: batch.Running, Refused: "the job is Running"},
		},
		"an ended job refuses actions": {
			Job{Phase: batch.Completed, Action: bus.RestartJobAction, Tasks: worker(1, 1, Counts{Succeeded: 1})},
			Step{Phase: batch.Completed, Pods: Stop, Refused: "the job has ended"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, Next(test.job)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func anyJob(t *rapid.T) Job {
	phases := []batch.JobPhase{"", batch.Pending, batch.Running, batch.Restarting, batch.Aborting, batch.Aborted,
		batch.Completing, batch.Completed, batch.Terminating, batch.Terminated, batch.Failed}
	actions := []bus.Action{"", "", "", bus.AbortJobAction, bus.ResumeJobAction, bus.RestartJobAction,
		bus.TerminateJobAction, bus.CompleteJobAction, bus.RestartTaskAction}
	j := Job{
		Phase:    rapid.SampledFrom(phases).Draw(t, "phase"),
		Action:   rapid.SampledFrom(actions).Draw(t, "action"),
		MaxRetry: rapid.Int32Range(0, 3).Draw(t, "maxRetry"),
		Retries:  rapid.Int32Range(0, 3).Draw(t, "retries"),
		Waiting:  rapid.Bool().Draw(t, "waiting"),
	}
	n := int32(0)
	for range rapid.IntRange(1, 3).Draw(t, "tasks") {
		left := rapid.Int32Range(0, 5).Draw(t, "replicas")
		task := Task{Name: "t", Replicas: left}
		n += left
		task.Min = rapid.Int32Range(0, left).Draw(t, "min")
		for _, c := range []*int32{&task.Pods.Pending, &task.Pods.Running, &task.Pods.Succeeded, &task.Pods.Failed, &task.Pods.Unknown, &task.Pods.Terminating} {
			*c = rapid.Int32Range(0, left).Draw(t, "pods")
			left -= *c
		}
		j.Tasks = append(j.Tasks, task)
	}
	j.MinAvailable = rapid.Int32Range(0, n).Draw(t, "minAvailable")
	return j
}

func TestStepsAreSafe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := anyJob(t)
		s := Next(j)
		if j.Phase.Finished() && s.Phase != j.Phase {
			t.Fatalf("left the final phase %s for %s", j.Phase, s.Phase)
		}
		if starts := s.Phase == batch.Pending || s.Phase == batch.Running; starts != (s.Pods == Run) {
			t.Fatalf("%s with pods treated as %d", s.Phase, s.Pods)
		}
		if s.Phase == batch.Completed && j.Phase != batch.Completed && j.Phase != batch.Completing && j.Action == "" && j.MinSuccess == nil {
			for _, task := range j.Tasks {
				if task.Pods.Succeeded+task.Pods.Failed < task.Replicas {
					t.Fatal("completed before every pod had ended")
				}
			}
		}
	})
}

func TestAStepTakenTwiceIsTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := anyJob(t)
		s := Next(j)
		j.Phase, j.Retries, j.Action = s.Phase, s.Retries, ""
		again := Next(j)
		if again.Phase != s.Phase || again.Pods != s.Pods || again.Retries != s.Retries || again.NewRun {
			t.Fatalf("first %+v, then %+v", s, again)
		}
	})
}

func TestReact(t *testing.T) {
	task := []batch.LifecyclePolicy{
		{Event: bus.TaskCompletedEvent, Action: bus.CompleteJobAction},
		{ExitCode: ptr.To[int32](137), Action: bus.RestartPodAction},
	}
	job := []batch.LifecyclePolicy{
		{Events: []bus.Event{bus.PodFailedEvent, bus.PodEvictedEvent}, Action: bus.RestartJobAction},
		{Event: bus.PodPendingEvent, Action: bus.AbortJobAction},
	}
	resume := []batch.LifecyclePolicy{{Event: bus.AnyEvent, Action: bus.ResumeJobAction}}
	any := []batch.LifecyclePolicy{{Event: bus.AnyEvent, Action: bus.TerminateJobAction}}
	for name, c := range map[string]struct {
		task, job []batch.LifecyclePolicy
		event     bus.Event
		exit      int32
		want      bus.Action
	}{
		"the task's own policy":                   {task, job, bus.TaskCompletedEvent, 0, bus.CompleteJobAction},
		"an exit code":                            {task, job, bus.PodFailedEvent, 137, bus.RestartPodAction},
		"another exit code is the job's":          {task, job, bus.PodFailedEvent, 1, bus.RestartJobAction},
		"one of several events":                   {nil, job, bus.PodEvictedEvent, 0, bus.RestartJobAction},
		"nothing fits":                            {nil, job, bus.TaskCompletedEvent, 0, ""},
		"waiting without a timeout is no reason":  {task, job, bus.PodPendingEvent, 0, ""},
		"any event":                               {task, any, bus.TaskFailedEvent, 0, bus.TerminateJobAction},
		"a change of the job is not any event":    {task, any, bus.JobUpdatedEvent, 0, ""},
		"a change of the job, by its name":        {nil, []batch.LifecyclePolicy{{Events: []bus.Event{bus.AnyEvent, bus.JobUpdatedEvent}, Action: bus.RestartJobAction}}, bus.JobUpdatedEvent, 0, bus.RestartJobAction},
		"the task's exit code comes before any":   {task, any, bus.PodFailedEvent, 137, bus.RestartPodAction},
		"a job that runs cannot be resumed":       {resume, job, bus.PodFailedEvent, 1, ""},
		"an exit code says nothing of what ended": {task, nil, bus.PodEvictedEvent, 137, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := bus.Action("")
			if p := React(c.task, c.job, c.event, c.exit); p != nil {
				got = p.Action
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
