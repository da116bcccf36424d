package archive

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
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
)

const (
	// maxConnections is the maximum number of connections to a server, and connectionLifetime the age
	// at which they are made anew, to follow a fail-over.
	maxConnections     = 8
	connectionLifetime = 30 * time.Minute
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
	sql     *sql.DB
	dialect dialect
	where   string // name of the database for users, without the password
	tables  tables
}

type dialect int

const (
	sqlite dialect = iota
	postgres
	mysql
)

// tables are the tables of an archive: Lockstep's own, or Argo's.
type tables interface {
	// create creates missing tables.
	create(ctx context.Context, d *DB) error
	// names returns the tables, and the columns and types that all statements use.
	names() names
	put(ctx context.Context, d *DB, tx *sql.Tx, now time.Time, w *wf.Workflow) error
	// summary returns the columns that scan reads into a workflow without spec and nodes.
	summary(d *DB) string
	scan(rows *sql.Rows) (wf.Workflow, error)
	decode(data []byte) (*wf.Workflow, error)
}

// names are the parts in which the statements on the tables of an archive differ.
type names struct {
	workflows string
	// labels is the table of labels, and joined the condition under which its rows l belong to a
	// workflow.
	labels, joined string
	created        string // when the workflow was created
	expiring       string // what the archive's TTL counts from
	// scope and values are a condition that all statements have, and its arguments.
	scope  string
	values []any
	// at converts a time to a value of created and expiring.
	at func(time.Time) any
}

// Open opens the archive that source names, and creates missing tables:
//
//	postgres://user:password@host:5432/name?sslmode=verify-full
//	    PostgreSQL.
//	sqlite:/path/to/file, or just the path
//	    SQLite. The file is created if it is missing, and readable only by its owner.
//	argo+postgres://..., argo+mysql://user:password@host:3306/name
//	    The tables of Argo's archive, which its server reads. The parameters clustername (by default
//	    "default") and instanceid are those of its configuration; with migrate=false, missing tables
//	    are not created.
//	@/path/to/file
//	    The first line of this file is the source. For sources with passwords.
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
	shared, isShared := strings.CutPrefix(source, "argo+")
	switch {
	case source == "":
		return nil, errors.New("archive: no data source")
	case isShared:
		d, err = openShared(shared)
	case strings.HasPrefix(source, "postgres://"), strings.HasPrefix(source, "postgresql://"):
		d, err = openPostgres(source)
	case strings.Contains(source, "://"):
		scheme, _, _ := strings.Cut(source, "://")
		return nil, fmt.Errorf("archive: %q is not known; want postgres://..., argo+postgres://..., argo+mysql://... or sqlite:FILE", scheme)
	default:
		d, err = openSQLite(strings.TrimPrefix(source, "sqlite:"))
	}
	if err != nil {
		return nil, err
	}
	if err := d.tables.create(ctx, d); err != nil {
		return nil, errors.Join(fmt.Errorf("archive %s: %w", d.where, err), d.sql.Close())
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
	db.SetConnMaxLifetime(connectionLifetime)
	return &DB{sql: db, dialect: postgres, tables: own{},
		where: fmt.Sprintf("postgres://%s:%d/%s", config.Host, config.Port, config.Database)}, nil
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
	return &DB{sql: db, where: "sqlite:" + path, tables: own{}}, nil
}

// Shared reports whether the tables are Argo's.
func (d *DB) Shared() bool {
	_, is := d.tables.(*shared)
	return is
}

// Close closes all connections.
func (d *DB) Close() error { return d.sql.Close() }

// String returns the name of the database, without the password.
func (d *DB) String() string { return d.where }

// bind replaces the question marks of a statement by the database's placeholders.
func (d *DB) bind(statement string) string {
	if d.dialect != postgres {
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
		if err := d.tables.put(ctx, d, tx, now, w); err != nil {
			return fmt.Errorf("archive workflow %s/%s: %w", w.Namespace, w.Name, err)
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("archive: %w", err)
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
	n := d.tables.names()
	where, args, err := q.where(&n)
	if err != nil {
		return nil, err
	}
	limit := q.Limit
	if limit <= 0 {
		limit = defaultLimit
	}
	rows, err := d.sql.QueryContext(ctx, d.bind(`SELECT `+d.tables.summary(d)+` FROM `+n.workflows+` WHERE `+where+
		` ORDER BY `+n.created+` DESC, uid DESC LIMIT `+strconv.Itoa(limit)), args...)
	if err != nil {
		return nil, fmt.Errorf("archive %s: %w", d.where, err)
	}
	defer rows.Close()
	var out []wf.Workflow
	for rows.Next() {
		w, err := d.tables.scan(rows)
		if err != nil {
			return nil, fmt.Errorf("archive %s: %w", d.where, err)
		}
		w.APIVersion, w.Kind = wf.GroupVersion.String(), "Workflow"
		out = append(out, w)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("archive %s: %w", d.where, err)
	}
	return out, nil
}

// where returns the SQL condition of a query, and its arguments. Values are only passed as
// arguments, never as SQL.
func (q *Query) where(n *names) (string, []any, error) {
	terms := []string{n.scope}
	args := slices.Clone(n.values)
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
		add(n.created+" >= ?", n.at(q.CreatedAfter))
	}
	if !q.CreatedBefore.IsZero() {
		add(n.created+" <= ?", n.at(q.CreatedBefore))
	}
	if q.After != nil {
		at := n.at(q.After.CreationTimestamp.Time)
		add("("+n.created+" < ? OR "+n.created+" = ? AND uid < ?)", at, at, string(q.After.UID))
	}
	if q.Labels == nil {
		return strings.Join(terms, " AND "), args, nil
	}
	requirements, selectable := q.Labels.Requirements()
	if !selectable {
		return "1 = 0", nil, nil
	}
	for _, r := range requirements {
		has := "EXISTS (SELECT 1 FROM " + n.labels + " l WHERE " + n.joined + " AND l.name = ?"
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
	n := d.tables.names()
	err := d.sql.QueryRowContext(ctx, d.bind(`SELECT workflow FROM `+n.workflows+` WHERE `+n.scope+` AND `+where+
		` ORDER BY `+n.created+` DESC, uid DESC LIMIT 1`), append(slices.Clone(n.values), args...)...).Scan(&data)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("archive %s: %w", d.where, err)
	}
	w, err := d.tables.decode(data)
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
	n := d.tables.names()
	return d.remove(ctx, n.expiring+` < ?`, n.at(before))
}

func (d *DB) remove(ctx context.Context, where string, args ...any) (int, error) {
	fail := func(err error) (int, error) { return 0, fmt.Errorf("archive %s: %w", d.where, err) }
	tx, err := d.sql.BeginTx(ctx, nil)
	if err != nil {
		return fail(err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	n := d.tables.names()
	where, args = n.scope+` AND `+where, append(slices.Clone(n.values), args...)
	// The labels go with their workflow by a foreign key. SQLite enforces these only if each connection
	// requests that.
	if d.dialect == sqlite {
		if _, err := tx.ExecContext(ctx, `DELETE FROM `+n.labels+` WHERE uid IN (SELECT uid FROM `+n.workflows+` WHERE `+where+`)`,
			args...); err != nil {
			return fail(err)
		}
	}
	result, err := tx.ExecContext(ctx, d.bind(`DELETE FROM `+n.workflows+` WHERE `+where), args...)
	if err != nil {
		return fail(err)
	}
	removed, err := result.RowsAffected()
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		return fail(err)
	}
	return int(removed), nil
}
