package lifecycle

import (
	"cmp"
	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
)

// Counts are the pods of a task by state. Pods above the task's replicas are not counted.
type Counts struct {
	Pending, Running, Succeeded, Failed, Unknown, Terminating int32
}

func (c *Counts) add(o Counts) {
	c.Pending += o.Pending
	c.Running += o.Running
	c.Succeeded += o.Succeeded
	c.Failed += o.Failed
	c.Unknown += o.Unknown
	c.Terminating += o.Terminating
}

// alive returns the number of pods that may still use a node.
func (c Counts) alive() int32 { return c.Pending + c.Running + c.Unknown + c.Terminating }

// started returns the number of pods that count towards a running gang: pods that run and pods that
// ran.
func (c Counts) started() int32 { return c.Running + c.Succeeded + c.Failed }

// Under returns the counts in which pods that are about to be deleted are terminating.
func (c Counts) Under(p Pods) Counts {
	switch p {
	case Stop:
		return Counts{Succeeded: c.Succeeded, Failed: c.Failed, Terminating: c.alive()}
	case Clear:
		return Counts{Terminating: c.alive() + c.Succeeded + c.Failed}
	}
	return c
}

// Task is one task of a job.
type Task struct {
	Name     string
	Replicas int32
	// Min is the minimum number of pods of the task: its minAvailable, or its replicas if that is
	// unset.
	Min  int32
	Pods Counts
}

// Job is the input of Next.
type Job struct {
	Phase        batch.JobPhase
	MinAvailable int32
	MinSuccess   *int32
	// MaxRetry is the maximum number of runs of the job; Retries is the number of restarts used so
	// far.
	MaxRetry, Retries int32
	Tasks             []Task
	// Waiting means that the scheduler has found no room for pods that the job still needs.
	Waiting bool
	// Action is the action that a Command or a policy asks for, or empty.
	Action bus.Action
	// Cause is the event to which the policy reacts with Action. It is the zero Cause for a
	// Command.
	Cause Cause
}

// Cause is the reason of a policy's action.
type Cause struct {
	Event bus.Event
	// Message is a sentence for users.
	Message string
	// Free means that a restart does not count against the job's retries: the scheduler evicted its
	// pods.
	Free bool
}

// Pods says what should become of a job's pods.
type Pods int

const (
	// Run keeps every pod and creates missing ones.
	Run Pods = iota
	// Stop deletes the pods that have not ended, and creates none. Ended pods stay, with their
	// logs.
	Stop
	// Clear deletes all pods, ended or not, and creates none.
	Clear
)

// Step is the decision that Next returns.
type Step struct {
	Phase   batch.JobPhase
	Pods    Pods
	Retries int32
	// NewRun means that the present pods belong to a run that is over.
	NewRun bool
	// Target means that the pods to which the policy's cause belongs must be deleted, ended or not,
	// and created again.
	Target bool
	// Reason and Message explain the phase, if there is something to explain.
	Reason, Message string
	// Refused says why Action was not carried out, or is empty.
	Refused string
}

// Next decides the job's next step.
func Next(j Job) Step {
	s := Step{Phase: j.Phase, Retries: j.Retries}
	s.Phase = cmp.Or(s.Phase, batch.Pending)
	s.act(j.Action, j.Cause, j.MaxRetry)
	if s.Target {
		s.Pods = Run // the counts predate the action; the next step uses new ones
		return s
	}

	var all Counts
	for _, t := range j.Tasks {
		all.add(t.Pods)
	}
	// Each transition may enable the next; the longest chain is Restarting, Pending, Running,
	// Completed.
	for range 4 {
		before := s.Phase
		s.advance(j, all)
		if s.Phase == before {
			break
		}
	}
	s.Pods = treatment(s.Phase)
	return s
}

// act applies an action that a Command or a policy asks for.
func (s *Step) act(a bus.Action, cause Cause, maxRetry int32) {
	switch {
	case a == "":
		return
	case s.Phase.Finished():
		s.Refused = "the job has ended"
		return
	}
	before := s.Phase
	running := s.Phase == batch.Pending || s.Phase == batch.Running
	suspended := s.Phase == batch.Aborting || s.Phase == batch.Aborted
	switch {
	case a == bus.AbortJobAction && (running || s.Phase == batch.Restarting):
		s.Phase = batch.Aborting
	case a == bus.AbortJobAction && suspended:
	case a == bus.TerminateJobAction && (running || suspended || s.Phase == batch.Restarting):
		s.Phase = batch.Terminating
	case a == bus.CompleteJobAction && running:
		s.Phase = batch.Completing
	case a == bus.RestartJobAction && running:
		// The number of runs is limited, so that a job whose policy restarts it forever ends.
		s.Phase, s.NewRun = batch.Restarting, true
		s.retry(cause, maxRetry)
	case restartsPart(a) && running && cause.Event != "":
		s.Target = s.retry(cause, maxRetry)
	case a == bus.ResumeJobAction && suspended:
		// Suspending a job is not a failure: resuming uses none of its retries.
		s.Phase, s.NewRun = batch.Restarting, true
	case a == bus.ResumeJobAction && running:
	default:
		s.Refused = "the job is " + string(s.Phase)
	}
	if s.Phase != before && s.Reason == "" {
		s.Reason, s.Message = string(cause.Event), cause.Message
	}
}

// restartsPart reports whether the action restarts some pods of a job that continues. Commands
// cannot ask for such an action, because they name no pods.
func restartsPart(a bus.Action) bool {
	return a == bus.RestartTaskAction || a == bus.RestartPodAction || a == bus.RestartPartitionAction
}

// retry counts a restart, and reports whether the job had one left. If not, the job fails.
func (s *Step) retry(cause Cause, maxRetry int32) bool {
	if cause.Free {
		return true
	}
	s.Retries++
	if s.Retries < maxRetry {
		return true
	}
	why := "the job has used all its runs (spec.maxRetry)"
	if cause.Message != "" {
		why += ": " + cause.Message
	}
	s.fail("MaxRetryReached", why)
	return false
}

func (s *Step) fail(reason, message string) {
	s.Phase, s.Reason, s.Message = batch.Failed, reason, message
}

// advance takes at most one of the transitions that the counts allow.
func (s *Step) advance(j Job, all Counts) {
	drained := all.alive() == 0
	switch s.Phase {
	case batch.Restarting:
		// Pods have the same names in every run, so the ended pods must be gone too.
		if drained && all.Succeeded+all.Failed == 0 {
			s.Phase = batch.Pending
		}
	case batch.Aborting:
		if drained {
			s.Phase = batch.Aborted
		}
	case batch.Completing:
		if drained {
			s.Phase = batch.Completed
		}
	case batch.Terminating:
		if drained {
			s.Phase = batch.Terminated
		}
	case batch.Pending:
		if total(j) > 0 && (all.started() >= j.MinAvailable || enoughSucceeded(j, all)) {
			s.Phase = batch.Running
		}
	case batch.Running:
		s.advanceRunning(j, all)
	}
}

func (s *Step) advanceRunning(j Job, all Counts) {
	n := total(j)
	switch {
	case n == 0:
	case enoughSucceeded(j, all):
		s.Phase = batch.Completed
	case all.Succeeded+all.Failed >= n:
		s.end(j, all)
	case all.started() < j.MinAvailable && j.Waiting:
		s.Phase = batch.Pending
	}
}

func enoughSucceeded(j Job, all Counts) bool {
	return j.MinSuccess != nil && all.Succeeded >= *j.MinSuccess
}

// end decides between Completed and Failed, once every pod has ended.
func (s *Step) end(j Job, all Counts) {
	sumMin := int32(0)
	for _, t := range j.Tasks {
		sumMin += t.Min
	}
	if j.MinAvailable >= sumMin {
		for _, t := range j.Tasks {
			if t.Pods.Succeeded < t.Min {
				s.fail("TaskFailed", "task "+t.Name+": fewer pods succeeded than its minAvailable")
				return
			}
		}
	}
	switch {
	case j.MinSuccess != nil && all.Succeeded < *j.MinSuccess:
		s.fail("TooFewSucceeded", "fewer pods succeeded than spec.minSuccess")
	case all.Succeeded < j.MinAvailable:
		s.fail("TooFewSucceeded", "fewer pods succeeded than spec.minAvailable")
	default:
		s.Phase = batch.Completed
	}
}

// treatment returns what a phase means for the pods.
func treatment(p batch.JobPhase) Pods {
	switch p {
	case batch.Pending, batch.Running:
		return Run
	case batch.Restarting:
		return Clear
	}
	return Stop
}

func total(j Job) int32 {
	n := int32(0)
	for _, t := range j.Tasks {
		n += t.Replicas
	}
	return n
}
