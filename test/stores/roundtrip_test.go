package stores

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep.dev/lockstep/internal/workflow/artifacts"
	"lockstep.dev/lockstep/internal/workflow/execapi"
	"lockstep.dev/lockstep/internal/workflow/executor/archive"
)

// large is more than one chunk or block of every store.
const large = 40<<20 + 17

// save stores a file or directory as the container wait does.
func save(t *testing.T, what string, kind execapi.Archive, to execapi.Location) execapi.Report {
	t.Helper()
	dir := t.TempDir()
	staged := filepath.Join(dir, "outputs", "main", "out")
	if err := os.MkdirAll(filepath.Dir(staged), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := archive.Pack(what, staged, kind, nil); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	close(stop)
	return artifacts.Upload(t.Context(), &execapi.ArtifactPlan{
		Upload: []execapi.Upload{{Name: "out", From: staged, To: to, Report: json.RawMessage(`{}`)}},
	}, dir, stop)
}

func load(t *testing.T, from execapi.Location, kind execapi.Archive, to string) error {
	t.Helper()
	return artifacts.Load(t.Context(), &execapi.ArtifactPlan{Load: []execapi.Load{{Name: "in", From: from, To: to, AsIs: kind == execapi.ArchiveNone}}})
}

func remove(t *testing.T, at execapi.Location) {
	t.Helper()
	for range 2 { // to delete a missing artifact is not an error
		if r := artifacts.Delete(t.Context(), &execapi.ArtifactPlan{Delete: []execapi.Delete{{Name: "out", At: at}}}); r.Failed {
			t.Fatal(r.Message)
		}
	}
}

// roundTrips stores files and directories at the locations that at returns for keys, lists and loads
// them, and deletes them.
func roundTrips(t *testing.T, at func(key string) execapi.Location) {
	made := t.TempDir()
	file(t, "one", made, "tree", "a")
	file(t, "two", made, "tree", "deep", "b c+d%")
	file(t, "", made, "tree", "empty")
	file(t, "text", made, "small")
	file(t, string(bytes.Repeat([]byte("0123456789abcdef\n"), large/17+1)[:large]), made, "large")
	for name, c := range map[string]struct {
		what string
		kind execapi.Archive
	}{
		"a file, in a tar":             {"small", execapi.ArchiveTar},
		"a file, as it is":             {"small", execapi.ArchiveNone},
		"a large file, as it is":       {"large", execapi.ArchiveNone},
		"a directory, in a tar":        {"tree", execapi.ArchiveTar},
		"a directory, as many objects": {"tree", execapi.ArchiveNone},
	} {
		t.Run(name, func(t *testing.T) {
			l := at("wf/" + strings.NewReplacer(" ", "-", ",", "").Replace(name) + "/out")
			if r := save(t, filepath.Join(made, c.what), c.kind, l); r.Failed || len(r.Artifacts) != 1 {
				t.Fatalf("%+v", r)
			}
			to := filepath.Join(t.TempDir(), "in")
			if err := load(t, l, c.kind, to); err != nil {
				t.Fatal(err)
			}
			same := map[string]string{filepath.Join(made, c.what): to}
			if c.what == "tree" {
				same = map[string]string{}
				for _, f := range []string{"a", "deep/b c+d%", "empty"} {
					same[filepath.Join(made, c.what, f)] = filepath.Join(to, f)
				}
			}
			for want, got := range same {
				a, err := os.ReadFile(want)
				b, err2 := os.ReadFile(got)
				if err != nil || err2 != nil || !bytes.Equal(a, b) {
					t.Errorf("%s differs: %d and %d bytes, %v %v", got, len(a), len(b), err, err2)
				}
			}
			remove(t, l)
			if err := load(t, l, c.kind, to); err == nil || !strings.Contains(err.Error(), "input artifact 'in'") {
				t.Errorf("deleted, and still there: %v", err)
			}
		})
	}
	t.Run("paths", func(t *testing.T) {
		if r := save(t, filepath.Join(made, "tree"), execapi.ArchiveNone, at("list/x")); r.Failed {
			t.Fatal(r.Message)
		}
		got, err := artifacts.Paths(t.Context(), at("list"))
		slices.Sort(got)
		for i := range got {
			got[i] = strings.TrimPrefix(got[i], "/")
		}
		if want := []string{"list/x/a", "list/x/deep/b c+d%", "list/x/empty"}; err != nil || !slices.Equal(got, want) {
			t.Errorf("%q, %v", got, err)
		}
	})
}
