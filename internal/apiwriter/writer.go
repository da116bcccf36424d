package apiwriter

import (
	"bytes"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/wire"
)

// Config says where and how a writer writes. Only REST and Scheme are required.
type Config struct {
	// REST is the cluster to write to.
	REST *rest.Config
	// Scheme knows every type that is written.
	Scheme *runtime.Scheme
	// Component is the source of events; the default is "lockstep".
	Component string
	// Fixed pins the number of requests in flight; 0 adapts it to the server.
	Fixed int
	// MaxInFlight bounds the requests in flight when they adapt; the default is MostInFlight.
	MaxInFlight int
	// Connections bounds the TCP connections. They are opened as the requests in flight need them, one for 64. The
	// default is 16.
	Connections int
	// StatusInterval is the least time between two status writes to one object, except urgent ones; the default is 1 s.
	StatusInterval time.Duration
	// RequestTimeout is how long to wait for the server's answer before asking again; the default is 30 s.
	RequestTimeout time.Duration
	// StopTimeout is how long requests in flight may go on when the writer stops; the default is 5 s.
	StopTimeout time.Duration
	// MaxQueued bounds the writes that wait; beyond it they end with ErrQueueFull. The default is 1,000,000.
	MaxQueued int
	// MaxEvents bounds the events among them; beyond it events are dropped. The default is 1000.
	MaxEvents int
	// Registry takes the metrics; nil registers them nowhere.
	Registry prometheus.Registerer
	// Logger is told of outages and refusals of events; the default is slog's.
	Logger *slog.Logger
}

// MostInFlight is the default bound of the requests in flight. Whoever hands a writer a large job piece by piece keeps
// more than so many writes waiting.
const MostInFlight = 1024

func (c *Config) complete() error {
	if c.REST == nil || c.Scheme == nil {
		return errors.New("apiwriter: REST and Scheme are required")
	}
	if c.Fixed < 0 {
		return fmt.Errorf("apiwriter: Fixed is %d; it must not be negative", c.Fixed)
	}
	def(&c.Component, "lockstep")
	def(&c.MaxInFlight, limitMax)
	def(&c.Connections, 16)
	def(&c.StatusInterval, time.Second)
	def(&c.RequestTimeout, 30*time.Second)
	def(&c.StopTimeout, 5*time.Second)
	def(&c.MaxQueued, 1_000_000)
	def(&c.MaxEvents, 1000)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}

func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// W is the Writer of a cluster. Writes are accepted as soon as it exists, and go out while Run runs.
type W struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	base    *url.URL
	calls   *wire.Client            // nil: conns are for all requests
	conns   []kubeclient.Connection // for what calls does not carry
	codecs  serializer.CodecFactory
	noHTTP2 atomic.Bool // calls does not suit the server
	// decoders are functions by schema.GroupVersion.
	decoders sync.Map
	dirty    chan struct{} // tells Run that the earliest timer or the pause has changed

	mu       sync.Mutex
	running  bool
	stopped  bool
	requests context.Context // of all requests; done when the writer is to end at once
	queue    queue
	limiter  *limiter
	inFlight int
	yielding yielding
	lag      lag
	open     int    // calls whose done is still to come
	seq      uint64 // of the last call
	flushes  []*flush
	timers   timers
	statuses map[statusKey]*statusEntry
	creating map[types.NamespacedName]*write // pods whose create has not ended
	events   eventLog
	kinds    map[schema.GroupVersionKind]kind
	turn     int    // round robin among connections
	answered bool   // the server has answered a request
	down     outage // the server's absence
	scopes   scopes // writes that the server does not carry out
	purging  bool   // purgeScopes is set
	// lastAnswer is when a write was last carried out, or refused.
	lastAnswer time.Time
	workers    sync.WaitGroup
	spare      chan *write   // to a worker without work
	spares     int           // workers without work
	stopping   chan struct{} // closed when it stops
}

var _ Writer = (*W)(nil)

// New returns a writer. It fails when cfg is incomplete or its TLS files cannot be read; it does not contact the server.
func New(cfg Config) (*W, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	conns, err := kubeclient.GatedConnections(cfg.REST, cfg.Connections)
	if err != nil {
		return nil, err
	}
	base, err := kubeclient.Base(cfg.REST)
	if err != nil {
		return nil, err
	}
	calls, err := kubeclient.Calls(cfg.REST, cfg.Connections)
	if err != nil {
		return nil, err
	}
	w := &W{
		cfg:      cfg,
		base:     base,
		calls:    calls,
		log:      cfg.Logger,
		conns:    conns,
		codecs:   serializer.NewCodecFactory(cfg.Scheme),
		dirty:    make(chan struct{}, 1),
		spare:    make(chan *write),
		stopping: make(chan struct{}),
		limiter:  newLimiter(cfg.Fixed, cfg.MaxInFlight),
		statuses: make(map[statusKey]*statusEntry),
		creating: make(map[types.NamespacedName]*write),
		kinds:    make(map[schema.GroupVersionKind]kind),
	}
	w.metrics, err = newMetrics(cfg.Registry, w)
	return w, err
}

// verb is what a write does.
type verb string

const (
	verbCreate verb = "create"
	verbBind   verb = "bind"
	verbStatus verb = "status"
	verbPatch  verb = "patch"
	verbDelete verb = "delete"
)

// write is one thing to be written, from the call to its end.
type write struct {
	under
	verb   verb
	class  Class
	owner  string
	reason string
	seq    uint64
	queued time.Time
	next   *write // in its owner's queue

	kind    kind
	name    types.NamespacedName
	uid     types.UID
	obj     Object // what to create, or the object meant
	version string // resource version that a status or patch is based on; empty writes it over whatever is there
	sub     string // subresource of a patch in the place of a version
	brief   bool   // a status of whose answer only the version is needed
	// lookFirst is Meta's, until the object was found not to be there.
	lookFirst bool
	body      []byte // encoded request, kept for further attempts
	binding   *Binding
	as        *Identity
	patch
	DeleteOptions

	attempts  int
	applied   bool      // an attempt without an answer may have taken effect
	failing   bool      // it has failed, or waited, with its scope
	forbidden time.Time // since when the server forbids it: see denied
	// unanswered is the status of such an attempt.
	unanswered []byte
	status     *statusEntry
	seen       atomic.Pointer[corev1.Pod] // that x creates, as a watch has shown it: see Seen
	done       func(Object, error)
}

type patch struct {
	kind types.PatchType
	data []byte
}

// Create implements Writer.
func (w *W) Create(m Meta, obj Object, done func(Object, error)) {
	w.submit(m, obj, done, func(x *write) {
		x.verb, x.class, x.lookFirst = verbCreate, ClassPods, m.LookFirst
		if m.Begins {
			x.class = ClassBegin
		}
	})
}

// Bind implements Writer.
func (w *W) Bind(m Meta, b Binding, done func(error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	u, ok := m.begin()
	if !ok {
		w.reject(ignoreObject(done), ErrFenced)
		return
	}
	w.add(&write{
		under: u, verb: verbBind, class: ClassPods, owner: m.Owner, reason: m.Reason,
		kind: podKind, name: b.Pod, uid: b.UID, binding: &b, done: ignoreObject(done),
	})
}

// Patch implements Writer.
func (w *W) Patch(m Meta, obj Object, kind types.PatchType, data []byte, done func(Object, error)) {
	w.submit(m, obj, done, func(x *write) {
		x.verb, x.class, x.patch = verbPatch, ClassStatus, patch{kind, data}
	})
}

// PatchVersion implements Writer.
func (w *W) PatchVersion(m Meta, obj Object, urgent bool, data []byte, done func(Object, error)) {
	w.submit(m, obj, done, func(x *write) {
		x.verb, x.class, x.patch, x.version = verbPatch, ClassStatus, patch{types.JSONPatchType, data}, obj.GetResourceVersion()
		if bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
			x.patch.kind = types.MergePatchType
		}
		if urgent {
			x.class = ClassUrgent
		}
		if m.StatusOnly {
			x.sub = "status"
		}
	})
}

// Delete implements Writer.
func (w *W) Delete(m Meta, obj Object, opts DeleteOptions, done func(error)) {
	w.submit(m, obj, ignoreObject(done), func(x *write) {
		x.verb, x.class, x.DeleteOptions = verbDelete, ClassDelete, opts
	})
}

func ignoreObject(done func(error)) func(Object, error) {
	if done == nil {
		return nil
	}
	return func(_ Object, err error) { done(err) }
}

// submit queues a write about obj.
func (w *W) submit(m Meta, obj Object, done func(Object, error), fill func(*write)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := &write{
		owner: m.Owner, reason: m.Reason, as: m.As, obj: obj, uid: obj.GetUID(), done: done,
		name: types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()},
	}
	fill(x)
	var ok bool
	if x.under, ok = m.begin(); !ok {
		w.reject(done, ErrFenced)
		return
	}
	var err error
	if x.kind, err = w.kindOf(m, obj); err != nil {
		w.reject(done, err)
		return
	}
	w.add(x)
}

// add gives a write its number and queues it, or ends it when there is no room.
func (w *W) add(x *write) {
	switch {
	case w.stopped:
		w.reject(x.done, ErrStopped)
		return
	case w.queue.len+w.scopes.parked >= w.cfg.MaxQueued:
		w.reject(x.done, ErrQueueFull)
		return
	}
	x.seq = w.opened()
	w.created(x, false)
	w.enqueue(x)
}

func (w *W) enqueue(x *write) {
	x.queued = time.Now()
	w.queue.push(x)
	w.dispatch()
}

// reject ends a call that never got into the queue. Its done must come from another goroutine, as the caller may hold
// locks that done takes.
func (w *W) reject(done func(Object, error), err error) {
	if done == nil {
		return
	}
	go done(nil, err)
}

// Run writes until ctx is done. It then lets requests in flight end for Config.StopTimeout, ends everything else with
// ErrStopped, and returns nil. A writer runs once.
func (w *W) Run(ctx context.Context) error {
	requests, endRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer endRequests()
	w.mu.Lock()
	if w.running || w.stopped {
		w.mu.Unlock()
		return errors.New("apiwriter: a writer runs once")
	}
	w.running = true
	w.requests = requests
	w.dispatch()
	w.mu.Unlock()

	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-w.dirty:
			timer.Reset(w.fire())
		case <-timer.C:
			timer.Reset(w.fire())
		}
	}
	w.stop()
	late := time.AfterFunc(w.cfg.StopTimeout, endRequests)
	defer late.Stop()
	w.workers.Wait()
	return nil
}

// fire runs the timers that are due and returns how long until the next.
func (w *W) fire() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for len(w.timers) > 0 && !w.timers[0].at.After(now) {
		heap.Pop(&w.timers).(*timer).due()
	}
	w.dispatch()
	wait := time.Hour
	if len(w.timers) > 0 {
		wait = time.Until(w.timers[0].at)
	}
	return max(wait, 0)
}

// stop ends everything that is not in flight.
func (w *W) stop() {
	w.mu.Lock()
	w.stopped = true
	close(w.stopping)
	var ends []func()
	for x := w.pop(ClassEvent); x != nil; x = w.pop(ClassEvent) {
		ends = append(ends, w.ended(x, nil, ErrStopped)...)
	}
	for _, t := range w.timers {
		if t.stopped != nil {
			ends = append(ends, t.stopped()...)
		}
	}
	w.timers = nil
	for _, s := range w.scopes.all {
		for x := w.scopes.unpark(s); x != nil; x = w.scopes.unpark(s) {
			if x.status == nil || x.status.write == x {
				ends = append(ends, w.ended(x, nil, ErrStopped)...)
			}
		}
	}
	for _, e := range w.statuses {
		ends = append(ends, w.endStatus(e.take(), nil, ErrStopped)...)
	}
	w.mu.Unlock()
	for _, end := range ends {
		end()
	}
}

// WatchEnded tells the writer that the server has ended a watch before its time, which it does when it is busy.
func (w *W) WatchEnded() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.limiter.watchEnded(time.Now())
}

// dispatch starts as many requests as the limit allows. The caller holds mu.
func (w *W) dispatch() {
	for {
		x := w.nextWrite()
		if x == nil {
			return
		}
		w.inFlight++
		select {
		case w.spare <- x:
		default:
			w.workers.Go(func() { w.work(x) })
		}
	}
}

// spareMax is how many workers without work are kept for what comes next: a new one has to have its stack grown first.
const spareMax = 16

// await is the next write for a worker without work, or nil when there are enough of those, or the writer stops.
func (w *W) await() *write {
	w.mu.Lock()
	if w.stopped || w.spares >= spareMax {
		w.mu.Unlock()
		return nil
	}
	w.spares++
	w.mu.Unlock()
	var x *write
	select {
	case x = <-w.spare:
	case <-w.stopping:
	}
	w.mu.Lock()
	w.spares--
	w.mu.Unlock()
	return x
}

// nextWrite is the write whose turn it is, or nil when none waits or no more may be in flight. The caller holds mu.
func (w *W) nextWrite() *write {
	w.limiter.waits(w.queue.len - w.queue.classes[ClassStatus].len - w.queue.classes[ClassEvent].len)
	if !w.running || w.stopped || w.queue.len == 0 {
		return nil
	}
	now := time.Now()
	limit := w.limiter.limit(now)
	if !w.answered {
		limit = 1 // Go's HTTP/2 opens a connection for each request that finds none: let the first one open it for all
	}
	if w.down.active {
		if now.Before(w.down.until) {
			return nil
		}
		limit = 1 // ask whether the server is back
	}
	if w.inFlight >= limit {
		return nil
	}
	x := w.pop(w.yielding.last(now, limit))
	for x != nil && !w.scopes.admit(x, now) {
		w.tend(x)
		x = w.pop(w.yielding.last(now, limit))
	}
	if x == nil {
		w.lookAgain()
		return nil
	}
	w.yielding.started(x, now)
	w.metrics.waited(x.class, now.Sub(x.queued))
	if x.status != nil {
		x.status.begin(x)
	}
	return x
}

// pop takes the next write of the classes up to last out of the queue. The caller holds mu.
func (w *W) pop(last Class) *write {
	for {
		x := w.queue.pop(last)
		if x == nil || x.status == nil || x.status.write == x {
			return x
		}
		w.tend(x) // a status that another one has replaced may have been the one to ask
	}
}

// lookAgain sees to it that writes which give way are not forgotten when the pods are written. The caller holds mu.
func (w *W) lookAgain() {
	if w.yielding.timer {
		return
	}
	w.yielding.timer = true
	w.after(yieldFor, &timer{due: func() { w.yielding.timer = false }})
}

// yieldFor is how long after the start of a pod's write other pods are expected to follow.
const yieldFor = 500 * time.Millisecond

// lowMost is how much of what can wait is in flight at most: all that has waited for the pods, hundreds of jobs' statuses, would
// hold up the first of the next pods for a second.
const lowMost = 128

// yielding makes what can wait give way to pods. Their order in the queue does not suffice: a manager that is fast has no
// queue, while every request beside a pod's makes the busy server slower for it. So while pods are being written only
// a few statuses and events are in flight, and the rest coalesces until there is room.
type yielding struct {
	pods  time.Time // when the last write of a pod began
	low   int       // writes in flight that should give way
	timer bool      // lookAgain is set
}

// last is the last class that may be written now.
func (y *yielding) last(now time.Time, limit int) Class {
	if y.low >= lowMost || y.low >= max(1, limit/32) && now.Sub(y.pods) < yieldFor {
		return ClassBegin
	}
	return ClassEvent
}

func (y *yielding) started(x *write, now time.Time) {
	if x.class == ClassPods {
		y.pods = now
	}
	if x.class > ClassBegin {
		y.low++
	}
}

func (y *yielding) ended(x *write) {
	if x.class > ClassBegin {
		y.low--
	}
}

// work carries out x and then whatever is next in turn, until too many are at it or without work.
func (w *W) work(x *write) {
	for x != nil {
		started := time.Now()
		obj, err := w.attempt(x)
		ended := time.Now()

		w.mu.Lock()
		w.inFlight--
		w.yielding.ended(x)
		o := classify(err, w.down.recovering(ended) || w.scopes.recovering(x, ended) || x.denied(err, ended))
		if o.verdict == held || errors.Is(err, ErrFenced) || errors.Is(err, errSeen) {
			w.scopes.stopped(x) // it says nothing about the server
		} else {
			if w.observe(x, started, ended, o, err) {
				w.limiter.ended(ended, ended.Sub(started), w.inFlight, w.queue.len > 0, o.verdict)
			}
			if x.class < ClassBegin && !x.failing {
				w.lag.ended(ended, ended.Sub(x.queued))
			}
		}
		ends := w.settle(x, obj, err, o)
		w.tend(x)
		if x = w.nextWrite(); x != nil {
			w.inFlight++
			w.dispatch() // the limit may have grown
		}
		w.mu.Unlock()
		for _, end := range ends {
			end()
		}
		if x == nil {
			x = w.await()
		}
	}
}

// settle ends x, or arranges for it to be tried again. It returns the calls to make without the lock.
func (w *W) settle(x *write, obj Object, err error, o outcome) []func() {
	x.applied = x.applied || o.applied
	if seen := x.seen.Load(); err != nil && seen != nil {
		return w.ended(x, seen, nil)
	}
	if o.verdict == succeeded || o.verdict == refused {
		return w.ended(x, obj, err)
	}
	if w.stopped {
		return w.ended(x, nil, ErrStopped)
	}
	w.metrics.retried(o)
	if o.verdict == held {
		w.retry(x, heldRetry)
		return nil
	}
	if w.down.active {
		// Everyone waits for the server; nobody needs a backoff of their own.
		w.queue.pushFront(x)
		return nil
	}
	if gate := w.scopes.gate(x); gate != nil {
		w.scopes.park(gate, x)
		return nil
	}
	wait := backoff(x.attempts, o.after)
	x.attempts++
	w.retry(x, wait)
	return nil
}

// retry queues x again after a while. The caller holds mu.
func (w *W) retry(x *write, wait time.Duration) {
	w.after(wait, &timer{
		due:     func() { w.queue.pushFront(x) },
		stopped: func() []func() { return w.ended(x, nil, ErrStopped) },
	})
}

// ended closes the books on x and returns its done, to be called without the lock.
func (w *W) ended(x *write, obj Object, err error) []func() {
	if x.status != nil {
		return w.statusEnded(x, obj, err)
	}
	w.created(x, true)
	return []func(){w.end(x.seq, x.done, obj, err)}
}

// end is the end of a call: its done, and only then is it closed, so that Flush does not return before. It must be
// called without the lock.
func (w *W) end(seq uint64, done func(Object, error), obj Object, err error) func() {
	return func() {
		if done != nil {
			done(obj, err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.closed(seq)
	}
}

// timer is something to do at a time. Both functions are called with the lock held.
type timer struct {
	at      time.Time
	due     func()
	stopped func() []func() // instead of due, when the writer stops; may be nil
}

type timers []*timer

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].at.Before(t[j].at) }
func (t timers) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }
func (t *timers) Push(x any)        { *t = append(*t, x.(*timer)) }
func (t *timers) Pop() any {
	old := *t
	x := old[len(old)-1]
	old[len(old)-1] = nil
	*t = old[:len(old)-1]
	return x
}

// after sets t to go off after d. The caller holds mu.
func (w *W) after(d time.Duration, t *timer) {
	t.at = time.Now().Add(d)
	heap.Push(&w.timers, t)
	if w.timers[0] == t {
		select {
		case w.dirty <- struct{}{}:
		default:
		}
	}
}

// opened and closed count the calls whose done is to come. The caller holds mu.
func (w *W) opened() uint64 {
	w.open++
	w.seq++
	return w.seq
}

func (w *W) closed(seq uint64) {
	w.open--
	kept := w.flushes[:0]
	for _, f := range w.flushes {
		if seq <= f.upTo {
			f.open--
		}
		if f.open == 0 {
			close(f.done)
			continue
		}
		kept = append(kept, f)
	}
	w.flushes = kept
}

// flush waits for the calls up to a number.
type flush struct {
	upTo uint64
	open int
	done chan struct{}
}

// Flush implements Writer. Status writes that wait for their interval are made at once.
func (w *W) Flush(ctx context.Context) error {
	w.mu.Lock()
	if w.open == 0 {
		w.mu.Unlock()
		return nil
	}
	f := &flush{upTo: w.seq, open: w.open, done: make(chan struct{})}
	w.flushes = append(w.flushes, f)
	for _, e := range w.statuses {
		if e.state == statusDelayed {
			w.queueStatus(e)
		}
	}
	w.mu.Unlock()
	select {
	case <-f.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
