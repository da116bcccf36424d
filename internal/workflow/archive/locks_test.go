package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/workflow/locks"
)

// sharedLocks is a database of locks with tables of its own for a test.
type sharedLocks struct {
	*testing.T
	source string
	tables LockTables
}

// lockDatabases calls do with PostgreSQL, where there is one, and the database that
// $LOCKSTEP_TEST_MYSQL names.
func lockDatabases(t *testing.T, do func(s *sharedLocks)) {
	tested := false
	for name, source := range map[string]string{"postgres": localtest.Postgres(t), "mysql": os.Getenv("LOCKSTEP_TEST_MYSQL")} {
		if source == "" {
			continue
		}
		tested = true
		t.Run(name, func(t *testing.T) {
			suffix := fmt.Sprintf("_%d", time.Now().UnixNano())
			s := &sharedLocks{t, source, LockTables{Limit: "sync_limit" + suffix, State: "sync_state" + suffix,
				Controller: "sync_controller" + suffix, Lock: "sync_lock" + suffix, Migrate: true, Inactive: 5 * time.Minute}}
			l := s.open("cleaner")
			defer func() {
				for _, table := range []string{s.tables.Limit, s.tables.State, s.tables.Controller, s.tables.Lock} {
					if _, err := l.db.sql.ExecContext(context.Background(), "drop table "+table); err != nil {
						t.Error(err)
					}
				}
			}()
			do(s)
		})
	}
	if !tested {
		t.Skip(localtest.NoPostgres)
	}
}

// open opens the database as a controller that is active at noon.
func (s *sharedLocks) open(controller string) *Locks {
	s.Helper()
	tables := s.tables
	tables.ControllerName = controller
	l, err := OpenLocks(s.Context(), s.source, tables)
	if err == nil {
		err = l.Heartbeat(s.Context(), noon)
	}
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = l.Close() })
	return l
}

func (s *sharedLocks) do(l *Locks, statement string, args ...any) {
	s.Helper()
	if err := l.exec(s.Context(), l.db.sql, statement, args...); err != nil {
		s.Fatal(err)
	}
}

func lockQuestion(holder string, priority int32, age time.Duration, keys ...string) locks.Question {
	return locks.Question{Request: locks.Request{Holder: holder, Keys: keys, Priority: priority, Created: noon.Add(-age)}}
}

// ask returns the answer as a text.
func (s *sharedLocks) ask(l *Locks, now time.Time, q locks.Question) string {
	s.Helper()
	a, err := l.Acquire(s.Context(), now, q)
	switch {
	case err != nil:
		s.Fatal(err)
	case a.Err != nil:
		return a.Err.Error()
	case a.Granted:
		return "granted"
	}
	return fmt.Sprintf("%s %d %s", a.Blocked, a.Limit, strings.Join(a.Holders, ","))
}

func (s *sharedLocks) expect(what, got, want string) {
	s.Helper()
	if got != want {
		s.Errorf("%s: %q, want %q", what, got, want)
	}
}

func (s *sharedLocks) leave(l *Locks, q locks.Question) {
	s.Helper()
	if err := l.Leave(s.Context(), locks.Departure{Holder: q.Holder, Keys: q.Keys}); err != nil {
		s.Fatal(err)
	}
}

func (s *sharedLocks) rows(l *Locks) string {
	s.Helper()
	rows, err := l.Rows(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	slices.SortFunc(rows, func(a, b locks.Row) int { return cmp.Or(cmp.Compare(a.Holder, b.Holder), cmp.Compare(a.Key, b.Key)) })
	return fmt.Sprint(rows)
}

func TestLocksOfSeveralControllers(t *testing.T) {
	lockDatabases(t, func(s *sharedLocks) {
		east, west := s.open("east"), s.open("west")
		m, k := locks.DatabaseMutexKey("ns", "m"), locks.DatabaseSemaphoreKey("ns", "k")
		a, b, c := lockQuestion("ns/a", 0, time.Hour, m), lockQuestion("ns/b", 0, 2*time.Hour, m), lockQuestion("ns/c", 1, time.Minute, m)

		s.expect("a free mutex", s.ask(east, noon, a), "granted")
		s.expect("asked again, as after a crash", s.ask(east, noon, a), "granted")
		s.expect("a held mutex", s.ask(west, noon, b), m+" 1 east:ns/a")
		s.expect("a holder of the same name elsewhere", s.ask(west, noon, lockQuestion("ns/a", 0, 0, m)), m+" 1 east:ns/a")
		s.leave(west, lockQuestion("ns/a", 0, 0, m))
		s.expect("the rows of west", s.rows(west), "[{ns/b "+m+" false}]")
		s.expect("the rows of east", s.rows(east), "[{ns/a "+m+" true}]")

		s.leave(east, a)
		s.expect("a younger one of east", s.ask(east, noon, a), m+" 1 ")
		s.expect("an important one of east", s.ask(east, noon, c), "granted")
		s.leave(east, c)
		s.expect("the older one of west", s.ask(west, noon, b), "granted")
		s.leave(west, b)
		s.expect("when nobody is earlier", s.ask(east, noon, a), "granted")
		s.leave(east, a)

		// The requests of a controller that is not active do not count; its locks do.
		if err := west.Queue(t.Context(), []locks.Question{b}); err != nil {
			t.Fatal(err)
		}
		later := noon.Add(6 * time.Minute)
		s.expect("west is active", s.ask(east, noon, a), m+" 1 ")
		s.expect("west is not active", s.ask(east, later, a), "granted")
		s.leave(east, a)
		s.expect("its own request", s.ask(west, later, b), "granted")
		s.expect("what west holds", s.ask(east, later, a), m+" 1 west:ns/b")

		s.expect("no limit", s.ask(east, noon, lockQuestion("ns/d", 0, 0, k)), `semaphore ns/Database/k: table `+s.tables.Limit+` has no limit for "ns/k"`)
		s.do(east, `insert into `+s.tables.Limit+` (name, sizelimit) values ('ns/k', 2)`)
		s.expect("first of two", s.ask(east, noon, lockQuestion("ns/d", 0, 0, k)), "granted")
		both := lockQuestion("ns/e", 0, 0, k, m)
		s.expect("all or none", s.ask(east, noon, both), m+" 1 west:ns/b")
		s.expect("the place is free", s.ask(west, noon, lockQuestion("ns/f", 0, 0, k)), "granted")
		s.leave(west, b)
		s.expect("the limit is reached", s.ask(east, noon, both), k+" 2 ns/d,west:ns/f")
		s.do(east, `update `+s.tables.Limit+` set sizelimit = 3`)
		s.expect("a is first", s.ask(east, noon, a), "granted")
		s.leave(east, a)
		s.expect("both", s.ask(east, noon, both), "granted")
		if err := east.Hold(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		s.expect("it holds whatever the limit", s.rows(east), "[{ns/a "+m+" true} {ns/d "+k+" true} {ns/e "+k+" true} {ns/e "+m+" true}]")
	})
}

// TestAControllerThatDiedWhileItAcquired checks what becomes of rows that Argo's controllers commit
// while they change the holders of a lock.
func TestAControllerThatDiedWhileItAcquired(t *testing.T) {
	lockDatabases(t, func(s *sharedLocks) {
		east, west := s.open("east"), s.open("west")
		m := locks.DatabaseMutexKey("ns", "m")
		q := lockQuestion("ns/a", 0, 0, m)
		s.do(west, `insert into `+s.tables.Lock+` (name, controller, time) values ('mtx/ns/m', 'west', ?)`, noon)
		s.expect("west is active", s.ask(east, noon, q), " 0 ")
		if err := east.Heartbeat(t.Context(), noon.Add(4*time.Minute)); err != nil {
			t.Fatal(err)
		}
		s.expect("west is still active", s.ask(east, noon, q), " 0 ")
		if err := east.Heartbeat(t.Context(), noon.Add(6*time.Minute)); err != nil {
			t.Fatal(err)
		}
		s.expect("west is not active", s.ask(east, noon, q), "granted")
		s.leave(east, q)
		s.do(west, `insert into `+s.tables.Lock+` (name, controller, time) values ('mtx/ns/m', 'east', ?)`, noon)
		s.expect("a row of an earlier east", s.ask(east, noon, q), " 0 ")
		s.expect("a new east", s.ask(s.open("east"), noon, q), "granted")
	})
}

// TestLocksUnderContention lets controllers acquire and release the same locks at the same time.
func TestLocksUnderContention(t *testing.T) {
	lockDatabases(t, func(s *sharedLocks) {
		m, k := locks.DatabaseMutexKey("ns", "m"), locks.DatabaseSemaphoreKey("ns", "k")
		s.do(s.open("first"), `insert into `+s.tables.Limit+` (name, sizelimit) values ('ns/k', 2)`)
		var inMutex, inSemaphore atomic.Int32
		var all sync.WaitGroup
		for i, l := range []*Locks{s.open("c0"), s.open("c1"), s.open("c2"), s.open("c3")} {
			all.Go(func() {
				for n := 0; n < 15; {
					keys := [][]string{{m}, {k}, {m, k}, {k, m}}[(i+n)%4]
					q := lockQuestion(fmt.Sprintf("ns/w%d", n), 0, 0, keys...)
					a, err := l.Acquire(t.Context(), noon, q)
					if err != nil || a.Err != nil {
						t.Error(errors.Join(err, a.Err))
						return
					}
					if !a.Granted {
						continue
					}
					for _, key := range keys {
						if in, limit := &inMutex, int32(1); key == m && in.Add(1) > limit {
							t.Error("two holders of the mutex")
						}
						if in, limit := &inSemaphore, int32(2); key == k && in.Add(1) > limit {
							t.Error("three holders of the semaphore")
						}
					}
					for _, key := range keys {
						if key == m {
							inMutex.Add(-1)
						} else {
							inSemaphore.Add(-1)
						}
					}
					if err := l.Leave(t.Context(), locks.Departure{Holder: q.Holder, Keys: keys}); err != nil {
						t.Error(err)
						return
					}
					n++
				}
			})
		}
		all.Wait()
	})
}

func TestTheDatabaseOfLocksKeepsItsPassword(t *testing.T) {
	for _, source := range []string{"postgres://u:hunter2@127.0.0.1:1/db?connect_timeout=1", "mysql://u:hunter2@127.0.0.1:1/db", "postgres://u:hunter2@%zz/db"} {
		l, err := OpenLocks(t.Context(), source, LockTables{Limit: "a", State: "b", Controller: "c", Lock: "d", Migrate: true})
		if err == nil {
			l.Close()
			t.Errorf("%s: opened", source)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error has the password: %v", err)
		}
	}
	if _, err := OpenLocks(t.Context(), "postgres://h/d", LockTables{Limit: "a", State: "b;", Controller: "c", Lock: "d"}); err == nil {
		t.Error("the name of a table is SQL")
	}
}
