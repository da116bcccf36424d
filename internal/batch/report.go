package batch

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/batch/lifecycle"
	"lockstep.dev/lockstep/internal/batch/pods"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/podset"
	"lockstep.dev/lockstep/internal/scheduler"
	"lockstep.dev/lockstep/internal/scheduler/place"
	"lockstep.dev/lockstep/internal/scheduler/share"
)

// Delays of status writes, during which further changes are collected into the same write. A change
// of phase is never delayed.
const (
	// patience is the delay for conditions: a condition that clears by itself sooner is not worth
	// reporting.
	patience = 500 * time.Millisecond
	// settleMin is the delay for counts. They are written when they have not changed for settleMin,
	// or for settleLags times the current duration of a write if that is longer (settleMax at
	// most): while the server is busy, counts are likely to change again before anyone reads them.
	// While pods have a node and do not run yet, counts are sure to change again, so the delay is
	// settleMax. Counts that keep changing are written at the latest after settleMoving times the
	// delay without such pods.
	settleMin    = time.Second
	settleLags   = 4
	settleMax    = 5 * time.Second
	settleMoving = 5
	// quietSettles times the delay for counts is how long a job may have pods that do not run yet
	// before its first status says so. Most jobs run sooner.
	quietSettles = 60
)

// settleFor returns how long counts must be unchanged before they are written, when a write takes
// lag.
func settleFor(lag time.Duration) time.Duration {
	return min(max(settleMin, settleLags*lag), settleMax)
}

// report writes the job's status if it has changed in a way that is worth a write.
func (c *Controller) report(r *record, step lifecycle.Step) {
	now := c.Clock.Now()
	next := r.nextStatus(step, metav1.NewTime(now.Truncate(time.Second)))
	if r.awaitsVersion() {
		return // the watch wakes the key with the next version
	}
	written := c.orderWritten(r, &next)
	wait, worth := r.worthWriting(&next, now, settleFor(c.Writer.Latency()))
	if !worth {
		r.statusSince = time.Time{}
		return
	}
	if wait = max(wait, r.statuses.Left(now)); wait > 0 {
		c.loop.WakeAfter(r.key, wait)
		return
	}
	c.announce(r, &next)
	newRun := next.Version != r.status.Version || next.RetryCount != r.status.RetryCount
	r.status, r.statusSince, r.lost, r.conflicted = next, time.Time{}, false, ""
	if newRun {
		c.compile(r, c.limitRanges(r.key.Namespace)) // pods carry the number of their run
	}
	job := *r.job
	job.Status = next
	uid, restarts := r.uid, r.recording
	m := apiwriter.Meta{Owner: gangKey(r.key), Reason: "job-status"}
	t := &statusWrite{from: job.ResourceVersion}
	r.lastStatus.Store(t)
	c.Writer.Status(m, &job, next.State.Phase.Finished() || restarts, func(o apiwriter.Object, err error) {
		c.statusEnded(r, t, o)
		switch {
		case errors.Is(err, apiwriter.ErrStopped):
			return
		case apierrors.IsConflict(err):
			c.loop.Post(r.key, uid, func(r *record) { r.statusConflict(t) })
			return
		case err != nil:
			c.loop.Post(r.key, uid, func(r *record) { c.statusLost(r, err) })
			return
		}
		if restarts {
			c.loop.Post(r.key, uid, func(r *record) {
				// If they differ, another restart has followed.
				if r.status.RetryCount == next.RetryCount && r.status.Version == next.Version {
					r.recording = false
					r.pods.ReleaseDeletions()
				}
			})
		}
		if written != nil {
			c.loop.Post(r.key, uid, written)
		}
	})
}

// statusLost records that the last status was not written, so that the next one differs from the
// server's.
func (c *Controller) statusLost(r *record, err error) {
	c.Log.Warn("writing a job's status failed", "job", r.key, "error", err)
	r.lost, r.statusSince = true, c.Clock.Now()
	r.statuses.Failed(r.statusSince)
}

// nextStatus returns the status that describes the present state.
func (r *record) nextStatus(step lifecycle.Step, now metav1.Time) api.JobStatus {
	s := r.status
	s.Conditions = slices.Clone(s.Conditions)
	if step.Phase != s.State.Phase {
		if s.State.Phase == "" && step.Phase != api.Pending {
			// The phase Pending was not worth a write of its own.
			s.SetPhase(api.Pending, "", "", r.job.CreationTimestamp)
		}
		reason, message := step.Reason, step.Message
		if reason == "" && concludes(s.State.Phase, step.Phase) {
			reason, message = s.State.Reason, s.State.Message
		}
		s.SetPhase(step.Phase, reason, message, now)
	}
	s.RetryCount = step.Retries
	if step.NewRun {
		s.Version++
	}
	s.MinAvailable = r.minAvailable()
	r.countInto(&s, step.Pods)
	r.conditions(&s, now)
	if step.Phase.Finished() && s.RunningDuration == nil {
		if from := r.lastPhase(api.Running); !from.IsZero() {
			s.RunningDuration = &metav1.Duration{Duration: now.Sub(from)}
		}
	}
	if (len(r.job.Spec.Plugins) > 0 || len(r.job.Spec.Volumes) > 0) && r.pods.Sum().Held() > 0 {
		s.ControlledResources = maps.Clone(s.ControlledResources)
		if s.ControlledResources == nil {
			s.ControlledResources = map[string]string{}
		}
		maps.Copy(s.ControlledResources, pods.Controlled(r.job))
	}
	return s
}

// concludes reports whether phase to is the end of the transitional phase from.
func concludes(from, to api.JobPhase) bool {
	return from == api.Aborting && to == api.Aborted || from == api.Completing && to == api.Completed ||
		from == api.Terminating && to == api.Terminated
}

// countInto counts the job's pods. Pods that are about to be deleted count as terminating at once: a
// watch of the job then shows them in the status that begins its end, and one write less follows.
func (r *record) countInto(s *api.JobStatus, fate lifecycle.Pods) {
	sum := r.pods.Sum()
	if s.State.Phase.Finished() && r.status.State.Phase.Finished() && sum[podset.Succeeded]+sum[podset.Failed] < s.Succeeded+s.Failed {
		return // pods are deleted after the end of the job; their results stay counted
	}
	s.Pending, s.Running, s.Succeeded, s.Failed, s.Terminating, s.Unknown = 0, 0, 0, 0, 0, 0
	s.TaskStatusCount = make(map[string]api.TaskState, len(r.tasks))
	for _, t := range r.tasks {
		n := t.seen().Under(fate)
		s.Pending += n.Pending
		s.Running += n.Running
		s.Succeeded += n.Succeeded
		s.Failed += n.Failed
		s.Terminating += n.Terminating
		s.Unknown += n.Unknown
		phases := map[corev1.PodPhase]int32{
			corev1.PodPending: n.Pending, corev1.PodRunning: n.Running, corev1.PodSucceeded: n.Succeeded,
			corev1.PodFailed: n.Failed, corev1.PodUnknown: n.Unknown,
		}
		maps.DeleteFunc(phases, func(_ corev1.PodPhase, n int32) bool { return n <= 0 })
		if len(phases) > 0 {
			s.TaskStatusCount[t.pods.Name] = api.TaskState{Phase: phases}
		}
	}
	if len(s.TaskStatusCount) == 0 {
		s.TaskStatusCount = nil
	}
}

// conditions sets the conditions that are not phases, and removes conditions that no longer hold.
func (r *record) conditions(s *api.JobStatus, now metav1.Time) {
	set := func(t api.JobConditionType, reason, message string) {
		if message == "" {
			s.RemoveCondition(t)
			return
		}
		s.SetCondition(t, corev1.ConditionFalse, reason, message, now)
	}
	switch {
	case r.unsupported == "" && r.ignored != "":
		set(api.JobSupported, api.ReasonUnknownArgument, "not acted on: "+r.ignored)
	case r.ignored != "":
		set(api.JobSupported, api.ReasonNotImplemented, r.unsupported+", "+r.ignored)
	default:
		set(api.JobSupported, api.ReasonNotImplemented, r.unsupported)
	}
	if valid := s.Condition(api.JobValid); valid != nil && valid.Reason == api.ReasonMalformed {
		s.RemoveCondition(api.JobValid) // the job can be decoded again
	}
	if s.State.Phase.Finished() {
		return // the conditions at the end of the job stay readable
	}
	set(api.JobValid, api.ReasonInvalidTemplate, r.invalid)
	reason, message := r.waitsFor()
	set(api.JobScheduled, reason, message)
	surplusReason, surplusMessage := r.surplusWaitsFor()
	set(api.JobSurplusScheduled, surplusReason, surplusMessage)
	if s.State.Phase == api.Pending {
		s.State.Reason, s.State.Message = reason, message
	}
}

// waitsFor returns why pods of the job have no node, or empty strings.
func (r *record) waitsFor() (reason, message string) {
	switch {
	case r.invalid != "":
		return api.ReasonInvalidTemplate, r.invalid
	case r.job.TotalReplicas() == 0:
		return api.ReasonNoReplicas, "spec.tasks: no task has replicas, so the job has no pods"
	case r.holding != "":
		return api.ReasonNotImplemented, "not started, because its pods would lack what it asks for: " + r.holding
	case r.refusal.Noted() && r.pods.Sum().Held() < r.minAvailable():
		return r.refusal.Reason, r.refusal.Message
	case r.why != nil && r.pods.Sum().Held() < r.minAvailable():
		return r.why.Code, r.explainAll()
	case r.gated > 0 && r.pods.Sum().Held() < r.minAvailable():
		return api.ReasonGated, scheduler.Pods(r.gated) + " of the job have scheduling gates"
	}
	return "", ""
}

// surplusWaitsFor returns why pods above the job's minimum have no node, or empty strings.
func (r *record) surplusWaitsFor() (reason, message string) {
	if r.why == nil || r.pods.Sum()[podset.Queued] == 0 || r.pods.Sum().Held() < r.minAvailable() {
		return "", ""
	}
	return r.why.Code, "pods above the minimum wait: " + r.explainAll()
}

// explainAll returns the scheduler's reason, and who leaves for the job or why nobody does.
func (r *record) explainAll() string {
	if r.why.EvictionDetail == "" {
		return r.explain()
	}
	return r.explain() + "; " + r.why.EvictionDetail
}

// explain returns the scheduler's reason, with figures that a user can act on.
func (r *record) explain() string {
	w := r.why
	switch w.Code {
	case share.QueueNotFound, share.QueueNotLeaf, share.QueueClosed, share.QueueOverCapability, share.QueueOverJobs, share.BehindFirst:
		return informer.QueueField(r.key.Namespace, r.job.QueueName(), r.queue, "spec.queue") + ": " + w.Message
	}
	short := w.Shortage
	switch {
	case short == nil:
		return w.Message
	case short.Resource == "" || short.Missing <= 0:
		return short.Counted()
	}
	if short.TooLarge {
		return fmt.Sprintf("%s; the largest lacks %s", w.Message, amount(short))
	}
	return fmt.Sprintf("%s; short of %s: %s", w.Message, short.Resource, amount(short))
}

func amount(s *place.Shortage) string {
	switch s.Resource {
	case corev1.ResourceCPU:
		return resource.NewMilliQuantity(s.Missing, resource.DecimalSI).String()
	case corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return resource.NewQuantity(s.Missing, resource.BinarySI).String()
	}
	return strconv.FormatInt(s.Missing, 10)
}

// worthWriting compares the status with the last one written. It returns how long the difference
// can still wait; worth is false if there is no difference. Counts have settled if they have not
// changed for settle.
func (r *record) worthWriting(next *api.JobStatus, now time.Time, settle time.Duration) (wait time.Duration, worth bool) {
	last := &r.status
	if n := countsOf(next); n != r.statusSeen {
		r.statusSeen, r.statusMoved = n, now
	}
	// It is not worth reporting that a job exists and is being placed.
	quiet := next.State.Phase == api.Pending && last.State.Phase == ""
	var due time.Time
	switch {
	case r.conflicted != "":
		return 0, true
	case next.State.Phase != last.State.Phase && !quiet, next.Version != last.Version, next.RetryCount != last.RetryCount,
		next.LastCommand != last.LastCommand:
		return 0, true
	case !sameConditions(last.Conditions, next.Conditions, quiet) ||
		next.State.Message != last.State.Message || next.State.Reason != last.State.Reason:
		r.statusSince = cmp.Or(r.statusSince, now)
		due = r.statusSince.Add(patience)
	case quiet && next.Pending > 0:
		r.statusSince = cmp.Or(r.statusSince, now)
		due = r.statusSince.Add(quietSettles * settle)
	case r.lost, !quiet && countsOf(last) != countsOf(next):
		r.statusSince = cmp.Or(r.statusSince, now)
		still := settle
		if next.Pending > r.waiting() {
			still = settleMax
		}
		due = earlier(r.statusMoved.Add(still), r.statusSince.Add(settleMoving*settle))
	default:
		return 0, false
	}
	return due.Sub(now), true
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

type podCounts struct {
	pending, running, succeeded, failed, terminating, unknown, minAvailable int32
}

func countsOf(s *api.JobStatus) podCounts {
	return podCounts{s.Pending, s.Running, s.Succeeded, s.Failed, s.Terminating, s.Unknown, s.MinAvailable}
}

// sameConditions compares conditions. For a quiet job, the entry for the phase Pending does not
// count.
func sameConditions(a, b []api.JobCondition, quiet bool) bool {
	i := 0
	for _, c := range b {
		if quiet && c.Type == "" {
			continue
		}
		if i >= len(a) || a[i].Type != c.Type || a[i].Status != c.Status || a[i].Reason != c.Reason || a[i].Message != c.Message {
			return false
		}
		i++
	}
	return i == len(a)
}

// announce records events for changes that a user would want to know about.
func (c *Controller) announce(r *record, next *api.JobStatus) {
	about := r.job
	if next.State.Phase != r.status.State.Phase && next.State.Phase == api.Failed {
		c.Writer.Event(about, corev1.EventTypeWarning, next.State.Reason, next.State.Message)
	}
	for _, t := range []api.JobConditionType{api.JobScheduled, api.JobSupported} {
		now, before := next.Condition(t), r.status.Condition(t)
		if now != nil && (before == nil || before.Reason != now.Reason) {
			c.Writer.Event(about, corev1.EventTypeWarning, now.Reason, now.Message)
		}
	}
}
