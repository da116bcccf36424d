// Package artifactstest serves artifact stores to tests: a store of files by HTTP, one with the
// protocol of Alibaba Cloud's OSS, and git repositories. Tests run the servers in their own process,
// and on real nodes in a pod.
package artifactstest

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// User and Password are the credentials that the servers by HTTP and of git ask for.
const (
	User     = "someone"
	Password = "s3cret"
)

// authorized calls next for requests with the user and the password.
func authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != User || password != Password {
			w.Header().Set("WWW-Authenticate", `Basic realm="artifacts"`)
			http.Error(w, "who?", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// HTTP returns a server that keeps what is PUT. It refuses every third request temporarily.
func HTTP() http.Handler {
	var mu sync.Mutex
	kept, requests := map[string][]byte{}, 0
	store := authorized(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, found := kept[r.URL.Path]
		switch {
		case r.Method == http.MethodPut:
			kept[r.URL.Path], _ = io.ReadAll(r.Body)
		case !found:
			http.NotFound(w, r)
		case r.Method == http.MethodDelete:
			delete(kept, r.URL.Path)
		default:
			w.Write(data)
		}
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if requests++; requests%3 == 0 {
			http.Error(w, "busy", http.StatusServiceUnavailable)
			return
		}
		store.ServeHTTP(w, r)
	})
}

// OSS is a server of objects whose API is that of OSS as far as its client uses it: S3's, with other
// headers. It records who signed requests, and their tokens.
type OSS struct {
	Backend *s3mem.Backend

	inner   http.Handler
	mu      sync.Mutex
	signers []string
}

// NewOSS returns a server without buckets.
func NewOSS() *OSS {
	backend := s3mem.New()
	return &OSS{Backend: backend, inner: gofakes3.New(backend).Server()}
}

// Signers returns who signed requests.
func (f *OSS) Signers() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.signers)
}

func (f *OSS) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, rest, _ := strings.Cut(r.Header.Get("Authorization"), "OSS ")
	who, _, _ := strings.Cut(rest, ":")
	if token := r.Header.Get("X-Oss-Security-Token"); token != "" {
		who += " " + token
	}
	f.mu.Lock()
	if !slices.Contains(f.signers, who) {
		f.signers = append(f.signers, who)
	}
	f.mu.Unlock()
	r.Header.Del("Authorization")
	if r.ContentLength < 0 { // OSS takes content of a length that is not announced
		text, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(text))
		r.Header.Set("Content-Length", strconv.Itoa(len(text)))
	}
	if r.URL.Query().Has("acl") {
		if found, err := f.Backend.BucketExists(strings.Trim(r.URL.Path, "/")); err != nil || !found {
			w.WriteHeader(http.StatusNotFound)
			w.Write([]byte(`<Error><Code>NoSuchBucket</Code></Error>`))
			return
		}
		w.Write([]byte(`<AccessControlPolicy><AccessControlList><Grant>private</Grant></AccessControlList></AccessControlPolicy>`))
		return
	}
	f.inner.ServeHTTP(w, r)
}

// NewGitRepository makes dir/repo.git with two commits on main, the tag v1 and the branch old on the
// first.
func NewGitRepository(git, dir string) error {
	work := filepath.Join(dir, "work")
	if err := os.MkdirAll(work, 0o755); err != nil {
		return err
	}
	run := func(args ...string) error {
		cmd := exec.Command(git, args...)
		cmd.Dir = work
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("git %v: %w: %s", args, err, out)
		}
		return nil
	}
	commit := func(name string) error {
		if err := os.WriteFile(filepath.Join(work, "file"), []byte(name), 0o644); err != nil {
			return err
		}
		if err := run("add", "."); err != nil {
			return err
		}
		return run("commit", "-q", "-m", name)
	}
	steps := []func() error{
		func() error { return run("init", "-q", "-b", "main") },
		func() error { return commit("first") },
		func() error { return run("tag", "v1") },
		func() error { return run("branch", "old") },
		func() error { return commit("second") },
		func() error { return run("clone", "-q", "--bare", work, filepath.Join(dir, "repo.git")) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// Git returns a server of the repositories in dir, by the program git.
func Git(git, dir string) http.Handler {
	return authorized(&cgi.Handler{Path: git, Args: []string{"http-backend"}, Env: []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=x"}})
}
