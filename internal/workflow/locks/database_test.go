package locks

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// model is a database of locks in memory, with rows "name holder" of one table or several.
type model struct {
	limits map[string]int             // by key
	held   map[string]map[string]bool // holders by key
}

func (m *model) answer(q Question) Answer {
	for _, key := range q.Keys {
		if !m.held[key][q.Holder] && len(m.held[key]) >= m.limits[key] {
			return Answer{Blocked: key, Holders: slices.Sorted(maps.Keys(m.held[key])), Limit: m.limits[key]}
		}
	}
	for _, key := range q.Keys {
		if m.held[key] == nil {
			m.held[key] = map[string]bool{}
		}
		m.held[key][q.Holder] = true
	}
	return Answer{Granted: true}
}

func (m *model) leave(t *Table) {
	for _, d := range t.Departures() {
		for _, key := range d.Keys {
			delete(m.held[key], d.Holder)
		}
		t.Departed(d)
	}
}

// round asks for what a table wants, and returns the states.
func (m *model) round(t *Table) []State {
	m.leave(t)
	var states []State
	done := map[string]bool{}
	for list := t.Ask(done); len(list) > 0; list = t.Ask(done) {
		for _, q := range list {
			done[q.Holder] = true
			states = append(states, t.Decide(q, m.answer(q))...)
		}
	}
	return states
}

func TestKeysOfTheDatabase(t *testing.T) {
	for key, want := range map[string]string{
		DatabaseMutexKey("ns", "m/x"):    "true false ns/Database/m/x mtx/ns/m/x ",
		DatabaseSemaphoreKey("ns", "k"):  "true true ns/Database/k sem/ns/k ns/k",
		MutexKey("ns", "Database/x"):     "false false ns/Mutex/Database/x - -",
		SemaphoreKey("ns", "cm", "k"):    "false true ns/ConfigMap/cm/k - -",
		DatabaseMutexKey("ns", "sem/ns"): "true false ns/Database/sem/ns mtx/ns/sem/ns ",
	} {
		name, limit := "-", "-"
		if InDatabase(key) {
			name, limit = RowName(key)
			if back, found := KeyOfRow(name); !found || back != key {
				t.Errorf("%s: the row %s is of %s", key, name, back)
			}
		}
		if got := fmt.Sprintf("%t %t %s %s %s", InDatabase(key), IsSemaphore(key), Shown(key), name, limit); got != want {
			t.Errorf("%s: %s, want %s", key, got, want)
		}
	}
	if _, found := KeyOfRow("other/ns/x"); found {
		t.Error("a row of another kind has a key")
	}
}

func TestTheDatabaseDecides(t *testing.T) {
	table := New(nil)
	local, shared := MutexKey("ns", "l"), DatabaseMutexKey("ns", "d")
	db := &model{limits: map[string]int{shared: 1}, held: map[string]map[string]bool{shared: {"west:ns/w": true}}}
	if s := ask(table, "ns/a", local, shared); s.Granted || s.Waiting != shared {
		t.Fatalf("granted without the database: %+v", s)
	}
	if s := ask(table, "ns/b", local); s.Granted {
		t.Error("a later request overtakes on a local lock")
	}
	states := db.round(table)
	if len(states) != 1 || states[0].Granted || states[0].Message != "Waiting for ns/Database/d lock. Lock status: 0/1" ||
		!slices.Equal(states[0].Holders, []string{"west:ns/w"}) {
		t.Errorf("held elsewhere: %+v", states)
	}
	states = table.Trouble("the database does not answer: gone")
	if len(states) != 1 || states[0].Message != "Waiting for ns/Database/d lock: the database does not answer: gone" {
		t.Errorf("no database: %+v", states)
	}
	if states := table.Trouble("the database does not answer: gone"); len(states) != 0 {
		t.Errorf("the same again: %+v", states)
	}
	if s := ask(table, "ns/c", MutexKey("ns", "other")); !s.Granted {
		t.Errorf("a lock that is not in the database: %+v", s)
	}
	if states := table.Trouble(""); len(states) != 1 || strings.Contains(states[0].Message, "answer") {
		t.Errorf("it answers again: %+v", states)
	}
	delete(db.held[shared], "west:ns/w")
	expect(t, "free", db.round(table), "ns/a")
	expect(t, "nothing is asked twice", db.round(table))
	expect(t, "a ends", table.Release("ns/a"), "ns/b")
	if !db.held[shared]["ns/a"] {
		t.Error("the row is gone before the departure")
	}
	db.leave(table)
	if db.held[shared]["ns/a"] || len(table.Departures()) != 0 {
		t.Error("the row stays")
	}
}

func TestAnAnswerThatIsTooLate(t *testing.T) {
	table := New(nil)
	key := DatabaseMutexKey("ns", "d")
	db := &model{limits: map[string]int{key: 1}, held: map[string]map[string]bool{}}
	ask(table, "ns/a", key)
	old := table.Ask(nil)[0]
	table.Release("ns/a")
	ask(table, "ns/a", key)
	expect(t, "the answer to the first request", table.Decide(old, db.answer(old)))
	if q := table.Ask(nil); len(q) > 0 {
		t.Errorf("%v is asked while its rows of before are leaving", q)
	}
	db.leave(table)
	second := table.Ask(nil)[0]
	expect(t, "the same after the second request was asked", table.Decide(old, Answer{Granted: true}))
	expect(t, "the second request", table.Decide(second, db.answer(second)), "ns/a")
	table.Release("ns/a")
	if db.leave(table); len(db.held[key]) != 0 {
		t.Errorf("left: %v", db.held)
	}
	ask(table, "ns/b", key)
	refused := table.Ask(nil)[0]
	s := table.Decide(refused, Answer{Blocked: key, Err: errors.New("no limit")})
	if len(s) != 1 || s[0].Err == nil || table.Knows("ns/b") || len(table.locks) != 0 {
		t.Errorf("a request that can never be granted: %+v, %v", s, table.locks)
	}
}

func TestRestoreLocksOfTheDatabase(t *testing.T) {
	table := New(nil)
	status := &wf.SynchronizationStatus{
		Mutex: &wf.LockStatus{Holding: []wf.LockHolding{{Mutex: "ns/Database/d", Holder: "ns/w"}, {Mutex: "ns/Database/x", Holder: "ns/other"}}},
		Semaphore: &wf.LockStatus{Holding: []wf.LockHolding{{Semaphore: "ns/Database/d", Holders: []string{"ns/w/n"}},
			{Semaphore: "elsewhere/Database/d", Holders: []string{"ns/w/n"}}}},
	}
	table.Restore(HeldBy("ns", "w", status))
	var got []string
	for _, q := range table.Held() {
		got = append(got, q.Holder+" "+strings.Join(q.Keys, ","))
	}
	if want := []string{"ns/w " + DatabaseMutexKey("ns", "d"), "ns/w/n " + DatabaseSemaphoreKey("ns", "d")}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if table.Stale("ns/w", DatabaseMutexKey("ns", "d")) || !table.Stale("ns/w", DatabaseMutexKey("ns", "e")) {
		t.Error("which rows are stale")
	}
}

// TestTwoTablesShareADatabase lets two controllers acquire and release locks of both kinds at random.
// No lock ever has too many holders, and in the end every request has been granted.
func TestTwoTablesShareADatabase(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shared := []string{DatabaseMutexKey("ns", "m"), DatabaseSemaphoreKey("ns", "s")}
		db := &model{limits: map[string]int{shared[0]: 1, shared[1]: 2}, held: map[string]map[string]bool{}}
		keys := append([]string{MutexKey("ns", "l"), MutexKey("ns", "o")}, shared...)
		tables := []*Table{New(nil), New(nil)}
		asked, held := map[string][]string{}, map[string]bool{}
		granted := func(states []State) {
			for _, s := range states {
				if !s.Granted {
					continue
				}
				if held[s.Holder] || asked[s.Holder] == nil {
					t.Fatalf("%s is granted again", s.Holder)
				}
				held[s.Holder] = true
			}
		}
		release := func(of int, holder string) {
			delete(held, holder)
			delete(asked, holder)
			granted(tables[of].Release(holder))
		}
		var open [][]Question
		check := func() {
			count := map[string]int{}
			for holder := range held {
				for _, key := range asked[holder] {
					if cluster, _, _ := strings.Cut(holder, "-"); !InDatabase(key) {
						key = cluster + key
					}
					count[key]++
				}
			}
			for key, n := range count {
				if limit := max(1, db.limits[key]); n > limit {
					t.Fatalf("%s has %d holders of %d", key, n, limit)
				}
			}
		}
		for i := range rapid.IntRange(1, 80).Draw(t, "operations") {
			of := rapid.IntRange(0, 1).Draw(t, "table")
			holder := fmt.Sprintf("ns/c%d-%d", of, rapid.IntRange(0, 5).Draw(t, "holder"))
			switch rapid.IntRange(0, 5).Draw(t, "operation") {
			case 0, 1:
				if asked[holder] == nil {
					asked[holder] = rapid.SliceOfNDistinct(rapid.SampledFrom(keys), 1, 3, rapid.ID).Draw(t, "keys")
					granted([]State{tables[of].Acquire(Request{Holder: holder, Keys: asked[holder], Created: start.Add(time.Duration(i % 7)), Priority: int32(i % 3)})})
				}
			case 2:
				release(of, holder)
			case 3: // an answer may arrive after other changes
				for _, q := range tables[of].Ask(nil) {
					open = append(open, []Question{q, {seq: of}})
				}
			case 4:
				for _, o := range open {
					granted(tables[o[1].seq].Decide(o[0], db.answer(o[0])))
				}
				open = nil
				granted(db.round(tables[of]))
			default:
				open = nil
				granted(tables[of].Trouble(rapid.SampledFrom([]string{"", "gone"}).Draw(t, "trouble")))
			}
			check()
		}
		open = nil
		for _, table := range tables {
			granted(table.Trouble(""))
		}
		for range 40 {
			for of, table := range tables {
				granted(db.round(table))
				check()
				for holder := range maps.Clone(held) {
					if strings.HasPrefix(holder, fmt.Sprintf("ns/c%d-", of)) {
						release(of, holder)
					}
				}
				db.leave(table)
			}
		}
		if len(asked) != 0 {
			t.Fatalf("%v wait for ever; %v", asked, db.held)
		}
		for _, table := range tables {
			if len(table.locks)+len(table.requests)+len(table.database.leaving) != 0 {
				t.Fatalf("left: %v %v %v", table.locks, table.requests, table.database.leaving)
			}
		}
	})
}
