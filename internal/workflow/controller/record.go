package controller

import (
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/keyed"
	"lockstep.dev/lockstep/internal/scheduler"
	"lockstep.dev/lockstep/internal/workflow/engine"
	"lockstep.dev/lockstep/internal/workflow/locks"
)

// record is what the controller knows of one workflow. Only the turn of the workflow's key touches it, except for the
// atomic fields.
//
//	            New             the engine ends it                 all its pods that are to go are gone
//	(none) ───────────▶ running ──────────────────▶ over ───────────────────────────────────────────────▶ (none)
//	                       ▲                          │ a user made it ready to be retried
//	                       └──────────────────────────┘
type record struct {
	key types.NamespacedName
	// epoch is the controller's when the record was made.
	epoch uint64
	// unseen counts units whose pods were written and that the watch has not shown.
	unseen atomic.Int32
	// last is the version of the workflow that was written last.
	last atomic.Pointer[string]

	uid types.UID
	// object is the workflow as it was last taken in: its metadata and spec are up to date, its status is not. Its
	// labels are those that the server has. nil while there is none to work on.
	object  *wf.Workflow
	version string // of object, or of the last write

	run *engine.Run // nil once the workflow is over
	// resumed says that the run was begun by an earlier manager.
	resumed bool
	spec    *wf.WorkflowSpec
	wake    time.Time
	// asking are the requests for locks whose limits are being read, by holder.
	asking map[string]locks.Request
	// events are for the next Step.
	events []engine.Event
	// pauses are the nodes that wait for a user; supplied are outputs that users have set on them.
	pauses   map[string]bool
	supplied map[string]*wf.Outputs

	// Pods.
	units   map[string]*unit            // by node id, those whose node is not done
	leaving map[string]types.UID        // pods whose name is needed, and that have to be gone first
	delayed map[string]engine.CreatePod // that wait for it, by name
	waiting []engine.CreatePod          // for the workflow's objects, or a status that must be written first
	first   firstState
	gangs   map[string]*gang
	gangSeq int
	// creating counts creates at the writer, and deleting has the pods whose deletion was asked for and that are still
	// there. Both outlast the run.
	creating int
	deleting map[types.UID]bool
	// undeleted are those of them that the server refused to delete, and with its own UID the workflow.
	undeleted keyed.Refusals[types.UID, deletion]
	running   int       // units whose pods run
	created   time.Time // when a pod was last written
	ran       time.Time // when a pod was first seen to run
	refusal   *refusal
	objects   *objects
	// repository is where artifacts go that name no store.
	repository *repository

	// The status.
	next     statusNews
	base     map[string]string // top-level fields as the server has them; nil: not known, all is written
	packed   bool              // nodes are compressed
	size     int               // of the nodes' JSON, or somewhat more
	hasNodes bool              // the server's status has nodes
	writing  uint64            // number of the write under way, or 0
	told     time.Time         // when the status was last written
	writes   int
	cost     time.Duration // of making the last status
	failed   int           // writes that were refused in a row
	retryAt  time.Time
	stuck    bool // waits for a newer version, which is there

	// Metadata beside the usual that the workflow is to have.
	extraLabels, extraAnnotations map[string]string
	looked, finalizer             bool // it is known whether artifacts are to be deleted; and they are: it is to have the finalizer

	evaluations evaluations

	// done are the pods whose nodes are done, to be deleted when a status says so and they have been there long enough.
	done []donePod
	over overState
}

// firstState says whether a status has to be written before pods are created.
type firstState uint8

const (
	firstNone firstState = iota
	firstUnwritten
	firstSent
)

// statusNews is what the next status has to say.
type statusNews struct {
	nodes  map[string]bool // ids of nodes that changed
	fields bool            // something else changed
	urgent bool            // it cannot wait
	since  time.Time       // when the first of it happened
	sent   map[string]bool // ids of nodes that are being written
}

func (n *statusNews) empty() bool { return len(n.nodes) == 0 && !n.fields }

// donePod is a pod that may be deleted.
type donePod struct {
	name   string
	uid    types.UID
	nodeID string
	state  doneState
	due    time.Time
}

type doneState uint8

const (
	doneUnwritten doneState = iota // the status does not say yet how its node ended
	doneSent                       // one that does is being written
	doneWritten
)

// overState is what is left of a workflow that is over.
type overState struct {
	swept   bool // its pods were looked at
	expired bool // its own deletion was asked for
}

// unitState is where the pod of a node stands.
//
//	queued ─Commit▶ placing ─written▶ created ─watch▶ there ─ended▶ (no unit)
//	   ▲               └─refused▶ wanted ─later▶ queued
//	there ─refused by its node▶ replacing ─gone▶ (a new unit)
type unitState uint8

const (
	wanted    unitState = iota // to be submitted
	queued                     // the scheduler has it
	placing                    // its pod is being written
	created                    // written; the watch has not shown it yet
	there                      // the watch shows it
	replacing                  // its pod is being deleted, to be made again
)

// unit is the pod of a node that is not done.
type unit struct {
	name, nodeID string
	create       *engine.CreatePod // nil if the pod was found, not made
	pod          *corev1.Pod       // to be created; nil once it is
	plan         *corev1.Pod
	queue        string
	gang         *gang
	state        unitState
	attempt      int
	uid          types.UID
	version      string // at which it was written, until it is seen
	phase        corev1.PodPhase
	unbound      bool // created without a node, and bound later
	deleted      bool // its deletion was asked for
}

// gang is what the scheduler was asked for once.
type gang struct {
	c        *Controller
	key      string
	record   types.NamespacedName
	uid      types.UID
	units    []*unit
	all      bool // together or not at all
	request  *scheduler.Gang
	stale    bool // the scheduler has units that are not wanted any more
	why      *scheduler.Reason
	whySince time.Time

	queue    string
	priority int32
	created  time.Time
}

// refusal is an answer that repeating the same write at once cannot cure.
type refusal struct {
	message string
	retryAt time.Time
	times   int
}

func (r *record) ownVersion(version string) bool {
	last := r.last.Load()
	return last != nil && *last == version
}

func (r *record) setVersion(version string, own bool) {
	r.version = version
	if own {
		r.last.Store(&version)
	}
}
