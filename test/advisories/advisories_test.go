package advisories

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// govulncheck is the tool that compares the module graph with a database. It runs at a pinned
// version and is not in go.mod because no program of ours needs it.
const govulncheck = "golang.org/x/vuln/cmd/govulncheck@v1.9.0"

// publicDatabase is the default of $GOVULNDB, from which govulncheck reads advisories.
const publicDatabase = "https://vuln.go.dev"

// TestPinnedModulesHaveNoAdvisory fails for every package that a program of ours imports at a
// version with a known advisory. Without a database it is skipped: an air-gapped build must not
// fail.
func TestPinnedModulesHaveNoAdvisory(t *testing.T) {
	db := os.Getenv("GOVULNDB")
	if db == "" {
		db = publicDatabase
	}
	if err := reachable(t.Context(), db); err != nil {
		t.Skipf("no database of advisories: %v; set GOVULNDB to the URL of a mirror", err)
	}
	if found := scan(t, db); found != "" {
		t.Errorf("advisories about pinned modules; update them with go get:\n%s", found)
	}
}

// TestAdvisoryIsFound checks the test above: it must find an advisory about a module that is pinned
// here.
func TestAdvisoryIsFound(t *testing.T) {
	if out, err := exec.Command("go", "mod", "download", strings.Replace(govulncheck, "/cmd/govulncheck", "", 1)).CombinedOutput(); err != nil {
		t.Skipf("govulncheck cannot be downloaded: %v\n%s", err, out)
	}
	const id, module = "GO-2000-0001", "github.com/spf13/cobra"
	dir := t.TempDir()
	now := "2000-01-01T00:00:00Z"
	write(t, dir, "index/db.json", map[string]any{"modified": now})
	write(t, dir, "index/vulns.json", []any{map[string]any{"id": id, "modified": now}})
	write(t, dir, "index/modules.json", []any{map[string]any{
		"path": module, "vulns": []any{map[string]any{"id": id, "modified": now}},
	}})
	write(t, dir, "ID/"+id+".json", map[string]any{
		"schema_version": "1.3.1", "id": id, "modified": now, "published": now, "summary": "An advisory made for this test",
		"details": "It says that every version is affected.",
		"affected": []any{map[string]any{
			"package":            map[string]any{"name": module, "ecosystem": "Go"},
			"ranges":             []any{map[string]any{"type": "SEMVER", "events": []any{map[string]any{"introduced": "0"}}}},
			"ecosystem_specific": map[string]any{"imports": []any{map[string]any{"path": module}}},
		}},
	})
	// Once, beside builds of the same packages, govulncheck succeeded without finding the advisory.
	// So there are three tries, and the output of each is logged.
	for range 3 {
		if strings.Contains(scan(t, (&url.URL{Scheme: "file", Path: dir}).String()), id) {
			return
		}
	}
	t.Errorf("the advisory %s about %s was not found", id, module)
}

// scan runs govulncheck on the shipped programs. It returns the findings, or "".
func scan(t *testing.T, db string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "run", govulncheck, "-db", db, "-scan", "package",
		"./cmd/lockstep", "./cmd/lockstep-exec", "./cmd/lockstep-exec-io")
	cmd.Dir = "../.."
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		t.Logf("govulncheck has found nothing:\n%s%s", out.String(), stderr.String())
		return ""
	case errors.As(err, &exit) && strings.Contains(out.String(), "GO-"):
		return out.String()
	}
	t.Fatalf("govulncheck: %v\n%s%s", err, out.String(), stderr.String())
	return ""
}

// reachable returns an error if the file that every database has cannot be read.
func reachable(ctx context.Context, db string) error {
	if path, ok := strings.CutPrefix(db, "file://"); ok {
		_, err := os.Stat(filepath.Join(path, "index", "db.json"))
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, strings.TrimSuffix(db, "/")+"/index/db.json", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

func write(t *testing.T, dir, name string, value any) {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
