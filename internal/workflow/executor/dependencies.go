package executor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// lookEvery is the interval at which AwaitEnd checks whether another container has started.
const lookEvery = 20 * time.Millisecond

func (r *run) place(container string) string { return place(r.config.Dir, container) }

func place(dir, container string) string { return filepath.Join(dir, "ctr", container) }

// announce creates the files that show that this container runs. The returned function records the
// exit code.
func (r *run) announce() (func(code int) error, error) {
	dir := r.place(r.plan.Container)
	if err := makeDir(dir); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock.new"), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return nil, fmt.Errorf("%s: %w", lock.Name(), err)
	}
	if err := errors.Join(os.Chmod(lock.Name(), 0o666), os.Rename(lock.Name(), filepath.Join(dir, "lock"))); err != nil {
		return nil, err
	}
	return func(code int) error {
		defer lock.Close()
		path := filepath.Join(dir, "exit")
		if err := os.WriteFile(path+".new", []byte(strconv.Itoa(code)), 0o644); err != nil {
			return err
		}
		return os.Rename(path+".new", path)
	}, nil
}

// makeDir creates a directory in the shared volume that containers of any user can write to.
func makeDir(path string) error {
	if err := os.MkdirAll(path, 0o777); err != nil {
		return err
	}
	for _, p := range []string{filepath.Dir(path), path} {
		// A directory of another user has this mode already.
		if err := os.Chmod(p, 0o777); err != nil && !errors.Is(err, os.ErrPermission) {
			return err
		}
	}
	return nil
}

// await waits until the containers in the plan's After have succeeded. It returns the name of a
// container that has not succeeded, or "".
func (r *run) await() (string, error) {
	for _, name := range r.plan.After {
		ended := make(chan error, 1)
		stop := make(chan struct{})
		go func() { ended <- AwaitEnd(r.config.Dir, name, stop) }()
		if err := r.untilEnded(ended); err != nil {
			close(stop)
			return "", err
		}
		close(stop)
		code, err := os.ReadFile(filepath.Join(r.place(name), "exit"))
		if errors.Is(err, os.ErrNotExist) {
			return name, nil // it was killed
		}
		if err != nil {
			return "", err
		}
		if strings.TrimSpace(string(code)) != "0" {
			return name, nil
		}
	}
	return "", nil
}

// untilEnded waits for another container. It returns an error if a signal to end this container
// comes first.
func (r *run) untilEnded(ended <-chan error) error {
	for {
		select {
		case err := <-ended:
			return err
		case s := <-r.signals:
			if ends(s) {
				return fmt.Errorf("ended by signal %v before the command started", s)
			}
		}
	}
}

// AwaitEnd waits until a container that announces itself in dir has started and ended. It also
// returns if stop is closed before the container has started.
func AwaitEnd(dir, container string, stop <-chan struct{}) error {
	lock := filepath.Join(place(dir, container), "lock")
	for {
		f, err := os.Open(lock)
		if err == nil {
			defer f.Close()
			for {
				if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH); !errors.Is(err, syscall.EINTR) {
					return err
				}
			}
		}
		if !errors.Is(err, os.ErrNotExist) {
			return err
		}
		select {
		case <-stop:
			return nil
		case <-time.After(lookEvery):
		}
	}
}
