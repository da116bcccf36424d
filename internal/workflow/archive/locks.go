package archive

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"lockstep.dev/lockstep/internal/workflow/locks"
)

// LockTables says which tables have the locks that controllers share. They are Argo's, so that its
// controllers may share them, too.
type LockTables struct {
	// Limit has the limits of semaphores, State the holders of locks and those that wait, Controller
	// when each controller last showed that it is active. A row of Lock is inserted by who changes the
	// holders of a lock, and deleted after it.
	Limit, State, Controller, Lock string
	Migrate                        bool // create missing tables
	// ControllerName distinguishes the controllers. Those that did not show for Inactive that they are
	// active are not waited for.
	ControllerName string
	Inactive       time.Duration
}

// Locks are locks in an SQL database. They are not safe for concurrent use.
type Locks struct {
	db *DB
	LockTables
}

// OpenLocks opens a database of locks: postgres://... or mysql://..., see Open. Errors do not contain
// passwords.
func OpenLocks(ctx context.Context, source string, tables LockTables) (*Locks, error) {
	for _, name := range []string{tables.Limit, tables.State, tables.Controller, tables.Lock} {
		if !tableNames.MatchString(name) {
			return nil, fmt.Errorf("locks: %q is no name of a table", name)
		}
	}
	var d *DB
	u, err := url.Parse(source)
	switch {
	case err != nil:
		return nil, errors.New("locks: the URL is malformed") // err would contain the password
	case u.Scheme == "mysql":
		d, err = openMySQL(u)
	default:
		d, err = openPostgres(source)
	}
	if err != nil {
		return nil, err
	}
	l := &Locks{d, tables}
	if err := l.prepare(ctx); err != nil {
		return nil, errors.Join(l.failed(err), d.Close())
	}
	return l, nil
}

// Close closes all connections.
func (l *Locks) Close() error { return l.db.Close() }

func (l *Locks) failed(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("locks in %s: %w", l.db.where, err)
}

// prepare creates the tables if they are missing, and removes what a controller of this name left
// behind in Lock: no transaction of Locks leaves rows there.
func (l *Locks) prepare(ctx context.Context) error {
	moment := "timestamp"
	if l.db.dialect == mysql {
		moment = "timestamp null default null" // without it, MySQL sets the first one at each update
	}
	statements := []string{
		`create table if not exists ` + l.Limit + ` (name varchar(256) not null, sizelimit int, primary key (name))`,
		`create table if not exists ` + l.Controller + ` (controller varchar(64) not null, time ` + moment + `, primary key (controller))`,
		`create table if not exists ` + l.State + ` (name varchar(256) not null, workflowkey varchar(256) not null,
			controller varchar(64) not null, held boolean, priority int, time ` + moment + `, primary key (name, workflowkey, controller))`,
		`create table if not exists ` + l.Lock + ` (name varchar(256) not null, controller varchar(64) not null, time ` + moment + `,
			primary key (name))`,
	}
	if l.Migrate {
		for _, statement := range statements {
			if _, err := l.db.sql.ExecContext(ctx, statement); err != nil {
				return err
			}
		}
	}
	return l.exec(ctx, l.db.sql, `delete from `+l.Lock+` where controller = ?`, l.ControllerName)
}

type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func (l *Locks) exec(ctx context.Context, by execer, statement string, args ...any) error {
	_, err := by.ExecContext(ctx, l.db.bind(statement), args...)
	return err
}

// otherwise returns the end of an insert that changes a column of a row that exists.
func (l *Locks) otherwise(key, column string) string {
	if l.db.dialect == mysql {
		return ` on duplicate key update ` + column + ` = values(` + column + `)`
	}
	return ` on conflict (` + key + `) do update set ` + column + ` = excluded.` + column
}

// Heartbeat shows that the controller is active, and removes what inactive controllers left behind
// in Lock.
func (l *Locks) Heartbeat(ctx context.Context, now time.Time) error {
	err := l.exec(ctx, l.db.sql, `insert into `+l.Controller+` (controller, time) values (?, ?)`+l.otherwise("controller", "time"),
		l.ControllerName, now.UTC())
	if err == nil {
		err = l.exec(ctx, l.db.sql, `delete from `+l.Lock+` where controller in (select controller from `+l.Controller+` where time <= ?)`,
			now.Add(-l.Inactive).UTC())
	}
	return l.failed(err)
}

// Rows returns the rows of this controller.
func (l *Locks) Rows(ctx context.Context) ([]locks.Row, error) {
	rows, err := l.db.sql.QueryContext(ctx, l.db.bind(`select name, workflowkey, held from `+l.State+` where controller = ?`), l.ControllerName)
	if err != nil {
		return nil, l.failed(err)
	}
	defer rows.Close()
	var list []locks.Row
	for rows.Next() {
		var name string
		var r locks.Row
		if err := rows.Scan(&name, &r.Holder, &r.Held); err != nil {
			return nil, l.failed(err)
		}
		var found bool
		if r.Key, found = locks.KeyOfRow(name); found {
			list = append(list, r)
		}
	}
	return list, l.failed(rows.Err())
}

// Leave removes rows of a holder.
func (l *Locks) Leave(ctx context.Context, d locks.Departure) error {
	return l.within(ctx, func(tx *sql.Tx) error {
		for _, key := range d.Keys {
			name, _ := locks.RowName(key)
			if err := l.exec(ctx, tx, `delete from `+l.State+` where name = ? and workflowkey = ? and controller = ?`,
				name, d.Holder, l.ControllerName); err != nil {
				return err
			}
		}
		return nil
	})
}

// Queue makes requests wait, for other controllers to see. Rows that exist stay as they are.
func (l *Locks) Queue(ctx context.Context, list []locks.Question) error {
	return l.within(ctx, func(tx *sql.Tx) error {
		for i := range list {
			if err := l.wait(ctx, tx, &list[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

func (l *Locks) wait(ctx context.Context, tx *sql.Tx, q *locks.Question) error {
	for _, key := range q.Keys {
		name, _ := locks.RowName(key)
		if err := l.exec(ctx, tx, `insert into `+l.State+` (name, workflowkey, controller, held, priority, time) values (?, ?, ?, ?, ?, ?)`+
			l.otherwise("name, workflowkey, controller", "priority"), name, q.Holder, l.ControllerName, false, q.Priority, q.Created.UTC()); err != nil {
			return err
		}
	}
	return nil
}

// Hold makes requests holders, whatever the database says: their pods run.
func (l *Locks) Hold(ctx context.Context, q locks.Question) error {
	return l.within(ctx, func(tx *sql.Tx) error { return l.hold(ctx, tx, &q) })
}

func (l *Locks) hold(ctx context.Context, tx *sql.Tx, q *locks.Question) error {
	for _, key := range q.Keys {
		name, _ := locks.RowName(key)
		if err := l.exec(ctx, tx, `insert into `+l.State+` (name, workflowkey, controller, held, priority, time) values (?, ?, ?, ?, ?, ?)`+
			l.otherwise("name, workflowkey, controller", "held"), name, q.Holder, l.ControllerName, true, q.Priority, q.Created.UTC()); err != nil {
			return err
		}
	}
	return nil
}

// errContended says that another controller changes the holders of a lock.
var errContended = errors.New("another controller changes the holders of the lock")

// Acquire gives a request all its locks if each has a free place and no active controller has an
// earlier request; otherwise the request waits. A request that has the locks already gets them.
func (l *Locks) Acquire(ctx context.Context, now time.Time, q locks.Question) (a locks.Answer, err error) {
	err = l.within(ctx, func(tx *sql.Tx) error {
		//   1. Keep others from changing the holders meanwhile: an insert waits for a transaction that
		//      has inserted the same name.
		names := make([]string, len(q.Keys))
		for i, key := range q.Keys {
			names[i], _ = locks.RowName(key)
		}
		slices.Sort(names)
		insert := `insert into ` + l.Lock + ` (name, controller, time) values (?, ?, ?) on conflict do nothing`
		if l.db.dialect == mysql {
			insert = `insert ignore into ` + l.Lock + ` (name, controller, time) values (?, ?, ?)`
		}
		for _, name := range names {
			result, err := tx.ExecContext(ctx, l.db.bind(insert), name, l.ControllerName, now.UTC())
			if err != nil {
				return err
			}
			if n, err := result.RowsAffected(); err != nil {
				return err
			} else if n == 0 {
				return errContended
			}
		}
		//   2. Look for free places.
		a = locks.Answer{Granted: true}
		for _, key := range q.Keys {
			if err := l.look(ctx, tx, now, &q, key, &a); err != nil {
				return err
			}
			if !a.Granted {
				break
			}
		}
		//   3. Take them, or wait.
		change := l.wait
		if a.Granted {
			change = l.hold
		}
		if a.Err == nil {
			if err := change(ctx, tx, &q); err != nil {
				return err
			}
		}
		for _, name := range names {
			if err := l.exec(ctx, tx, `delete from `+l.Lock+` where name = ?`, name); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.Is(err, errContended) || isDeadlock(err) {
		return locks.Answer{}, nil
	}
	return a, err
}

// look finds out whether a request may have a lock, and notes in a if not.
func (l *Locks) look(ctx context.Context, tx *sql.Tx, now time.Time, q *locks.Question, key string, a *locks.Answer) error {
	name, limitName := locks.RowName(key)
	limit := 1
	if limitName != "" {
		var size sql.NullInt64
		err := tx.QueryRowContext(ctx, l.db.bind(`select sizelimit from `+l.Limit+` where name = ?`), limitName).Scan(&size)
		if errors.Is(err, sql.ErrNoRows) || err == nil && (!size.Valid || size.Int64 < 0) {
			*a = locks.Answer{Blocked: key, Err: fmt.Errorf("semaphore %s: table %s has no limit for %q", key, l.Limit, limitName)}
			return nil
		}
		if err != nil {
			return err
		}
		limit = int(size.Int64)
	}
	rows, err := tx.QueryContext(ctx, l.db.bind(`select workflowkey, controller from `+l.State+` where name = ? and held = ?`), name, true)
	if err != nil {
		return err
	}
	defer rows.Close()
	var holders []string
	for rows.Next() {
		var holder, controller string
		if err := rows.Scan(&holder, &controller); err != nil {
			return err
		}
		if controller != l.ControllerName {
			holder = controller + ":" + holder
		} else if holder == q.Holder {
			return rows.Err() // it has the lock already
		}
		holders = append(holders, holder)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return err
	}
	earlier := 0
	if len(holders) < limit {
		// Of two requests of the same priority and second, neither waits for the other.
		err := tx.QueryRowContext(ctx, l.db.bind(`select count(*) from `+l.State+` where name = ? and held = ?
			and (priority > ? or priority = ? and time < ?) and controller <> ?
			and controller in (select controller from `+l.Controller+` where time > ?)`),
			name, false, q.Priority, q.Priority, q.Created.UTC(), l.ControllerName, now.Add(-l.Inactive).UTC()).Scan(&earlier)
		if err != nil {
			return err
		}
	}
	if len(holders) >= limit || earlier > 0 {
		slices.Sort(holders)
		*a = locks.Answer{Blocked: key, Holders: holders, Limit: limit}
	}
	return nil
}

// triesMax is how often a transaction is tried that the database ends because of another one.
const triesMax = 20

// within runs a transaction.
func (l *Locks) within(ctx context.Context, do func(*sql.Tx) error) error {
	var err error
	for range triesMax {
		err = l.try(ctx, do)
		if !isDeadlock(err) {
			break
		}
	}
	return l.failed(err)
}

// isDeadlock reports whether the database has ended a transaction because of another one.
func isDeadlock(err error) bool {
	return err != nil && strings.Contains(strings.ToLower(err.Error()), "deadlock")
}

func (l *Locks) try(ctx context.Context, do func(*sql.Tx) error) error {
	tx, err := l.db.sql.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	if err := do(tx); err != nil {
		return err
	}
	return tx.Commit()
}
