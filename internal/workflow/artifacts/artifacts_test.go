package artifacts

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"lockstep.dev/lockstep/internal/workflow/artifacts/artifactstest"
	"lockstep.dev/lockstep/internal/workflow/execapi"
	"lockstep.dev/lockstep/internal/workflow/executor/archive"
)

func file(t *testing.T, content string, elem ...string) string {
	t.Helper()
	name := filepath.Join(elem...)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

func content(t *testing.T, elem ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		t.Error(err)
	}
	return string(data)
}

// fakeS3 starts an S3 server with an empty bucket. The returned function gives the location for a
// key.
func fakeS3(t *testing.T) func(key string) execapi.Location {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket("bucket"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(gofakes3.New(backend).Server())
	t.Cleanup(server.Close)
	access, secret := file(t, "access\n", t.TempDir(), "access"), file(t, "s3cret\n", t.TempDir(), "secret")
	return func(key string) execapi.Location {
		return execapi.Location{S3: &execapi.S3{
			Endpoint: strings.TrimPrefix(server.URL, "http://"), Bucket: "bucket", Key: key, Region: "us-east-1", Insecure: true,
			AccessKey: access, SecretKey: secret,
		}}
	}
}

// fakeHTTP is a server that stores what is put, for those who have its token. It refuses every third
// request temporarily.
func fakeHTTP(t *testing.T) func(path string) execapi.Location {
	t.Helper()
	store := artifactstest.HTTP()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Token") != "t0ken" {
			http.Error(w, "who?", http.StatusUnauthorized)
			return
		}
		store.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	dir := t.TempDir()
	user, password, token := file(t, artifactstest.User, dir, "user"), file(t, artifactstest.Password, dir, "password"), file(t, "t0ken", dir, "token")
	return func(path string) execapi.Location {
		return execapi.Location{HTTP: &execapi.HTTP{
			URL: server.URL + "/" + path + "?signature=s1gned", Username: user, Password: password, Headers: []execapi.Header{{Name: "X-Token", File: token}},
		}}
	}
}

// TestRoundTrips packs as lockstep-exec does, uploads, loads, and deletes.
func TestRoundTrips(t *testing.T) {
	for name, c := range map[string]struct {
		at   func(*testing.T) func(string) execapi.Location
		kind execapi.Archive
		dir  bool
	}{
		"a file in S3, in a tar":             {fakeS3, execapi.ArchiveTar, false},
		"a directory in S3, in a tar":        {fakeS3, execapi.ArchiveTar, true},
		"a directory in S3, in a zip":        {fakeS3, execapi.ArchiveZip, true},
		"a directory in S3, as many objects": {fakeS3, execapi.ArchiveNone, true},
		"a file in S3, as it is":             {fakeS3, execapi.ArchiveNone, false},
		"a file by HTTP, as it is":           {fakeHTTP, execapi.ArchiveNone, false},
		"a directory by HTTP, in a tar":      {fakeHTTP, execapi.ArchiveTar, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			location := c.at(t)("wf/pod/out")
			dir := t.TempDir()
			made := filepath.Join(dir, "made")
			if c.dir {
				file(t, "one", made, "a")
				file(t, "two", made, "deep", "b")
			} else {
				file(t, "one", made)
			}
			staged := filepath.Join(dir, "shared", "outputs", "main", "out")
			if err := os.MkdirAll(filepath.Dir(staged), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := archive.Pack(made, staged, c.kind, nil); err != nil {
				t.Fatal(err)
			}
			stop := make(chan struct{})
			close(stop)
			report := Upload(t.Context(), &execapi.ArtifactPlan{
				After:  []string{"main"},
				Upload: []execapi.Upload{{Name: "out", From: staged, To: location, Report: json.RawMessage(`{"s3":{"key":"k"}}`)}},
			}, filepath.Join(dir, "shared"), stop)
			if report.Failed || len(report.Artifacts) != 1 || string(report.Artifacts[0].Location) != `{"s3":{"key":"k"}}` {
				t.Fatalf("%+v", report)
			}
			to := filepath.Join(dir, "in", "out")
			mode := int32(0o700)
			plan := &execapi.ArtifactPlan{Load: []execapi.Load{{
				Name: "in", From: location, To: to, AsIs: c.kind == execapi.ArchiveNone, Mode: &mode, Recurse: true,
			}}}
			for range 2 { // the second time over the files of the first
				if err := Load(t.Context(), plan); err != nil {
					t.Fatal(err)
				}
			}
			if c.dir {
				if content(t, to, "a") != "one" || content(t, to, "deep", "b") != "two" {
					t.Error("content differs")
				}
			} else if content(t, to) != "one" {
				t.Error("content differs")
			}
			if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o700 {
				t.Error(info, err)
			}
			if left, _ := os.ReadDir(filepath.Dir(to)); len(left) != 1 {
				t.Errorf("left over: %v", left)
			}
			for range 2 { // to delete a missing artifact is not an error
				if report := Delete(t.Context(), &execapi.ArtifactPlan{Delete: []execapi.Delete{{Name: "out", At: location}}}); report.Failed {
					t.Fatal(report.Message)
				}
			}
			if err := Load(t.Context(), plan); err == nil || !strings.Contains(err.Error(), "'in'") {
				t.Errorf("deleted, and still there: %v", err)
			}
			plan.Load[0].Optional = true
			if err := Load(t.Context(), plan); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestSecretsAreInNoMessage(t *testing.T) {
	for name, at := range map[string]func(*testing.T) func(string) execapi.Location{"s3": fakeS3, "http": fakeHTTP} {
		t.Run(name, func(t *testing.T) {
			l := at(t)("nothing/here")
			if l.S3 != nil {
				l.S3.Bucket = "no-such-bucket"
			}
			err := Load(t.Context(), &execapi.ArtifactPlan{Load: []execapi.Load{{Name: "x", From: l, To: filepath.Join(t.TempDir(), "x")}}})
			if err == nil {
				t.Fatal("no error")
			}
			for _, s := range []string{"s3cret", "t0ken", "s1gned"} {
				if strings.Contains(err.Error(), s) {
					t.Errorf("%q is in: %v", s, err)
				}
			}
		})
	}
}

func TestWhatMainLeavesIsNotTrusted(t *testing.T) {
	dir := t.TempDir()
	file(t, "s3cret", dir, "secret")
	shared := filepath.Join(dir, "shared")
	file(t, "fine", shared, "outputs", "main", "tree", "fine")
	for _, link := range []string{filepath.Join("outputs", "main", "out"), filepath.Join("outputs", "main", "tree", "link")} {
		if err := os.Symlink(filepath.Join(dir, "secret"), filepath.Join(shared, link)); err != nil {
			t.Fatal(err)
		}
	}
	at := fakeS3(t)
	stop := make(chan struct{})
	close(stop)
	upload := func(name string) execapi.Report {
		return Upload(t.Context(), &execapi.ArtifactPlan{Upload: []execapi.Upload{
			{Name: name, From: filepath.Join(shared, "outputs", "main", name), To: at(name), Report: json.RawMessage(`{}`)},
		}}, shared, stop)
	}
	if r := upload("out"); !r.Failed {
		t.Errorf("a link out of the volume was followed: %+v", r)
	}
	if r := upload("tree"); r.Failed {
		t.Errorf("%+v", r)
	}
	to := filepath.Join(dir, "back")
	if err := Load(t.Context(), &execapi.ArtifactPlan{Load: []execapi.Load{{Name: "x", From: at("tree"), To: to, AsIs: true}}}); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(to); len(left) != 1 || content(t, to, "fine") != "fine" {
		t.Errorf("uploaded: %v", left)
	}
}

func TestVolumes(t *testing.T) {
	dir := t.TempDir()
	file(t, "text", dir, "volume", "wf", "out")
	at := execapi.Location{Volume: &execapi.File{Root: filepath.Join(dir, "volume"), Path: "wf/out"}}
	to := filepath.Join(dir, "to")
	if err := Load(t.Context(), &execapi.ArtifactPlan{Load: []execapi.Load{{Name: "x", From: at, To: to}}}); err != nil {
		t.Fatal(err)
	}
	if content(t, to) != "text" || content(t, dir, "volume", "wf", "out") != "text" {
		t.Error("content differs")
	}
	file(t, "text", dir, "volume", "wf", "pod", "other")
	deep := execapi.Location{Volume: &execapi.File{Root: filepath.Join(dir, "volume"), Path: "wf/pod/deep/out"}}
	file(t, "text", dir, "volume", "wf", "pod", "deep", "out")
	outside := execapi.Location{Volume: &execapi.File{Root: filepath.Join(dir, "nowhere"), Path: "a"}}
	report := Delete(t.Context(), &execapi.ArtifactPlan{Delete: []execapi.Delete{
		{Name: "x", At: at}, {Name: "no volume", At: outside}, {Name: "deep", At: deep, Prune: 3}, {Name: "gone", At: deep, Prune: 3},
	}})
	if !report.Failed || !slices.Equal(report.Left, []int{1}) || !strings.Contains(report.Message, "artifact 'no volume'") {
		t.Errorf("got %+v", report)
	}
	for name, there := range map[string]bool{"wf/out": false, "wf/pod/deep": false, "wf/pod/other": true} {
		if _, err := os.Stat(filepath.Join(dir, "volume", name)); (err == nil) != there {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRaw(t *testing.T) {
	to := filepath.Join(t.TempDir(), "to")
	at := execapi.Location{Raw: &execapi.Raw{Data: "text"}}
	if err := Load(t.Context(), &execapi.ArtifactPlan{Load: []execapi.Load{{Name: "x", From: at, To: to}}}); err != nil {
		t.Fatal(err)
	}
	if content(t, to) != "text" {
		t.Error("content differs")
	}
}

// gitServer serves a repository with two commits on main, a tag on the first, and a branch.
func gitServer(t *testing.T) string {
	t.Helper()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("git is not installed")
	}
	dir := t.TempDir()
	if err := artifactstest.NewGitRepository(git, dir); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(artifactstest.Git(git, dir))
	t.Cleanup(server.Close)
	return server.URL + "/repo.git"
}

func TestGit(t *testing.T) {
	repo := gitServer(t)
	dir := t.TempDir()
	user, password := file(t, artifactstest.User, dir, "user"), file(t, "s3cret", dir, "password")
	for name, c := range map[string]struct {
		at   execapi.Git
		want string
	}{
		"the default branch":          {execapi.Git{}, "second"},
		"a tag":                       {execapi.Git{Revision: "v1"}, "first"},
		"a branch":                    {execapi.Git{Branch: "old"}, "first"},
		"a revision that is a branch": {execapi.Git{Revision: "old"}, "first"},
		"only the last commit":        {execapi.Git{Depth: 1, Single: true}, "second"},
		"a ref that is fetched":       {execapi.Git{Fetch: []string{"refs/heads/old:refs/heads/fetched"}, Revision: "fetched"}, "first"},
		"with submodules, of which there are none": {execapi.Git{Submodules: true}, "second"},
	} {
		t.Run(name, func(t *testing.T) {
			to := filepath.Join(t.TempDir(), "to")
			c.at.Repo, c.at.Username, c.at.Password = repo, user, password
			if err := Load(context.Background(), &execapi.ArtifactPlan{Load: []execapi.Load{{Name: "x", From: execapi.Location{Git: &c.at}, To: to}}}); err != nil {
				t.Fatal(err)
			}
			if got := content(t, to, "file"); got != c.want {
				t.Errorf("file is %q, want %q", got, c.want)
			}
		})
	}
	t.Run("an unknown revision is an error that names it", func(t *testing.T) {
		at := execapi.Git{Repo: repo, Username: user, Password: password, Revision: "nowhere"}
		err := Load(context.Background(), &execapi.ArtifactPlan{Load: []execapi.Load{{Name: "x", From: execapi.Location{Git: &at}, To: filepath.Join(dir, "to")}}})
		if err == nil || !strings.Contains(err.Error(), "'nowhere'") || strings.Contains(fmt.Sprint(err), "s3cret") {
			t.Error(err)
		}
	})
}
