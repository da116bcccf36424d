package apiwriter

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// Class orders writes when there are more than the server takes: lower values first. Each class below the first keeps
// a small guaranteed share, so that a flood of creates delays status but does not starve it.
type Class int

// The classes of writes, most urgent first.
const (
	ClassPods   Class = iota // pod creates and binds
	ClassDelete              // deletes
	ClassUrgent              // statuses that say how an object ended
	ClassBegin               // creates that begin something, see Meta.Begins
	ClassStatus              // other statuses and object writes; they give way while pods are being written
	ClassEvent               // events; dropped, and counted, under pressure
)

// Object is any typed API object (core or one of ours) that knows its own group, version and kind through the scheme, or an
// *unstructured.Unstructured, for kinds that the scheme does not know.
type Object interface {
	metav1.Object
	runtime.Object
}

// Meta says for whom and why a write is made.
type Meta struct {
	// Owner is the fairness key, for example "job/ns/name": writes of different owners take turns.
	Owner string
	// Reason is a short constant for metrics, for example "job-pod", "bind", "job-status".
	Reason string
	// Brief says of a status that no more is needed of the answer than UID and version: it is a *metav1.PartialObjectMetadata.
	Brief bool
	// StatusOnly says of a PatchVersion that it is of the object's status, which the kind has apart.
	StatusOnly bool
	// Begins says of a create that more will be written because of it. It goes after what was begun before, and after what is
	// said of that: while the server is busy, less is begun and what there is ends sooner.
	Begins bool
	// LookFirst says of a create that the object is probably there, made by an earlier manager: it is read first, and created if it
	// is not there. A create that fails costs the server more than a read.
	LookFirst bool
	// Resource is the resource of an *unstructured.Unstructured, for example "certificates". Empty, it is guessed from
	// the kind.
	Resource string
	// As is whose rights the write is made with; nil for the writer's own. The writer must be allowed to impersonate.
	As *Identity

	fence Fence // set by the Writer that Fenced returns
}

// Identity is a user of the API server.
type Identity struct {
	User   string
	Groups []string
}

// Writer is the one way to change the cluster. Calls never block on the API server: each write is queued and done is
// called exactly once with its final outcome, from a writer goroutine; done must not block, and may be nil. Retries
// (429, 5xx, timeouts, lost connections) happen inside and are not seen by callers; what callers see is success, a
// refusal that retrying the same request cannot cure, or ErrStopped, of which ErrFenced is one.
type Writer interface {
	// Create creates obj. obj must have a deterministic name. When the server says AlreadyExists, the existing object
	// is read once: if its controller owner has the same UID (or, without one, the same creator annotation) it is
	// returned as success, unless it is being deleted; otherwise the error stands. The object returned is the server's,
	// which may differ from obj: look at its node; a pod is without what kubeclient.LeanCore leaves out. obj is not modified,
	// and the caller must not modify it until done.
	Create(m Meta, obj Object, done func(Object, error))
	// Bind binds a pod to a node, and gives it annotations with the same write. A conflict whose pod is already on that
	// node, with these annotations, is success.
	Bind(m Meta, b Binding, done func(error))
	// Status replaces the status of an object. Writes to one object coalesce: the latest wins, at most one is in
	// flight, and a minimal interval is kept between two, except when urgent. done is called for the write that
	// carried (or superseded) this status.
	//
	// It is written in the place of the version that obj has, or of the one that the last of these writes made if that is later.
	// If somebody else has changed the object since then, that is Conflict: whoever wrote it knows what is there when its watch
	// shows a later version, and decides anew. An obj without a resource version is written over whatever is there, if it has
	// obj's UID.
	Status(m Meta, obj Object, urgent bool, done func(Object, error))
	// Patch applies a patch to an object (not to its status), with the object's UID as precondition when set: an object
	// with another UID under that name is Conflict. A patch may reach the server twice, so it must be idempotent.
	Patch(m Meta, obj Object, kind types.PatchType, data []byte, done func(Object, error))
	// PatchVersion applies a patch to an object on condition that it still has obj's resource version, or it is Conflict; so
	// is a further attempt after an answer that was lost. data is a JSON patch, which is a list, or a merge patch, which is
	// an object. It is for kinds without a status subresource, whose status is the controller's and whose spec is the
	// user's. The object that done gets has its name, UID and resource version only. Urgent writes are those that say how
	// an object ended.
	PatchVersion(m Meta, obj Object, urgent bool, data []byte, done func(Object, error))
	// Delete deletes an object, with its UID as precondition when set. NotFound is success, and so is an object with another UID.
	Delete(m Meta, obj Object, opts DeleteOptions, done func(error))
	// Event records an event about an object. Equal events (object, reason, message) are counted into one; under
	// pressure events are dropped and the drop is counted.
	Event(about Object, eventType, reason, message string)
	// Lag is how long a write that cannot wait takes at present, from the call to the answer. Who has something to write
	// that can wait leaves it for several times as long: it may not be needed by then.
	Lag() time.Duration
	// Flush returns when everything queued before the call has ended, or ctx is done.
	Flush(ctx context.Context) error
}

// Binding is a pod's node, and what is written on the pod with it.
type Binding struct {
	Pod         types.NamespacedName
	UID         types.UID // of the pod meant; empty for whichever has the name
	Node        string
	Annotations map[string]string
}

// DeleteOptions says how to delete.
type DeleteOptions struct {
	// GracePeriodSeconds is nil for the object's own.
	GracePeriodSeconds *int64
	Propagation        metav1.DeletionPropagation
	// Version has the object deleted only if it still has that resource version, and else is Conflict. It is for deletions that
	// were decided on by what the object says.
	Version string
}

var _ Object = (*corev1.Pod)(nil)

// ErrStopped is the outcome of writes that had not ended when the writer stopped. Whether they took effect is unknown.
var ErrStopped = errors.New("the writer has stopped")

// ErrQueueFull is the outcome of a write that found Config.MaxQueued others waiting.
var ErrQueueFull = errors.New("too many writes are waiting")

// CreatorAnnotation names what created an object that has no controller owner. A Create that meets an object with the
// same value takes it for its own.
const CreatorAnnotation = "lockstep.dev/creator"
