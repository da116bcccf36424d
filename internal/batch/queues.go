package batch

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/panics"
	"lockstep.dev/lockstep/internal/scheduler"
	"lockstep.dev/lockstep/internal/unsupported"
)

// QueueUse provides the resources that queues use, from the cluster model.
type QueueUse interface {
	// Use returns the sum of the requests of each queue's pods, by the queue's name.
	Use() map[string]corev1.ResourceList
	// Past returns what queues have used until a few seconds ago, by name; nil if nobody asks for it.
	Past() map[string]scheduler.QueueUsage
}

// QueuesConfig configures Queues. All fields without a default are required.
type QueuesConfig struct {
	Informers *informer.Set
	Use       QueueUse
	Writer    apiwriter.Writer
	// Guard recovers from panics caused by one queue. With a nil Guard such panics end the process.
	Guard *panics.Guard
	// Interval is the interval at which changed amounts that queues use are written. Default 15 s.
	Interval time.Duration
	Clock    clock.WithTicker
	Log      *slog.Logger
}

// Queues maintains the status of queues, and creates the two queues that must exist.
//
//	"" ──▶ Open ──CloseQueue──▶ Closing ──nothing left in it──▶ Closed
//	         ▲                     │                              │
//	         └─────────────────OpenQueue◀─────────────────────────┘
//
// The queues below a closed queue are closed and opened together with it; an annotation records
// this. A queue below a closed queue cannot be opened.
type Queues struct {
	QueuesConfig
	// loop has one worker: the turn of a queue reads the record of its parent.
	loop *controlloop.Loop[types.NamespacedName, queueRecord]
	// left holds the resource versions of queues on which a turn panicked. The status of such a
	// queue is left alone until the queue is changed. Jobs continue to use the queue, because it is
	// shared by many users. Only turns use it.
	left map[string]string
}

// queueRecord is the in-memory state of one queue.
type queueRecord struct {
	uid types.UID
	// written is the last status passed to the writer, until the watch shows it or a later one.
	// version is the resource version that the write produced; it is empty before the answer.
	written *scheduling.QueueStatus
	version string
	// conflict is the resource version from which the last status was made, if its write met a
	// conflict.
	conflict string
	// mark is the value of the annotation being written: true if the queue is closed because its
	// parent is. It is nil if none is being written.
	mark *bool
	// past is what the queue has used, or nil if that is not known, and recorded its number of changes
	// when it was last written. noPast means that nobody asks for it.
	past     *scheduler.QueueUsage
	recorded int64
	noPast   bool
	// used is the amount that the queue uses, if it is to be compared with the status, else nil.
	used     *corev1.ResourceList
	commands []queueCommand
	failures controlloop.Backoff
}

// queueCommand is a Command to a queue. recorded is called when the queue's status records the
// result or could not be written.
type queueCommand struct {
	action   bus.Action
	recorded func(error)
}

// NewQueues returns a Queues and registers its handlers. Call it before the informers start.
func NewQueues(cfg QueuesConfig) (*Queues, error) {
	if cfg.Informers == nil || cfg.Use == nil || cfg.Writer == nil {
		return nil, errors.New("batch: Queues needs Informers, Use and Writer")
	}
	cfg.Interval = cmp.Or(max(cfg.Interval, 0), 15*time.Second)
	cfg.Clock = cmp.Or[clock.WithTicker](cfg.Clock, clock.RealClock{})
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	q := &Queues{QueuesConfig: cfg, left: map[string]string{}}
	q.loop = controlloop.New[types.NamespacedName, queueRecord](controlloop.Config[types.NamespacedName]{
		Name: "queues", Workers: 1, Turn: q.turn, Guard: cfg.Guard, Panicked: q.panicked, Clock: cfg.Clock,
		Sweep: q.sweep, SweepEvery: cfg.Interval,
	})
	cfg.Informers.Queues.Follow(q.changed, q.changed)
	return q, nil
}

// changed wakes a queue, and those above and below, whose states and conditions depend on it.
func (q *Queues) changed(queue *scheduling.Queue) {
	q.loop.Wake(informer.KeyOf(queue))
	for above, levels := queue.Spec.Parent, 0; above != "" && levels < levelsMax; levels++ {
		q.loop.Wake(types.NamespacedName{Name: above})
		parent, found := q.Informers.Queues.Get("", above)
		if !found {
			break
		}
		above = parent.Spec.Parent
	}
	q.wakeAllBelow(queue.Name, levelsMax)
}

func (q *Queues) wakeAllBelow(name string, levels int) {
	for _, child := range q.Informers.Queues.ByIndex(informer.QueuesByParent, name) {
		q.loop.Wake(informer.KeyOf(child))
		if levels > 0 && child.Name != name {
			q.wakeAllBelow(child.Name, levels-1)
		}
	}
}

func (q *Queues) wakeBelow(name string) {
	for _, child := range q.Informers.Queues.ByIndex(informer.QueuesByParent, name) {
		q.loop.Wake(informer.KeyOf(child))
	}
}

// Do carries out a Command. recorded is called when the queue's state reflects it, or with an error
// if the status could not be written. Do returns false, and does nothing, if the queue has no
// record yet.
func (q *Queues) Do(queue string, action bus.Action, recorded func(error)) bool {
	key := types.NamespacedName{Name: queue}
	posted := q.loop.Post(key, controlloop.Anyone, func(r *queueRecord) {
		r.commands = append(r.commands, queueCommand{action, recorded})
	})
	if !posted {
		q.loop.Wake(key)
	}
	return posted
}

// Run runs until ctx is done. The informers must have synced.
func (q *Queues) Run(ctx context.Context) {
	q.wakeRequired()
	q.loop.Run(ctx)
}

// wakeRequired wakes the root and the default queue, to which other objects refer implicitly. Their
// turns create them.
func (q *Queues) wakeRequired() {
	for _, name := range []string{scheduling.RootQueue, scheduling.DefaultQueue} {
		q.loop.Wake(types.NamespacedName{Name: name})
	}
}

// sweep posts to every queue the amount that it uses, to be compared with its status, and wakes the
// queues that must exist.
func (q *Queues) sweep() {
	use, past := q.Use.Use(), q.Use.Past()
	for _, queue := range q.Informers.Queues.List() {
		used := use[queue.Name]
		q.loop.PostLatest(informer.KeyOf(queue), controlloop.Anyone, "used", func(r *queueRecord) {
			r.used = &used
			r.remember(past, queue)
		})
	}
	q.wakeRequired()
}

// turn brings the status of a queue up to date, and carries out its Commands.
func (q *Queues) turn(key types.NamespacedName) {
	q.loop.Deliver(key, controlloop.Anyone)
	r := q.loop.Get(key)
	queue, found := q.Informers.Queues.Get("", key.Name)
	if !found {
		if r != nil {
			r.answer(nil)
			q.loop.Drop(key)
		}
		delete(q.left, key.Name)
		q.ensure(key.Name)
		return
	}
	if r == nil {
		r = &queueRecord{}
		q.loop.Put(key, r)
	}
	if r.uid != queue.UID { // a new queue
		*r = queueRecord{uid: queue.UID, commands: r.commands, used: r.used, failures: controlloop.Backoff{Min: q.Interval}}
	}
	if q.left[key.Name] == queue.ResourceVersion {
		r.answer(errLeftAlone)
		return
	}
	delete(q.left, key.Name)
	if r.conflict == queue.ResourceVersion {
		return // wait until the watch shows the queue's present version
	}
	if left := r.failures.Left(q.Clock.Now()); left > 0 && len(r.commands) == 0 {
		q.loop.WakeAfter(key, left)
		return
	}
	q.update(key, queue, r)
}

// answer ends the Commands to a queue with err.
func (r *queueRecord) answer(err error) {
	commands := r.commands
	r.commands = nil
	for _, cmd := range commands {
		cmd.recorded(err)
	}
}

// ensure creates the queue if it is the root or the default queue.
func (q *Queues) ensure(name string) {
	if name != scheduling.RootQueue && name != scheduling.DefaultQueue || q.Informers.Queues.Malformed("", name) != nil {
		return
	}
	queue := &scheduling.Queue{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{apiwriter.CreatorAnnotation: "lockstep"}},
		Spec:       scheduling.QueueSpec{Weight: 1},
	}
	if name != scheduling.RootQueue {
		queue.Spec.Parent = scheduling.RootQueue
	}
	m := apiwriter.Meta{Owner: "queue/" + name, Reason: "default-queue"}
	q.Writer.Create(m, queue, func(_ apiwriter.Object, err error) {
		if err != nil && !apierrors.IsAlreadyExists(err) {
			q.Log.Error("creating a queue failed", "queue", name, "error", err)
		}
	})
}

// panicked leaves the status of a queue alone until the queue is changed.
func (q *Queues) panicked(key types.NamespacedName, p *panics.Panic) {
	if queue, found := q.Informers.Queues.Get("", key.Name); found {
		q.left[key.Name] = queue.ResourceVersion
		q.Writer.Event(queue, corev1.EventTypeWarning, "ManagerFailed", "the status of the queue is left alone until it is changed: "+p.Error())
	}
	if r := q.loop.Get(key); r != nil {
		q.loop.Deliver(key, controlloop.Anyone)
		r.answer(p)
	}
}

// errLeftAlone is the answer to a Command for a queue whose status is left alone.
var errLeftAlone = errors.New("the manager failed on the queue before, and leaves it alone until it is changed")

// update writes the status of a queue if it differs.
func (q *Queues) update(key types.NamespacedName, queue *scheduling.Queue, r *queueRecord) {
	// 1. The present status.
	if r.version != "" && !informer.Older(queue.ResourceVersion, r.version) {
		if r.written.State != queue.Status.State {
			q.wakeBelow(queue.Name) // another client has changed the state since
		}
		r.written, r.version = nil, ""
	}
	now := queue.Status
	if r.written != nil {
		now = *r.written
	}
	// 2. The status that the queue should have.
	next := now
	marked := r.marked(queue)
	for _, cmd := range r.commands {
		next.State = q.ordered(queue, cmd.action, next.State)
		if marked && next.State == scheduling.QueueOpen {
			q.mark(r, queue, false)
			marked = false
		}
	}
	switch closed := q.closedAbove(queue); {
	case closed && (next.State == scheduling.QueueOpen || next.State == ""):
		q.mark(r, queue, true)
		next.State = scheduling.QueueClosing
	case !closed && marked:
		q.mark(r, queue, false)
		next.State = scheduling.QueueOpen
	}
	next.State = q.settled(queue.Name, next.State)
	next.Conditions = slices.Clone(next.Conditions)
	meta.RemoveStatusCondition(&next.Conditions, scheduling.ConditionValid) // it can be decoded
	set := func(condition, reason, message string) {
		if message == "" {
			meta.RemoveStatusCondition(&next.Conditions, condition)
			return
		}
		meta.SetStatusCondition(&next.Conditions, metav1.Condition{
			Type: condition, Status: metav1.ConditionFalse, Reason: reason, Message: message,
			LastTransitionTime: metav1.NewTime(q.Clock.Now().Truncate(time.Second)),
		})
	}
	message, _ := unsupported.In(queue, queueNotSupported)
	set(scheduling.QueueSupported, unsupported.Reason, message)
	reason, message := q.inconsistent(queue)
	set(scheduling.QueueConsistent, reason, message)
	if r.used != nil {
		next.Allocated, r.used = *r.used, nil
	}
	r.addUsage(&now, &next)
	// 3. Write it. After a conflict it is written again, from the queue's present version.
	if r.conflict == "" && equality.Semantic.DeepEqual(now, next) {
		r.answer(nil)
		return
	}
	commands := r.commands
	r.written, r.version, r.conflict, r.commands = &next, "", "", nil
	out := *queue
	out.Status = next
	m := apiwriter.Meta{Owner: "queue/" + queue.Name, Reason: "queue-status"}
	q.Writer.Status(m, &out, next.State != now.State, func(o apiwriter.Object, err error) {
		if errors.Is(err, apiwriter.ErrStopped) {
			return
		}
		q.loop.Post(key, controlloop.Anyone, func(r *queueRecord) {
			if r.written == &next { // otherwise the answer to a later status follows
				q.answered(r, queue, o, err)
			}
		})
		for _, cmd := range commands {
			cmd.recorded(err)
		}
	})
	if next.State != now.State {
		q.wakeBelow(queue.Name)
	}
}

// usageEvery is how often what a queue has used is written at least, while what its pods hold changes.
const usageEvery = 5 * time.Minute

// remember takes what the queue has used. The first time, what its status has counts as up to date.
func (r *queueRecord) remember(past map[string]scheduler.QueueUsage, queue *scheduling.Queue) {
	r.noPast = past == nil
	u, found := past[queue.Name]
	if !found {
		return // not yet
	}
	if r.past == nil && queue.Status.Usage != nil {
		r.recorded = u.Changes
	}
	r.past = &u
}

// addUsage adds what the queue has used to its next status, if the status is written anyway, or if what its
// pods hold has changed and the status has not had it for usageEvery. A queue that holds the same for a week
// is not written: what it has used then follows from what its status has.
func (r *queueRecord) addUsage(now, next *scheduling.QueueStatus) {
	switch u := r.past; {
	case r.noPast:
		next.Usage = nil
	case u == nil:
	case len(u.Average) == 0 && now.Usage == nil:
	case now.Usage != nil && !u.At.After(now.Usage.At.Time):
	case now.Usage == nil || r.recorded != u.Changes && u.At.Sub(now.Usage.At.Time) >= usageEvery ||
		!equality.Semantic.DeepEqual(*now, *next):
		r.recorded = u.Changes
		next.Usage = &u.QueueUsage
	}
}

// answered handles the result of the last status write, which was made from this version of the
// queue.
func (q *Queues) answered(r *queueRecord, queue *scheduling.Queue, o apiwriter.Object, err error) {
	switch {
	case err == nil:
		r.version = o.GetResourceVersion()
		r.failures.Succeeded()
	case apierrors.IsConflict(err):
		r.conflict = queue.ResourceVersion
	case !apierrors.IsNotFound(err):
		q.Log.Warn("writing a queue's status failed", "queue", queue.Name, "error", err)
		r.written = nil
		r.failures.Failed(q.Clock.Now())
	}
}

// ordered returns the state that a Command asks for.
func (q *Queues) ordered(queue *scheduling.Queue, action bus.Action, state scheduling.QueueState) scheduling.QueueState {
	switch {
	case action == bus.OpenQueueAction && q.closedAbove(queue):
		q.Writer.Event(queue, corev1.EventTypeWarning, "CommandRefused", "a queue cannot be opened below one that is closed")
	case action == bus.OpenQueueAction:
		return scheduling.QueueOpen
	case action == bus.CloseQueueAction && queue.Name == scheduling.RootQueue:
		q.Writer.Event(queue, corev1.EventTypeWarning, "CommandRefused", "the root queue cannot be closed")
	case action == bus.CloseQueueAction && state != scheduling.QueueClosed:
		return scheduling.QueueClosing
	}
	return state
}

// settled returns the state after the transitions that need no Command.
func (q *Queues) settled(name string, state scheduling.QueueState) scheduling.QueueState {
	switch {
	case state == "":
		return scheduling.QueueOpen
	case state == scheduling.QueueClosing && !q.used(name, levelsMax):
		return scheduling.QueueClosed
	}
	return state
}

// closedAbove reports whether the queue's parent is Closed or Closing.
func (q *Queues) closedAbove(queue *scheduling.Queue) bool {
	if queue.Spec.Parent == "" || queue.Name == scheduling.RootQueue {
		return false
	}
	parent, ok := q.Informers.Queues.Get("", queue.Spec.Parent)
	if !ok {
		return false
	}
	state := parent.Status.State
	if r := q.loop.Get(informer.KeyOf(parent)); r != nil && r.written != nil {
		state = r.written.State
	}
	return state == scheduling.QueueClosing || state == scheduling.QueueClosed
}

// marked reports whether the queue is closed because its parent is closed.
func (r *queueRecord) marked(queue *scheduling.Queue) bool {
	is := queue.Annotations[scheduling.ClosedByParentAnnotation] == "true"
	if r.mark != nil && *r.mark != is {
		return *r.mark
	}
	r.mark = nil
	return is
}

// mark writes the annotation that says whether the queue is closed because its parent is closed. It
// is written before the status. If the write is refused, the mark is kept in memory until the
// manager ends.
func (q *Queues) mark(r *queueRecord, queue *scheduling.Queue, closed bool) {
	if r.marked(queue) == closed {
		return
	}
	r.mark = &closed
	value := "null"
	if closed {
		value = `"true"`
	}
	data := `{"metadata":{"annotations":{"` + scheduling.ClosedByParentAnnotation + `":` + value + `}}}`
	m := apiwriter.Meta{Owner: "queue/" + queue.Name, Reason: "queue-parent"}
	q.Writer.Patch(m, queue, types.MergePatchType, []byte(data), func(_ apiwriter.Object, err error) {
		if err != nil && !errors.Is(err, apiwriter.ErrStopped) && !apierrors.IsNotFound(err) {
			q.Log.Warn("annotating a queue failed", "queue", queue.Name, "error", err)
		}
	})
}

// levelsMax bounds the number of levels of queues examined below a closed queue, because queues may
// refer to each other in a cycle.
const levelsMax = 8

// used reports whether the queue, or a queue below it, has unfinished work.
func (q *Queues) used(name string, levels int) bool {
	if levels > 0 {
		for _, child := range q.Informers.Queues.ByIndex(informer.QueuesByParent, name) {
			if child.Name != name && q.used(child.Name, levels-1) {
				return true
			}
		}
	}
	return slices.ContainsFunc(q.Informers.Jobs.List(), func(j *api.Job) bool {
		return q.isIn(j, j.QueueName(), name) && !j.Status.State.Phase.Finished() && j.Status.State.Phase != api.Aborted
	}) || slices.ContainsFunc(q.Informers.PodGroups.List(), func(g *scheduling.PodGroup) bool {
		return q.isIn(g, g.QueueName(), name) && g.Status.Phase != scheduling.PodGroupCompleted
	})
}

// isIn reports whether an object that names a queue is in the queue name.
func (q *Queues) isIn(o metav1.Object, named, name string) bool {
	queue, _ := q.Informers.QueueIn(o.GetNamespace(), named)
	return queue == name
}
