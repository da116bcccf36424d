package batch

import (
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/internal/batch/lifecycle"
	"lockstep.dev/lockstep/internal/batch/pods"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/podset"
	"lockstep.dev/lockstep/internal/scheduler"
)

// task is the in-memory state of one task: its pod slots, and the maker of their pods. The plan of
// the group is shared with equal tasks of other jobs.
type task struct {
	podset.Group
	pods *pods.Task
	// ready is the number of pods that are ready or have succeeded. It is counted only in jobs with
	// dependent tasks.
	ready int32
}

func (t *task) ref(i int) podset.Ref { return podset.Ref{Group: &t.Group, Index: int32(i)} }

// seen returns the counts of the task's pods as they appear in its status.
func (t *task) seen() lifecycle.Counts {
	c := &t.Counts
	return lifecycle.Counts{
		Pending: c[podset.Unbound] + t.Waiting + c[podset.Created] + c[podset.Pending], Running: c[podset.Running],
		Succeeded: c[podset.Succeeded], Failed: c[podset.Failed], Unknown: c[podset.Unknown], Terminating: c[podset.Leaving],
	}
}

// record is the in-memory state of one job. Only turns of the job's key access it, except for the
// atomic fields.
type record struct {
	key        types.NamespacedName
	uid        types.UID
	resumed    bool     // an earlier manager may have worked on the job
	job        *api.Job // the job with the spec in force
	generation int64
	tasks      []*task
	byName     map[string]int
	set        *pods.Set
	ranges     string // versions of the LimitRanges from which the plans were made
	queue      string // that the job is in; empty if it is not known yet
	// invalid says why no pods can be made. unsupported names the fields that are ignored; holding
	// names the ignored fields that prevent the job from starting. All three are empty for most
	// jobs.
	invalid, unsupported, holding string
	// ignored lists plugin arguments that the plugins do not know.
	ignored string

	status     api.JobStatus // as last handed to the writer, or read at the start
	lost       bool          // the status could not be written, or another client overwrote it
	lastStatus atomic.Pointer[statusWrite]
	compared   string // resource version of the job whose status was last compared with status
	// conflicted is the resource version from which the last status was made, if its write met a
	// conflict.
	conflicted string
	// statusSince is when a difference that can wait was first noticed; zero if there is none.
	statusSince time.Time
	statusSeen  podCounts // counts at the last comparison
	statusMoved time.Time // when the counts last changed
	expired     bool      // the deletion of the job has been requested
	emptied     bool      // the pods of the job, which is deleted after them, are being deleted

	order    *pendingCommand // a Command to the job, until it is carried out and recorded in the status
	policies *policies

	pods  podset.Set
	stale bool              // the gang at the scheduler differs from the present need
	most  int32             // how many pods of this run have had nodes at a time, at most
	why   *scheduler.Reason // why the gang waits
	gated int               // pods that exist and have scheduling gates
	// ahead means that pods are being created before they have nodes. notAhead means that the API server
	// has refused some: then the job waits without pods, which hold nothing of a quota, until its spec is
	// changed.
	ahead, notAhead bool

	// objects are the plugins' objects that have been written or are being written, by type and
	// name.
	objects map[string]*ownedObject
	// dependent means that some task waits for other tasks.
	dependent bool
	changed   bool // the job's size has changed since the objects were last compared

	// refusal says why the API server refused a pod or another object. No new writes are tried
	// before its backoff is over.
	refusal podset.Refusal

	statuses controlloop.Backoff // backoff of status writes after a refused one
	// recording means that a restart has been decided and its status is not written yet. The pods
	// of the previous run are deleted once it is.
	recording bool
}

// waiting returns the number of pods that exist and have no node.
func (r *record) waiting() (n int32) {
	for _, t := range r.tasks {
		n += t.Counts[podset.Unbound] + t.Waiting
	}
	return n
}

// hasPods reports whether the job has pods, or places for pods that are being created.
func (r *record) hasPods() bool {
	for _, t := range r.tasks {
		c := &t.Counts
		if c.Held()+c[podset.Creating]+c[podset.Unbound]+t.Waiting > 0 {
			return true
		}
	}
	return false
}

// place returns the task and index of a pod. ok is false if the job cannot have made the pod.
func (r *record) place(pod *corev1.Pod) (ti int, index int32, ok bool) {
	ti, ok = r.byName[pod.Labels[api.TaskSpecKey]]
	if !ok {
		return 0, 0, false
	}
	n, err := strconv.ParseUint(pod.Labels[api.TaskIndexKey], 10, indexBits)
	if err != nil || r.tasks[ti].PodName(int(n)) != pod.Name {
		return 0, 0, false
	}
	return ti, int32(n), true
}

// indexBits bounds the index of a pod slot. A pod label with a larger index is ignored.
const indexBits = 20

// minAvailable returns the gang's minimum, which is never more than the number of pods.
func (r *record) minAvailable() int32 {
	total := int32(0)
	for _, t := range r.tasks {
		total += t.Replicas
	}
	return min(r.job.MinAvailable(), total)
}

// everRan reports whether the job's gang has been complete in this run. If so, pods are replaced
// one by one, and the remaining pods are left alone when there is no room.
func (r *record) everRan() bool {
	if r.status.State.Phase == api.Running {
		return true
	}
	ran := r.lastPhase(api.Running)
	if ran.IsZero() {
		return false
	}
	// A job that is resumed may pass through Restarting too quickly for that phase to be recorded.
	return !slices.ContainsFunc([]api.JobPhase{api.Restarting, api.Aborting, api.Aborted}, func(end api.JobPhase) bool {
		return !ran.After(r.lastPhase(end))
	})
}

func (r *record) lastPhase(p api.JobPhase) time.Time {
	for i := range r.status.Conditions {
		if c := &r.status.Conditions[i]; c.Type == "" && c.Status == p && c.LastTransitionTime != nil {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}
