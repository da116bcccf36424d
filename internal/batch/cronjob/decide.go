package cronjob

import (
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/internal/cron"
	"lockstep.dev/lockstep/internal/cron/schedule"
	"lockstep.dev/lockstep/internal/unsupported"
)

const (
	// punctual is how late a Job may be created whatever the deadline: a timer and a turn take
	// some time on a busy machine.
	punctual = 5 * time.Second

	defaultSucceededLimit = 3
	defaultFailedLimit    = 1
)

// notSupported lists the fields of a CronJob that have no effect. Those of the Job's spec are named
// by the Jobs.
var notSupported = []unsupported.Field[*api.CronJob]{
	{Path: "spec.jobTemplate.metadata.name", Used: func(c *api.CronJob) bool { return c.Spec.JobTemplate.Name != "" }},
	{Path: "spec.jobTemplate.metadata.namespace", Used: func(c *api.CronJob) bool { return c.Spec.JobTemplate.Namespace != "" }},
	{Path: "spec.jobTemplate.metadata.finalizers", Used: func(c *api.CronJob) bool { return len(c.Spec.JobTemplate.Finalizers) > 0 }},
}

// UnsupportedIn returns the fields of a CronJob that have no effect, without those of the Job's spec.
func UnsupportedIn(c *api.CronJob) []unsupported.Field[*api.CronJob] {
	return unsupported.Used(c, notSupported)
}

// Validate returns the first error of a CronJob that would make it invalid. The message begins with the
// path of the field.
func Validate(c *api.CronJob) error {
	_, _, err := check(c)
	return err
}

// plan is the result of decide: what to do about a CronJob.
type plan struct {
	// start is the Job to create; replace are the Jobs that it replaces.
	start   *api.Job
	replace []*api.Job
	// remove are the finished Jobs beyond the history limits.
	remove []*api.Job
	// status is the status to write, without the Job in start.
	status api.CronJobStatus
	// passed is the last due time that has been decided; skipped is the reason if no Job is created
	// for it.
	passed  time.Time
	skipped string
	// wake is the time to decide again; zero if only a change requires that.
	wake time.Time
}

// decide returns the plan for a CronJob and its jobs. passed is the field of the previous plan, or
// zero.
func decide(c *api.CronJob, jobs []*api.Job, passed, now time.Time) plan {
	p := plan{status: *c.Status.DeepCopy(), passed: passed}
	//   1. Account for the Jobs.
	p.account(jobs, now)
	p.remove = cron.BeyondLimits(jobs, outcome,
		ptr.Deref(c.Spec.SuccessfulJobsHistoryLimit, defaultSucceededLimit), ptr.Deref(c.Spec.FailedJobsHistoryLimit, defaultFailedLimit))
	ignored, _ := unsupported.In(c, notSupported)
	p.condition(api.CronJobSupported, unsupported.Reason, ignored, now)
	//   2. An invalid CronJob creates nothing and says why.
	times, location, err := check(c)
	if err != nil {
		p.condition(api.CronJobValid, api.ReasonInvalidSpec, err.Error(), now)
		return p
	}
	p.condition(api.CronJobValid, "", "", now)
	if ptr.Deref(c.Spec.Suspend, false) {
		return p
	}
	p.wake = times.Next(now)
	//   3. Find the last due time.
	since := cron.Later(c.CreationTimestamp.Time, cron.Later(lastOf(&p.status), passed))
	due := times.Due(since, now)
	if due.IsZero() {
		return p
	}
	late := now.Sub(due)
	if d := c.Spec.StartingDeadlineSeconds; d != nil && late > max(punctual, time.Duration(*d)*time.Second) {
		p.passed, p.skipped = due, fmt.Sprintf("missed: it could not be created within startingDeadlineSeconds, %d", *d)
		return p
	}
	//   4. Look at the Jobs that are active.
	switch c.Spec.ConcurrencyPolicy {
	case api.ForbidConcurrent:
		if len(p.status.Active) > 0 {
			return p // it stays due until they end
		}
	case api.ReplaceConcurrent:
		for _, j := range jobs {
			if outcome(j) == cron.Active && j.DeletionTimestamp == nil {
				p.replace = append(p.replace, j)
			}
		}
	}
	//   5. Create the Job.
	p.start, p.passed = jobFor(c, due, location), due
	return p
}

// check validates a CronJob and returns its schedule and time zone.
func check(c *api.CronJob) (*schedule.Schedule, *time.Location, error) {
	if len(c.Name) > schedule.NameBytesMax {
		return nil, nil, fmt.Errorf("metadata.name: must be at most %d characters: the names of its Jobs are longer by %d", schedule.NameBytesMax, 63-schedule.NameBytesMax)
	}
	switch c.Spec.ConcurrencyPolicy {
	case "", api.AllowConcurrent, api.ForbidConcurrent, api.ReplaceConcurrent:
	default:
		return nil, nil, fmt.Errorf("spec.concurrencyPolicy: %q is not known; there are Allow, Forbid, Replace", c.Spec.ConcurrencyPolicy)
	}
	location, err := schedule.Location(ptr.Deref(c.Spec.TimeZone, ""))
	if err != nil {
		return nil, nil, fmt.Errorf("spec.timeZone: %w", err)
	}
	times, err := schedule.ParseOne(c.Spec.Schedule, location, c.CreationTimestamp.Time)
	if err != nil {
		return nil, nil, fmt.Errorf("spec.schedule: %q: %w", c.Spec.Schedule, err)
	}
	return times, location, nil
}

// jobFor returns the Job of a CronJob for a scheduled time.
func jobFor(c *api.CronJob, due time.Time, location *time.Location) *api.Job {
	from := &c.Spec.JobTemplate
	j := &api.Job{
		TypeMeta: metav1.TypeMeta{APIVersion: api.GroupVersion.String(), Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.Namespace, Name: cron.Name(c.Name, due), Labels: maps.Clone(from.Labels), Annotations: map[string]string{},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(c, api.GroupVersion.WithKind(kind))},
		},
		Spec: *from.Spec.DeepCopy(),
	}
	maps.Copy(j.Annotations, from.Annotations)
	j.Annotations[api.CronJobScheduledTimestampKey] = due.In(location).Format(time.RFC3339)
	return j
}

// account updates the list of active Jobs and the times.
func (p *plan) account(jobs []*api.Job, now time.Time) {
	s := &p.status
	s.Active = nil
	cron.SortByAge(jobs)
	for _, j := range jobs {
		// If a Job was scheduled after the last time in the status, a manager created it and ended
		// before it wrote the status.
		if at := scheduled(j); !at.After(now) {
			p.scheduled(at)
		}
		switch outcome(j) {
		case cron.Active:
			s.Active = append(s.Active, ref(j))
		case cron.Succeeded:
			if at := j.Status.State.LastTransitionTime; !at.IsZero() && (s.LastSuccessfulTime == nil || s.LastSuccessfulTime.Before(&at)) {
				s.LastSuccessfulTime = at.DeepCopy()
			}
		}
	}
}

// started updates the plan's status after its Job has been created.
func (p *plan) started(uid types.UID) {
	p.start.UID = uid
	p.status.Active = append(p.status.Active, ref(p.start))
	p.scheduled(p.passed)
	meta.RemoveStatusCondition(&p.status.Conditions, api.CronJobCreated)
}

func (p *plan) scheduled(at time.Time) {
	if at.After(lastOf(&p.status)) {
		p.status.LastScheduleTime = ptr.To(metav1.NewTime(at))
	}
}

// condition sets a condition to False, or removes it if the message is empty. It reports whether
// the message is new.
func (p *plan) condition(kind, reason, message string, now time.Time) bool {
	if message == "" {
		return meta.RemoveStatusCondition(&p.status.Conditions, kind)
	}
	return meta.SetStatusCondition(&p.status.Conditions, metav1.Condition{
		Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(now).Rfc3339Copy(),
	})
}

// outcome returns how a Job has ended.
func outcome(j *api.Job) cron.Outcome {
	switch phase := j.Status.State.Phase; {
	case !phase.Finished():
		return cron.Active
	case phase == api.Completed:
		return cron.Succeeded
	}
	return cron.Failed
}

// scheduled returns the time that a Job was scheduled for, or zero if it was not created on
// schedule.
func scheduled(j *api.Job) time.Time {
	t, _ := time.Parse(time.RFC3339, strings.TrimSpace(j.Annotations[api.CronJobScheduledTimestampKey])) // zero if there is none
	return t
}

func ref(j *api.Job) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: api.GroupVersion.String(), Kind: "Job", Namespace: j.Namespace, Name: j.Name, UID: j.UID}
}

func lastOf(s *api.CronJobStatus) time.Time {
	return ptr.Deref(s.LastScheduleTime, metav1.Time{}).Time
}
