package evaluation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/sandbox"
)

// heldPool answers a request when the test tells it to.
type heldPool struct {
	mu    sync.Mutex
	calls int
	next  chan evaluated
}

func (p *heldPool) Do(context.Context, string, string, []byte) ([]byte, error) {
	p.mu.Lock()
	p.calls++
	p.mu.Unlock()
	got := <-p.next
	return got.answer, got.err
}

func (p *heldPool) called() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls
}

type woken struct {
	app   types.NamespacedName
	after time.Duration
}

func newTestEvaluators() (*Cache, *heldPool, chan woken) {
	pool, wakes := &heldPool{next: make(chan evaluated, 10)}, make(chan woken, 10)
	e := New(pool, slog.New(slog.DiscardHandler), clock.RealClock{}, func() context.Context { return context.Background() },
		func(app types.NamespacedName, after time.Duration) { wakes <- woken{app, after} })
	return e, pool, wakes
}

func TestAWorkerDoesNotWaitForALongEvaluation(t *testing.T) {
	e, pool, wakes := newTestEvaluators()
	a, b := types.NamespacedName{Namespace: "ns", Name: "a"}, types.NamespacedName{Namespace: "ns", Name: "b"}
	for _, app := range []types.NamespacedName{a, b} {
		if _, err := e.Of(app)("x", []byte("1")); !errors.Is(err, ErrPending) || !errors.Is(err, plan.ErrNotYet) {
			t.Fatal(err)
		}
	}
	pool.next <- evaluated{answer: make([]byte, answerBytesMax+1)}
	got := map[types.NamespacedName]bool{(<-wakes).app: true, (<-wakes).app: true}
	if !got[a] || !got[b] {
		t.Errorf("brought back: %v", got)
	}
	// The request was evaluated once, for both Applications.
	answer, err := e.Of(a)("x", []byte("1"))
	if err != nil || len(answer) != answerBytesMax+1 || pool.called() != 1 {
		t.Errorf("%d bytes, %v, after %d calls", len(answer), err, pool.called())
	}
}

func TestWhatCannotBeEvaluatedIsNotTriedAgain(t *testing.T) {
	exceeded := &sandbox.Exceeded{Limit: sandbox.Memory, Max: "256 MiB"}
	for _, failure := range []error{exceeded, &sandbox.Crashed{Reason: "x"}, &sandbox.Failed{Message: "no such field"}} {
		e, pool, _ := newTestEvaluators()
		pool.next <- evaluated{err: failure}
		for range 3 {
			if _, err := e.Of(types.NamespacedName{Namespace: "ns", Name: "a"})("x", []byte("1")); err == nil || err.Error() != failure.Error() || errors.Is(err, plan.ErrNotYet) {
				t.Errorf("%v, not %v", err, failure)
			}
		}
		if pool.called() != 1 {
			t.Errorf("%v: %d evaluations", failure, pool.called())
		}
	}
}

func TestWhatThePoolHadNoRoomForIsTriedAgain(t *testing.T) {
	e, pool, wakes := newTestEvaluators()
	pool.next <- evaluated{err: fmt.Errorf("namespace ns: %w", sandbox.ErrBusy)}
	if _, err := e.Of(types.NamespacedName{Namespace: "ns", Name: "a"})("x", nil); !errors.Is(err, plan.ErrNotYet) || !strings.Contains(err.Error(), "too many") {
		t.Fatal(err)
	}
	if w := <-wakes; w != (woken{types.NamespacedName{Namespace: "ns", Name: "a"}, evaluateAgain}) {
		t.Errorf("%v", w)
	}
	pool.next <- evaluated{answer: []byte("y")}
	if answer, err := e.Of(types.NamespacedName{Namespace: "ns", Name: "a"})("x", nil); err != nil || string(answer) != "y" {
		t.Errorf("%s, %v", answer, err)
	}
}

func TestWhatIsKnownIsBounded(t *testing.T) {
	e, pool, _ := newTestEvaluators()
	go func() {
		for {
			pool.next <- evaluated{answer: make([]byte, answerBytesMax)}
		}
	}()
	for i := range 4 * knownBytesMax / answerBytesMax {
		if _, err := e.Of(types.NamespacedName{Namespace: "ns", Name: "a"})("x", fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	if n := (len(e.known) + len(e.before)) * answerBytesMax; n > 2*(knownBytesMax+answerBytesMax+evaluationBytes) {
		t.Errorf("%d bytes are remembered", n)
	}
}
