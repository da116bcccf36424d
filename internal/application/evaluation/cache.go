package evaluation

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/sandbox"
)

// Cache evaluates users' templates, charts and expressions in child processes. An evaluator is a
// function from bytes to bytes, so a slow or abandoned evaluation shares no state with this
// process.
//
// Outcomes, including failures, are cached by request, so the same request is not evaluated twice
// while it is cached. A worker waits at most patience for an answer. After that the evaluation goes
// on without the worker, and the Application is enqueued when there is an answer; until then its
// turns fail with ErrPending.
type Cache struct {
	pool  Pool
	log   *slog.Logger
	clock clock.Clock
	ctx   func() context.Context
	wake  func(app types.NamespacedName, after time.Duration)

	// heavy is held by the one plan that works on large answers.
	heavy chan struct{}

	mu      sync.Mutex
	running map[evaluationKey]*evaluation
	// The cache has two generations: when known is full, before is dropped and known takes its
	// place.
	known, before map[evaluationKey]evaluated
	bytes         int
}

// Pool runs the programs of users in child processes. A tenant is a namespace. sandbox.Pool
// implements Pool; see sandbox.Pool.Do for the errors.
type Pool interface {
	Do(ctx context.Context, tenant, evaluator string, request []byte) ([]byte, error)
}

type evaluationKey [sha256.Size]byte

// evaluated is the answer to a request, or the permanent error that was returned instead.
type evaluated struct {
	answer []byte
	err    error
}

// evaluation is an evaluation under way.
type evaluation struct {
	done chan struct{}
	evaluated
	waiting map[types.NamespacedName]bool // Applications to enqueue when it ends
}

const (
	// patience is how long a worker waits for an evaluation.
	patience = 50 * time.Millisecond
	// evaluateAgain is the delay before an evaluation is repeated that failed for a temporary
	// reason, such as a full pool.
	evaluateAgain = time.Second
	// answerBytesMax is the length of the longest answer that is cached if no Application waits for
	// it. knownBytesMax is the size of one generation of the cache; each answer counts for its
	// length plus evaluationBytes.
	answerBytesMax  = 16 << 10
	knownBytesMax   = 12 << 20
	evaluationBytes = 256
	// HeavyBytes is the size from which answers are used by one plan at a time: decoded, they take
	// several times as much memory.
	HeavyBytes = 1 << 20
)

// ErrPending marks an evaluation that is still under way, or that failed for a temporary reason.
// The Application is enqueued again.
var ErrPending = fmt.Errorf("a template is still being evaluated: %w", plan.ErrNotYet)

// New returns an empty Cache. ctx returns the context of evaluations. wake enqueues an Application
// after a delay, and must not block.
func New(pool Pool, log *slog.Logger, clock clock.Clock, ctx func() context.Context, wake func(types.NamespacedName, time.Duration)) *Cache {
	return &Cache{
		pool: pool, log: log, clock: clock, ctx: ctx, wake: wake, heavy: make(chan struct{}, 1), running: map[evaluationKey]*evaluation{}, known: map[evaluationKey]evaluated{},
	}
}

// Of returns a function that evaluates on behalf of an Application.
func (e *Cache) Of(app types.NamespacedName) render.Run {
	return func(evaluator string, request []byte) ([]byte, error) { return e.evaluate(app, evaluator, request) }
}

func (e *Cache) evaluate(app types.NamespacedName, evaluator string, request []byte) ([]byte, error) {
	sum := sha256.New()
	sum.Write([]byte(evaluator))
	sum.Write([]byte{0})
	sum.Write(request)
	key := evaluationKey(sum.Sum(nil))
	e.mu.Lock()
	if known, ok := e.recall(key); ok {
		e.mu.Unlock()
		return known.answer, known.err
	}
	x := e.running[key]
	if x == nil {
		x = &evaluation{done: make(chan struct{}), waiting: map[types.NamespacedName]bool{}}
		e.running[key] = x
		go e.run(app, evaluator, request, key, x)
	}
	e.mu.Unlock()
	timer := e.clock.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-x.done:
		if errors.Is(x.err, ErrPending) {
			e.wake(app, evaluateAgain)
		}
		return x.answer, x.err
	case <-timer.C():
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case <-x.done:
		return x.answer, x.err
	default:
		x.waiting[app] = true // run reads waiting later, because it closes done under mu
		return nil, ErrPending
	}
}

// run evaluates a request, caches the outcome, and enqueues the Applications that wait for it.
func (e *Cache) run(app types.NamespacedName, evaluator string, request []byte, key evaluationKey, x *evaluation) {
	answer, err := e.pool.Do(e.ctx(), app.Namespace, evaluator, request)
	var failed *sandbox.Failed
	if errors.As(err, &failed) {
		err = errors.New(failed.Message)
	} else if err != nil && !sandbox.Permanent(err) {
		if !errors.Is(err, sandbox.ErrBusy) && !errors.Is(err, sandbox.ErrClosed) && e.ctx().Err() == nil {
			e.log.Warn("an evaluation has not been made, and is tried again", "application", app, "evaluator", evaluator, "error", err)
		}
		err = fmt.Errorf("%w: %w", ErrPending, err)
	}
	e.mu.Lock()
	x.answer, x.err = answer, err
	delete(e.running, key)
	if !errors.Is(err, ErrPending) && (len(x.waiting) > 0 || len(answer) <= answerBytesMax) {
		e.remember(key, x.evaluated)
	}
	waiting := x.waiting
	close(x.done)
	e.mu.Unlock()
	after := time.Duration(0)
	if errors.Is(err, ErrPending) {
		after = evaluateAgain
	}
	for app := range waiting {
		e.wake(app, after)
	}
}

// recall returns the cached outcome of a request. The caller holds mu.
func (e *Cache) recall(key evaluationKey) (evaluated, bool) {
	if known, ok := e.known[key]; ok {
		return known, true
	}
	known, ok := e.before[key]
	if ok {
		e.remember(key, known)
	}
	return known, ok
}

// remember caches the outcome of a request. The caller holds mu.
func (e *Cache) remember(key evaluationKey, x evaluated) {
	if e.bytes > knownBytesMax {
		e.before, e.known, e.bytes = e.known, map[evaluationKey]evaluated{}, 0
	}
	e.known[key] = x
	e.bytes += len(x.answer) + evaluationBytes
}

// Acquire waits until no other plan uses a large answer. The caller must call Release.
func (e *Cache) Acquire() { e.heavy <- struct{}{} }

// Release lets the next plan use a large answer.
func (e *Cache) Release() { <-e.heavy }
