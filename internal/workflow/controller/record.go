package controller

import (
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/podset"
	"lockstep.dev/lockstep/internal/workflow/engine"
	"lockstep.dev/lockstep/internal/workflow/locks"
)

// record is the in-memory state of one workflow. Only turns of the workflow's key access it, except
// for the atomic fields.
//
//	        New           the engine ends it        pods that are to be deleted are gone
//	(none) ─────▶ running ──────────────────▶ over ──────────────────────────────────────▶ (none)
//	                 ▲                          │ a user prepares a retry
//	                 └──────────────────────────┘
type record struct {
	key types.NamespacedName
	// epoch is the value of Controller.epoch at the last turn.
	epoch uint64
	// last is the resource version of the controller's own last write of the workflow.
	last atomic.Pointer[string]

	uid types.UID
	// object is the workflow as last taken in; nil if there is none to work on. Its metadata,
	// including the labels, and its spec are those on the server; its status may be older.
	object  *wf.Workflow
	version string // resource version of object, or of the last write

	// reported is nil unless events are reported.
	reported *reported

	// defaults has what the next status write adds to the spec; nil if nothing is left to add. tells
	// says of which changes users get events.
	defaults *defaults
	tells    Events
	// postponed is set while the run must not begin; its status says why.
	postponed *postponed

	run *engine.Run // nil once the workflow is over
	// resumed is true if an earlier manager began the run.
	resumed bool
	spec    *wf.WorkflowSpec
	wake    time.Time
	// offloaded are the nodes of the last version whose nodes were in a database.
	offloaded *offloadedNodes
	// moved is the version of the nodes in the database that the last status names; "" if it has its
	// nodes.
	moved string
	// stepped is true once the run has made its first Step, by which it requests all its locks.
	stepped bool
	// leaves is true if the run needs what only the leader has. What its last Step requested is not
	// carried out.
	leaves bool
	// asking are the lock requests whose limits are being read, by holder.
	asking map[string]locks.Request
	// events are the events for the next Step.
	events []engine.Event
	// pauses are the nodes that wait for a user, by node ID; supplied are the outputs that users
	// set on them.
	pauses   map[string]bool
	supplied map[string]*wf.Outputs

	// Pods.
	pods     podset.Set
	nodePods map[string]*nodePod // by node ID; only nodes that have not ended
	// leaving are the pods that must be gone before their names can be used again: UIDs by name.
	leaving map[string]types.UID
	delayed map[string]engine.CreatePod // creates that wait for a name in leaving, by pod name
	// waiting are the creates that wait for the workflow's objects, or for a status that must be
	// written first.
	waiting []engine.CreatePod
	first   firstState
	gangSeq int
	running int       // number of node pods that run
	created time.Time // time of the last answer to a create of a pod
	ran     time.Time // when a pod was first seen running
	refusal podset.Refusal
	objects *objects
	// repository is the default artifact repository, for artifacts that name no store.
	repository *repository
	// looks are the images whose registries were asked for their commands.
	looks looks

	// The status.
	next statusChanges
	// base holds the top-level status fields as the server has them. If it is nil they are unknown,
	// and the whole status is written.
	base         map[string]string
	packed       bool      // the nodes are stored compressed
	size         int       // JSON size of the nodes in bytes, or an upper estimate
	hasNodes     bool      // the status on the server has nodes
	writing      uint64    // number of the status write in flight, or 0
	lastStatusAt time.Time // time of the last status write
	writes       int
	cost         time.Duration       // time taken to compose the last status
	stuck        bool                // waits for the watch to show a newer version, which exists
	refused      controlloop.Backoff // after status writes that were refused

	// Metadata that the workflow is to have in addition to the standard labels and annotations.
	extraLabels, extraAnnotations map[string]string
	// looked is true once the controller has determined whether the workflow's artifacts are to be
	// deleted; finalizer is true if they are and the workflow lacks the finalizer.
	looked, finalizer bool

	evaluations evaluations

	// done are the pods of ended nodes. They are deleted when a written status says how the node
	// ended and their delay is over.
	done []finishedPod
	over overState
}

// firstState says whether a status has to be written before pods can be created.
type firstState uint8

const (
	firstNone firstState = iota
	firstUnwritten
	firstSent
)

// statusChanges is the set of changes that the next status write has to contain.
type statusChanges struct {
	nodes  map[string]bool // IDs of changed nodes
	fields bool            // fields other than nodes changed
	urgent bool            // the write cannot wait
	since  time.Time       // time of the first change
	sent   map[string]bool // IDs of the nodes in the write in flight
}

func (n *statusChanges) empty() bool { return len(n.nodes) == 0 && !n.fields }

// finishedPod is a pod that may be deleted: its node has ended.
type finishedPod struct {
	name   string
	uid    types.UID
	nodeID string
	state  doneState
	due    time.Time
}

type doneState uint8

const (
	doneUnwritten doneState = iota // no status says yet how the node ended
	doneSent                       // a status that does is being written
	doneWritten
)

// overState is the cleanup state of a finished workflow.
type overState struct {
	swept   bool // no pod waits for its podGC delay
	expired bool // the deletion of the workflow was requested
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
