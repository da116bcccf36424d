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

// Class orders writes when there are more than the server takes: lower values go first. Each class
// below the first keeps a small guaranteed share, so that a flood of creates delays statuses but
// does not starve them.
type Class int

// The classes of writes, most urgent first.
const (
	ClassPods   Class = iota // pod creates and binds
	ClassDelete              // deletes
	ClassUrgent              // statuses that say how an object ended
	ClassStart               // creates that start new work, see Meta.StartsWork
	// ClassStatus is for other statuses and object writes; they give way while pods are being
	// written.
	ClassStatus
	ClassEvent // events; dropped, and counted, under pressure
)

// Object is any typed API object whose group, version and kind the scheme knows (core or
// Lockstep's), or an *unstructured.Unstructured for other kinds.
type Object interface {
	metav1.Object
	runtime.Object
}

// Meta says for which owner and why a write is made.
type Meta struct {
	// Owner is the fairness key, for example "job/ns/name": writes of different owners take turns.
	Owner string
	// Reason is a short constant for metrics, for example "job-pod", "bind", "job-status".
	Reason string
	// MetadataOnly means that the caller of Status or Create needs only the UID and resource version of
	// the result: done may get a *metav1.PartialObjectMetadata. An object that a Create finds under the
	// name is passed to done as it is.
	MetadataOnly bool
	// StatusOnly means that a Patch or PatchVersion is about the object's status subresource.
	StatusOnly bool
	// StartsWork means that a create starts work for which more writes follow. The create goes
	// after the writes of work that has already begun, including urgent statuses: while the server
	// is busy, less new work begins and existing work ends sooner.
	StartsWork bool
	// ReadFirst means that the object of a create probably exists already, made by an earlier
	// manager: it is read first, and created only if it does not exist. A create that fails costs
	// the server more than a read.
	ReadFirst bool
	// Resource is the resource of an *unstructured.Unstructured, for example "certificates". If
	// empty, it is guessed from the kind.
	Resource string
	// As is the user to impersonate; nil writes with the writer's own rights. The writer must be
	// allowed to impersonate.
	As *Identity
}

// Identity is a user of the API server.
type Identity struct {
	User   string
	Groups []string
	// Extra are further attributes of the user, one value each.
	Extra map[string]string
}

// Writer is the only way to change the cluster. Calls never block on the API server: each write is
// queued, and done is called exactly once with its final outcome, from another goroutine. done must
// not block, and may be nil. Retries (429, 5xx, timeouts, lost connections) are internal. Callers
// see success, a refusal that a retry of the same request cannot cure, ErrQueueFull, or ErrStopped,
// which includes ErrFenced.
type Writer interface {
	// Create creates obj, which must have a deterministic name. If the server says AlreadyExists,
	// the existing object is read once: if its controller owner has the same UID (or, without an
	// owner, it has the same creator annotation), it is returned as success, unless it is being
	// deleted; otherwise the error stands. The object passed to done is the server's, which may
	// differ from obj: check its node. A pod lacks the fields that kubeclient.TrimmedCore drops.
	// obj is not modified, and the caller must not modify it until done.
	Create(m Meta, obj Object, done func(Object, error))
	// Bind binds a pod to a node and adds annotations to the pod in the same write. A conflict is
	// success if the pod is already on that node with these annotations.
	Bind(m Meta, b Binding, done func(error))
	// Status replaces the status of an object. Writes to one object coalesce: the latest wins, at
	// most one is in flight, and a minimum interval passes between two writes, except urgent ones.
	// done is called for the write that carried (or superseded) this status.
	//
	// The write is conditional on the resource version of obj, or on the version that the last
	// status write through this writer produced, if that is later. If another client has changed
	// the object since then, the outcome is a Conflict: the caller waits until its watch shows a
	// later version, and decides again. An obj without a resource version replaces the status of
	// any version, if the object has obj's UID.
	Status(m Meta, obj Object, urgent bool, done func(Object, error))
	// Patch applies a patch to an object (not to its status, unless Meta.StatusOnly is set). The object's UID, if set, is a
	// precondition: an object with another UID under that name is a Conflict. A patch may reach the
	// server twice, so it must be idempotent.
	Patch(m Meta, obj Object, kind types.PatchType, data []byte, done func(Object, error))
	// PatchVersion applies a patch to an object that still has obj's resource version; otherwise
	// the outcome is a Conflict. A retry after a lost answer is a Conflict, too. data is a JSON
	// patch, which is a list, or a merge patch, which is an object. With Meta.StatusOnly the patch
	// goes to the status subresource; without it, PatchVersion suits kinds without a status
	// subresource, whose status belongs to the controller and whose spec belongs to the user. The
	// object passed to done has only name, namespace, UID and resource version. An urgent write
	// says how an object ended.
	PatchVersion(m Meta, obj Object, urgent bool, data []byte, done func(Object, error))
	// Delete deletes an object. The object's UID, if set, is a precondition. NotFound is success,
	// and so is an object with another UID.
	Delete(m Meta, obj Object, opts DeleteOptions, done func(error))
	// DeletePods deletes the selected pods of a namespace by one request. The server deletes one after
	// the other, each by its name: what keeps it from deleting a later pod of that name is admission,
	// which is told about the request by Meta.As. It stops at the first pod that it refuses to delete.
	// The request may reach the server several times.
	DeletePods(m Meta, pods Selection, done func(error))
	// Event records an event about an object. Equal events (object, type, reason, message) are
	// counted into one. Under pressure events are dropped, and the drop is counted.
	Event(about Object, eventType, reason, message string)
	// Latency returns how long a write that cannot wait takes at present, from the call to the
	// answer. A caller whose write can wait delays it by several times Latency, because it may
	// become unnecessary.
	Latency() time.Duration
	// Flush returns when every call queued before Flush has ended, or ctx is done.
	Flush(ctx context.Context) error
}

// Binding is a pod's node, and the annotations that are written to the pod with it.
type Binding struct {
	Pod         types.NamespacedName
	UID         types.UID // of the intended pod; empty for any pod with the name
	Node        string
	Annotations map[string]string
}

// DeleteOptions says how to delete.
type DeleteOptions struct {
	// GracePeriodSeconds is nil for the object's own grace period.
	GracePeriodSeconds *int64
	Propagation        metav1.DeletionPropagation
	// Version, if set, is the only resource version that is deleted; any other is a Conflict. It is
	// for deletions that were decided from the content of the object.
	Version string
	// DryRun lets the server check the deletion and not carry it out. NotFound is then an error.
	DryRun bool
}

// Selection selects pods of a namespace.
type Selection struct {
	Namespace string
	// Labels and Fields are selectors; an empty one selects all.
	Labels, Fields string
}

var _ Object = (*corev1.Pod)(nil)

// ErrStopped is the outcome of writes that had not ended when the writer stopped. It is unknown
// whether they took effect.
var ErrStopped = errors.New("the writer has stopped")

// ErrQueueFull is the outcome of a write that found Config.MaxQueued writes waiting.
var ErrQueueFull = errors.New("too many writes are waiting")

// CreatorAnnotation names the creator of an object that has no controller owner. A Create that
// finds an object with the same value treats it as its own.
const CreatorAnnotation = "lockstep.dev/creator"
