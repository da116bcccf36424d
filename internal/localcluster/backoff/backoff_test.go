package backoff_test

import (
	"syscall"
	"testing"
	"time"

	"lockstep.dev/lockstep/internal/localcluster/backoff"
)

// Results of wait(2).
const (
	failed   = syscall.WaitStatus(1 << 8)
	killed   = syscall.WaitStatus(syscall.SIGKILL)
	faulted  = syscall.WaitStatus(syscall.SIGSEGV)
	shortRun = time.Second
)

func TestPausesGrowWhileAProgramFails(t *testing.T) {
	var p backoff.Restarts
	for i, want := range []time.Duration{100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000} {
		status := failed
		if i%2 == 1 {
			status = faulted
		}
		if got := p.After(shortRun, status); got != want*time.Millisecond {
			t.Errorf("after %d failures: %s, want %d ms", i+1, got, want)
		}
	}
	if got := p.After(time.Minute, failed); got != 100*time.Millisecond {
		t.Errorf("after a minute of work: %s", got)
	}
}

func TestAProgramThatWasKilledIsNotMadeToWait(t *testing.T) {
	var p backoff.Restarts
	for range 20 {
		if got := p.After(shortRun, killed); got > time.Second {
			t.Fatalf("it waits for %s", got)
		}
	}
	if got := p.After(shortRun, failed); got <= time.Second {
		t.Errorf("a failure after that counts as the first: %s", got)
	}
}
