package apiwriter

import (
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lockstep.dev/lockstep/internal/localcluster/faultproxy"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// TestAConflictIsOneOfVersions checks that a Conflict about an object whose version has not changed
// is retried, since a caller that waits for another version would wait forever.
func TestAConflictIsOneOfVersions(t *testing.T) {
	p, err := localtest.Proxy(localtest.Shared(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	b := newBench(t, func(c *Config) { c.REST = p.REST(c.REST) }).run()
	var mu sync.Mutex
	tried := map[string]int{}
	p.Decide(func(r *faultproxy.Request) (f faultproxy.Fault) {
		if !r.Write() {
			return f
		}
		mu.Lock()
		defer mu.Unlock()
		if tried[r.Verb]++; tried[r.Verb] == 1 {
			f.Answer = http.StatusConflict
		}
		return f
	})
	o := newOutcomes()
	job := b.createdJob("job")
	b.Status(test, withRunning(job, 1), true, o.of("status"))
	b.flush()
	b.PatchVersion(test, b.job("job"), true, []byte(`[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`), o.of("patch"))
	b.flush()
	job = b.job("job")
	if job.Status.Running != 1 || job.Labels["a"] != "b" {
		t.Errorf("the job has running %d and labels %v, want what was written", job.Status.Running, job.Labels)
	}
	b.Delete(test, job, DeleteOptions{Version: job.ResourceVersion}, o.ofErr("delete"))
	b.flush()
	if err := errors.Join(o.errs["status"], o.errs["patch"], o.errs["delete"]); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if tried["update"] != 2 || tried["patch"] != 2 || tried["delete"] != 2 {
		t.Errorf("attempts: %v, want 2 of each", tried)
	}
}

// TestAStatusWhoseAnswersWereLostTwiceIsNoConflict checks that a status is written after the server
// carried out its first attempt and refused its second, which had a newer status, and both answers
// were lost: the status that the server has is still the writer's own.
func TestAStatusWhoseAnswersWereLostTwiceIsNoConflict(t *testing.T) {
	p, err := localtest.Proxy(localtest.Shared(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	b := newBench(t, func(c *Config) { c.REST = p.REST(c.REST); c.StatusInterval = time.Nanosecond }).run()
	o := newOutcomes()
	job := b.createdJob("job")
	var updates atomic.Int32
	p.Decide(func(r *faultproxy.Request) (f faultproxy.Fault) {
		if r.Verb != "update" {
			return f
		}
		switch updates.Add(1) {
		case 1:
			f.Lose, f.Worked = faultproxy.ResetStream, true
			f.Done = func() { b.Status(test, withRunning(job, 2), true, o.of("second")) }
		case 2:
			f.Answer, f.Worked = http.StatusGatewayTimeout, true
		}
		return f
	})
	b.Status(test, withRunning(job, 1), true, o.of("first"))
	localtest.Eventually(t, "the second status ends", func() error {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.ended["second"] == 0 {
			return errors.New("it has not")
		}
		return nil
	})
	b.flush()
	if err := errors.Join(o.errs["first"], o.errs["second"]); err != nil {
		t.Error(err)
	}
	if got := b.job("job").Status.Running; got != 2 {
		t.Errorf("running is %d after %d attempts, want the last status", got, updates.Load())
	}
}
