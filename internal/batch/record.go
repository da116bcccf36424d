package batch

import (
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/internal/batch/lifecycle"
	"lockstep.dev/lockstep/internal/batch/pods"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/scheduler"
)

// unitState is the state of a unit: one pod of a job, identified by task and index.
//
//	bound by creation:   absent ─Submit▶ queued ─Commit▶ placing ─written▶ created ─watch▶ pending ▶ running ▶ succeeded | failed
//	bound afterwards:    absent ─▶ making ─watch▶ unbound ─Submit▶ queued ─Commit▶ placing ─▶ as above
//	from any with a pod: ─delete asked, or seen being deleted▶ leaving ─gone▶ absent
//	from placing:        ─refused, or no longer wanted▶ absent
type unitState uint8

const (
	absent  unitState = iota
	making            // is being created without a node
	unbound           // exists without a node, and no node has been requested from the scheduler
	queued            // requested from the scheduler; the pod exists if the unit has a UID
	placing           // has a node; the write that creates or binds the pod is on its way
	created           // written with its node; not yet seen by the watch
	pending
	running
	succeeded
	failed
	unknown
	leaving
	unitStates // number of states
)

// hasPod reports whether a unit in this state has a pod that may be deleted.
func (s unitState) hasPod() bool { return s == unbound || s >= created && s < leaving }

// holds reports whether a unit counts towards its gang: its pod has a node, or had a node and
// ended.
func (s unitState) holds() bool { return s >= placing && s < leaving }

// ended reports whether the unit's pod has ended by itself.
func (s unitState) ended() bool { return s == succeeded || s == failed }

type unit struct {
	state unitState
	// attempt distinguishes the answers to different writes of this unit's pod.
	attempt uint16
	// code is the number that policies ask for, a restart count or an exit code: see codeOf.
	code int32
	// uid is the UID of the pod, while a pod is known to exist.
	uid types.UID
	// version is the resource version at which the pod was written, until the watch shows the pod.
	version string
}

type counts [unitStates]int32

// task is the in-memory state of one task's units. Units at index replicas and above are left over
// from a larger size and are counted separately.
type task struct {
	pods     *pods.Task
	replicas int32
	units    []unit
	counts   counts
	surplus  int32 // number of units at index replicas and above that are not absent
	// plan represents the task's pods in placement. Equal tasks of different jobs share it.
	plan *corev1.Pod
	// ready is the number of pods that are ready or have succeeded. It is counted only in jobs with
	// dependent tasks.
	ready int32
	// afterwards means that pods are created without a node and bound later.
	afterwards bool
}

func (t *task) set(i int32, s unitState) {
	u := &t.units[i]
	if i < t.replicas {
		t.counts[u.state]--
		t.counts[s]++
	} else {
		if u.state != absent {
			t.surplus--
		}
		if s != absent {
			t.surplus++
		}
	}
	u.state = s
	if s == absent {
		u.uid, u.version, u.code = "", "", 0
		u.attempt++ // an answer still to come concerns a pod that is gone
	}
}

// made reports whether every pod of the task has been written, so that no pod will be created until
// one is replaced. The task's templates can then be released: ten thousand jobs at rest would
// otherwise hold ten thousand pods that nobody needs.
func (t *task) made() bool {
	return t.surplus == 0 && t.counts[absent]+t.counts[making]+t.counts[queued]+t.counts[placing] == 0
}

// resize changes the number of replicas and recounts.
func (t *task) resize(replicas int32) {
	if int(replicas) > len(t.units) {
		t.units = append(t.units, make([]unit, int(replicas)-len(t.units))...)
	}
	t.replicas = replicas
	t.counts, t.surplus = counts{}, 0
	for i := range t.units {
		switch {
		case int32(i) < t.replicas:
			t.counts[t.units[i].state]++
		case t.units[i].state != absent:
			t.surplus++
		}
	}
}

// held returns the number of units that hold a node, or held one until their pod ended.
func (t *task) held() int32 {
	n := int32(0)
	for s, c := range t.counts {
		if unitState(s).holds() {
			n += c
		}
	}
	return n
}

// seen returns the counts of the task's pods as they appear in its status.
func (t *task) seen() lifecycle.Counts {
	c := &t.counts
	return lifecycle.Counts{
		Pending: c[unbound] + c[created] + c[pending], Running: c[running], Succeeded: c[succeeded], Failed: c[failed],
		Unknown: c[unknown], Terminating: c[leaving],
	}
}

// record is the in-memory state of one job. Only turns of the job's key access it, except for the
// atomic fields.
type record struct {
	key types.NamespacedName
	// unseen means that the record waits for the watch to show a written pod.
	unseen atomic.Bool

	uid        types.UID
	resumed    bool     // an earlier manager has worked on the job
	job        *api.Job // the job with the spec in force
	generation int64
	tasks      []*task
	byName     map[string]int
	set        *pods.Set
	ranges     string // versions of the LimitRanges from which the plans were made
	// invalid says why no pods can be made. unsupported names the fields that are ignored; holding
	// names those of them that prevent the job from starting. All three are empty for most jobs.
	invalid, unsupported, holding string
	// ignored lists plugin arguments that the plugins do not know.
	ignored string

	status   api.JobStatus // as last handed to the writer, or read at the start
	lost     bool          // the status could not be written, or another client overwrote it
	told     atomic.Pointer[told]
	compared string // resource version of the job whose status was last compared with status
	// conflicted is the resource version from which the last status was made, if its write met a
	// conflict.
	conflicted string
	// statusSince is when a difference that can wait was first noticed; zero if there is none.
	statusSince time.Time
	statusSeen  tally     // counts at the last comparison
	statusMoved time.Time // when the counts last changed
	expired     bool      // the deletion of the job has been requested

	order    *order // a Command to the job, until it is carried out and recorded in the status
	policies *policies

	// The gang at the scheduler.
	submitted *submission
	stale     bool              // the request at the scheduler differs from the present need
	why       *scheduler.Reason // why the gang waits

	// Pods at the writer, and pods that will go to it.
	toWrite  []write
	inflight int
	// objects are the plugins' objects that have been written or are being written, by type and
	// name.
	objects map[string]*ensured
	// dependent means that some task waits for other tasks.
	dependent bool
	changed   bool // the job's size has changed since the objects were last compared

	// refusal says why the API server refused a pod or another object. No new writes are tried
	// before its retryAt.
	refusal  *refusal
	failures int

	// undeleted are the objects whose deletion was refused: pods, and the job itself under its own
	// UID. The value is the name.
	undeleted controlloop.FailedWrites[types.UID, string]
	statuses  controlloop.Backoff // backoff of status writes after a refused one
	// recording means that a restart has been decided and its status is not written yet. deletions
	// are the pods of the previous run, to be deleted once the status is written.
	recording bool
	deletions []deletion
}

// deletion is the pending deletion of a pod.
type deletion struct {
	pod    *corev1.Pod
	grace  *int64
	reason string
}

// refusal is an error answer that repeating the same write at once cannot cure.
type refusal struct {
	reason, message string
	retryAt         time.Time
}

// write is a placed unit whose pod is not at the writer yet. An empty node means that the pod is
// created first and bound later.
type write struct {
	task, index int32
	node        string
	annotations map[string]string // the CPUs that the pod was given, if it asked for CPUs
}

// place returns the task and index of a pod. ok is false if the job cannot have made the pod.
func (r *record) place(pod *corev1.Pod) (ti int, index int32, ok bool) {
	ti, ok = r.byName[pod.Labels[api.TaskSpecKey]]
	if !ok {
		return 0, 0, false
	}
	index, ok = parseIndex(pod.Labels[api.TaskIndexKey])
	if !ok || r.tasks[ti].pods.PodName(int(index)) != pod.Name {
		return 0, 0, false
	}
	return ti, index, true
}

// unitsMax bounds the index of a unit. A pod label with a larger index is ignored.
const unitsMax = 1 << 20

func parseIndex(s string) (int32, bool) {
	n := int32(0)
	if s == "" || len(s) > 7 {
		return 0, false
	}
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int32(c-'0')
	}
	return n, n < unitsMax
}

// sum returns the job's units by state.
func (r *record) sum() counts {
	var c counts
	for _, t := range r.tasks {
		for s, n := range t.counts {
			c[s] += n
		}
	}
	return c
}

func (r *record) held() int32 {
	n := int32(0)
	for _, t := range r.tasks {
		n += t.held()
	}
	return n
}

// minAvailable returns the gang's minimum, which is never more than the number of pods.
func (r *record) minAvailable() int32 {
	total := int32(0)
	for _, t := range r.tasks {
		total += t.replicas
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
	for _, end := range []api.JobPhase{api.Restarting, api.Aborting, api.Aborted} {
		if !ran.After(r.lastPhase(end)) {
			return false
		}
	}
	return true
}

func (r *record) lastPhase(p api.JobPhase) time.Time {
	for i := range r.status.Conditions {
		if c := &r.status.Conditions[i]; c.Type == "" && c.Status == p && c.LastTransitionTime != nil {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}
