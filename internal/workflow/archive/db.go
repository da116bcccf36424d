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
	// maxConnections to PostgreSQL.
	maxConnections = 8
	// busyTimeout is how long one process waits for another to end its writes to the same file, in milliseconds.
	busyTimeout = 10_000
	// defaultLimit of a list.
	defaultLimit = 500
)

// ErrNotFound is the outcome of Get and Delete for workflows that the archive does not have.
var ErrNotFound = errors.New("the archive has no such workflow")

// DB is an archive. It is safe for concurrent use.
type DB struct {
	sql      *sql.DB
	postgres bool
	where    string // for people: no password
}

// Open opens the archive that source names, and makes its tables when they are missing:
//
//	postgres://user:password@host:5432/name?sslmode=verify-full    PostgreSQL
//	sqlite:/path/to/file, or just the path                         SQLite; the file is made, readable by its owner only
//	@/path/to/file                                                 either, as the first line of this file says: for passwords
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
	var (
		d   *DB
		err error
	)
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
		return nil, errors.New("archive: the postgres:// URL is malformed") // its error would hold the URL
	}
	config, err := pgx.ParseConfig(source)
	if err != nil {
		return nil, fmt.Errorf("archive: the postgres:// URL of host %s, database %s is not valid", u.Host, strings.TrimPrefix(u.Path, "/"))
	}
	db := stdlib.OpenDB(*config)
	db.SetMaxOpenConns(maxConnections)
	db.SetConnMaxLifetime(30 * time.Minute) // so that it follows a fail-over
	return &DB{sql: db, postgres: true, where: fmt.Sprintf("postgres://%s:%d/%s", config.Host, config.Port, config.Database)}, nil
}

func openSQLite(path string) (*DB, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("archive: %w", err)
	}
	// SQLite itself would make the file readable by everyone whom the umask lets.
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

// Close ends all connections.
func (d *DB) Close() error { return d.sql.Close() }

// String names the database, without password.
func (d *DB) String() string { return d.where }

// schema is what makes the tables. Times are Unix milliseconds.
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

// bind turns the question marks of a statement into what the database wants.
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

// Put stores workflows, in one transaction, in place of what the archive has of them. Their nodes may be compressed.
func (d *DB) Put(ctx context.Context, now time.Time, list ...*wf.Workflow) error {
	tx, err := d.sql.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // nothing, after Commit
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

// text makes a message storable: PostgreSQL takes neither NUL nor what is not UTF-8.
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

// pack makes of a workflow what is stored.
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

// Query says which workflows to list. Zero fields do not restrict.
type Query struct {
	Namespace, Name, Prefix string
	Labels                  labels.Selector
	Phases                  []string
	CreatedAfter            time.Time
	CreatedBefore           time.Time
	// Limit is 500 by default. After continues behind the last workflow of a list before.
	Limit int
	After *wf.Workflow
}

// List returns workflows that match, the latest first, without specification and nodes.
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

// where is the condition of a query, with its arguments. Values only ever travel as arguments.
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
				term = "NOT " + term // a workflow without the label matches, as in the API
			}
			terms = append(terms, term)
		default:
			return "", nil, fmt.Errorf("archive: the label operator %q is not supported", r.Operator())
		}
	}
	return strings.Join(terms, " AND "), args, nil
}

// Get returns a workflow by its UID; ErrNotFound if there is none. Its nodes may be compressed, as they were in the cluster.
func (d *DB) Get(ctx context.Context, uid string) (*wf.Workflow, error) {
	return d.get(ctx, `uid = ?`, uid)
}

// Latest returns the workflow of that name that was created last; ErrNotFound if there is none.
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

// Delete removes a workflow; ErrNotFound if there is none.
func (d *DB) Delete(ctx context.Context, uid string) error {
	n, err := d.remove(ctx, `uid = ?`, uid)
	if err == nil && n == 0 {
		err = ErrNotFound
	}
	return err
}

// Expire removes workflows that were archived before a time, and returns how many.
func (d *DB) Expire(ctx context.Context, before time.Time) (int, error) {
	return d.remove(ctx, `archived < ?`, before.UnixMilli())
}

func (d *DB) remove(ctx context.Context, where string, args ...any) (int, error) {
	fail := func(err error) (int, error) { return 0, fmt.Errorf("archive %s: %w", d.where, err) }
	tx, err := d.sql.BeginTx(ctx, nil)
	if err != nil {
		return fail(err)
	}
	defer func() { _ = tx.Rollback() }() // nothing, after Commit
	// SQLite follows references only when told to by each connection.
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
