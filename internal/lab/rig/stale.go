package rig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"lockstep.dev/lockstep/internal/localcluster"
)

// owned is the name of a file in a control plane's directory. The process that owns the directory
// has a lock on the file while it lives. The kernel releases the lock when the process ends in any
// way: a directory whose lock is free has no owner.
const owned = "owned"

// workDir is the directory of a control plane.
type workDir struct {
	dir  string
	lock *os.File
}

// newWorkDir creates a directory owned by this process.
func newWorkDir(state string) (h *workDir, err error) {
	// The lock on the parent ensures that removeStale never sees a directory without its lock.
	among, err := lock(state)
	if err != nil {
		return nil, err
	}
	defer among.Close()
	h = &workDir{}
	if h.dir, err = os.MkdirTemp(state, "bench-"); err != nil {
		return nil, err
	}
	name := filepath.Join(h.dir, owned)
	if err = os.WriteFile(name, nil, 0o600); err == nil {
		h.lock, err = lock(name)
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(h.dir))
	}
	return h, nil
}

// remove deletes the directory and releases the lock.
func (h *workDir) remove() error {
	return errors.Join(os.RemoveAll(h.dir), h.lock.Close())
}

// errLocked means that another process holds a lock.
var errLocked = errors.New("locked")

// lock waits for a lock on a file or directory. The lock is held until the file is closed.
func lock(path string) (*os.File, error) { return flock(path, syscall.LOCK_EX) }

// tryLock is like lock, but returns errLocked instead of waiting.
func tryLock(path string) (*os.File, error) { return flock(path, syscall.LOCK_EX|syscall.LOCK_NB) }

func flock(path string, how int) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err == nil {
		return f, nil
	}
	f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errLocked
	}
	return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
}

// RemoveStale removes the directories of this user's killed measurements, and returns their number.
func RemoveStale() (int, error) {
	state, err := StateDir()
	if err != nil {
		return 0, err
	}
	return removeStale(state)
}

func removeStale(state string) (int, error) {
	among, err := lock(state)
	if err != nil {
		return 0, err
	}
	defer among.Close()
	dirs, err := filepath.Glob(filepath.Join(state, "bench-*"))
	if err != nil {
		return 0, err
	}
	removed := 0
	for _, dir := range dirs {
		mine, failed := tryLock(filepath.Join(dir, owned))
		if errors.Is(failed, errLocked) || errors.Is(failed, fs.ErrNotExist) {
			continue // it is in use, or not one of ours
		}
		if failed == nil {
			failed = removeDead(dir)
			mine.Close()
		}
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", dir, failed))
			continue
		}
		removed++
	}
	return removed, err
}

// removeDead removes the directory of a process that has ended. The kernel has ended its components
// with it.
func removeDead(dir string) error {
	real := localcluster.RealNodesDir(dir)
	if _, err := os.Stat(real); err == nil {
		if err := localcluster.RemoveRealNodes(clusterName, real); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}
