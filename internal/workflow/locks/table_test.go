package locks

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

var start = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func ask(t *Table, holder string, keys ...string) State {
	return t.Acquire(Request{Holder: holder, Keys: keys, Created: start})
}

func holders(states []State) []string {
	var names []string
	for _, s := range states {
		names = append(names, s.Holder)
	}
	return names
}

func expect(t *testing.T, what string, got []State, want ...string) {
	t.Helper()
	if !slices.Equal(holders(got), want) {
		t.Errorf("%s: granted %v, want %v", what, holders(got), want)
	}
}

func TestMutexGoesFromHolderToHolder(t *testing.T) {
	table := New(nil)
	m := MutexKey("ns", "m")
	if s := ask(table, "ns/a", m); !s.Granted {
		t.Fatalf("first: %+v", s)
	}
	s := ask(table, "ns/b", m)
	if s.Granted || s.Message != "Waiting for ns/Mutex/m lock. Lock status: 0/1" || !slices.Equal(s.Holders, []string{"ns/a"}) || s.Waiting != m {
		t.Errorf("second: %+v", s)
	}
	ask(table, "ns/c", m)
	if again := ask(table, "ns/a", m); !again.Granted {
		t.Errorf("asking again: %+v", again)
	}
	expect(t, "b leaves the line", table.Release("ns/b"))
	expect(t, "a releases", table.Release("ns/a"), "ns/c")
	expect(t, "a releases again", table.Release("ns/a"))
	expect(t, "c releases", table.Release("ns/c"))
	if len(table.locks) != 0 {
		t.Errorf("left: %v", table.locks)
	}
}

// TestARefusedRequestLeavesNoLocks checks that a request with a semaphore that has no limit does
// not keep the ConfigMaps of its other semaphores in use.
func TestARefusedRequestLeavesNoLocks(t *testing.T) {
	table := New(func(_, configMap, _ string) (int, error) {
		if configMap == "missing" {
			return 0, errors.New("not found")
		}
		return 1, nil
	})
	held, free, missing := SemaphoreKey("ns", "held", "k"), SemaphoreKey("ns", "free", "k"), SemaphoreKey("ns", "missing", "k")
	ask(table, "ns/a", held)
	if s := ask(table, "ns/b", held, free, missing, MutexKey("ns", "m")); s.Err == nil || s.Waiting != missing {
		t.Errorf("the state is %+v, want an error about %s", s, missing)
	}
	if len(table.locks) != 1 || len(table.locks[held].holders) != 1 {
		t.Errorf("the locks are %v, want only the one that is held", table.locks)
	}
}

func TestPriorityThenAge(t *testing.T) {
	table := New(nil)
	m := MutexKey("ns", "m")
	ask(table, "ns/first", m)
	for _, r := range []Request{
		{Holder: "ns/young", Created: start.Add(2)},
		{Holder: "ns/old", Created: start.Add(1)},
		{Holder: "ns/important", Created: start.Add(3), Priority: 5},
		{Holder: "ns/old/n", Created: start.Add(1), Since: start.Add(-1)},
	} {
		r.Keys = []string{m}
		table.Acquire(r)
	}
	holder := "ns/first"
	for _, want := range []string{"ns/important", "ns/old", "ns/old/n", "ns/young"} {
		expect(t, holder, table.Release(holder), want)
		holder = want
	}
}

func TestSemaphoreFollowsItsLimit(t *testing.T) {
	limit := 2
	var missing error
	table := New(func(namespace, configMap, key string) (int, error) {
		if namespace+"/"+configMap+"/"+key != "ns/cm/k" {
			t.Errorf("asked for %s/%s/%s", namespace, configMap, key)
		}
		return limit, missing
	})
	s := SemaphoreKey("ns", "cm", "k")
	for i := range 5 {
		if got := ask(table, fmt.Sprintf("ns/w%d", i), s); got.Granted != (i < 2) {
			t.Errorf("%d: %+v", i, got)
		}
	}
	limit = 4
	expect(t, "more room", table.LimitChanged("ns", "cm"), "ns/w2", "ns/w3")
	limit = 1
	expect(t, "less room", table.LimitChanged("ns", "cm"))
	expect(t, "still too many", table.Release("ns/w0"))
	missing = errors.New("configmaps \"cm\" not found")
	if got := ask(table, "ns/late", s); got.Err == nil || got.Message != `semaphore ns/ConfigMap/cm/k: configmaps "cm" not found` {
		t.Errorf("no ConfigMap: %+v", got)
	}
	expect(t, "w1", table.Release("ns/w1"))
	expect(t, "w2", table.Release("ns/w2"))
	expect(t, "w3", table.Release("ns/w3"), "ns/w4")
}

func TestAllOrNone(t *testing.T) {
	table := New(nil)
	a, b := MutexKey("ns", "a"), MutexKey("ns", "b")
	ask(table, "ns/x", b)
	if s := ask(table, "ns/both", a, b, b); s.Granted || s.Waiting != b {
		t.Errorf("%+v", s)
	}
	if s := ask(table, "ns/behind", a); s.Granted || s.Waiting != a || s.Message != "Waiting for ns/Mutex/a lock. Lock status: 1/1" {
		t.Errorf("%+v", s)
	}
	expect(t, "b is free", table.Release("ns/x"), "ns/both")
	expect(t, "a is free", table.Release("ns/both"), "ns/behind")
}

func TestForgetAWorkflow(t *testing.T) {
	table := New(nil)
	a, b := MutexKey("ns", "a"), MutexKey("ns", "b")
	ask(table, "ns/w", a)
	ask(table, "ns/w/n1", b)
	ask(table, "ns/w2", a)
	ask(table, "ns/w2/n", b)
	expect(t, "w is deleted", table.Forget("ns", "w"), "ns/w2", "ns/w2/n")
}

func TestRestoreFromStatus(t *testing.T) {
	table := New(func(string, string, string) (int, error) { return 2, nil })
	m, s := MutexKey("ns", "m"), SemaphoreKey("ns", "cm", "k")
	table.Restore(&wf.SynchronizationStatus{
		Mutex:     &wf.LockStatus{Holding: []wf.LockHolding{{Mutex: m, Holder: "ns/w/n"}}, Waiting: []wf.LockHolding{{Mutex: "ns/Mutex/x", Holder: "ns/y"}}},
		Semaphore: &wf.LockStatus{Holding: []wf.LockHolding{{Semaphore: s, Holders: []string{"ns/w/n", "ns/w/o"}}}},
	})
	if got := ask(table, "ns/w/n", m, s); !got.Granted {
		t.Errorf("it holds: %+v", got)
	}
	if got := ask(table, "ns/v", s); got.Granted {
		t.Errorf("no room: %+v", got)
	}
	expect(t, "n ends", table.Release("ns/w/n"), "ns/v")
}

// TestAlways acquires and releases locks at random, and checks that no lock has too many holders
// and that no request that is first in all its queues waits.
func TestAlways(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := map[string]int{"k0": 1, "k1": 2, "k2": 0}
		table := New(func(_, _, key string) (int, error) { return limits[key], nil })
		keys := []string{MutexKey("ns", "m"), MutexKey("ns", "o"), SemaphoreKey("ns", "cm", "k0"), SemaphoreKey("ns", "cm", "k1"), SemaphoreKey("ns", "cm", "k2")}
		held := map[string][]string{}
		asked := map[string][]string{}
		granted := func(states ...State) {
			for _, s := range states {
				if !s.Granted {
					continue
				}
				if held[s.Holder] != nil {
					t.Fatalf("%s is granted twice", s.Holder)
				}
				held[s.Holder] = asked[s.Holder]
			}
		}
		for i := range rapid.IntRange(1, 60).Draw(t, "operations") {
			holder := fmt.Sprintf("ns/w%d", rapid.IntRange(0, 9).Draw(t, "holder"))
			switch rapid.IntRange(0, 4).Draw(t, "operation") {
			case 0, 1:
				if asked[holder] == nil {
					asked[holder] = rapid.SliceOfNDistinct(rapid.SampledFrom(keys), 1, 3, rapid.ID).Draw(t, "keys")
					granted(table.Acquire(Request{Holder: holder, Keys: asked[holder], Created: start.Add(time.Duration(i % 7)), Priority: int32(i % 3)}))
				}
			case 2, 3:
				delete(held, holder)
				delete(asked, holder)
				granted(table.Release(holder)...)
			default:
				key := rapid.SampledFrom([]string{"k0", "k1", "k2"}).Draw(t, "limit")
				limits[key] = max(limits[key], rapid.IntRange(0, 3).Draw(t, "to"))
				granted(table.LimitChanged("ns", "cm")...)
			}
			count := map[string]int{}
			for _, list := range held {
				for _, key := range list {
					count[key]++
				}
			}
			for key, n := range count {
				limit := 1
				if _, _, field, semaphore := ConfigMapOf(key); semaphore {
					limit = limits[field]
				}
				if n > limit {
					t.Fatalf("%s has %d holders of %d", key, n, limit)
				}
			}
			for _, r := range table.requests {
				if !r.granted && table.grantable(r) {
					t.Fatalf("%s waits for nothing", r.Holder)
				}
			}
		}
	})
}
