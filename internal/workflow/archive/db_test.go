package archive

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/workflow/compress"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// databases returns the databases to test with: SQLite, PostgreSQL where there is one, and MySQL where
// $LOCKSTEP_TEST_MYSQL names a database, without parameters.
func databases(t *testing.T) map[string]string {
	out := map[string]string{"sqlite": filepath.Join(t.TempDir(), "archive.db")}
	instance := fmt.Sprint(time.Now().UnixNano()) // the tables of Argo's archive may have rows of earlier tests
	if source := localtest.Postgres(t); source != "" {
		source = withSchema(t, source)
		out["postgres"] = source
		out["argo-postgres"] = "argo+" + source + "&instanceid=" + instance
	}
	if source := os.Getenv("LOCKSTEP_TEST_MYSQL"); source != "" {
		out["argo-mysql"] = "argo+" + source + "?instanceid=" + instance
	}
	return out
}

// withSchema returns the source with a schema of its own: Lockstep's own tables have no other way to
// tell the rows of one test from those of another.
func withSchema(t *testing.T, source string) string {
	t.Helper()
	db, err := openPostgres(source)
	if err != nil {
		t.Fatal(err)
	}
	schema := fmt.Sprint("test_", time.Now().UnixNano())
	if _, err := db.sql.ExecContext(t.Context(), "create schema "+schema); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, err := db.sql.ExecContext(context.Background(), "drop schema "+schema+" cascade")
		if err := errors.Join(err, db.Close()); err != nil {
			t.Error(err)
		}
	})
	return source + "&search_path=" + schema
}

func finished(n int, namespace string, phase wf.WorkflowPhase, l map[string]string) *wf.Workflow {
	at := func(d time.Duration) metav1.Time { return metav1.NewTime(noon.Add(time.Duration(n)*time.Minute + d)) }
	w := &wf.Workflow{TypeMeta: metav1.TypeMeta{APIVersion: "argoproj.io/v1alpha1", Kind: "Workflow"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("w-%d", n), UID: types.UID(fmt.Sprintf("%s-%d", namespace, n)),
			Labels: l, CreationTimestamp: at(0)},
		Spec: wf.WorkflowSpec{Entrypoint: "main"},
		Status: wf.WorkflowStatus{Phase: phase, Message: "it's ? $1\x00 done", Progress: "1/1", StartedAt: at(time.Second), FinishedAt: at(time.Minute),
			Nodes: wf.Nodes{"a": {ID: "a", Name: "a", Phase: wf.PhaseSucceeded}}}}
	return w
}

func TestArchive(t *testing.T) {
	for name, source := range databases(t) {
		t.Run(name, func(t *testing.T) {
			db, err := Open(t.Context(), source)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			var all []*wf.Workflow
			for n := range 10 {
				phase := wf.WorkflowSucceeded
				if n%3 == 0 {
					phase = wf.WorkflowFailed
				}
				l := map[string]string{"even": fmt.Sprint(n%2 == 0)}
				if n > 6 {
					l["late"] = ""
				}
				all = append(all, finished(n, []string{"a", "b"}[n%2], phase, l))
			}
			if err := db.Put(t.Context(), noon, all...); err != nil {
				t.Fatal(err)
			}
			list := func(q Query) string {
				t.Helper()
				got, err := db.List(t.Context(), q)
				if err != nil {
					t.Fatal(err)
				}
				var out []string
				for _, w := range got {
					out = append(out, strings.TrimPrefix(w.Name, "w-"))
				}
				return strings.Join(out, " ")
			}
			selector := func(text string) labels.Selector {
				s, err := labels.Parse(text)
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
			for want, q := range map[string]Query{
				"9 8 7 6 5 4 3 2 1 0": {},
				"8 6 4 2 0":           {Namespace: "a"},
				"9 6 3 0":             {Phases: []string{"Failed", "Error"}},
				"9 3":                 {Phases: []string{"Failed"}, Labels: selector("even!=true")},
				"8":                   {Labels: selector("late,even in (true, x)")},
				"6 4 2 0":             {Labels: selector("!late,even notin (false)")},
				"":                    {Labels: labels.Nothing()},
				"5":                   {Prefix: "w-5"},
				"7":                   {Name: "w-7", Namespace: "b"},
				"9 8":                 {Limit: 2},
				"7 6":                 {Limit: 2, After: all[8]},
				"2 1":                 {CreatedAfter: noon.Add(time.Minute), CreatedBefore: noon.Add(2 * time.Minute)},
			} {
				if got := list(q); got != want {
					t.Errorf("%+v: %s, want %s", q, got, want)
				}
			}
			if got := list(Query{Name: "w' OR '1' = '1"}); got != "" {
				t.Errorf("a name that is SQL finds %s", got)
			}
			got, err := db.Get(t.Context(), "a-4")
			if err != nil {
				t.Fatal(err)
			}
			got.Status.StartedAt, got.Status.FinishedAt, got.CreationTimestamp = all[4].Status.StartedAt, all[4].Status.FinishedAt, all[4].CreationTimestamp
			for id, n := range got.Status.Nodes {
				n.StartedAt, n.FinishedAt = metav1.Time{}, metav1.Time{}
				got.Status.Nodes[id] = n
			}
			want := all[4].DeepCopy()
			if db.Shared() {
				want.Labels[wf.LabelArchivingStatus] = Persisted
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-put +got)\n%s", diff)
			}
			// A workflow that was retried is stored once, with its latest state.
			again := all[3].DeepCopy()
			again.Status.Phase, again.Labels = wf.WorkflowSucceeded, map[string]string{"retried": "yes"}
			if err := db.Put(t.Context(), noon.Add(time.Hour), again); err != nil {
				t.Fatal(err)
			}
			if got := list(Query{Phases: []string{"Failed"}}) + ", " + list(Query{Labels: selector("retried")}); got != "9 6 0, 3" {
				t.Errorf("after a retry: %s", got)
			}
			if err := db.Delete(t.Context(), "a-4"); err != nil {
				t.Error(err)
			}
			if err := db.Delete(t.Context(), "a-4"); !errors.Is(err, ErrNotFound) {
				t.Errorf("deleted twice: %v", err)
			}
			if _, err := db.Get(t.Context(), "a-4"); !errors.Is(err, ErrNotFound) {
				t.Errorf("got what was deleted: %v", err)
			}
			// Argo's tables have no time of archiving: there the time at which a workflow finished counts.
			before, expired, left := noon.Add(time.Minute), 8, "3"
			if db.Shared() {
				before, expired, left = noon.Add(3*time.Minute+30*time.Second), 3, "9 8 7 6 5 3"
			}
			if n, err := db.Expire(t.Context(), before); n != expired || err != nil {
				t.Errorf("%d expired, %v", n, err)
			}
			if got := list(Query{}); got != left {
				t.Errorf("left: %s", got)
			}
			// After the archive is opened again, its content is the same.
			other, err := Open(t.Context(), source)
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			if w, err := other.Latest(t.Context(), "b", "w-3"); err != nil || w.UID != "b-3" {
				t.Errorf("%v, %v", w, err)
			}
		})
	}
}

func TestSecretsStaySecret(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "archive.db")
	db, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Put(t.Context(), noon, finished(1, "a", wf.WorkflowFailed, nil)); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(path + "*")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		if info, err := os.Stat(f); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", f, info.Mode(), err)
		}
	}
	source := filepath.Join(dir, "source")
	for _, bad := range []string{
		"postgres://u:hunter2@127.0.0.1:1/db?connect_timeout=1", "postgres://u:hunter2@host:port/db", "postgres://u:hunter2@%zz/db", "mysql://u:hunter2@host/db",
		"postgres://u:hunter2@127.0.0.1:1/db?sslmode=hunter2",
	} {
		if err := os.WriteFile(source, []byte(bad+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{bad, "@" + source} {
			db, err := Open(t.Context(), text)
			if err == nil {
				db.Close()
				t.Errorf("%s: opened", text)
			} else if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error has the password: %v", err)
			}
		}
	}
	for _, bad := range []string{"", "@", "@" + filepath.Join(dir, "none")} {
		if _, err := Open(t.Context(), bad); err == nil {
			t.Errorf("%q: opened", bad)
		}
	}
}

func TestNodesOfLargeWorkflows(t *testing.T) {
	for name, source := range databases(t) {
		t.Run(name, func(t *testing.T) {
			db, err := Open(t.Context(), source)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			put := func(row NodesRow, nodes string) {
				t.Helper()
				if err := db.PutNodes(t.Context(), "ns", row, []byte(nodes)); err != nil {
					t.Fatal(err)
				}
			}
			uid := fmt.Sprint(time.Now().UnixNano())
			first, second := NodesRow{uid, "sha256:1"}, NodesRow{uid, "sha256:2"}
			if !db.Shared() {
				if _, err := db.Nodes(t.Context(), uid, "v"); !errors.Is(err, compress.ErrNoNodes) || db.PutNodes(t.Context(), "ns", first, nil) == nil {
					t.Errorf("tables of Lockstep's own have nodes: %v", err)
				}
				return
			}
			put(first, `{"a": {"id": "a", "message": "it's \u0000 ? $1"}}`)
			put(second, `{}`)
			put(first, `{"a": {"id": "a"}}`) // the same version has the same nodes
			got, err := db.Nodes(t.Context(), uid, first.Version)
			if err != nil || len(got) != 1 || got["a"].Message != "it's \x00 ? $1" {
				t.Errorf("%v, %v", got, err)
			}
			for _, row := range []NodesRow{{uid, "sha256:3"}, {"other", first.Version}} {
				if _, err := db.Nodes(t.Context(), row.UID, row.Version); !errors.Is(err, compress.ErrNoNodes) {
					t.Errorf("%v: %v", row, err)
				}
			}
			old := func() (list []NodesRow) {
				t.Helper()
				all, err := db.OldNodes(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, row := range all {
					if row.UID == uid {
						list = append(list, row)
					}
				}
				return list
			}
			age := func() {
				t.Helper()
				if _, err := db.sql.ExecContext(t.Context(), db.bind(`update argo_workflows set updatedat = updatedat - interval '400' second where uid = ?`), uid); err != nil {
					t.Fatal(err)
				}
			}
			if list := old(); len(list) != 0 {
				t.Errorf("new rows are old: %v", list)
			}
			age()
			put(first, `{}`) // it is about to be named again
			if list := old(); !slices.Equal(list, []NodesRow{second}) {
				t.Errorf("old: %v", list)
			}
			for _, row := range []NodesRow{first, second} {
				if err := db.RemoveNodes(t.Context(), row); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := db.Nodes(t.Context(), uid, second.Version); !errors.Is(err, compress.ErrNoNodes) {
				t.Errorf("removed: %v", err)
			}
			if _, err := db.Nodes(t.Context(), uid, first.Version); err != nil {
				t.Error(err)
			}
		})
	}
}
