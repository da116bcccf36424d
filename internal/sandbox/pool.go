package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// watchEvery is how often a request that runs is looked after.
	watchEvery = 20 * time.Millisecond
	// slowAfter is the CPU time after which a request is slow, and slowNice the priority that it gets then.
	slowAfter = 100 * time.Millisecond
	slowNice  = 10
	// slowPerTenantMax is how many slow requests of a tenant run at a time: with one, it may run one more.
	slowPerTenantMax = 1
	// queuedPerTenantMax is how many requests of a tenant wait, and queuedMax how long each does.
	queuedPerTenantMax = 1024
	queuedMax          = time.Minute
	// idleMaxDefault is how long a child waits for work before it is ended.
	idleMaxDefault = time.Minute
)

// Limits bound one request.
type Limits struct {
	// MemoryBytes is how much a child may grow by, 256 MiB if zero. A child that has grown by more than half of it is
	// replaced when its request is done.
	MemoryBytes int64
	// CPU is the CPU time of a request, 2 s if zero. Wall is the time that it may take on a busy machine, 30 s if zero.
	CPU, Wall time.Duration
	// StackBytes is the depth of the stack, 64 MiB if zero.
	StackBytes int64
	// RequestBytesMax and OutputBytesMax are the sizes of a request, 32 MiB if zero, and of its response, 8 MiB if zero.
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
	// Slots is how many requests run at a time beside slow ones: the number of CPUs if zero, at least 2 and at most 4.
	Slots int
	// SlowSlots is how many slow requests run beside them: 1 if zero, none if negative. There are never more children
	// than Slots + SlowSlots.
	SlowSlots int
	Log       *slog.Logger
	// Metrics may be nil.
	Metrics prometheus.Registerer
}

// Pool runs evaluators in child processes, which it starts when there is work and ends when there is none. It may be used
// by several goroutines.
type Pool struct {
	cfg     Config
	idleMax time.Duration
	metrics *poolMetrics
	told    sync.Once // what the system does not limit

	mu       sync.Mutex
	closed   bool
	children map[*child]bool
	idle     []*child    // the one that has waited longest first
	reaper   *time.Timer // runs while there are idle ones
	running  int         // requests in slots
	slow     int         // requests in slow slots
	stuck    []*turn     // slow requests in slots, for want of a slow one
	tenants  map[string]*tenant
	active   map[*tenant]bool // those with requests that run or wait
	arrived  uint64           // requests that have waited
	// floor is where tenants begin that become active: what the active one with the least has used. It never falls.
	floor time.Duration
}

// tenant is what the pool knows of a tenant that has requests, or had some.
type tenant struct {
	name    string
	running []*turn
	slow    int // of those, slow ones
	waiting []*waiter
	used    time.Duration // by requests that have ended, above the pool's floor when it became active
	usual   time.Duration // what one of its requests takes, by the last ones: all that it may, before there were any
}

type waiter struct {
	arrival uint64
	ready   chan error
	turn    *turn // when it is ready
}

// turn is a request that runs. Its fields are under the pool's mu.
type turn struct {
	tenant *tenant
	begin  time.Time
	slow   bool
	aside  bool // in a slow slot
}

// New makes a pool. It starts no process. It is an error if the program has not called Main.
func New(cfg Config) (*Pool, error) {
	if !mainCalled.Load() {
		return nil, errors.New("evaluators: this program does not call sandbox.Main")
	}
	cfg.Limits = cfg.Limits.orDefaults()
	if cfg.Slots <= 0 {
		cfg.Slots = min(max(2, runtime.GOMAXPROCS(0)), 4)
	}
	if cfg.SlowSlots == 0 {
		cfg.SlowSlots = 1
	}
	cfg.SlowSlots = max(0, cfg.SlowSlots)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	p := &Pool{cfg: cfg, idleMax: idleMaxDefault, children: map[*child]bool{}, tenants: map[string]*tenant{}, active: map[*tenant]bool{}}
	p.metrics = newMetrics(p)
	if cfg.Metrics != nil {
		if err := cfg.Metrics.Register(p.metrics); err != nil {
			return nil, fmt.Errorf("evaluators: %w", err)
		}
	}
	return p, nil
}

// Close ends all children, and with them the requests that run.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	var all []*child
	for c := range p.children {
		all = append(all, c)
	}
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

// Do has the evaluator of that name answer a request of a tenant: a namespace.
func (p *Pool) Do(ctx context.Context, tenantName, evaluator string, request []byte) ([]byte, error) {
	response, _, err := p.counted(ctx, tenantName, evaluator, request)
	return response, err
}

// insistEvery is how often Insist tries again.
const insistEvery = time.Second

// Insist is Do, tried again for as long as the pool has no answer about the request (Temporary) and ctx is not done. It returns how much
// CPU time the request took.
func (p *Pool) Insist(ctx context.Context, tenantName, evaluator string, request []byte) (response []byte, cpu time.Duration, err error) {
	for {
		response, cpu, err := p.counted(ctx, tenantName, evaluator, request)
		if !Temporary(err) || errors.Is(err, ErrClosed) {
			return response, cpu, err
		}
		p.cfg.Log.Warn("an evaluation has not been made, and is tried again", "namespace", tenantName, "evaluator", evaluator, "error", err)
		select {
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		case <-time.After(insistEvery):
		}
	}
}

func (p *Pool) counted(ctx context.Context, tenantName, evaluator string, request []byte) (response []byte, cpu time.Duration, err error) {
	begin := time.Now()
	response, cpu, err = p.do(ctx, tenantName, evaluator, request)
	p.metrics.count(evaluator, time.Since(begin), err)
	return response, cpu, err
}

func (p *Pool) do(ctx context.Context, tenantName, evaluator string, request []byte) (response []byte, cpu time.Duration, err error) {
	if len(evaluator) > math.MaxUint8 {
		return nil, 0, fmt.Errorf("evaluator %q: its name is too long", evaluator)
	}
	if limit := p.cfg.Limits.RequestBytesMax; int64(len(request)) > limit {
		return nil, 0, &Exceeded{Request, bytesText(limit)}
	}
	// 1. Wait for a turn.
	r, err := p.enter(ctx, tenantName)
	if err != nil {
		return nil, 0, err
	}
	defer p.leave(r)
	for {
		// 2. Take a child, or start one.
		c, err := p.take()
		if err != nil {
			return nil, cpu, err
		}
		// 3. Ask it, for as long as it keeps to its limits.
		fresh := c.served == 0
		response, took, err := p.ask(ctx, c, r, evaluator, request)
		cpu += took
		// 4. What went wrong in a child that had served others may be due to what they left in its memory.
		if fresh || !ofMemory(err) {
			return response, cpu, err
		}
	}
}

// ask has a child answer, and keeps it for others if it is fit for them.
func (p *Pool) ask(ctx context.Context, c *child, r *turn, evaluator string, request []byte) (response []byte, cpu time.Duration, err error) {
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
		p.give(c)
	}
	return response, cpu, err
}

// ofMemory reports whether a child in another state might have answered.
func ofMemory(err error) bool {
	var exceeded *Exceeded
	var crashed *Crashed
	return errors.As(err, &crashed) || errors.As(err, &exceeded) && exceeded.Limit == Memory
}

// enter waits until a request of a tenant may run.
func (p *Pool) enter(ctx context.Context, name string) (*turn, error) {
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

// activate is the tenant of that name, which is about to have a request.
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
	// What it left unused while it had no requests is gone, and so is what it used beyond one evaluation while nobody else had any.
	t.used = min(max(t.used, p.floor), p.floor+p.cfg.Limits.CPU)
	p.active[t] = true
	return t
}

// deactivate notes that a tenant may have no requests any more.
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
func (p *Pool) begin(t *tenant) *turn {
	p.running++
	r := &turn{tenant: t, begin: time.Now()}
	t.running = append(t.running, r)
	return r
}

// slowed is called when a request turns out to be slow: others get its slot, if it has another place.
func (p *Pool) slowed(r *turn) {
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

// moveAside moves slow requests to slow slots that are free.
func (p *Pool) moveAside() {
	for p.slow < p.cfg.SlowSlots && len(p.stuck) > 0 {
		r := p.stuck[0]
		p.stuck = p.stuck[1:]
		r.aside = true
		p.slow++
		p.running--
	}
}

// leave gives a slot back.
func (p *Pool) leave(r *turn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := r.tenant
	t.running = slices.DeleteFunc(t.running, func(other *turn) bool { return other == r })
	if r.slow {
		t.slow--
	}
	if r.aside {
		p.slow--
		p.moveAside()
	} else {
		p.running--
		p.stuck = slices.DeleteFunc(p.stuck, func(other *turn) bool { return other == r })
	}
	took := time.Since(r.begin)
	t.used += took
	t.usual = (t.usual + min(took, p.cfg.Limits.CPU)) / 2
	p.dispatch()
	p.deactivate(t)
}

// usedBy is what t has used by now.
func (t *tenant) usedBy(now time.Time) time.Duration {
	used := t.used
	for _, r := range t.running {
		used += now.Sub(r.begin)
	}
	return used
}

// rank is what t will have used by the end of another request, if this and those that run take as long as its requests usually do.
func (t *tenant) rank(now time.Time) time.Duration {
	return t.usedBy(now) + t.usual*time.Duration(len(t.running)+1)
}

// dispatch lets requests that wait run, those of the tenant of the lowest rank first, and of those the one that has waited longest.
func (p *Pool) dispatch() {
	now := time.Now()
	for p.running < p.cfg.Slots {
		var next *tenant
		for t := range p.active {
			if len(t.waiting) == 0 || !t.mayRun() {
				continue
			}
			if next == nil || cmp.Or(cmp.Compare(t.rank(now), next.rank(now)), cmp.Compare(t.waiting[0].arrival, next.waiting[0].arrival)) < 0 {
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

// tenantsMax is how many tenants are known before those are forgotten that have no requests, and have used no more than others.
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

// take is a child for the caller alone, until it gives or buries it.
func (p *Pool) take() (*child, error) {
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
		p.told.Do(func() { p.cfg.Log.Warn("evaluators run without some of their limits", "missing", missing) })
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

// give makes a child one that others may take.
func (p *Pool) give(c *child) {
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

// reap ends the children that have waited for work for too long.
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
