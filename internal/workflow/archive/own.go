package archive

import (
	"bytes"
	"compress/gzip"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/unpack"
)

// own are Lockstep's own tables. Times are Unix milliseconds; workflows are gzipped JSON.
type own struct{}

func (own) names() names {
	return names{
		workflows: "lockstep_workflows", labels: "lockstep_workflow_labels", joined: "l.uid = lockstep_workflows.uid",
		created: "created", expiring: "archived", scope: "1 = 1", at: func(t time.Time) any { return t.UnixMilli() },
	}
}

func (own) create(ctx context.Context, d *DB) error {
	blob := "BLOB"
	if d.dialect == postgres {
		blob = "BYTEA"
	}
	for _, statement := range []string{
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
	} {
		if _, err := d.sql.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

func (own) put(ctx context.Context, d *DB, tx *sql.Tx, now time.Time, w *wf.Workflow) error {
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

func (own) summary(*DB) string {
	return `uid, namespace, name, phase, message, progress, created, started, finished`
}

func (own) scan(rows *sql.Rows) (w wf.Workflow, err error) {
	var created, started, finished int64
	err = rows.Scan((*string)(&w.UID), &w.Namespace, &w.Name, (*string)(&w.Status.Phase), &w.Status.Message, &w.Status.Progress,
		&created, &started, &finished)
	w.CreationTimestamp, w.Status.StartedAt, w.Status.FinishedAt = fromMillis(created), fromMillis(started), fromMillis(finished)
	return w, err
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

func (own) decode(data []byte) (*wf.Workflow, error) {
	text, err := unpack.Gzip(data, unpack.ArchivedWorkflow)
	if err != nil {
		return nil, err
	}
	w := &wf.Workflow{}
	return w, json.Unmarshal(text, w)
}
