package controlloop_test

import (
	"context"
	"errors"
	"testing"

	"lockstep.dev/lockstep/internal/controlloop"
)

// TestAwaitAll checks that outcomes come in the order of the work, whatever the order of the
// answers, and that the only worker has another turn meanwhile.
func TestAwaitAll(t *testing.T) {
	refused := errors.New("refused")
	var l *controlloop.Loop[string, rec]
	var pending []func(int, error)
	ended := make(chan []controlloop.Outcome[int], 1)
	l = controlloop.New[string, rec](controlloop.Config[string]{Workers: 1, Turn: func(key string) {
		if key == "answers" {
			pending[2](30, nil)
			pending[0](10, nil)
			pending[1](0, refused)
			return
		}
		ended <- controlloop.AwaitAll(l, 3, func(_ int, done func(int, error)) {
			if pending = append(pending, done); len(pending) == 3 {
				l.Wake("answers")
			}
		})
	}})
	running(t, l)
	l.Wake("asks")
	got := <-ended
	want := []controlloop.Outcome[int]{{Value: 10}, {Err: refused}, {Value: 30}}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("outcome %d: %+v, want %+v", i, got[i], want[i])
		}
	}
}

// TestAwaitEndsWithTheLoop checks that work that has not ended has the reason as its error.
func TestAwaitEndsWithTheLoop(t *testing.T) {
	var l *controlloop.Loop[string, rec]
	started, ended := make(chan func(), 1), make(chan []controlloop.Outcome[int], 1)
	l = controlloop.New[string, rec](controlloop.Config[string]{Turn: func(string) {
		ended <- controlloop.AwaitAll(l, 2, func(i int, done func(int, error)) {
			if i == 1 {
				started <- func() { done(1, nil) }
			}
		})
	}})
	end := running(t, l)
	l.Wake("asks")
	(<-started)()
	end()
	if got := <-ended; !errors.Is(got[0].Err, context.Canceled) {
		t.Errorf("the outcome of work that has not ended: %+v", got[0])
	}
}
