package addons

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-git/go-billy/v5/memfs"
	"github.com/google/go-cmp/cmp"

	"lockstep.dev/lockstep/internal/application/addon"
	"lockstep.dev/lockstep/internal/application/chart/charttest"
)

func metadata(name, version string) string {
	return fmt.Sprintf("name: %s\nversion: %s\ndescription: about %s\n", name, version, name)
}

// write writes files below dir.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// files are the contents of a folder that is used as a registry.
var files = map[string]string{
	"notes/metadata.yaml": metadata("notes", "1.10.0"), "notes/resources/a.yaml": "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}", "notes/.hidden": "x",
	"hidden/metadata.yaml": metadata("hidden", "1.0.0") + "invisible: true\n", "broken/metadata.yaml": "name: [", "README.md": "text",
	"other/metadata.yaml": metadata("wrong", "1.0.0"),
}

// published starts a server with charts of several versions.
func published(t *testing.T) string {
	t.Helper()
	s := &charttest.Server{User: "me", Password: "s3cret"}
	for _, v := range []string{"1.0.0", "1.2.0", "1.10.0", "2.0.0-rc.1"} {
		s.Publish("notes", v, charttest.Pack("notes", v, map[string]string{"metadata.yaml": metadata("notes", v)}))
	}
	s.Publish("other", "1.0.0", charttest.Pack("other", "1.0.0", map[string]string{"metadata.yaml": metadata("wrong", "1.0.0")}))
	s.Publish("broken", "1.0.0", []byte("text"))
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return server.URL
}

// gitServer serves a repository with files in the folder addons.
func gitServer(t *testing.T, files map[string]string) string {
	t.Helper()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("git is not installed")
	}
	dir := t.TempDir()
	work := filepath.Join(dir, "work")
	write(t, filepath.Join(work, "addons"), files)
	if err := os.Symlink("/etc/passwd", filepath.Join(work, "addons", "notes", "link")); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"add", "."}, {"commit", "-q", "-m", "first"}, {"clone", "-q", "--bare", ".", filepath.Join(dir, "repo.git")}} {
		cmd := exec.Command(git, args...)
		cmd.Dir = work
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	handler := &cgi.Handler{Path: git, Args: []string{"http-backend"}, Env: []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=x"}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, token, _ := r.BasicAuth(); token != "s3cret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "who?", http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL + "/repo.git"
}

func at(t *testing.T, address, path, password string) *addon.Registry {
	t.Helper()
	r, err := At("r", address, "", path)
	if err != nil {
		t.Fatal(err)
	}
	if r.Helm != nil {
		r.Helm.Username = "me"
	}
	r.SetPassword(password)
	return r
}

func TestAddonsAreFetched(t *testing.T) {
	server, dir := published(t), t.TempDir()
	write(t, dir, files)
	oci := strings.Replace(server, "http://", "oci://", 1)
	git := gitServer(t, files)
	f := &Fetcher{HTTP: http.DefaultClient, Insecure: http.DefaultClient}
	for what, c := range map[string]struct {
		at            *addon.Registry
		name, version string
		want          string // a version, or a part of an error
	}{
		"the newest":                   {at(t, server+"/charts", "", ""), "notes", "", "1.10.0"},
		"a version":                    {at(t, server+"/charts", "", ""), "notes", "1.2.0", "1.2.0"},
		"a range":                      {at(t, server+"/charts", "", ""), "notes", ">=1.0, <1.10", "1.2.0"},
		"a version that is none":       {at(t, server+"/charts", "", ""), "notes", "3.0.0", "there is no version 3.0.0"},
		"a name that is none":          {at(t, server+"/charts", "", ""), "none", "", "the registry has no addon"},
		"another name":                 {at(t, server+"/charts", "", ""), "other", "", "calls itself wrong"},
		"no archive":                   {at(t, server+"/charts", "", ""), "broken", "", "not a packed addon"},
		"with a password":              {at(t, server+"/closed", "", "s3cret"), "notes", "", "1.10.0"},
		"without the password":         {at(t, server+"/closed", "", ""), "notes", "", "401"},
		"of an OCI registry":           {at(t, oci+"/charts", "", ""), "notes", "", "1.10.0"},
		"of an OCI registry, a range":  {at(t, oci+"/charts", "", ""), "notes", "~1.2", "1.2.0"},
		"of a closed OCI registry":     {at(t, oci+"/closed", "", "s3cret"), "notes", "1.0.0", "1.0.0"},
		"of a folder":                  {at(t, dir, "", ""), "notes", "", "1.10.0"},
		"of a folder, no such version": {at(t, dir, "", ""), "notes", "<1.0", "there is no version <1.0"},
		"of a folder, no such name":    {at(t, dir, "", ""), "none", "", "the registry has no addon"},
		"of a folder, outside of it":   {at(t, filepath.Join(dir, "other"), "", ""), "../notes", "", "the registry has no addon"},
		"of a folder, another name":    {at(t, dir, "", ""), "other", "", "calls itself wrong"},
		"of a folder that is none":     {at(t, filepath.Join(dir, "none"), "", ""), "notes", "", "no such file"},
		"of Git":                       {at(t, git, "addons", "s3cret"), "notes", "", "1.10.0"},
		"of Git, no such name":         {at(t, git, "addons", "s3cret"), "none", "", "the registry has no addon"},
		"of Git, no such folder":       {at(t, git, "none", "s3cret"), "notes", "", "directory not found"},
		"of Git, without the password": {at(t, git, "addons", ""), "notes", "", "authentication required"},
	} {
		t.Run(what, func(t *testing.T) {
			a, err := f.Addon(t.Context(), c.at, c.name, c.version)
			if err == nil {
				err = errors.New(a.Version)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestAddonsAreListed(t *testing.T) {
	server, dir := published(t), t.TempDir()
	write(t, dir, files)
	f := &Fetcher{HTTP: http.DefaultClient, Insecure: http.DefaultClient}
	inTree := []Listed{{"notes", "1.10.0", "about notes"}, {"wrong", "1.0.0", "about wrong"}}
	for what, c := range map[string]struct {
		at   *addon.Registry
		want []Listed
	}{
		"an index": {at(t, server+"/charts", "", ""), []Listed{{"broken", "1.0.0", ""}, {"notes", "1.10.0", ""}, {"other", "1.0.0", ""}}},
		"a folder": {at(t, dir, "", ""), inTree},
		"Git":      {at(t, gitServer(t, files), "addons/", "s3cret"), inTree},
	} {
		t.Run(what, func(t *testing.T) {
			got, err := f.List(t.Context(), c.at)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	if _, err := f.List(t.Context(), at(t, "oci://127.0.0.1:1/x", "", "")); !errors.Is(err, ErrNoList) {
		t.Errorf("an OCI registry: %v", err)
	}
}

// TestFoldersAreReadWithoutWhatIsOutside checks links out of a folder, and files that are none.
func TestFoldersAreReadWithoutWhatIsOutside(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, files)
	notes := filepath.Join(dir, "notes")
	a, err := Folder(notes)
	if err != nil || a.Version != "1.10.0" {
		t.Fatalf("%v, %v", a, err)
	}
	secret := filepath.Join(t.TempDir(), "secret.yaml")
	write(t, filepath.Dir(secret), map[string]string{"secret.yaml": "{a: 1}"})
	link := filepath.Join(notes, "resources", "link.yaml")
	if err := os.Symlink(secret, link); err != nil {
		t.Fatal(err)
	}
	if _, err := Folder(notes); err == nil || !strings.Contains(err.Error(), "escapes") {
		t.Errorf("a link out of the folder: %v", err)
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	large := filepath.Join(notes, "large")
	write(t, notes, map[string]string{"large": ""})
	if err := os.Truncate(large, addon.BytesMax+1); err != nil {
		t.Fatal(err)
	}
	if _, err := Folder(notes); err == nil || !strings.Contains(err.Error(), "more than 16777216 bytes") {
		t.Errorf("a large file: %v", err)
	}
}

// TestClonesAreBounded checks that all ways to write a file count.
func TestClonesAreBounded(t *testing.T) {
	left := &atomic.Int64{}
	left.Store(10)
	b := boundedFS{memfs.New(), left}
	inner, err := b.Chroot("inner")
	if err != nil {
		t.Fatal(err)
	}
	f, err := inner.Create("a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("12345")); err != nil {
		t.Fatal(err)
	}
	if f, err = b.TempFile("", "b"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("12345")); err != nil {
		t.Fatal(err)
	}
	if f, err = b.OpenFile("c", os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("1")); !errors.Is(err, errCloneMax) {
		t.Errorf("the eleventh byte: %v", err)
	}
}

func TestRegistriesAreAtAddresses(t *testing.T) {
	for address, want := range map[string]string{
		"https://a.example/addons": addon.TypeHelm, "oci://a.example/addons": addon.TypeOCI, "https://a.example/x.git": addon.TypeGit,
		"ssh://git@a.example/x": addon.TypeGit, "ssh://git:secret@a.example/x": "a password is not part of an address", "folder": addon.TypeFolder, "./folder": addon.TypeFolder, "ftp://a.example": "is no address of a registry",
		"https://me:secret@a.example": "a password is not part of an address", "https://": "is no address of a registry",
	} {
		r, err := At("r", address, "", "")
		got := ""
		if err == nil {
			got = r.Type()
		} else {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
		if strings.Contains(got, "secret") {
			t.Errorf("%s: the error has the password", address)
		}
	}
}
