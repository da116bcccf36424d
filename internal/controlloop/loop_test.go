package controlloop_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/panics"
)

// rec is a record that only its turn may touch; the race detector checks this.
type rec struct{ got []string }

// running runs a loop; end stops the loop and waits for its end.
func running[K comparable](t interface{ Cleanup(func()) }, l *controlloop.Loop[K, rec]) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { l.Run(ctx) })
	end = func() { cancel(); done.Wait() }
	t.Cleanup(end)
	return end
}

// TestEveryPostRunsOnce posts from several goroutines to a few keys whose turns create and drop
// records at random, and compares the functions that ran with those that Post accepted.
func TestEveryPostRunsOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.IntRange(1, 4).Draw(t, "keys")
		workers := rapid.IntRange(1, 4).Draw(t, "workers")
		posters := rapid.IntRange(1, 4).Draw(t, "posters")
		dropEvery := rapid.IntRange(2, 9).Draw(t, "drop every")
		plans := make([][]int, posters)
		for p := range plans {
			plans[p] = rapid.SliceOfN(rapid.IntRange(0, keys-1), 0, 60).Draw(t, fmt.Sprintf("posts of %d", p))
		}

		var l *controlloop.Loop[int, rec]
		busy := make([]atomic.Int32, keys)
		turns := make([]int, keys) // each touched by its key's turn only
		var atOnce, most atomic.Int32
		turn := func(key int) {
			if busy[key].Add(1) != 1 {
				t.Errorf("two turns of key %d at once", key)
			}
			n := atOnce.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			turns[key]++
			switch {
			case l.Get(key) == nil:
				l.Put(key, &rec{})
			case turns[key]%dropEvery == 0:
				l.Drop(key)
			default:
				l.Deliver(key, "now")
			}
			atOnce.Add(-1)
			busy[key].Add(-1)
		}
		l = controlloop.New[int, rec](controlloop.Config[int]{Workers: workers, Turn: turn})
		end := running(t, l)
		for key := range keys {
			l.Wake(key)
		}

		var mu sync.Mutex
		ran := map[string]int{}
		var wanted []string
		var all sync.WaitGroup
		for p, plan := range plans {
			all.Go(func() {
				for i, key := range plan {
					id := fmt.Sprintf("%d of %d", i, p)
					ok := l.Post(key, controlloop.Anyone, func(r *rec) {
						r.got = append(r.got, id)
						mu.Lock()
						ran[id]++
						mu.Unlock()
					})
					if ok {
						mu.Lock()
						wanted = append(wanted, id)
						mu.Unlock()
					} else {
						l.Wake(key)
					}
				}
			})
		}
		all.Wait()
		end() // queued keys have their turn
		for key := range keys {
			// A key's last turn may have put a record that received posts during the turn.
			l.Drop(key)
		}
		for _, id := range wanted {
			if ran[id] != 1 {
				t.Errorf("post %s ran %d times", id, ran[id])
			}
		}
		if len(ran) != len(wanted) {
			t.Errorf("%d posts ran, and %d were taken", len(ran), len(wanted))
		}
		if int(most.Load()) > workers {
			t.Errorf("%d turns at once, with %d workers", most.Load(), workers)
		}
	})
}

// TestNoWakeUpIsLost raises a number and wakes, again and again: the last turn has to see the last
// number, however the turns interleave.
func TestNoWakeUpIsLost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		wakes := rapid.IntRange(1, 300).Draw(t, "wakes")
		wakers := rapid.IntRange(1, 4).Draw(t, "wakers")
		var number, seen atomic.Int64
		l := controlloop.New[string, rec](controlloop.Config[string]{Workers: 2, Turn: func(string) { seen.Store(number.Load()) }})
		end := running(t, l)
		var all sync.WaitGroup
		for range wakers {
			all.Go(func() {
				for range wakes {
					number.Add(1)
					l.Wake("key")
				}
			})
		}
		all.Wait()
		end()
		if got := seen.Load(); got != int64(wakes*wakers) {
			t.Fatalf("the last turn saw %d of %d", got, wakes*wakers)
		}
	})
}

func TestPostsAreForOneLifeOfAKey(t *testing.T) {
	l := controlloop.New[string, rec](controlloop.Config[string]{Turn: func(string) {}})
	note := func(s string) func(*rec) { return func(r *rec) { r.got = append(r.got, s) } }
	if l.Post("key", controlloop.Anyone, note("nobody is there")) {
		t.Fatal("a post to a key without a record was taken")
	}
	r := &rec{}
	l.Put("key", r)
	l.Post("key", "old", note("for the one before"))
	l.PostLatest("key", "new", "pod", note("pod: 1"))
	l.Post("key", "new", note("for this one"))
	l.PostLatest("key", "old", "pod", note("pod of the one before"))
	l.PostLatest("key", "new", "other", note("other: 1"))
	l.PostLatest("key", "new", "other", note("other: 2"))
	l.Post("key", controlloop.Anyone, note("for anyone"))
	l.Deliver("key", "new")
	l.Deliver("key", "new") // nothing is left
	if want := []string{"pod: 1", "for this one", "other: 2", "for anyone"}; !slices.Equal(r.got, want) {
		t.Fatalf("delivered %q, want %q", r.got, want)
	}
	r.got = nil
	l.PostLatest("key", "new", "other", note("other: 3"))
	l.Post("key", controlloop.Anyone, note("to give back"))
	l.Drop("key")
	if want := []string{"to give back"}; !slices.Equal(r.got, want) || l.Records() != 0 || l.Get("key") != nil {
		t.Fatalf("dropping delivered %q, want %q; %d records are left", r.got, want, l.Records())
	}
}

// TestAPostHasItsTurn posts to keys that nothing else wakes.
func TestAPostHasItsTurn(t *testing.T) {
	for name, post := range map[string]func(*controlloop.Loop[string, rec], func(*rec)) bool{
		"Post": func(l *controlloop.Loop[string, rec], do func(*rec)) bool { return l.Post("key", "uid", do) },
		"PostLatest": func(l *controlloop.Loop[string, rec], do func(*rec)) bool {
			return l.PostLatest("key", "uid", "pod", do)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var l *controlloop.Loop[string, rec]
			l = controlloop.New[string, rec](controlloop.Config[string]{Turn: func(key string) { l.Deliver(key, "uid") }})
			l.Put("key", &rec{})
			end := running(t, l)
			ran := 0
			if !post(l, func(*rec) { ran++ }) {
				t.Fatal("a post to a key that has a record is not taken")
			}
			end() // queued keys have their turn
			if ran != 1 {
				t.Errorf("the post ran %d times", ran)
			}
		})
	}
}

func TestKeysAreWokenAtTheEarliestTimeAskedFor(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(0, 0))
	turns := make(chan string, 10)
	l := controlloop.New[string, rec](controlloop.Config[string]{Workers: 1, Clock: clock, Turn: func(k string) { turns <- k }})
	running(t, l)
	l.WakeAfter("late", time.Minute)
	l.WakeAfter("late", time.Second)
	l.WakeAfter("late", time.Hour)
	l.WakeAfter("now", 0)
	if got := <-turns; got != "now" {
		t.Fatalf("%s had the first turn", got)
	}
	for range 9 {
		clock.Step(100 * time.Millisecond)
		select {
		case got := <-turns:
			t.Fatalf("%s was woken after %v", got, clock.Since(time.Unix(0, 0)))
		default:
		}
	}
	clock.Step(100 * time.Millisecond)
	select {
	case got := <-turns:
		if got != "late" {
			t.Fatalf("%s was woken", got)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("nothing is woken at the earliest time")
	}
}

func TestSweepsComeAtTheirIntervalAndEachSeesAllRecords(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(0, 0))
	swept := make(chan int, 1)
	var l *controlloop.Loop[types.NamespacedName, rec]
	l = controlloop.New[types.NamespacedName, rec](controlloop.Config[types.NamespacedName]{
		Clock: clock, SweepEvery: 10 * time.Second, Turn: func(types.NamespacedName) {},
		Sweep: func() {
			n := 0
			l.Each(func(key types.NamespacedName, _ *rec) {
				n++
				l.Post(key, controlloop.Anyone, func(*rec) {})
			})
			select {
			case swept <- n:
			default: // nobody asks any more
			}
		},
	})
	for i := range 3 {
		l.Put(types.NamespacedName{Name: fmt.Sprint(i)}, &rec{})
	}
	running(t, l)
	ticks, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		for ticks.Err() == nil {
			if clock.HasWaiters() { // the loop waits
				clock.Step(10 * time.Second)
			}
			runtime.Gosched()
		}
	}()
	for range 2 {
		if n := <-swept; n != 3 {
			t.Fatalf("a sweep saw %d records", n)
		}
	}
}

// TestAPanicDropsTheRecordAndOthersGoOn checks that, after a panic, functions posted for Anyone
// run, and that the key's next turn begins without a record.
func TestAPanicDropsTheRecordAndOthersGoOn(t *testing.T) {
	guard, err := panics.New(slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	panicked, turns := make(chan string, 1), make(chan string, 2)
	var l *controlloop.Loop[string, rec]
	l = controlloop.New[string, rec](controlloop.Config[string]{
		Workers: 1, Guard: guard, Panicked: func(key string, p *panics.Panic) {
			if l.Get(key) == nil {
				t.Error("the record was dropped before what it has can be given back")
			}
			panicked <- key
		},
		Turn: func(key string) {
			if key == "bad" && l.Get(key) != nil {
				panic("half-changed")
			}
			turns <- key
		},
	})
	r := &rec{}
	l.Put("bad", r)
	l.Post("bad", controlloop.Anyone, func(r *rec) { r.got = append(r.got, "given back") })
	running(t, l)
	if got := <-panicked; got != "bad" {
		t.Fatalf("the turn of %s panicked", got)
	}
	l.Wake("good")
	if got := <-turns; got != "good" {
		t.Fatalf("%s had a turn", got)
	}
	l.Wake("bad")
	if got := <-turns; got != "bad" || !slices.Equal(r.got, []string{"given back"}) {
		t.Errorf("then %s had a turn, and %q was run", got, r.got)
	}
}

// TestRetriesAreDelayed checks that failures in a row are retried after delays that double, that
// other wake-ups do not wait, and that a success forgets the failures.
func TestRetriesAreDelayed(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(0, 0))
	turns := make(chan time.Duration, 10)
	l := controlloop.New[string, rec](controlloop.Config[string]{
		Workers: 1, Clock: clock, RetryMin: time.Second, RetryMax: 4 * time.Second, Turn: func(string) { turns <- clock.Since(time.Unix(0, 0)) },
	})
	running(t, l)
	next := func(want time.Duration) {
		t.Helper()
		for {
			select {
			case got := <-turns:
				if got != want {
					t.Fatalf("a turn at %s, want it at %s", got, want)
				}
				return
			case <-time.After(time.Millisecond):
				if clock.HasWaiters() && clock.Since(time.Unix(0, 0)) < want {
					clock.Step(500 * time.Millisecond)
				}
			}
		}
	}
	at := time.Duration(0)
	for _, delay := range []time.Duration{1, 2, 4, 4} {
		l.Retry("key")
		at += delay * time.Second
		next(at)
	}
	l.Succeeded("key")
	l.Retry("key")
	l.Wake("key")
	next(at)
	next(at + time.Second)
}
