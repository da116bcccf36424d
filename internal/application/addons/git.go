package addons

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/go-git/go-billy/v5"
	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	"github.com/go-git/go-git/v5/storage/filesystem"

	"lockstep.dev/lockstep/internal/application/addon"
)

// cloneMax bounds what a clone of the newest commit writes, in bytes.
const cloneMax = 256 << 20

// clone opens the folder of the addons in the newest commit of a repository's default branch. No
// working tree is made from the commit: the files are those below the folder, without links.
func clone(ctx context.Context, g *addon.Git) (*tree, error) {
	dir, err := os.MkdirTemp("", "lockstep-addons-")
	if err != nil {
		return nil, err
	}
	t := &tree{close: func() { _ = os.RemoveAll(dir) }}
	if err := t.fill(ctx, g, dir); err != nil {
		t.close()
		return nil, fmt.Errorf("git %s: %w", g.URL, err)
	}
	return t, nil
}

func (t *tree) fill(ctx context.Context, g *addon.Git, dir string) error {
	left := &atomic.Int64{}
	left.Store(cloneMax)
	store := filesystem.NewStorage(boundedFS{osfs.New(filepath.Join(dir, "git")), left}, cache.NewObjectLRUDefault())
	var auth transport.AuthMethod
	if g.Token != "" && strings.HasPrefix(g.URL, "http") {
		auth = &githttp.BasicAuth{Username: "git", Password: g.Token}
	}
	repo, err := git.CloneContext(ctx, store, nil, &git.CloneOptions{URL: g.URL, Auth: auth, Depth: 1, SingleBranch: true, Tags: git.NoTags})
	if err != nil {
		return err
	}
	head, err := repo.Head()
	if err != nil {
		return err
	}
	commit, err := repo.CommitObject(head.Hash())
	if err != nil {
		return err
	}
	root, err := commit.Tree()
	if err == nil && strings.Trim(g.Path, "/") != "" {
		root, err = root.Tree(strings.Trim(path.Clean(g.Path), "/"))
	}
	if err != nil {
		return err
	}
	files := filepath.Join(dir, "files")
	if err := os.Mkdir(files, 0o700); err != nil {
		return err
	}
	to, err := os.OpenRoot(files)
	if err != nil {
		return err
	}
	t.FS = to.FS()
	t.close = func() { _ = to.Close(); _ = os.RemoveAll(dir) }
	return root.Files().ForEach(func(f *object.File) error {
		if !f.Mode.IsRegular() || f.Size > addon.BytesMax {
			return nil // no addon has it; an addon that needs it says that it is missing
		}
		text, err := f.Contents()
		if err != nil {
			return err
		}
		if left.Add(-int64(len(text))) < 0 {
			return errCloneMax
		}
		if err := to.MkdirAll(path.Dir(f.Name), 0o700); err != nil {
			return err
		}
		return to.WriteFile(f.Name, []byte(text), 0o600)
	})
}

var errCloneMax = fmt.Errorf("the repository has more than %d bytes", cloneMax)

// boundedFS is a file system in which no more than left bytes can be written.
type boundedFS struct {
	billy.Filesystem
	left *atomic.Int64
}

type boundedFile struct {
	billy.File
	left *atomic.Int64
}

// Write implements io.Writer.
func (f boundedFile) Write(p []byte) (int, error) {
	if f.left.Add(-int64(len(p))) < 0 {
		return 0, errCloneMax
	}
	return f.File.Write(p)
}

func (b boundedFS) bound(f billy.File, err error) (billy.File, error) {
	if err != nil {
		return nil, err
	}
	return boundedFile{f, b.left}, nil
}

// Create implements billy.Basic.
func (b boundedFS) Create(name string) (billy.File, error) { return b.bound(b.Filesystem.Create(name)) }

// OpenFile implements billy.Basic.
func (b boundedFS) OpenFile(name string, flag int, perm os.FileMode) (billy.File, error) {
	return b.bound(b.Filesystem.OpenFile(name, flag, perm))
}

// TempFile implements billy.TempFile.
func (b boundedFS) TempFile(dir, prefix string) (billy.File, error) {
	return b.bound(b.Filesystem.TempFile(dir, prefix))
}

// Chroot implements billy.Chroot.
func (b boundedFS) Chroot(dir string) (billy.Filesystem, error) {
	inner, err := b.Filesystem.Chroot(dir)
	if err != nil {
		return nil, err
	}
	return boundedFS{inner, b.left}, nil
}

var _ billy.Filesystem = boundedFS{}
