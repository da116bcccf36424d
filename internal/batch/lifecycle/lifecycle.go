package lifecycle

import (
	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
)

// Counts are the pods of a task by what they do. Pods above the task's replicas are not counted.
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

// alive is how many pods may still use a node.
func (c Counts) alive() int32 { return c.Pending + c.Running + c.Unknown + c.Terminating }

// started is how many pods count towards a gang that runs: those that run, and those that ran.
func (c Counts) started() int32 { return c.Running + c.Succeeded + c.Failed }

// Task is one task of a job.
type Task struct {
	Name     string
	Replicas int32
	// Min is how many pods the task needs at least: its minAvailable, or its replicas when unset.
	Min  int32
	Pods Counts
}

// Job is what the next step depends on.
type Job struct {
	Phase        batch.JobPhase
	MinAvailable int32
	MinSuccess   *int32
	// MaxRetry is how many runs a job has in all; Retries is how many restarts it has used.
	MaxRetry, Retries int32
	Tasks             []Task
	// Waiting says that the scheduler has found no room for pods the job still needs.
	Waiting bool
	// Action is what a Command or a policy asks for, or empty.
	Action bus.Action
	// Cause is the event that a policy reacts to with Action; it is the zero Cause for a Command's.
	Cause Cause
}

// Cause is why a policy acts.
type Cause struct {
	Event bus.Event
	// Message is a sentence for people.
	Message string
}

// Pods is what is to become of a job's pods.
type Pods int

const (
	// Run keeps every pod and creates what is missing.
	Run Pods = iota
	// Stop deletes the pods that have not ended, and creates none. Those that ended stay, with their logs.
	Stop
	// Clear deletes all pods, ended or not, and creates none.
	Clear
)

// Step is the decision.
type Step struct {
	Phase   batch.JobPhase
	Pods    Pods
	Retries int32
	// NewRun says that the pods so far belong to a run that is over.
	NewRun bool
	// Target says that the pods that the policy was about are to be deleted, ended or not, and made again.
	Target bool
	// Reason and Message explain the phase, when there is something to explain.
	Reason, Message string
	// Refused is why Action was not carried out, or empty.
	Refused string
}

// Next decides the job's next step.
func Next(j Job) Step {
	s := Step{Phase: j.Phase, Retries: j.Retries}
	if s.Phase == "" {
		s.Phase = batch.Pending
	}
	s.act(j.Action, j.Cause, j.MaxRetry)
	if s.Target {
		s.Pods = Run // the counts are from before: what they allow is for the next step
		return s
	}

	var all Counts
	for _, t := range j.Tasks {
		all.add(t.Pods)
	}
	// Each transition may enable the next; the longest chain is Restarting, Pending, Running, Completed.
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
		// Runs are limited, so that a job whose policy restarts it for ever ends.
		s.Phase, s.NewRun = batch.Restarting, true
		s.retry(cause, maxRetry)
	case restartsPart(a) && running && cause.Event != "":
		s.Target = s.retry(cause, maxRetry)
	case a == bus.ResumeJobAction && suspended:
		// Suspending a job is not a failure of it: resuming uses up none of its retries.
		s.Phase, s.NewRun = batch.Restarting, true
	case a == bus.ResumeJobAction && running:
	default:
		s.Refused = "the job is " + string(s.Phase)
	}
	if s.Phase != before && s.Reason == "" {
		s.Reason, s.Message = string(cause.Event), cause.Message
	}
}

// restartsPart says whether the action restarts pods of a job that goes on. No Command can ask for it, as it names no pods.
func restartsPart(a bus.Action) bool {
	return a == bus.RestartTaskAction || a == bus.RestartPodAction || a == bus.RestartPartitionAction
}

// retry counts a restart, and says whether the job had one left.
func (s *Step) retry(cause Cause, maxRetry int32) bool {
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

// advance takes at most one transition that the counts allow.
func (s *Step) advance(j Job, all Counts) {
	drained := all.alive() == 0
	switch s.Phase {
	case batch.Restarting:
		// Pods have the same names in every run, so the ended ones must be gone too.
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

// treatment says what the phase means for the pods.
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
