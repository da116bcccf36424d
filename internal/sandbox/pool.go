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

	"lockstep.dev/lockstep/internal/race"
)

const (
	// watchEvery is the interval of the checks of a running request.
	watchEvery = 20 * time.Millisecond
	// slowAfter is the CPU time after which a request is slow, and slowNice is the priority (nice
	// value) that it then gets.
	slowAfter = 100 * time.Millisecond
	slowNice  = 10
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
	slots        slots

	mu       sync.Mutex
	closed   bool
	children map[*child]bool
	idle     []*child    // longest idle first
	reaper   *time.Timer // set while there are idle children
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
	p := &Pool{cfg: cfg, idleMax: idleMaxDefault, children: map[*child]bool{}, slots: slots{
		normal: cfg.Slots, beside: cfg.SlowSlots, cpu: cfg.Limits.CPU, tenants: map[string]*tenant{}, active: map[*tenant]bool{},
	}}
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
	p.mu.Unlock()
	p.slots.close()
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
	r, err := p.slots.acquire(ctx, tenantName)
	if err != nil {
		return nil, 0, err
	}
	defer p.slots.release(r)
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
	stopWatch := c.watch(func() { p.slots.slowed(r) })
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
	case interrupted || c.isSlow() || c.memory > p.cfg.Limits.MemoryBytes/2*race.Factor:
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
