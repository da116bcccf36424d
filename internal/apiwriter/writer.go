package apiwriter

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
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
	c.Component = cmp.Or(c.Component, "lockstep")
	c.MaxInFlight = cmp.Or(c.MaxInFlight, limitMax)
	c.Connections = cmp.Or(c.Connections, 16)
	c.StatusInterval = cmp.Or(c.StatusInterval, time.Second)
	c.RequestTimeout = cmp.Or(c.RequestTimeout, 30*time.Second)
	c.StopTimeout = cmp.Or(c.StopTimeout, 5*time.Second)
	c.MaxQueued = cmp.Or(c.MaxQueued, 1_000_000)
	c.MaxEvents = cmp.Or(c.MaxEvents, 1000)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	return nil
}

// W is a Writer for a cluster. It accepts writes as soon as it exists, and sends them while Run
// runs. Several Ws may share one core: see Fenced.
type W struct {
	*core
	fence Fence // of the writes made through this W; nil if they may always be sent
}

// core is the state that all Ws of a cluster share.
type core struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	sender  *sender

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
	// rejected has the calls of done for writes that were not queued; rejecting means that
	// endRejected runs.
	rejected  []func()
	rejecting bool
	retries   map[*write]struct{} // writes that wait for their backoff
	statuses  map[statusKey]*statusEntry
	creating  map[types.NamespacedName]*write // pods whose create has not ended
	events    eventLog
	kinds     map[schema.GroupVersionKind]kind
	answered  bool     // the server has answered a request
	outage    circuit  // open while the server refuses or breaks connections
	breakers  breakers // circuit breakers of writes that fail with server errors
	expiring  bool     // a timer for expireBreakers is set
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
	sender, err := newSender(&cfg)
	if err != nil {
		return nil, err
	}
	c := &core{
		cfg:        cfg,
		log:        cfg.Logger,
		sender:     sender,
		idleWorker: make(chan *write),
		stopping:   make(chan struct{}),
		limiter:    newLimiter(cfg.Fixed, cfg.MaxInFlight),
		retries:    make(map[*write]struct{}),
		statuses:   make(map[statusKey]*statusEntry),
		creating:   make(map[types.NamespacedName]*write),
		kinds:      make(map[schema.GroupVersionKind]kind),
	}
	c.metrics, err = newMetrics(cfg.Registry, c)
	sender.metrics = c.metrics
	return &W{core: c}, err
}

// verb is the kind of a write.
type verb string

const (
	verbCreate verb = "create"
	verbBind   verb = "bind"
	verbStatus verb = "status"
	verbPatch  verb = "patch"
	verbDelete verb = "delete"
	// verbDeletePods deletes all pods of a Selection.
	verbDeletePods verb = "deletecollection"
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
	metadataOnly bool   // a write of a status, or a create, whose caller needs only the new version
	// readFirst is Meta.ReadFirst, until the object was found not to exist.
	readFirst bool
	body      []byte // encoded request, kept for further attempts
	binding   *Binding
	selection Selection // of verbDeletePods
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

// Create implements Writer.
func (w *W) Create(m Meta, obj Object, done func(Object, error)) {
	w.submit(m, obj, done, func(x *write) {
		x.verb, x.class, x.readFirst, x.metadataOnly = verbCreate, ClassPods, m.ReadFirst, m.MetadataOnly
		if m.StartsWork {
			x.class = ClassStart
		}
	})
}

// Bind implements Writer.
func (w *W) Bind(m Meta, b Binding, done func(error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	term, err := w.term(m.Owner)
	if err != nil {
		w.reject(ignoreObject(done), err)
		return
	}
	w.add(&write{
		boundTerm: term, verb: verbBind, class: ClassPods, owner: m.Owner, reason: m.Reason,
		kind: podKind, name: b.Pod, uid: b.UID, binding: &b, done: ignoreObject(done),
	})
}

// Patch implements Writer.
func (w *W) Patch(m Meta, obj Object, kind types.PatchType, data []byte, done func(Object, error)) {
	w.submit(m, obj, done, func(x *write) {
		x.verb, x.class, x.patch = verbPatch, ClassStatus, patch{kind, data}
		if m.StatusOnly {
			x.sub = "status"
		}
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

// DeletePods implements Writer.
func (w *W) DeletePods(m Meta, pods Selection, done func(error)) {
	about := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pods.Namespace}}
	w.submit(m, about, ignoreObject(done), func(x *write) {
		x.verb, x.class, x.selection = verbDeletePods, ClassDelete, pods
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
	var err error
	if x.boundTerm, err = w.term(m.Owner); err == nil {
		x.kind, err = w.kindOf(m, obj)
	}
	if err != nil {
		w.reject(done, err)
		return
	}
	w.add(x)
}

// add numbers a write and queues it, or ends it if no write can be queued.
func (w *core) add(x *write) {
	if err := w.accepts(); err != nil {
		w.reject(x.done, err)
		return
	}
	x.seq = w.opened()
	w.created(x, false)
	w.enqueue(x)
}

// accepts returns why no further write can be queued, or nil. The caller holds mu.
func (w *core) accepts() error {
	switch {
	case w.stopped:
		return ErrStopped
	case w.queue.len+w.breakers.waiting >= w.cfg.MaxQueued:
		return ErrQueueFull
	}
	return nil
}

func (w *core) enqueue(x *write) {
	x.queued = time.Now()
	w.queue.push(x)
	w.dispatch()
}

// reject ends a call that was not queued. It calls done from another goroutine, one for all
// rejected calls, because the caller may hold locks that done takes. The caller holds mu.
func (w *core) reject(done func(Object, error), err error) {
	if done == nil {
		return
	}
	w.rejected = append(w.rejected, func() { done(nil, err) })
	if !w.rejecting {
		w.rejecting = true
		go w.endRejected()
	}
}

// endRejected ends rejected calls until there are none.
func (w *core) endRejected() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.rejected) > 0 {
		ends := w.rejected
		w.rejected = nil
		w.mu.Unlock()
		for _, end := range ends {
			end()
		}
		w.mu.Lock()
	}
	w.rejecting = false
}

// Run sends writes until ctx is done. It then lets requests in flight continue for
// Config.StopTimeout, ends everything else with ErrStopped, and returns nil. A writer runs once.
func (w *core) Run(ctx context.Context) error {
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
	<-ctx.Done()
	w.stop()
	late := time.AfterFunc(w.cfg.StopTimeout, endRequests)
	defer late.Stop()
	w.workers.Wait()
	return nil
}

// after calls do with the lock held when d has passed, unless the writer has stopped by then.
func (w *core) after(d time.Duration, do func()) {
	time.AfterFunc(d, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.stopped {
			do()
			w.dispatch()
		}
	})
}

// stop ends every write that is not in flight.
func (w *core) stop() {
	w.mu.Lock()
	w.stopped = true
	close(w.stopping)
	var ends []func()
	for x := w.pop(ClassEvent); x != nil; x = w.pop(ClassEvent) {
		ends = append(ends, w.ended(x, nil, ErrStopped)...)
	}
	for x := range w.retries {
		ends = append(ends, w.ended(x, nil, ErrStopped)...)
	}
	for _, s := range w.breakers.all {
		for x := w.breakers.dequeue(s); x != nil; x = w.breakers.dequeue(s) {
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
func (w *core) WatchEnded() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.limiter.watchEnded(time.Now())
}

// ended records the end of x and returns functions to call without the lock.
func (w *core) ended(x *write, obj Object, err error) []func() {
	if x.status != nil {
		return w.statusEnded(x, obj, err)
	}
	w.created(x, true)
	return []func(){w.end(x.seq, x.done, obj, err)}
}

// end returns a function that ends a call: it calls done, and only then closes the call, so that
// Flush does not return before done. The function must be called without the lock.
func (w *core) end(seq uint64, done func(Object, error), obj Object, err error) func() {
	return func() {
		if done != nil {
			done(obj, err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.closed(seq)
	}
}

// opened counts a new call and returns its sequence number. The caller holds mu.
func (w *core) opened() uint64 {
	w.open++
	w.seq++
	return w.seq
}

// closed records that the done of a call has been called. The caller holds mu.
func (w *core) closed(seq uint64) {
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
func (w *core) Flush(ctx context.Context) error {
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
