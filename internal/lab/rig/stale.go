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

// owned is the file in a control plane's folder that its process holds a lock on while it lives. The kernel drops the lock
// with the process, however that ends: a folder whose lock can be had is nobody's.
const owned = "owned"

// home is the folder of a control plane.
type home struct {
	dir  string
	lock *os.File
}

// newHome makes a folder that is this process's.
func newHome(state string) (h *home, err error) {
	// No folder without a lock is seen by somebody who removes what is stale.
	among, err := lock(state)
	if err != nil {
		return nil, err
	}
	defer among.Close()
	h = &home{}
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

// remove ends the folder.
func (h *home) remove() error {
	return errors.Join(os.RemoveAll(h.dir), h.lock.Close())
}

// errLocked says that somebody else holds a lock.
var errLocked = errors.New("locked")

// lock waits for a lock on a file or folder, which lasts until it is closed.
func lock(path string) (*os.File, error) { return flock(path, syscall.LOCK_EX) }

// tryLock is errLocked where lock would wait.
func tryLock(path string) (*os.File, error) { return flock(path, syscall.LOCK_EX|syscall.LOCK_NB) }

func flock(path string, how int) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), how)
		if err != syscall.EINTR {
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

// RemoveStale removes what measurements of this user left that were killed, and says of how many.
func RemoveStale() (int, error) {
	state, err := stateDir()
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
			continue // it lives, or is no folder of ours
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

// removeDead removes a folder whose process has ended; the kernel ended the components with it.
func removeDead(dir string) error {
	real := localcluster.RealNodesDir(dir)
	if _, err := os.Stat(real); err == nil {
		if err := localcluster.RemoveRealNodes(clusterName, real); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}
