package batch

import (
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/internal/batch/lifecycle"
	"lockstep.dev/lockstep/internal/batch/pods"
	"lockstep.dev/lockstep/internal/keyed"
	"lockstep.dev/lockstep/internal/scheduler"
)

// unitState is where one pod of a job, known by task and index, stands.
//
//	bound by creation:   absent ─Submit▶ queued ─Commit▶ placing ─written▶ created ─watch▶ pending ▶ running ▶ succeeded | failed
//	bound afterwards:    absent ─▶ making ─watch▶ unbound ─Submit▶ queued ─Commit▶ placing ─▶ as above
//	from any with a pod: ─delete asked, or seen being deleted▶ leaving ─gone▶ absent
//	from placing:        ─refused, or no longer wanted▶ absent
type unitState uint8

const (
	absent  unitState = iota
	making            // being created without a node
	unbound           // exists without a node, and the scheduler has not been asked for one
	queued            // the scheduler has it; the pod exists if the unit has a UID
	placing           // has a node; the write that says so is on its way
	created           // written with its node; the watch has not shown it yet
	pending
	running
	succeeded
	failed
	unknown
	leaving
	unitStates // their number
)

// hasPod says whether a pod of this state exists and may be deleted.
func (s unitState) hasPod() bool { return s == unbound || s >= created && s < leaving }

// holds says whether a unit counts towards its gang: it has a node, or has had one and ended.
func (s unitState) holds() bool { return s >= placing && s < leaving }

// ended says whether the unit's pod has ended by itself.
func (s unitState) ended() bool { return s == succeeded || s == failed }

type unit struct {
	state unitState
	// attempt tells the answers to different writes of this unit's pod apart.
	attempt uint16
	// code is what policies ask of the pod: see codeOf.
	code int32
	// uid is the pod's, while one is known to exist.
	uid types.UID
	// version is the resource version at which the pod was written, while the watch has not shown it.
	version string
}

type counts [unitStates]int32

// task is the state of a task's units. Units at and above replicas are left over from a larger size and are counted
// apart.
type task struct {
	pods     *pods.Task
	replicas int32
	units    []unit
	counts   counts
	surplus  int32 // units at or above replicas that are not absent
	// plan stands for the task's pods in placement. Equal tasks of different jobs share it.
	plan *corev1.Pod
	// ready counts the pods that others may wait for, in jobs where any do.
	ready int32
	// afterwards says that pods are created without a node and bound later.
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
		u.attempt++ // an answer that is still to come is about a pod that is gone
	}
}

// made says that every pod of the task has been written: until one is replaced, nothing will be made. Ten thousand jobs
// at rest would otherwise hold ten thousand pods that nobody needs.
func (t *task) made() bool {
	return t.surplus == 0 && t.counts[absent]+t.counts[making]+t.counts[queued]+t.counts[placing] == 0
}

// resize changes the number of replicas and counts again.
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

// held is how many units hold a node, or held one until they ended.
func (t *task) held() int32 {
	n := int32(0)
	for s, c := range t.counts {
		if unitState(s).holds() {
			n += c
		}
	}
	return n
}

// seen is the task's pods as its status counts them.
func (t *task) seen() lifecycle.Counts {
	c := &t.counts
	return lifecycle.Counts{
		Pending: c[unbound] + c[created] + c[pending], Running: c[running], Succeeded: c[succeeded], Failed: c[failed],
		Unknown: c[unknown], Terminating: c[leaving],
	}
}

// record is what the controller knows of one job. Only the turn of the job's key touches it, except for the atomic fields.
type record struct {
	key types.NamespacedName
	// unseen says that the record waits for the watch to show a pod that was written.
	unseen atomic.Bool

	uid        types.UID
	resumed    bool     // an earlier manager had the job
	job        *api.Job // the spec in force
	generation int64
	tasks      []*task
	byName     map[string]int
	set        *pods.Set
	ranges     string // the LimitRanges that the plans were made with
	// invalid is why no pods can be made; unsupported names the fields that are not acted on, holding those of them that
	// keep the job from starting. All are empty for most jobs.
	invalid, unsupported, holding string
	// ignored are arguments of plugins that mean nothing to them.
	ignored string

	status      api.JobStatus // as last handed to the writer, or read at the start
	lost        bool          // the writer could not write it, or somebody else wrote another one
	told        atomic.Pointer[told]
	compared    string    // the job's version whose status was compared with it last
	conflicted  string    // the job's version that the last one was made from, if it was refused for that
	statusSince time.Time // when a difference that can wait was first noticed; zero when there is none
	statusSeen  tally     // the counts at the last look
	statusMoved time.Time // when they last changed
	expired     bool      // the job's deletion has been asked for

	order    *order // a Command to the job, until it is carried out and the status says so
	policies *policies

	// What the scheduler has.
	submitted *submission
	stale     bool              // what it has differs from what is wanted
	why       *scheduler.Reason // why it waits

	// What the writer has, and what it will get.
	toWrite  []write
	inflight int
	// objects are the plugins' objects that have been written or are being written, by kind.
	objects map[string]*ensured
	// dependent says that some task waits for others.
	dependent bool
	changed   bool // the job's size has changed since they were last compared

	// refusal is why the API server refused a pod or another object; until retryAt no new ones are tried.
	refusal  *refusal
	failures int

	// undeleted are the pods, and with its own UID the job, whose deletion was refused, by name.
	undeleted keyed.Refusals[types.UID, string]
	statuses  keyed.Pause // holds back statuses after one that was refused
	// recording says that a restart has been decided and that its status is not written yet; deletions are the pods of the run before,
	// to be deleted then.
	recording bool
	deletions []deletion
}

// deletion is a pod that is to be deleted.
type deletion struct {
	pod    *corev1.Pod
	grace  *int64
	reason string
}

// refusal is an answer that repeating the same write at once cannot cure.
type refusal struct {
	reason, message string
	retryAt         time.Time
}

// write is a placed unit whose pod is not at the writer yet. An empty node asks for a pod to be bound later.
type write struct {
	task, index int32
	node        string
	annotations map[string]string // the CPUs it was given, if it asked for any
}

// place is where a pod belongs, or false when it is no pod that the job could have made.
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

// unitsMax bounds a task's size: an index beyond it is not believed.
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

// sum is the job's units by state.
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

// minAvailable is the gang's minimum, which is never more than there are pods.
func (r *record) minAvailable() int32 {
	total := int32(0)
	for _, t := range r.tasks {
		total += t.replicas
	}
	return min(r.job.MinAvailable(), total)
}

// everRan says whether the job's gang has been complete in this run: then pods are replaced one by one, and the others
// are left alone when there is no room.
func (r *record) everRan() bool {
	if r.status.State.Phase == api.Running {
		return true
	}
	ran := r.lastPhase(api.Running)
	if ran.IsZero() {
		return false
	}
	// A job that is resumed may pass through Restarting too quickly for it to be recorded.
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
