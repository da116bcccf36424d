package apiwriter

import (
	"bytes"
	"container/heap"
	"context"
	"crypto/sha256"
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

	"lockstep.dev/lockstep/internal/http2client"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// Config says where and how a writer writes. Only REST and Scheme are required.
type Config struct {
	// REST is the cluster to write to.
	REST *rest.Config
	// Scheme knows every type that is written.
	Scheme *runtime.Scheme
	// Component is the source of events; the default is "lockstep".
	Component string
	// Fixed is a fixed number of requests in flight; 0 adapts the number to the server.
	Fixed int
	// MaxInFlight is the maximum number of requests in flight when adaptive; the default is
	// MostInFlight.
	MaxInFlight int
	// Connections is the maximum number of TCP connections. They are opened as needed, one per 64
	// requests in flight. The default is 16.
	Connections int
	// StatusInterval is the minimum time between two status writes to one object, except urgent
	// ones; the default is 1 s.
	StatusInterval time.Duration
	// RequestTimeout is how long an attempt waits for the server's answer; the default is 30 s.
	RequestTimeout time.Duration
	// StopTimeout is how long requests in flight may continue when the writer stops; the default is
	// 5 s.
	StopTimeout time.Duration
	// MaxQueued is the maximum number of waiting writes; further writes end with ErrQueueFull. The
	// default is 1,000,000.
	MaxQueued int
	// MaxEvents is the maximum number of waiting event writes; further events are dropped. The
	// default is 1000.
	MaxEvents int
	// Registry registers the metrics; nil registers them nowhere.
	Registry prometheus.Registerer
	// Logger logs outages and refused events; the default is slog's.
	Logger *slog.Logger
}

// MostInFlight is the default maximum number of requests in flight. A caller that passes a large
// job to a writer piece by piece keeps more writes than this waiting.
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

// W is the Writer of a cluster. It accepts writes as soon as it exists, and sends them while Run
// runs.
type W struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	base    *url.URL
	calls   *http2client.Client     // nil: conns carry all requests
	conns   []kubeclient.Connection // for requests that calls does not carry
	codecs  serializer.CodecFactory
	noHTTP2 atomic.Bool // the server or proxy does not suit calls
	// decoders maps schema.GroupVersion to a decoder function.
	decoders sync.Map
	dirty    chan struct{} // tells Run that the earliest timer has changed

	mu       sync.Mutex
	running  bool
	stopped  bool
	requests context.Context // context of all requests; done when the writer must end at once
	queue    queue
	limiter  *limiter
	inFlight int
	throttle lowPriorityThrottle
	latency  latency
	open     int    // calls whose done has not been called
	seq      uint64 // sequence number of the last call
	flushes  []*flush
	timers   timers
	statuses map[statusKey]*statusEntry
	creating map[types.NamespacedName]*write // pods whose create has not ended
	events   eventLog
	kinds    map[schema.GroupVersionKind]kind
	nextConn int      // round robin among connections
	answered bool     // the server has answered a request
	outage   circuit  // open while the server refuses or breaks connections
	breakers breakers // circuit breakers of writes that fail with server errors
	expiring bool     // a timer for expireBreakers is set
	// lastAnswer is when a write was last carried out or refused.
	lastAnswer  time.Time
	workers     sync.WaitGroup
	idleWorker  chan *write   // hands a write to an idle worker
	idleWorkers int           // number of idle workers
	stopping    chan struct{} // closed when the writer stops
}

var _ Writer = (*W)(nil)

// New returns a writer. It fails if cfg is incomplete or its TLS files cannot be read. It does not
// contact the server.
func New(cfg Config) (*W, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	conns, err := kubeclient.CheckedConnections(cfg.REST, cfg.Connections)
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
		cfg:        cfg,
		base:       base,
		calls:      calls,
		log:        cfg.Logger,
		conns:      conns,
		codecs:     serializer.NewCodecFactory(cfg.Scheme),
		dirty:      make(chan struct{}, 1),
		idleWorker: make(chan *write),
		stopping:   make(chan struct{}),
		limiter:    newLimiter(cfg.Fixed, cfg.MaxInFlight),
		statuses:   make(map[statusKey]*statusEntry),
		creating:   make(map[types.NamespacedName]*write),
		kinds:      make(map[schema.GroupVersionKind]kind),
	}
	w.metrics, err = newMetrics(cfg.Registry, w)
	return w, err
}

// verb is the kind of a write.
type verb string

const (
	verbCreate verb = "create"
	verbBind   verb = "bind"
	verbStatus verb = "status"
	verbPatch  verb = "patch"
	verbDelete verb = "delete"
)

// write is one call, from the call to its outcome.
type write struct {
	boundTerm
	verb   verb
	class  Class
	owner  string
	reason string
	seq    uint64
	queued time.Time
	next   *write // in its owner's queue, or in a breaker

	kind         kind
	name         types.NamespacedName
	uid          types.UID
	obj          Object // the object to create, or the object that the write is about
	version      string // resource version that is the precondition of a status or patch; empty for none
	sub          string // subresource of a patch with a version
	metadataOnly bool   // a status write whose caller needs only the new version
	// readFirst is Meta.ReadFirst, until the object was found not to exist.
	readFirst bool
	body      []byte // encoded request, kept for further attempts
	binding   *Binding
	as        *Identity
	patch
	DeleteOptions

	attempts  int
	applied   bool      // an attempt without an answer may have taken effect
	failing   bool      // has failed, or has waited in a breaker
	forbidden time.Time // when the server first forbade it: see deniedForNow
	// unanswered has the SHA-256 sums of the statuses sent by attempts without an answer.
	unanswered [][sha256.Size]byte
	status     *statusEntry
	seen       atomic.Pointer[corev1.Pod] // the pod that x creates, as shown by a watch: see Seen
	done       func(Object, error)
}

type patch struct {
	kind types.PatchType
	data []byte
}

// Create implements Writer.
func (w *W) Create(m Meta, obj Object, done func(Object, error)) {
	w.submit(m, obj, done, func(x *write) {
		x.verb, x.class, x.readFirst = verbCreate, ClassPods, m.ReadFirst
		if m.StartsWork {
			x.class = ClassStart
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
		boundTerm: u, verb: verbBind, class: ClassPods, owner: m.Owner, reason: m.Reason,
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
		x.verb, x.class, x.patch, x.version = verbPatch, ClassStatus, patch{types.JSONPatchType, data},
			obj.GetResourceVersion()
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
	if x.boundTerm, ok = m.begin(); !ok {
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

// add numbers a write and queues it, or ends it if the queue is full.
func (w *W) add(x *write) {
	switch {
	case w.stopped:
		w.reject(x.done, ErrStopped)
		return
	case w.queue.len+w.breakers.parked >= w.cfg.MaxQueued:
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

// reject ends a call that was not queued. It calls done from another goroutine, because the caller
// may hold locks that done takes.
func (w *W) reject(done func(Object, error), err error) {
	if done == nil {
		return
	}
	go done(nil, err)
}

// Run sends writes until ctx is done. It then lets requests in flight continue for
// Config.StopTimeout, ends everything else with ErrStopped, and returns nil. A writer runs once.
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

// fire runs the timers that are due and returns the time until the next.
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

// stop ends every write that is not in flight.
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
	for _, s := range w.breakers.all {
		for x := w.breakers.unpark(s); x != nil; x = w.breakers.unpark(s) {
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

// WatchEnded tells the writer that the server has ended a watch early, which it does when it is
// busy.
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
		case w.idleWorker <- x:
		default:
			w.workers.Go(func() { w.work(x) })
		}
	}
}

// idleWorkersMax is the maximum number of idle workers kept: a new goroutine must first grow its
// stack.
const idleWorkersMax = 16

// await returns the next write for an idle worker, or nil if there are enough idle workers or the
// writer stops.
func (w *W) await() *write {
	w.mu.Lock()
	if w.stopped || w.idleWorkers >= idleWorkersMax {
		w.mu.Unlock()
		return nil
	}
	w.idleWorkers++
	w.mu.Unlock()
	var x *write
	select {
	case x = <-w.idleWorker:
	case <-w.stopping:
	}
	w.mu.Lock()
	w.idleWorkers--
	w.mu.Unlock()
	return x
}

// nextWrite returns the write whose turn it is, or nil if none waits or no more may be in flight.
// The caller holds mu.
func (w *W) nextWrite() *write {
	w.limiter.waits(w.queue.len - w.queue.classes[ClassStatus].len - w.queue.classes[ClassEvent].len)
	if !w.running || w.stopped || w.queue.len == 0 {
		return nil
	}
	now := time.Now()
	limit := w.limiter.limit(now)
	if !w.answered {
		// Go's HTTP/2 opens a connection per request if none is open: the first request opens one
		// for all
		limit = 1
	}
	if w.outage.open {
		if now.Before(w.outage.until) {
			return nil
		}
		limit = 1 // probe whether the server is back
	}
	if w.inFlight >= limit {
		return nil
	}
	x := w.pop(w.throttle.last(now, limit))
	for x != nil && !w.breakers.admit(x, now) {
		w.scheduleProbe(x)
		x = w.pop(w.throttle.last(now, limit))
	}
	if x == nil {
		w.dispatchLater()
		return nil
	}
	w.throttle.started(x, now)
	w.metrics.waited(x.class, now.Sub(x.queued))
	if x.status != nil {
		x.status.begin(x)
	}
	return x
}

// pop removes and returns the next write of the classes up to last. The caller holds mu.
func (w *W) pop(last Class) *write {
	for {
		x := w.queue.pop(last)
		if x == nil || x.status == nil || x.status.write == x {
			return x
		}
		w.scheduleProbe(x) // a void status may have been the probe of its breaker
	}
}

// dispatchLater sets a timer so that writes that give way to pods are considered again. The caller
// holds mu.
func (w *W) dispatchLater() {
	if w.throttle.timer {
		return
	}
	w.throttle.timer = true
	w.after(throttleTime, &timer{due: func() { w.throttle.timer = false }})
}

// throttleTime is the time after the start of a pod's write in which further pods are expected.
const throttleTime = 500 * time.Millisecond

// lowMax is the maximum number of low-priority writes in flight. If all writes that waited for the
// pods, such as the statuses of hundreds of jobs, were sent at once, they would delay the next pods
// by a second.
const lowMax = 128

// lowPriorityThrottle makes low-priority writes give way to pods. The order of the queue is not
// enough: a fast manager has no queue, and each other request beside the creates of pods makes a
// busy server slower for them. So while pods are being written, only a few statuses and events are
// in flight, and the others coalesce until there is room.
type lowPriorityThrottle struct {
	pods  time.Time // when the last write of a pod began
	low   int       // low-priority writes in flight
	timer bool      // the timer of dispatchLater is set
}

// last returns the last class that may be written now.
func (y *lowPriorityThrottle) last(now time.Time, limit int) Class {
	if y.low >= lowMax || y.low >= max(1, limit/32) && now.Sub(y.pods) < throttleTime {
		return ClassStart
	}
	return ClassEvent
}

func (y *lowPriorityThrottle) started(x *write, now time.Time) {
	if x.class == ClassPods {
		y.pods = now
	}
	if x.class > ClassStart {
		y.low++
	}
}

func (y *lowPriorityThrottle) ended(x *write) {
	if x.class > ClassStart {
		y.low--
	}
}

// work carries out x and then the next writes, until the limit is reached or there are enough idle
// workers.
func (w *W) work(x *write) {
	for x != nil {
		started := time.Now()
		obj, err := w.attempt(x)
		ended := time.Now()

		w.mu.Lock()
		w.inFlight--
		w.throttle.ended(x)
		o := classify(err, w.outage.recovering(ended) || w.breakers.recovering(x, ended) || x.deniedForNow(err, ended))
		if o.verdict == termLapsed || errors.Is(err, ErrFenced) || errors.Is(err, errSeen) {
			w.breakers.probeEnded(x) // the result says nothing about the server
		} else {
			if w.observe(x, started, ended, o, err) {
				w.limiter.ended(ended, ended.Sub(started), w.inFlight, w.queue.len > 0, o.verdict)
			}
			if x.class < ClassStart && !x.failing {
				w.latency.ended(ended, ended.Sub(x.queued))
			}
		}
		ends := w.settle(x, obj, err, o)
		w.scheduleProbe(x)
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

// settle ends x, or schedules another attempt. It returns functions to call without the lock.
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
	if o.verdict == termLapsed {
		w.retry(x, termRetry)
		return nil
	}
	if w.outage.open {
		// All writes wait for the server; none needs a backoff of its own.
		w.queue.pushFront(x)
		return nil
	}
	if gate := w.breakers.widestOpen(x); gate != nil {
		w.breakers.park(gate, x)
		return nil
	}
	wait := backoff(x.attempts, o.after)
	x.attempts++
	w.retry(x, wait)
	return nil
}

// retry queues x again after wait. The caller holds mu.
func (w *W) retry(x *write, wait time.Duration) {
	w.after(wait, &timer{
		due:     func() { w.queue.pushFront(x) },
		stopped: func() []func() { return w.ended(x, nil, ErrStopped) },
	})
}

// ended records the end of x and returns functions to call without the lock.
func (w *W) ended(x *write, obj Object, err error) []func() {
	if x.status != nil {
		return w.statusEnded(x, obj, err)
	}
	w.created(x, true)
	return []func(){w.end(x.seq, x.done, obj, err)}
}

// end returns a function that ends a call: it calls done, and only then closes the call, so that
// Flush does not return before done. The function must be called without the lock.
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

// timer is a function to run at a time. Both functions are called with the lock held.
type timer struct {
	at      time.Time
	due     func()
	stopped func() []func() // called instead of due when the writer stops; may be nil
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

// after sets t to fire after d. The caller holds mu.
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

// opened counts a new call and returns its sequence number. The caller holds mu.
func (w *W) opened() uint64 {
	w.open++
	w.seq++
	return w.seq
}

// closed records that the done of a call has been called. The caller holds mu.
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

// flush waits for the calls up to a sequence number.
type flush struct {
	upTo uint64
	open int
	done chan struct{}
}

// Flush implements Writer. Delayed status writes are queued at once.
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
