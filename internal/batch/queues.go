package batch

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
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
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/failpoint"
	"lockstep.dev/lockstep/internal/panics"
)

// QueueUse provides the amounts that queues hold, from the cluster model.
type QueueUse interface {
	// Use returns the sum of requests of each queue's pods.
	Use() map[string]corev1.ResourceList
}

// QueuesConfig configures Queues. All fields without a default are required.
type QueuesConfig struct {
	Informers *cluster.Informers
	Use       QueueUse
	Writer    apiwriter.Writer
	// Guard recovers from panics caused by one queue. With a nil Guard such panics end the process.
	Guard *panics.Guard
	// Interval is the interval at which changed amounts of queues are written. Default 15 s.
	Interval time.Duration
	Clock    clock.Clock
	Log      *slog.Logger
}

// Queues maintains the status of queues, and creates the two queues that must exist.
//
//	"" ──▶ Open ──CloseQueue──▶ Closing ──nothing left in it──▶ Closed
//	         ▲                     │                              │
//	         └─────────────────OpenQueue◀─────────────────────────┘
//
// The queues below a closed queue are closed with it, which an annotation records, and opened with
// it again. A queue below a closed queue cannot be opened.
type Queues struct {
	QueuesConfig
	poke chan struct{}
	mu   sync.Mutex
	todo []queueCommand
	// refused are the queues whose last status write was refused, so that the entry in status may
	// be wrong.
	refused map[string]bool
	// status is the last status written, per queue, until the watch shows it.
	status map[string]scheduling.QueueStatus
	// marks are the annotations being written: whether a queue is closed by its parent.
	marks map[string]bool
	// conflicts holds, per queue, the resource version from which the last status was made, if its
	// write met a conflict.
	conflicts map[string]string
	// left holds the resource versions of queues on which updateOne panicked. The status of such a
	// queue is left alone until the queue is changed. Jobs continue to use the queue, because it is
	// shared by many users.
	left map[string]string
}

// queueCommand is a Command to a queue. recorded is called when the queue's status records the
// result or could not be written.
type queueCommand struct {
	queue    string
	action   bus.Action
	recorded func(error)
}

// NewQueues returns a Queues and registers its handlers. Call it before the informers start.
func NewQueues(cfg QueuesConfig) (*Queues, error) {
	if cfg.Informers == nil || cfg.Use == nil || cfg.Writer == nil {
		return nil, errors.New("batch: Queues needs Informers, Use and Writer")
	}
	if cfg.Interval <= 0 {
		cfg.Interval = 15 * time.Second
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	q := &Queues{
		QueuesConfig: cfg,
		poke:         make(chan struct{}, 1),
		status:       map[string]scheduling.QueueStatus{},
		marks:        map[string]bool{},
		refused:      map[string]bool{},
		conflicts:    map[string]string{},
		left:         map[string]string{},
	}
	look := func(*scheduling.Queue) { q.look() }
	cfg.Informers.Queues.Follow(look, look)
	return q, nil
}

func (q *Queues) look() {
	select {
	case q.poke <- struct{}{}:
	default:
	}
}

// Do carries out a Command. recorded is called when the queue's state reflects it, or with an error
// if the status could not be written.
func (q *Queues) Do(queue string, action bus.Action, recorded func(error)) {
	q.mu.Lock()
	q.todo = append(q.todo, queueCommand{queue, action, recorded})
	q.mu.Unlock()
	q.look()
}

// takeNews returns the Commands received since the last call, and drops the statuses whose writes
// were refused.
func (q *Queues) takeNews() []queueCommand {
	q.mu.Lock()
	defer q.mu.Unlock()
	todo := q.todo
	q.todo = nil
	for name := range q.refused {
		delete(q.status, name)
	}
	clear(q.refused)
	return todo
}

// Run runs until ctx is done. The informers must have synced.
func (q *Queues) Run(ctx context.Context) {
	q.ensure()
	tick := q.Clock.NewTimer(q.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-q.poke:
			todo := q.takeNews()
			q.ensure()
			q.update(queueCommand{}, false)
			for _, cmd := range todo {
				q.update(cmd, false)
			}
		case <-tick.C():
			for _, cmd := range q.takeNews() {
				q.update(cmd, false)
			}
			q.update(queueCommand{}, true)
			tick.Reset(q.Interval)
		}
	}
}

// ensure creates the root and the default queue, which other objects refer to implicitly.
func (q *Queues) ensure() {
	for _, name := range []string{scheduling.RootQueue, scheduling.DefaultQueue} {
		if _, ok := q.Informers.Queues.Get("", name); ok {
			continue
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
}

// update writes the status of each queue whose status differs. Held amounts are compared only if
// use is set. The queue named by cmd, if any, is opened or closed.
func (q *Queues) update(cmd queueCommand, use bool) {
	recorded := cmd.recorded
	defer func() {
		if recorded != nil {
			recorded(nil) // no write is necessary
		}
	}()
	var held map[string]corev1.ResourceList
	if use {
		held = q.Use.Use()
	}
	for _, queue := range q.Informers.Queues.List() {
		if q.left[queue.Name] == queue.ResourceVersion {
			if queue.Name == cmd.queue && recorded != nil {
				recorded(errLeftAlone)
				recorded = nil
			}
			continue
		}
		delete(q.left, queue.Name)
		key := types.NamespacedName{Name: queue.Name}
		p := q.Guard.Try("queues", key, func() {
			failpoint.Hit("queues", key)
			recorded = q.updateOne(queue, cmd, recorded, use, held[queue.Name])
		})
		if p == nil {
			continue
		}
		p.Unlocked(&q.mu)
		delete(q.status, queue.Name) // the status may not have been handed to the writer
		q.left[queue.Name] = queue.ResourceVersion
		q.Writer.Event(queue, corev1.EventTypeWarning, "ManagerFailed", "the status of the queue is left alone until it is changed: "+p.Error())
		if queue.Name == cmd.queue && recorded != nil {
			recorded(p)
			recorded = nil
		}
	}
}

// errLeftAlone is the answer to a Command for a queue whose status is left alone.
var errLeftAlone = errors.New("the manager failed on the queue before, and leaves it alone until it is changed")

// updateOne writes the status of a queue if it differs. It returns recorded if that still has to be
// called: if cmd is not for this queue, or if there is nothing to write.
func (q *Queues) updateOne(queue *scheduling.Queue, cmd queueCommand, recorded func(error), use bool, held corev1.ResourceList) func(error) {
	now := queue.Status
	if written, ok := q.status[queue.Name]; ok {
		if equality.Semantic.DeepEqual(now, written) {
			delete(q.status, queue.Name)
		}
		now = written
	}
	next := now
	marked := q.marked(queue)
	if queue.Name == cmd.queue {
		next.State = q.ordered(queue, cmd.action, now.State)
		if marked && next.State == scheduling.QueueOpen {
			q.mark(queue, false)
			marked = false
		}
	}
	switch closed := q.closedAbove(queue); {
	case closed && (next.State == scheduling.QueueOpen || next.State == ""):
		q.mark(queue, true)
		next.State = scheduling.QueueClosing
	case !closed && marked:
		q.mark(queue, false)
		next.State = scheduling.QueueOpen
	}
	next.State = q.settled(queue.Name, next.State)
	// The queue was malformed and is valid now.
	if meta.FindStatusCondition(next.Conditions, scheduling.ConditionValid) != nil {
		next.Conditions = slices.Clone(next.Conditions)
		meta.RemoveStatusCondition(&next.Conditions, scheduling.ConditionValid)
	}
	if use {
		next.Allocated = held
	}
	refused, again := q.conflict(queue.Name)
	if again && refused == queue.ResourceVersion {
		return recorded // wait until the watch shows the queue's present version
	}
	if !again && equality.Semantic.DeepEqual(now, next) {
		return recorded
	}
	q.status[queue.Name] = next
	out := *queue
	out.Status = next
	m := apiwriter.Meta{Owner: "queue/" + queue.Name, Reason: "queue-status"}
	var told func(error)
	if queue.Name == cmd.queue {
		told, recorded = recorded, nil
	}
	q.Writer.Status(m, &out, next.State != now.State, func(_ apiwriter.Object, err error) {
		q.noteConflict(&out, err)
		if errors.Is(err, apiwriter.ErrStopped) {
			return
		}
		// After a conflict the status is written again, from the queue's present version.
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			q.Log.Warn("writing a queue's status failed", "queue", queue.Name, "error", err)
			q.mu.Lock()
			q.refused[queue.Name] = true // retried at the next tick
			q.mu.Unlock()
		}
		if told != nil {
			told(err)
		}
	})
	return recorded
}

// conflict returns the resource version from which the queue's last status was made, if its write
// met a conflict.
func (q *Queues) conflict(name string) (version string, found bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	version, found = q.conflicts[name]
	return version, found
}

// noteConflict records whether a status write met a conflict.
func (q *Queues) noteConflict(queue *scheduling.Queue, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !apierrors.IsConflict(err) {
		delete(q.conflicts, queue.Name)
		return
	}
	q.conflicts[queue.Name] = queue.ResourceVersion
	q.look() // the watch may already have shown the other version
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

// settled applies the transitions that need no Command.
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
	if written, ok := q.status[parent.Name]; ok {
		state = written.State
	}
	return state == scheduling.QueueClosing || state == scheduling.QueueClosed
}

// marked reports whether the queue is closed because its parent is closed.
func (q *Queues) marked(queue *scheduling.Queue) bool {
	is := queue.Annotations[scheduling.ClosedByParentAnnotation] == "true"
	if want, ok := q.marks[queue.Name]; ok && want != is {
		return want
	}
	delete(q.marks, queue.Name)
	return is
}

// mark writes the annotation that says whether the queue is closed because its parent is closed. It
// is written before the status. If the write is refused, the mark is kept in memory until the
// manager ends.
func (q *Queues) mark(queue *scheduling.Queue, closed bool) {
	if q.marked(queue) == closed {
		return
	}
	q.marks[queue.Name] = closed
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
		for _, child := range q.Informers.Queues.List() {
			if child.Spec.Parent == name && child.Name != name && q.used(child.Name, levels-1) {
				return true
			}
		}
	}
	for _, j := range q.Informers.Jobs.List() {
		if j.QueueName() == name && !j.Status.State.Phase.Finished() && j.Status.State.Phase != api.Aborted {
			return true
		}
	}
	for _, g := range q.Informers.PodGroups.List() {
		if g.QueueName() == name && g.Status.Phase != scheduling.PodGroupCompleted {
			return true
		}
	}
	return false
}
