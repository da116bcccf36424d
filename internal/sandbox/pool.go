package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// watchEvery is the interval of the checks of a running request.
	watchEvery = 20 * time.Millisecond
	// slowAfter is the CPU time after which a request is slow, and slowNice is the priority (nice
	// value) that it then gets.
	slowAfter = 100 * time.Millisecond
	slowNice  = 10
	// slowPerTenantMax limits the slow requests of a tenant: a tenant with more slow requests
	// starts no request, and a tenant with any runs at most one other.
	slowPerTenantMax = 1
	// queuedPerTenantMax is the maximum number of waiting requests of a tenant, and queuedMax the
	// maximum time that a request waits.
	queuedPerTenantMax = 1024
	queuedMax          = time.Minute
	// idleMaxDefault is how long a child is idle before it is ended.
	idleMaxDefault = time.Minute
)

// Limits are the limits of one request.
type Limits struct {
	// MemoryBytes limits the growth of a child's memory; 256 MiB if zero. A child that has grown by
	// more than half of this is replaced when its request is done.
	MemoryBytes int64
	// CPU limits the CPU time of a request; 2 s if zero. Wall limits its elapsed time, which
	// matters on a busy machine; 30 s if zero.
	CPU, Wall time.Duration
	// StackBytes limits the depth of the stack; 64 MiB if zero.
	StackBytes int64
	// RequestBytesMax limits the size of a request; 32 MiB if zero. OutputBytesMax limits the size
	// of its response; 8 MiB if zero.
	RequestBytesMax, OutputBytesMax int64
}

func (l Limits) orDefaults() Limits {
	def := func(v *int64, d int64) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&l.MemoryBytes, 256<<20)
	def(&l.StackBytes, 64<<20)
	def(&l.RequestBytesMax, 32<<20)
	def(&l.OutputBytesMax, 8<<20)
	def((*int64)(&l.CPU), int64(2*time.Second))
	def((*int64)(&l.Wall), int64(30*time.Second))
	return l
}

// Config configures a Pool.
type Config struct {
	Limits Limits
	// Slots is the number of requests that run at a time, beside slow ones: the number of CPUs if
	// zero, at least 2 and at most 4.
	Slots int
	// SlowSlots is the number of slow requests that run beside them: 1 if zero, none if negative.
	// There are never more busy children than Slots + SlowSlots.
	SlowSlots int
	Log       *slog.Logger
	// Metrics may be nil.
	Metrics prometheus.Registerer
}

// Pool runs evaluators in child processes, which it starts on demand and ends when they are idle.
// It is safe for concurrent use.
type Pool struct {
	cfg          Config
	idleMax      time.Duration
	metrics      *poolMetrics
	limitsLogged sync.Once // for the log message about missing limits

	mu       sync.Mutex
	closed   bool
	children map[*child]bool
	idle     []*child          // longest idle first
	reaper   *time.Timer       // set while there are idle children
	running  int               // requests in slots
	slow     int               // requests in slow slots
	stuck    []*runningRequest // slow requests in slots, because no slow slot is free
	tenants  map[string]*tenant
	active   map[*tenant]bool // tenants with running or waiting requests
	arrived  uint64           // number of requests that have waited
	// floor is the used time with which tenants become active: the least used time among the active
	// tenants. It never falls.
	floor time.Duration
}

// tenant is the pool's state of a tenant that has requests, or had some.
type tenant struct {
	name    string
	running []*runningRequest
	slow    int // number of slow requests in running
	waiting []*waiter
	used    time.Duration // time used by ended requests, on the scale of floor
	// usual is a moving average of the duration of the tenant's requests, at most Limits.CPU;
	// before the first request, it is Limits.CPU.
	usual time.Duration
}

type waiter struct {
	arrival uint64
	ready   chan error
	turn    *runningRequest // set when ready
}

// runningRequest is a running request. The pool's mu guards its fields.
type runningRequest struct {
	tenant     *tenant
	begin      time.Time
	slow       bool
	inSlowSlot bool
}

// New returns a pool. It starts no process. It fails if the program has not called Main.
func New(cfg Config) (*Pool, error) {
	if !mainCalled.Load() {
		return nil, errors.New("evaluators: this program does not call sandbox.Main")
	}
	cfg.Limits = cfg.Limits.orDefaults()
	if cfg.Slots <= 0 {
		cfg.Slots = min(max(2, runtime.GOMAXPROCS(0)), 4)
	}
	cfg.SlowSlots = cmp.Or(cfg.SlowSlots, 1)
	cfg.SlowSlots = max(0, cfg.SlowSlots)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	p := &Pool{cfg: cfg, idleMax: idleMaxDefault, children: map[*child]bool{}, tenants: map[string]*tenant{},
		active: map[*tenant]bool{}}
	p.metrics = newMetrics(p)
	if cfg.Metrics != nil {
		if err := cfg.Metrics.Register(p.metrics); err != nil {
			return nil, fmt.Errorf("evaluators: %w", err)
		}
	}
	return p, nil
}

// Close ends all children, and with them the running requests. Waiting requests end with ErrClosed.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	all := slices.Collect(maps.Keys(p.children))
	idle := p.idle
	p.idle = nil
	if p.reaper != nil {
		p.reaper.Stop()
	}
	for _, t := range p.tenants {
		for _, w := range t.waiting {
			w.ready <- ErrClosed
		}
		t.waiting = nil
	}
	p.mu.Unlock()
	for _, c := range all {
		c.kill(ErrClosed)
	}
	for _, c := range idle {
		p.bury(c)
	}
}

// Do lets the named evaluator answer a request of a tenant, which is a namespace.
func (p *Pool) Do(ctx context.Context, tenantName, evaluator string, request []byte) ([]byte, error) {
	response, _, err := p.counted(ctx, tenantName, evaluator, request)
	return response, err
}

// retryInterval is the interval between attempts of DoUntilAnswered.
const retryInterval = time.Second

// DoUntilAnswered is Do, retried while the error is Temporary, the pool is not closed and ctx is
// not done. It also returns the CPU time that the request took.
func (p *Pool) DoUntilAnswered(ctx context.Context, tenantName, evaluator string, request []byte) (response []byte,
	cpu time.Duration, err error) {
	for {
		response, cpu, err := p.counted(ctx, tenantName, evaluator, request)
		if !Temporary(err) || errors.Is(err, ErrClosed) {
			return response, cpu, err
		}
		p.cfg.Log.Warn("an evaluation has not been made, and is tried again", "namespace", tenantName, "evaluator", evaluator,
			"error", err)
		select {
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		case <-time.After(retryInterval):
		}
	}
}

func (p *Pool) counted(ctx context.Context, tenantName, evaluator string, request []byte) (response []byte,
	cpu time.Duration, err error) {
	begin := time.Now()
	response, cpu, err = p.do(ctx, tenantName, evaluator, request)
	p.metrics.count(evaluator, time.Since(begin), err)
	return response, cpu, err
}

func (p *Pool) do(ctx context.Context, tenantName, evaluator string, request []byte) (response []byte,
	cpu time.Duration, err error) {
	if len(evaluator) > math.MaxUint8 {
		return nil, 0, fmt.Errorf("evaluator %q: its name is too long", evaluator)
	}
	if limit := p.cfg.Limits.RequestBytesMax; int64(len(request)) > limit {
		return nil, 0, &Exceeded{Request, bytesText(limit)}
	}
	// 1. Wait for a turn.
	r, err := p.acquireSlot(ctx, tenantName)
	if err != nil {
		return nil, 0, err
	}
	defer p.releaseSlot(r)
	for {
		// 2. Take a child, or start one.
		c, err := p.takeChild()
		if err != nil {
			return nil, cpu, err
		}
		// 3. Send the request, and watch the limits.
		fresh := c.served == 0
		response, took, err := p.evaluate(ctx, c, r, evaluator, request)
		cpu += took
		// 4. Retry in another child if this one had served other requests: its failure may be due
		// to what they left in its memory.
		if fresh || !ofMemory(err) {
			return response, cpu, err
		}
	}
}

// evaluate lets a child answer, and keeps the child for other requests if it is fit for them.
func (p *Pool) evaluate(ctx context.Context, c *child, r *runningRequest, evaluator string,
	request []byte) (response []byte, cpu time.Duration, err error) {
	began := time.Now()
	stopWatch := c.watch(func() { p.slowed(r) })
	stopContext := context.AfterFunc(ctx, func() { c.kill(context.Cause(ctx)) })
	response, alive, err := c.call(evaluator, request)
	stopWatch()
	if cpu = c.cpu; !alive {
		cpu = min(time.Since(began), p.cfg.Limits.CPU)
	}
	interrupted := !stopContext()
	switch {
	case !alive:
		err = c.death(err)
		p.bury(c)
	case interrupted || c.isSlow() || c.memory > p.cfg.Limits.MemoryBytes/2*raceFactor:
		p.bury(c)
	default:
		p.returnChild(c)
	}
	return response, cpu, err
}

// ofMemory reports whether err may be due to the state of the child's memory, so that another child
// may answer.
func ofMemory(err error) bool {
	var exceeded *Exceeded
	var crashed *Crashed
	return errors.As(err, &crashed) || errors.As(err, &exceeded) && exceeded.Limit == Memory
}

// acquireSlot waits until a request of a tenant may run.
func (p *Pool) acquireSlot(ctx context.Context, name string) (*runningRequest, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, ErrClosed
	}
	t := p.activate(name)
	if len(t.waiting) == 0 && p.running < p.cfg.Slots && t.mayRun() {
		r := p.begin(t)
		p.mu.Unlock()
		return r, nil
	}
	if len(t.waiting) >= queuedPerTenantMax {
		p.mu.Unlock()
		return nil, fmt.Errorf("namespace %s: %w", name, ErrBusy)
	}
	p.arrived++
	w := &waiter{arrival: p.arrived, ready: make(chan error, 1)}
	t.waiting = append(t.waiting, w)
	p.mu.Unlock()

	timer := time.NewTimer(queuedMax)
	defer timer.Stop()
	var err error
	select {
	case err := <-w.ready:
		return w.turn, err
	case <-ctx.Done():
		err = ctx.Err()
	case <-timer.C:
		err = fmt.Errorf("namespace %s: %w", name, ErrBusy)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range t.waiting {
		if t.waiting[i] == w {
			t.waiting = append(t.waiting[:i:i], t.waiting[i+1:]...)
			p.deactivate(t)
			return nil, err
		}
	}
	err = <-w.ready // its turn has come meanwhile
	return w.turn, err
}

// activate returns the tenant of that name, and makes it active.
func (p *Pool) activate(name string) *tenant {
	t := p.tenants[name]
	if t == nil {
		t = &tenant{name: name, usual: p.cfg.Limits.CPU}
		p.tenants[name] = t
	}
	if p.active[t] {
		return t
	}
	now, first := time.Now(), true
	var least time.Duration
	for other := range p.active {
		if used := other.usedBy(now); first || used < least {
			first, least = false, used
		}
	}
	p.floor = max(p.floor, least)
	// A tenant loses the share that it did not use while it had no requests, and use above floor
	// plus one evaluation is forgiven.
	t.used = min(max(t.used, p.floor), p.floor+p.cfg.Limits.CPU)
	p.active[t] = true
	return t
}

// deactivate makes a tenant inactive if it has no requests left.
func (p *Pool) deactivate(t *tenant) {
	if len(t.running) > 0 || len(t.waiting) > 0 {
		return
	}
	delete(p.active, t)
	if len(p.active) == 0 {
		p.floor = max(p.floor, t.used)
	}
	p.forget()
}

// mayRun reports whether one more request of the tenant may run.
func (t *tenant) mayRun() bool {
	if t.slow > slowPerTenantMax {
		return false
	}
	return t.slow == 0 || len(t.running)-t.slow < 1
}

// begin takes a slot for a request of t.
func (p *Pool) begin(t *tenant) *runningRequest {
	p.running++
	r := &runningRequest{tenant: t, begin: time.Now()}
	t.running = append(t.running, r)
	return r
}

// slowed records that a request is slow, and moves it out of its slot if a slow slot is free.
func (p *Pool) slowed(r *runningRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.slow {
		return
	}
	r.slow = true
	r.tenant.slow++
	p.stuck = append(p.stuck, r)
	p.moveAside()
	p.dispatch()
}

// moveAside moves slow requests from slots to free slow slots.
func (p *Pool) moveAside() {
	for p.slow < p.cfg.SlowSlots && len(p.stuck) > 0 {
		r := p.stuck[0]
		p.stuck = p.stuck[1:]
		r.inSlowSlot = true
		p.slow++
		p.running--
	}
}

// releaseSlot releases a slot.
func (p *Pool) releaseSlot(r *runningRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := r.tenant
	t.running = slices.DeleteFunc(t.running, func(other *runningRequest) bool { return other == r })
	if r.slow {
		t.slow--
	}
	if r.inSlowSlot {
		p.slow--
		p.moveAside()
	} else {
		p.running--
		p.stuck = slices.DeleteFunc(p.stuck, func(other *runningRequest) bool { return other == r })
	}
	took := time.Since(r.begin)
	t.used += took
	t.usual = (t.usual + min(took, p.cfg.Limits.CPU)) / 2
	p.dispatch()
	p.deactivate(t)
}

// usedBy returns the time that t has used by now.
func (t *tenant) usedBy(now time.Time) time.Duration {
	used := t.used
	for _, r := range t.running {
		used += now.Sub(r.begin)
	}
	return used
}

// rank returns the time that t will have used at the end of another request, if this one and the
// running ones take as long as its requests usually do.
func (t *tenant) rank(now time.Time) time.Duration {
	return t.usedBy(now) + t.usual*time.Duration(len(t.running)+1)
}

// dispatch starts waiting requests while slots are free. It takes the tenant with the lowest rank
// first, and among equal ranks the tenant whose first request has waited longest.
func (p *Pool) dispatch() {
	now := time.Now()
	for p.running < p.cfg.Slots {
		var next *tenant
		for t := range p.active {
			if len(t.waiting) == 0 || !t.mayRun() {
				continue
			}
			if next == nil || cmp.Or(cmp.Compare(t.rank(now), next.rank(now)),
				cmp.Compare(t.waiting[0].arrival, next.waiting[0].arrival)) < 0 {
				next = t
			}
		}
		if next == nil {
			return
		}
		w := next.waiting[0]
		next.waiting = next.waiting[1:]
		w.turn = p.begin(next)
		w.ready <- nil
	}
}

// tenantsMax is the number of known tenants at which the pool forgets inactive tenants that have
// used no more than floor.
const tenantsMax = 1024

func (p *Pool) forget() {
	if len(p.tenants) < tenantsMax {
		return
	}
	for name, t := range p.tenants {
		if !p.active[t] && t.used <= p.floor {
			delete(p.tenants, name)
		}
	}
}

// takeChild returns a child for the caller's exclusive use, until the caller returns or buries it.
func (p *Pool) takeChild() (*child, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, ErrClosed
	}
	if n := len(p.idle); n > 0 {
		c := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		return c, nil
	}
	p.mu.Unlock()
	c, missing, err := start(&p.cfg.Limits)
	if err != nil {
		return nil, err
	}
	if missing != "" {
		p.limitsLogged.Do(func() { p.cfg.Log.Warn("evaluators run without some of their limits", "missing", missing) })
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		go p.bury(c)
		return nil, ErrClosed
	}
	p.children[c] = true
	p.metrics.started.Inc()
	return c, nil
}

// returnChild makes a child idle, for later requests.
func (p *Pool) returnChild(c *child) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		p.bury(c)
		return
	}
	defer p.mu.Unlock()
	c.served++
	c.idleSince = time.Now()
	p.idle = append(p.idle, c)
	if p.reaper == nil {
		p.reaper = time.AfterFunc(p.idleMax, p.reap)
	}
}

// reap ends the children that have been idle for too long.
func (p *Pool) reap() {
	p.mu.Lock()
	var old []*child
	now := time.Now()
	for len(p.idle) > 0 && now.Sub(p.idle[0].idleSince) >= p.idleMax {
		old = append(old, p.idle[0])
		p.idle = p.idle[1:]
	}
	p.reaper = nil
	if len(p.idle) > 0 && !p.closed {
		p.reaper = time.AfterFunc(p.idleMax-now.Sub(p.idle[0].idleSince), p.reap)
	}
	p.mu.Unlock()
	for _, c := range old {
		p.bury(c)
	}
}

// bury ends a child.
func (p *Pool) bury(c *child) {
	p.mu.Lock()
	delete(p.children, c)
	p.mu.Unlock()
	c.kill(nil)
	select {
	case <-c.done:
	default:
		c.end()
	}
}
