package controller_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/workflow/archive"
	"lockstep.dev/lockstep/internal/workflow/locks"
)

// otherCluster is a controller of another cluster that shares a database of locks.
type otherCluster struct {
	*env
	*archive.Locks
	name string
}

func (o *otherCluster) question(key string) locks.Question {
	return locks.Question{Request: locks.Request{Holder: "far/away", Keys: []string{key}, Created: time.Now()}}
}

func (o *otherCluster) take(key string) bool {
	o.Helper()
	a, err := o.Acquire(o.Context(), time.Now(), o.question(key))
	if err = errors.Join(err, a.Err); err != nil {
		o.Fatal(err)
	}
	if !a.Granted {
		o.give(key)
	}
	return a.Granted
}

func (o *otherCluster) give(key string) {
	o.Helper()
	if err := o.Leave(o.Context(), locks.Departure{Holder: "far/away", Keys: []string{key}}); err != nil {
		o.Fatal(err)
	}
}

// TestLocksInADatabase runs workflows with locks that the controller of another cluster shares: before
// the database is configured, while it is away, and over the death of the manager.
func TestLocksInADatabase(t *testing.T) {
	source := localtest.Postgres(t)
	if source == "" {
		t.Skip(localtest.NoPostgres)
	}
	u, err := url.Parse(source)
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("pgx", source)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	suffix := fmt.Sprint("_", time.Now().UnixNano())
	exec := func(statement string) {
		t.Helper()
		if _, err := db.ExecContext(context.Background(), strings.ReplaceAll(statement, "_$", suffix)); err != nil {
			t.Fatal(err)
		}
	}
	defer exec("drop table if exists sync_limit_$, sync_state_$, sync_controller_$, sync_lock_$")

	c := unmanaged(t, "parallelism: '100'")
	first := c.startManager("--workflow-configmap=argo/settings")
	lock := func(locks, duration string) string {
		return "entrypoint: main\ntemplates:\n- name: main\n  synchronization: {" + locks + "}\n  metadata: {annotations: {lockstep.dev/sim-duration: " +
			duration + "}}\n  container: {image: a, command: [c]}\n"
	}
	const mutex = "mutexes: [{name: m, database: true}]"

	//   1. Without a database.
	c.submit("too-early", lock(mutex, "50ms"))
	c.until("too-early", func(w *wf.Workflow) error {
		if n := w.Status.Nodes["too-early"]; w.Status.Phase != wf.WorkflowError || !strings.Contains(n.Message, "names none under the key synchronization") {
			return fmt.Errorf("%q", n.Message)
		}
		return nil
	})

	//   2. A lock that the other cluster holds.
	password, _ := u.User.Password()
	if _, err := c.core.CoreV1().Secrets("argo").Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "db"}, StringData: map[string]string{"user": u.User.Username(), "password": password},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	tables := archive.LockTables{Limit: "sync_limit" + suffix, State: "sync_state" + suffix, Controller: "sync_controller" + suffix,
		Lock: "sync_lock" + suffix, Migrate: true, ControllerName: "west", Inactive: time.Hour}
	l, err := archive.OpenLocks(t.Context(), source, tables)
	if err == nil {
		err = l.Heartbeat(t.Context(), time.Now())
	}
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	west := &otherCluster{c.env, l, "west"}
	m, k := locks.DatabaseMutexKey(c.ns, "m"), locks.DatabaseSemaphoreKey(c.ns, "k")
	west.take(m)
	exec("insert into sync_state_$ (name, workflowkey, controller, held, priority, time) values ('mtx/" + c.ns + "/z', '" + c.ns + "/gone', 'east', true, 0, now())")
	c.configure(fmt.Sprintf(`
synchronization: |
  controllerName: east
  skipMigration: true
  pollSeconds: 1
  heartbeatSeconds: 2
  limitTableName: %s
  stateTableName: %s
  controllerTableName: %s
  lockTableName: %s
  postgresql:
    host: %s
    port: %s
    database: %s
    userNameSecret: {name: db, key: user}
    passwordSecret: {name: db, key: password}
`, tables.Limit, tables.State, tables.Controller, tables.Lock, u.Hostname(), u.Port(), strings.TrimPrefix(u.Path, "/")))
	c.eventually("the manager uses the configuration", func() error {
		return db.QueryRowContext(t.Context(), "select controller from "+tables.Controller+" where controller = 'east'").Scan(new(string))
	})
	waits := func(name, message string) {
		t.Helper()
		c.until(name, func(w *wf.Workflow) error {
			if n := w.Status.Nodes[name]; n.Phase != wf.PhasePending || !strings.HasPrefix(n.Message, message) ||
				n.SynchronizationStatus == nil || !strings.HasPrefix(n.SynchronizationStatus.Waiting, c.ns+"/Database/") {
				return fmt.Errorf("the node is %s %q", n.Phase, n.Message)
			}
			return nil
		})
	}
	c.submit("behind-west", lock(mutex, "50ms"))
	waits("behind-west", "Waiting for "+c.ns+"/Database/m lock. Lock status: 0/1")
	c.submit("no-limit", lock("semaphores: [{database: {key: none}}]", "50ms"))
	c.until("no-limit", func(w *wf.Workflow) error {
		if n := w.Status.Nodes["no-limit"]; w.Status.Phase != wf.WorkflowError || !strings.Contains(n.Message, "has no limit for") {
			return fmt.Errorf("%q", n.Message)
		}
		return nil
	})
	west.give(m)
	c.until("behind-west", inPhase(wf.WorkflowSucceeded))
	c.eventually("the lock is given back, and the row of a workflow that does not exist is gone", func() error {
		var rows int
		err := db.QueryRowContext(t.Context(), "select count(*) from "+tables.State).Scan(&rows)
		if err == nil && rows > 0 {
			err = fmt.Errorf("%d rows", rows)
		}
		return err
	})

	//   3. The database is away.
	exec("insert into sync_limit_$ values ('" + c.ns + "/k', 1)")
	exec("alter table sync_state_$ rename to sync_state_away_$")
	c.submit("patient", lock("semaphores: [{database: {key: k}}], mutexes: [{name: local}]", "50ms"))
	waits("patient", "Waiting for "+c.ns+"/Database/k lock: the database does not answer: ")
	c.submit("undisturbed", lock("mutexes: [{name: other}]", "50ms"))
	c.until("undisturbed", inPhase(wf.WorkflowSucceeded))
	exec("alter table sync_state_away_$ rename to sync_state_$")
	c.until("patient", inPhase(wf.WorkflowSucceeded))

	//   4. The manager dies while a workflow holds a lock, and while another one is about to.
	c.submit("holder", "synchronization: {semaphores: [{database: {key: k}}]}\n"+lock(mutex, "1h"))
	c.until("holder", func(w *wf.Workflow) error {
		s := w.Status.Synchronization
		if w.Status.Nodes["holder"].Phase != wf.PhaseRunning || s == nil || s.Mutex == nil || s.Mutex.Holding[0].Mutex != c.ns+"/Database/m" ||
			s.Semaphore == nil || s.Semaphore.Holding[0].Semaphore != c.ns+"/Database/k" {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	if west.take(m) || west.take(k) {
		t.Error("another cluster gets locks that are held")
	}
	n := locks.DatabaseMutexKey(c.ns, "next")
	west.take(n)
	c.submit("next", lock("mutexes: [{name: next, database: true}]", "50ms"))
	waits("next", "Waiting for "+c.ns+"/Database/next lock")
	first.kill()
	if west.take(m) {
		t.Error("another cluster gets a lock of a dead manager")
	}
	// As if the manager had died between the database's answer and the status, and somebody had
	// removed the row of a lock that is held.
	west.give(n)
	exec("update sync_state_$ set held = true where workflowkey like '%/next/%'")
	exec("delete from sync_state_$ where name = 'sem/" + c.ns + "/k'")
	if west.take(n) {
		t.Error("another cluster gets a lock that the dead manager was given")
	}
	c.startManager("--workflow-configmap=argo/settings")
	c.untilWithin(time.Minute, "next", inPhase(wf.WorkflowSucceeded))
	c.eventually("the row that was removed is back", func() error {
		return db.QueryRowContext(t.Context(), "select name from "+tables.State+" where held and controller = 'east' and name = 'sem/"+c.ns+"/k'").Scan(new(string))
	})
	if west.take(m) || west.take(k) {
		t.Error("another cluster gets locks that are held since the manager died")
	}
	c.patch("holder", `{"spec": {"shutdown": "Terminate"}}`)
	c.untilWithin(time.Minute, "holder", inPhase(wf.WorkflowFailed))
	c.eventually("both locks are free", func() error {
		if !west.take(m) || !west.take(k) {
			return errors.New("not yet")
		}
		return nil
	})
}
