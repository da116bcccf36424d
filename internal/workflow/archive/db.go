package archive

import (
	"bytes"
	"compress/gzip"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	_ "modernc.org/sqlite" // the driver "sqlite"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/unpack"
)

const (
	// maxConnections is the maximum number of connections to PostgreSQL.
	maxConnections = 8
	// busyTimeout is how long a process waits for another process to finish its writes to the same
	// SQLite file, in milliseconds.
	busyTimeout = 10_000
	// defaultLimit is the default of Query.Limit.
	defaultLimit = 500
)

// ErrNotFound is returned for workflows that the archive does not have.
var ErrNotFound = errors.New("the archive has no such workflow")

// DB is an archive of workflows in an SQL database. It is safe for concurrent use.
type DB struct {
	sql      *sql.DB
	postgres bool
	where    string // name of the database for users, without the password
}

// Open opens the archive that source names, and creates missing tables:
//
//	postgres://user:password@host:5432/name?sslmode=verify-full
//	    PostgreSQL.
//	sqlite:/path/to/file, or just the path
//	    SQLite. The file is created if it is missing, and readable only by its owner.
//	@/path/to/file
//	    Either: the first line of this file is the source. For sources with passwords.
//
// Errors do not contain passwords.
func Open(ctx context.Context, source string) (*DB, error) {
	if path, ok := strings.CutPrefix(source, "@"); ok {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("archive: %w", err)
		}
		line, _, _ := strings.Cut(string(data), "\n")
		if source = strings.TrimSpace(line); source == "" || strings.HasPrefix(source, "@") {
			return nil, fmt.Errorf("archive: %s holds no data source", path)
		}
	}
	var d *DB
	var err error
	switch {
	case source == "":
		return nil, errors.New("archive: no data source")
	case strings.HasPrefix(source, "postgres://"), strings.HasPrefix(source, "postgresql://"):
		d, err = openPostgres(source)
	case strings.Contains(source, "://"):
		scheme, _, _ := strings.Cut(source, "://")
		return nil, fmt.Errorf("archive: %q is not known; want postgres://... or sqlite:FILE", scheme)
	default:
		d, err = openSQLite(strings.TrimPrefix(source, "sqlite:"))
	}
	if err != nil {
		return nil, err
	}
	for _, statement := range d.schema() {
		if _, err := d.sql.ExecContext(ctx, statement); err != nil {
			return nil, errors.Join(fmt.Errorf("archive %s: %w", d.where, err), d.sql.Close())
		}
	}
	return d, nil
}

func openPostgres(source string) (*DB, error) {
	u, err := url.Parse(source)
	if err != nil {
		// err would contain the URL, and so the password.
		return nil, errors.New("archive: the postgres:// URL is malformed")
	}
	config, err := pgx.ParseConfig(source)
	if err != nil {
		return nil, fmt.Errorf("archive: the postgres:// URL of host %s, database %s is not valid", u.Host, strings.TrimPrefix(u.Path, "/"))
	}
	db := stdlib.OpenDB(*config)
	db.SetMaxOpenConns(maxConnections)
	db.SetConnMaxLifetime(30 * time.Minute) // reconnect, to follow a fail-over
	return &DB{sql: db, postgres: true, where: fmt.Sprintf("postgres://%s:%d/%s", config.Host, config.Port, config.Database)}, nil
}

func openSQLite(path string) (*DB, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("archive: %w", err)
	}
	// SQLite itself would create the file with all the permissions that the umask leaves.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("archive: %w", err)
	}
	if err := f.Close(); err != nil {
		return nil, fmt.Errorf("archive: %w", err)
	}
	pragmas := url.Values{"_pragma": {
		"journal_mode(WAL)", // readers do not wait for the writer
		"synchronous(NORMAL)", fmt.Sprintf("busy_timeout(%d)", busyTimeout),
	}, "_txlock": {"immediate"}}
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Path: path, RawQuery: pragmas.Encode()}).String())
	if err != nil {
		return nil, fmt.Errorf("archive %s: %w", path, err)
	}
	return &DB{sql: db, where: "sqlite:" + path}, nil
}

// Close closes all connections.
func (d *DB) Close() error { return d.sql.Close() }

// String returns the name of the database, without the password.
func (d *DB) String() string { return d.where }

// schema returns the statements that create the tables. Times are Unix milliseconds.
func (d *DB) schema() []string {
	blob := "BLOB"
	if d.postgres {
		blob = "BYTEA"
	}
	return []string{
		`CREATE TABLE IF NOT EXISTS lockstep_workflows (
			uid TEXT NOT NULL PRIMARY KEY, namespace TEXT NOT NULL, name TEXT NOT NULL,
			phase TEXT NOT NULL, message TEXT NOT NULL, progress TEXT NOT NULL,
			created BIGINT NOT NULL, started BIGINT NOT NULL, finished BIGINT NOT NULL, archived BIGINT NOT NULL,
			workflow ` + blob + ` NOT NULL)`,
		`CREATE TABLE IF NOT EXISTS lockstep_workflow_labels (
			uid TEXT NOT NULL REFERENCES lockstep_workflows (uid) ON DELETE CASCADE, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (uid, name))`,
		`CREATE INDEX IF NOT EXISTS lockstep_workflows_name ON lockstep_workflows (namespace, name)`,
		`CREATE INDEX IF NOT EXISTS lockstep_workflows_created ON lockstep_workflows (created, uid)`,
		`CREATE INDEX IF NOT EXISTS lockstep_workflows_archived ON lockstep_workflows (archived)`,
		`CREATE INDEX IF NOT EXISTS lockstep_workflow_labels_value ON lockstep_workflow_labels (name, value)`,
	}
}

// bind replaces the question marks of a statement by the database's placeholders.
func (d *DB) bind(statement string) string {
	if !d.postgres {
		return statement
	}
	var b strings.Builder
	n := 0
	for _, c := range statement {
		if c != '?' {
			b.WriteRune(c)
			continue
		}
		n++
		b.WriteString("$" + strconv.Itoa(n))
	}
	return b.String()
}

// Put stores workflows in one transaction, and replaces their older versions. Their nodes may be
// compressed.
func (d *DB) Put(ctx context.Context, now time.Time, list ...*wf.Workflow) error {
	tx, err := d.sql.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	for _, w := range list {
		if err := d.put(ctx, tx, now, w); err != nil {
			return fmt.Errorf("archive workflow %s/%s: %w", w.Namespace, w.Name, err)
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	return nil
}

func (d *DB) put(ctx context.Context, tx *sql.Tx, now time.Time, w *wf.Workflow) error {
	data, err := pack(w)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, d.bind(`INSERT INTO lockstep_workflows
		(uid, namespace, name, phase, message, progress, created, started, finished, archived, workflow) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (uid) DO UPDATE SET phase = excluded.phase, message = excluded.message, progress = excluded.progress,
		started = excluded.started, finished = excluded.finished, archived = excluded.archived, workflow = excluded.workflow`),
		string(w.UID), w.Namespace, w.Name, string(w.Status.Phase), text(w.Status.Message), w.Status.Progress, millis(w.CreationTimestamp),
		millis(w.Status.StartedAt), millis(w.Status.FinishedAt), now.UnixMilli(), data)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, d.bind(`DELETE FROM lockstep_workflow_labels WHERE uid = ?`), string(w.UID)); err != nil {
		return err
	}
	for name, value := range w.Labels {
		_, err := tx.ExecContext(ctx, d.bind(`INSERT INTO lockstep_workflow_labels (uid, name, value) VALUES (?, ?, ?)`), string(w.UID), name, value)
		if err != nil {
			return err
		}
	}
	return nil
}

// text returns a message that can be stored: PostgreSQL accepts neither NUL nor invalid UTF-8.
func text(s string) string { return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "\uFFFD") }

func millis(t metav1.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func fromMillis(ms int64) metav1.Time {
	if ms == 0 {
		return metav1.Time{}
	}
	return metav1.NewTime(time.UnixMilli(ms).UTC())
}

// pack returns a workflow as gzipped JSON.
func pack(w *wf.Workflow) ([]byte, error) {
	slim := *w
	slim.APIVersion, slim.Kind, slim.ManagedFields = wf.GroupVersion.String(), "Workflow", nil
	var out bytes.Buffer
	zipper, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(json.NewEncoder(zipper).Encode(&slim), zipper.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func unpackWorkflow(data []byte) (*wf.Workflow, error) {
	text, err := unpack.Gzip(data, unpack.ArchivedWorkflow)
	if err != nil {
		return nil, err
	}
	w := &wf.Workflow{}
	return w, json.Unmarshal(text, w)
}

// Query selects workflows. Zero fields do not restrict the result.
type Query struct {
	Namespace, Name, Prefix string
	Labels                  labels.Selector
	Phases                  []string
	CreatedAfter            time.Time
	CreatedBefore           time.Time
	// Limit is the maximum number of workflows, by default 500. After continues the list after its
	// last workflow.
	Limit int
	After *wf.Workflow
}

// List returns matching workflows, newest first, without spec and nodes.
func (d *DB) List(ctx context.Context, q Query) ([]wf.Workflow, error) {
	where, args, err := q.where()
	if err != nil {
		return nil, err
	}
	limit := q.Limit
	if limit <= 0 {
		limit = defaultLimit
	}
	rows, err := d.sql.QueryContext(ctx, d.bind(`SELECT uid, namespace, name, phase, message, progress, created, started, finished
		FROM lockstep_workflows w WHERE `+where+` ORDER BY created DESC, uid DESC LIMIT `+strconv.Itoa(limit)), args...)
	if err != nil {
		return nil, fmt.Errorf("archive %s: %w", d.where, err)
	}
	defer rows.Close()
	var out []wf.Workflow
	for rows.Next() {
		var w wf.Workflow
		var created, started, finished int64
		if err := rows.Scan((*string)(&w.UID), &w.Namespace, &w.Name, (*string)(&w.Status.Phase), &w.Status.Message, &w.Status.Progress,
			&created, &started, &finished); err != nil {
			return nil, fmt.Errorf("archive %s: %w", d.where, err)
		}
		w.APIVersion, w.Kind = wf.GroupVersion.String(), "Workflow"
		w.CreationTimestamp, w.Status.StartedAt, w.Status.FinishedAt = fromMillis(created), fromMillis(started), fromMillis(finished)
		out = append(out, w)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("archive %s: %w", d.where, err)
	}
	return out, nil
}

// where returns the SQL condition of a query, and its arguments. Values are only passed as
// arguments, never as SQL.
func (q *Query) where() (string, []any, error) {
	terms := []string{"1 = 1"}
	var args []any
	add := func(term string, values ...any) {
		terms = append(terms, term)
		args = append(args, values...)
	}
	list := func(values []string) string {
		for _, v := range values {
			args = append(args, v)
		}
		return strings.TrimSuffix(strings.Repeat("?, ", len(values)), ", ")
	}
	if q.Namespace != "" {
		add("namespace = ?", q.Namespace)
	}
	if q.Name != "" {
		add("name = ?", q.Name)
	}
	if q.Prefix != "" {
		add("substr(name, 1, ?) = ?", len([]rune(q.Prefix)), q.Prefix)
	}
	if len(q.Phases) > 0 {
		terms = append(terms, "phase IN ("+list(q.Phases)+")")
	}
	if !q.CreatedAfter.IsZero() {
		add("created >= ?", q.CreatedAfter.UnixMilli())
	}
	if !q.CreatedBefore.IsZero() {
		add("created <= ?", q.CreatedBefore.UnixMilli())
	}
	if q.After != nil {
		at := millis(q.After.CreationTimestamp)
		add("(created < ? OR created = ? AND uid < ?)", at, at, string(q.After.UID))
	}
	if q.Labels == nil {
		return strings.Join(terms, " AND "), args, nil
	}
	requirements, selectable := q.Labels.Requirements()
	if !selectable {
		return "1 = 0", nil, nil
	}
	for _, r := range requirements {
		const has = "EXISTS (SELECT 1 FROM lockstep_workflow_labels l WHERE l.uid = w.uid AND l.name = ?"
		switch r.Operator() {
		case selection.Exists:
			add(has+")", r.Key())
		case selection.DoesNotExist:
			add("NOT "+has+")", r.Key())
		case selection.In, selection.Equals, selection.DoubleEquals, selection.NotIn, selection.NotEquals:
			args = append(args, r.Key())
			term := has + " AND l.value IN (" + list(r.ValuesUnsorted()) + "))"
			if r.Operator() == selection.NotIn || r.Operator() == selection.NotEquals {
				// A workflow without the label matches, as in the Kubernetes API.
				term = "NOT " + term
			}
			terms = append(terms, term)
		default:
			return "", nil, fmt.Errorf("archive: the label operator %q is not supported", r.Operator())
		}
	}
	return strings.Join(terms, " AND "), args, nil
}

// Get returns the workflow with this UID, or ErrNotFound. Its nodes may be compressed, as they were
// in the cluster.
func (d *DB) Get(ctx context.Context, uid string) (*wf.Workflow, error) {
	return d.get(ctx, `uid = ?`, uid)
}

// Latest returns the most recently created workflow of that name, or ErrNotFound.
func (d *DB) Latest(ctx context.Context, namespace, name string) (*wf.Workflow, error) {
	return d.get(ctx, `namespace = ? AND name = ?`, namespace, name)
}

func (d *DB) get(ctx context.Context, where string, args ...any) (*wf.Workflow, error) {
	var data []byte
	err := d.sql.QueryRowContext(ctx, d.bind(`SELECT workflow FROM lockstep_workflows WHERE `+where+` ORDER BY created DESC, uid DESC LIMIT 1`), args...).Scan(&data)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("archive %s: %w", d.where, err)
	}
	w, err := unpackWorkflow(data)
	if err != nil {
		return nil, fmt.Errorf("archive %s: stored workflow: %w", d.where, err)
	}
	return w, nil
}

// Delete removes the workflow with this UID. It returns ErrNotFound if there is none.
func (d *DB) Delete(ctx context.Context, uid string) error {
	n, err := d.remove(ctx, `uid = ?`, uid)
	if err == nil && n == 0 {
		err = ErrNotFound
	}
	return err
}

// Expire removes workflows that were archived before a time, and returns their number.
func (d *DB) Expire(ctx context.Context, before time.Time) (int, error) {
	return d.remove(ctx, `archived < ?`, before.UnixMilli())
}

func (d *DB) remove(ctx context.Context, where string, args ...any) (int, error) {
	fail := func(err error) (int, error) { return 0, fmt.Errorf("archive %s: %w", d.where, err) }
	tx, err := d.sql.BeginTx(ctx, nil)
	if err != nil {
		return fail(err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	// SQLite enforces foreign keys only if each connection requests that, so the labels are deleted
	// explicitly.
	if _, err := tx.ExecContext(ctx, d.bind(`DELETE FROM lockstep_workflow_labels WHERE uid IN (SELECT uid FROM lockstep_workflows WHERE `+where+`)`), args...); err != nil {
		return fail(err)
	}
	result, err := tx.ExecContext(ctx, d.bind(`DELETE FROM lockstep_workflows WHERE `+where), args...)
	if err != nil {
		return fail(err)
	}
	n, err := result.RowsAffected()
	if err := errors.Join(err, tx.Commit()); err != nil {
		return fail(err)
	}
	return int(n), nil
}
