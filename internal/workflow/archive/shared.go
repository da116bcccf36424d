package archive

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"regexp"
	"strings"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/unpack"
	"lockstep.dev/lockstep/internal/workflow/compress"
)

// Persisted is the value of the label workflow-archiving-status of workflows in Argo's tables.
const Persisted = "Persisted"

// schemaVersion is the version of Argo's tables that create makes, in its table schema_history. Its
// server applies the changes of later versions.
const schemaVersion = 68

// nul replaces NUL in JSON for PostgreSQL, which cannot store it, as Argo's server expects.
const nul = "ARGO_POSTGRES_NULL_REPLACEMENT"

// shared are the tables of Argo's archive: those of one of its controllers, by cluster and instance.
type shared struct {
	cluster, instance string
	migrate           bool   // create missing tables
	nodes             string // the table for nodes
	dialect           dialect
	// createdColumn is true if there is the column creationtimestamp. Versions before 3.7 have none.
	createdColumn bool
}

// tableNames are the names that the table for nodes may have: they become part of SQL.
var tableNames = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]{0,50}$`)

// openShared opens a database with the tables of Argo's archive.
func openShared(source string) (*DB, error) {
	u, err := url.Parse(source)
	if err != nil {
		// err would contain the URL, and so the password.
		return nil, errors.New("archive: the argo+... URL is malformed")
	}
	parameters := u.Query()
	t := &shared{
		cluster: cmp.Or(parameters.Get("clustername"), "default"), instance: parameters.Get("instanceid"),
		nodes: cmp.Or(parameters.Get("nodestable"), "argo_workflows"), migrate: parameters.Get("migrate") != "false",
	}
	if !tableNames.MatchString(t.nodes) {
		return nil, fmt.Errorf("archive: nodestable: %q is no name of a table", t.nodes)
	}
	for _, own := range []string{"clustername", "instanceid", "nodestable", "migrate"} {
		parameters.Del(own)
	}
	u.RawQuery = parameters.Encode()
	var d *DB
	switch u.Scheme {
	case "postgres", "postgresql":
		d, err = openPostgres(u.String())
	case "mysql":
		d, err = openMySQL(u)
	default:
		return nil, fmt.Errorf("archive: argo+%s is not known; want argo+postgres://HOST/DATABASE or argo+mysql://HOST/DATABASE", u.Scheme)
	}
	if err != nil {
		return nil, err
	}
	t.dialect = d.dialect
	d.tables, d.where = t, "argo+"+d.where
	return d, nil
}

// openMySQL opens a MySQL database. Parameters of the URL are those of the driver.
func openMySQL(u *url.URL) (*DB, error) {
	fail := func() error { return fmt.Errorf("archive: the mysql:// URL of host %s is not valid", u.Host) }
	c, err := mysqldriver.ParseDSN("/?" + u.RawQuery)
	if err != nil {
		return nil, fail()
	}
	c.User, c.DBName = u.User.Username(), strings.TrimPrefix(u.Path, "/")
	c.Passwd, _ = u.User.Password()
	port := u.Port()
	if port == "" {
		port = "3306"
	}
	c.Net, c.Addr = "tcp", net.JoinHostPort(u.Hostname(), port)
	c.ParseTime, c.Loc = true, time.UTC
	connector, err := mysqldriver.NewConnector(c)
	if err != nil {
		return nil, fail()
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(maxConnections)
	db.SetConnMaxLifetime(connectionLifetime)
	return &DB{sql: db, dialect: mysql, where: fmt.Sprintf("mysql://%s/%s", c.Addr, c.DBName)}, nil
}

func (t *shared) names() names {
	created := "startedat"
	if t.createdColumn {
		created = "COALESCE(creationtimestamp, startedat)"
	}
	return names{
		workflows: "argo_archived_workflows", labels: "argo_archived_workflows_labels",
		joined:  "l.clustername = argo_archived_workflows.clustername AND l.uid = argo_archived_workflows.uid",
		created: created, expiring: "finishedat", scope: "clustername = ? AND instanceid = ?", values: []any{t.cluster, t.instance},
		at: func(at time.Time) any { return at.UTC() },
	}
}

// create creates the tables if no version of them exists, in the form that they have after all
// changes up to schemaVersion. Tables that exist are left as they are.
func (t *shared) create(ctx context.Context, d *DB) error {
	if !t.migrate {
		return t.look(ctx, d)
	}
	if _, err := d.sql.ExecContext(ctx, `create table if not exists schema_history (schema_version int not null, primary key (schema_version))`); err != nil {
		return err
	}
	versions := 0
	if err := d.sql.QueryRowContext(ctx, `select count(*) from schema_history`).Scan(&versions); err != nil {
		return err
	}
	if versions == 0 {
		for _, statement := range t.statements() {
			if _, err := d.sql.ExecContext(ctx, statement); err != nil {
				return err
			}
		}
		if _, err := d.sql.ExecContext(ctx, d.bind(`insert into schema_history (schema_version) values (?)`), schemaVersion); err != nil {
			return err
		}
	}
	return t.look(ctx, d)
}

// look finds out which columns there are.
func (t *shared) look(ctx context.Context, d *DB) error {
	schema := "current_schema()"
	if t.dialect == mysql {
		schema = "database()"
	}
	columns := 0
	err := d.sql.QueryRowContext(ctx, `select count(*) from information_schema.columns where table_schema = `+schema+
		` and table_name = 'argo_archived_workflows' and column_name = 'creationtimestamp'`).Scan(&columns)
	t.createdColumn = columns > 0
	return err
}

func (t *shared) statements() []string {
	document, created := "jsonb", "timestamp default current_timestamp"
	if t.dialect == mysql {
		document, created = "json", "timestamp not null default current_timestamp"
	}
	return []string{
		`create table ` + t.nodes + ` (
			uid varchar(128) not null, namespace varchar(256) not null, creationtimestamp timestamp default current_timestamp,
			clustername varchar(64) not null, version varchar(64) not null, nodes json not null,
			updatedat timestamp not null default current_timestamp, primary key (clustername, uid, version))`,
		`create index ` + t.nodes + `_i1 on ` + t.nodes + ` (clustername, namespace, updatedat)`,
		`create table argo_archived_workflows (
			uid varchar(128) not null, name varchar(256) not null, phase varchar(25) not null, namespace varchar(256) not null,
			workflow ` + document + ` not null, startedat timestamp not null default current_timestamp,
			finishedat timestamp not null default current_timestamp, clustername varchar(64) not null, instanceid varchar(64) not null,
			creationtimestamp ` + created + `, primary key (clustername, uid))`,
		`create index argo_archived_workflows_i1 on argo_archived_workflows (clustername, instanceid, namespace, startedat desc)`,
		`create index argo_archived_workflows_i2 on argo_archived_workflows (clustername, instanceid, finishedat)`,
		`create index argo_archived_workflows_i3 on argo_archived_workflows (clustername, instanceid, name)`,
		`create index argo_archived_workflows_i4 on argo_archived_workflows (clustername, startedat)`,
		`create index argo_archived_workflows_i5 on argo_archived_workflows (creationtimestamp)`,
		`create table argo_archived_workflows_labels (
			clustername varchar(64) not null, uid varchar(128) not null, name varchar(317) not null, value varchar(63) not null,
			primary key (clustername, uid, name),
			foreign key (clustername, uid) references argo_archived_workflows (clustername, uid) on delete cascade)`,
		`create index argo_archived_workflows_labels_i1 on argo_archived_workflows_labels (name, value)`,
	}
}

func (t *shared) put(ctx context.Context, d *DB, tx *sql.Tx, _ time.Time, w *wf.Workflow) error {
	data, err := t.encode(w)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, d.bind(`delete from argo_archived_workflows where clustername = ? and uid = ?`), t.cluster, string(w.UID)); err != nil {
		return err
	}
	columns, values := `clustername, instanceid, uid, name, namespace, phase, startedat, finishedat, workflow`, `?, ?, ?, ?, ?, ?, ?, ?, ?`
	args := []any{t.cluster, t.instance, string(w.UID), w.Name, w.Namespace, string(w.Status.Phase), timeOr(w.Status.StartedAt, w.CreationTimestamp),
		timeOr(w.Status.FinishedAt, w.CreationTimestamp), string(data)}
	if t.createdColumn {
		columns, values, args = columns+`, creationtimestamp`, values+`, ?`, append(args, timeOr(w.CreationTimestamp, w.Status.StartedAt))
	}
	if _, err := tx.ExecContext(ctx, d.bind(`insert into argo_archived_workflows (`+columns+`) values (`+values+`)`), args...); err != nil {
		return err
	}
	for name, value := range w.Labels {
		if name == wf.LabelArchivingStatus {
			value = Persisted
		}
		if _, err := tx.ExecContext(ctx, d.bind(`insert into argo_archived_workflows_labels (clustername, uid, name, value) values (?, ?, ?, ?)`),
			t.cluster, string(w.UID), name, value); err != nil {
			return err
		}
	}
	return nil
}

// timeOr returns a time, or another one if it is not set: the columns are not null.
func timeOr(at, other metav1.Time) time.Time {
	if at.IsZero() {
		return other.UTC()
	}
	return at.UTC()
}

// encode returns a workflow as Argo's server reads it: with its nodes unpacked. Nodes that are in
// another table stay there.
func (t *shared) encode(w *wf.Workflow) ([]byte, error) {
	slim := *w
	slim.APIVersion, slim.Kind, slim.ManagedFields = wf.GroupVersion.String(), "Workflow", nil
	slim.Labels = maps.Clone(w.Labels)
	if slim.Labels == nil {
		slim.Labels = map[string]string{}
	}
	slim.Labels[wf.LabelArchivingStatus] = Persisted
	nodes, err := compress.Nodes(&w.Status)
	if err != nil && !errors.Is(err, compress.ErrInDatabase) {
		return nil, err
	}
	slim.Status.Nodes, slim.Status.CompressedNodes = nodes, ""
	data, err := json.Marshal(&slim)
	if err != nil {
		return nil, err
	}
	if t.dialect == postgres {
		data = bytes.ReplaceAll(data, []byte(`\u0000`), []byte(nul))
	}
	return data, nil
}

// Nodes returns the nodes that Argo's controller or server moved to its table: those of a version of
// the workflow with this UID. It returns compress.ErrNoNodes if there are none.
func (d *DB) Nodes(ctx context.Context, uid, version string) (wf.Nodes, error) {
	t, is := d.tables.(*shared)
	if !is {
		return nil, compress.ErrNoNodes
	}
	var data []byte
	err := d.sql.QueryRowContext(ctx, d.bind(`select nodes from `+t.nodes+` where clustername = ? and uid = ? and version = ?`),
		t.cluster, uid, version).Scan(&data)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, compress.ErrNoNodes
	}
	if err != nil {
		return nil, fmt.Errorf("archive %s: %w", d.where, err)
	}
	if most := unpack.WorkflowNodes.Bytes; int64(len(data)) > int64(most) {
		return nil, fmt.Errorf("archive %s: the nodes take %d bytes, more than %d: %w", d.where, len(data), most, compress.ErrNoNodes)
	}
	var nodes wf.Nodes
	if err := json.Unmarshal(data, &nodes); err != nil {
		return nil, fmt.Errorf("archive %s: nodes of %s: %w: %w", d.where, uid, err, compress.ErrNoNodes)
	}
	return nodes, nil
}

// NodesRow names a version of the nodes of a workflow.
type NodesRow struct{ UID, Version string }

// oldNodes selects the versions of nodes that are old enough to be removed. Clients may still read a
// younger one, and the status that names it may not have been written yet.
const oldNodes = `updatedat < current_timestamp - interval '300' second`

// PutNodes stores a version of the nodes of a workflow, as JSON.
func (d *DB) PutNodes(ctx context.Context, namespace string, row NodesRow, nodes []byte) error {
	t, is := d.tables.(*shared)
	if !is {
		return fmt.Errorf("archive %s: has no table for nodes", d.where)
	}
	again := ` on conflict (clustername, uid, version) do update set updatedat = current_timestamp`
	if t.dialect == mysql {
		again = ` on duplicate key update updatedat = current_timestamp`
	}
	if _, err := d.sql.ExecContext(ctx, d.bind(`insert into `+t.nodes+` (clustername, uid, version, namespace, nodes) values (?, ?, ?, ?, ?)`+again),
		t.cluster, row.UID, row.Version, namespace, string(nodes)); err != nil {
		return fmt.Errorf("archive %s: %w", d.where, err)
	}
	return nil
}

// OldNodes returns the versions of nodes that are old enough to be removed, if no workflow has them.
func (d *DB) OldNodes(ctx context.Context) ([]NodesRow, error) {
	t, is := d.tables.(*shared)
	if !is {
		return nil, nil
	}
	rows, err := d.sql.QueryContext(ctx, d.bind(`select uid, version from `+t.nodes+` where clustername = ? and `+oldNodes), t.cluster)
	if err != nil {
		return nil, fmt.Errorf("archive %s: %w", d.where, err)
	}
	defer rows.Close()
	var list []NodesRow
	for rows.Next() {
		var r NodesRow
		if err := rows.Scan(&r.UID, &r.Version); err != nil {
			return nil, fmt.Errorf("archive %s: %w", d.where, err)
		}
		list = append(list, r)
	}
	return list, rows.Err()
}

// RemoveNodes removes a version of nodes, unless it has been stored again meanwhile.
func (d *DB) RemoveNodes(ctx context.Context, row NodesRow) error {
	if t, is := d.tables.(*shared); is {
		if _, err := d.sql.ExecContext(ctx, d.bind(`delete from `+t.nodes+` where clustername = ? and uid = ? and version = ? and `+oldNodes),
			t.cluster, row.UID, row.Version); err != nil {
			return fmt.Errorf("archive %s: %w", d.where, err)
		}
	}
	return nil
}

func (t *shared) decode(data []byte) (*wf.Workflow, error) {
	if t.dialect == postgres {
		data = bytes.ReplaceAll(data, []byte(nul), []byte(`\u0000`))
	}
	w := &wf.Workflow{}
	return w, json.Unmarshal(data, w)
}

func (t *shared) summary(*DB) string {
	message, progress := `workflow->'status'->>'message'`, `workflow->'status'->>'progress'`
	if t.dialect == mysql {
		message, progress = `json_unquote(json_extract(workflow, '$.status.message'))`, `json_unquote(json_extract(workflow, '$.status.progress'))`
	}
	return `uid, namespace, name, phase, coalesce(` + message + `, ''), coalesce(` + progress + `, ''), ` + t.names().created + `, startedat, finishedat`
}

func (t *shared) scan(rows *sql.Rows) (w wf.Workflow, err error) {
	err = rows.Scan((*string)(&w.UID), &w.Namespace, &w.Name, (*string)(&w.Status.Phase), &w.Status.Message, &w.Status.Progress,
		&w.CreationTimestamp.Time, &w.Status.StartedAt.Time, &w.Status.FinishedAt.Time)
	if t.dialect == postgres {
		w.Status.Message = strings.ReplaceAll(w.Status.Message, nul, "\x00")
	}
	return w, err
}
