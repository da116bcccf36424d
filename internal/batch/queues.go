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
	"lockstep.dev/lockstep/internal/contain"
	"lockstep.dev/lockstep/internal/failpoint"
)

// QueueUse is what queues hold, as the cluster model knows it.
type QueueUse interface {
	// Use is what each queue's pods request.
	Use() map[string]corev1.ResourceList
}

// QueuesConfig is what Queues needs. All fields without a default are required.
type QueuesConfig struct {
	Informers *cluster.Informers
	Use       QueueUse
	Writer    apiwriter.Writer
	// Guard recovers from panics that one queue causes. nil: they end the process.
	Guard *contain.Guard
	// Interval is how often what queues hold is written, where it has changed. Default 15 s.
	Interval time.Duration
	Clock    clock.Clock
	Log      *slog.Logger
}

// Queues keeps the status of queues, and makes the two that must exist.
//
//	"" ──▶ Open ──CloseQueue──▶ Closing ──nothing left in it──▶ Closed
//	         ▲                     │                              │
//	         └─────────────────OpenQueue◀─────────────────────────┘
//
// What is below a queue that is closed is closed with it, which an annotation says, and opened with it again. Below a closed
// queue nothing can be opened.
type Queues struct {
	QueuesConfig
	poke chan struct{}
	mu   sync.Mutex
	todo []queueCommand
	// refused are queues whose last status was refused: what they have is not known to be what it says.
	refused map[string]bool
	// status is what was last written, per queue, until the watch shows it.
	status map[string]scheduling.QueueStatus
	// marks are the annotations that are being written: whether a queue is closed by its parent.
	marks map[string]bool
	// conflicts are the versions that statuses were made from which met a conflict, per queue.
	conflicts map[string]string
	// left are the versions of queues at which keeping their status panicked: it is left alone until they are changed. Jobs go on to
	// use them, for they are of many users.
	left map[string]string
}

// queueCommand is what a queue is asked to do. recorded is called when its status says so, or could not be written.
type queueCommand struct {
	queue    string
	action   bus.Action
	recorded func(error)
}

// NewQueues registers its handlers: call it before the informers are started.
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

// Do carries out a Command. recorded is called when the queue's state says so, with an error when it could not be written.
func (q *Queues) Do(queue string, action bus.Action, recorded func(error)) {
	q.mu.Lock()
	q.todo = append(q.todo, queueCommand{queue, action, recorded})
	q.mu.Unlock()
	q.look()
}

// takeNews returns the Commands that have come, and forgets the statuses that were refused.
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

// Run works until ctx is done. The informers must have caught up.
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

// ensure creates the queues that others refer to without naming them.
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

// update writes the status of each queue that differs; what queues hold only when asked to look at it. The queue of the
// Command, if it has any, is opened or closed.
func (q *Queues) update(cmd queueCommand, use bool) {
	recorded := cmd.recorded
	defer func() {
		if recorded != nil {
			recorded(nil) // nothing is to be written
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
		delete(q.status, queue.Name) // it may not have been handed to the writer
		q.left[queue.Name] = queue.ResourceVersion
		q.Writer.Event(queue, corev1.EventTypeWarning, "ManagerFailed", "the status of the queue is left alone until it is changed: "+p.Error())
		if queue.Name == cmd.queue && recorded != nil {
			recorded(p)
			recorded = nil
		}
	}
}

// errLeftAlone is the answer to Commands for a queue whose status is left alone.
var errLeftAlone = errors.New("the manager failed on the queue before, and leaves it alone until it is changed")

// updateOne writes the status of a queue if it differs. It returns recorded if that is still to be called: cmd was not for this queue,
// or there is nothing to write.
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
	if meta.FindStatusCondition(next.Conditions, scheduling.ConditionValid) != nil { // it was malformed, and is no more
		next.Conditions = slices.Clone(next.Conditions)
		meta.RemoveStatusCondition(&next.Conditions, scheduling.ConditionValid)
	}
	if use {
		next.Allocated = held
	}
	refused, again := q.conflict(queue.Name)
	if again && refused == queue.ResourceVersion {
		return recorded // until the watch shows the version that is there
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
		// After a conflict the status is written again in the place of the version that is there.
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			q.Log.Warn("writing a queue's status failed", "queue", queue.Name, "error", err)
			q.mu.Lock()
			q.refused[queue.Name] = true // looked at again at the next tick
			q.mu.Unlock()
		}
		if told != nil {
			told(err)
		}
	})
	return recorded
}

// conflict is the version of the queue that its last status was made from, if that was refused because the queue had changed.
func (q *Queues) conflict(name string) (version string, found bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	version, found = q.conflicts[name]
	return version, found
}

// noteConflict takes in how writing a status ended.
func (q *Queues) noteConflict(queue *scheduling.Queue, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !apierrors.IsConflict(err) {
		delete(q.conflicts, queue.Name)
		return
	}
	q.conflicts[queue.Name] = queue.ResourceVersion
	q.look() // the watch may have shown the other version by now
}

// ordered is the state that a command asks for.
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

// settled takes the transitions that happen by themselves.
func (q *Queues) settled(name string, state scheduling.QueueState) scheduling.QueueState {
	switch {
	case state == "":
		return scheduling.QueueOpen
	case state == scheduling.QueueClosing && !q.used(name, levelsMax):
		return scheduling.QueueClosed
	}
	return state
}

// closedAbove says whether the queue's parent is closed, or about to be.
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

// marked says whether the queue is closed because its parent is.
func (q *Queues) marked(queue *scheduling.Queue) bool {
	is := queue.Annotations[scheduling.ClosedByParentAnnotation] == "true"
	if want, ok := q.marks[queue.Name]; ok && want != is {
		return want
	}
	delete(q.marks, queue.Name)
	return is
}

// mark writes, ahead of the status, whether the queue is closed because its parent is. Where that is refused it holds until
// the manager ends.
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

// levelsMax is how many levels of queues are looked at below one that is closed. Queues may name each other in a circle.
const levelsMax = 8

// used says whether the queue, or one on the levels below it, has work that has not ended.
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
