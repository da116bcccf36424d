package machine

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"lockstep.dev/lockstep/internal/localcluster/backoff"
)

// reaper waits for every process that ends in its PID namespace, as a first process must, including
// orphans that it did not start. os/exec cannot wait at the same time, so processes are started and
// waited for only here.
type reaper struct {
	lock sync.Mutex
	// waiting are the processes started here, by pid.
	waiting map[int]chan syscall.WaitStatus
}

func newReaper() *reaper {
	r := &reaper{waiting: map[int]chan syscall.WaitStatus{}}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGCHLD)
	go func() {
		for range signals {
			r.reap()
		}
	}()
	return r
}

func (r *reaper) reap() {
	for {
		r.lock.Lock()
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if done, ours := r.waiting[pid]; ours {
			done <- status
			delete(r.waiting, pid)
		}
		r.lock.Unlock()
		if err != syscall.EINTR && (err != nil || pid <= 0) {
			return
		}
	}
}

// start starts a program. The channel delivers the program's status when it ends. The lock prevents
// that reap waits for a process that is not in waiting yet, or for which os.StartProcess itself
// waits.
func (r *reaper) start(log *os.File, name string, args ...string) (*os.Process, <-chan syscall.WaitStatus, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return nil, nil, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, nil, err
	}
	defer null.Close()
	r.lock.Lock()
	defer r.lock.Unlock()
	shown := filepath.Base(name)
	if name == thisProgram {
		shown = programName
	}
	p, err := os.StartProcess(path, append([]string{shown}, args...), &os.ProcAttr{
		Files: []*os.File{null, log, log}, Env: os.Environ(), Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		return nil, nil, err
	}
	done := make(chan syscall.WaitStatus, 1)
	r.waiting[p.Pid] = done
	return p, done, nil
}

// run runs a program to its end.
func (r *reaper) run(log *os.File, name string, args ...string) error {
	_, done, err := r.start(log, name, args...)
	if err != nil {
		return err
	}
	if status := <-done; status != 0 {
		return fmt.Errorf("%s: %s", name, describe(status))
	}
	return nil
}

func describe(status syscall.WaitStatus) string {
	if status.Signaled() {
		return "killed by signal " + status.Signal().String()
	}
	return fmt.Sprintf("exited with code %d", status.ExitStatus())
}

// keep runs a program until ctx is done, and then returns nil without ending the program. If
// restart is true, keep restarts the program whenever it ends; otherwise it returns an error that
// says how the program ended.
func (r *reaper) keep(ctx context.Context, restart bool, logPath, name string, args ...string) error {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	var pauses backoff.Restarts
	for {
		began := time.Now()
		_, done, err := r.start(log, name, args...)
		if err != nil {
			return err
		}
		var status syscall.WaitStatus
		select {
		case <-ctx.Done():
			return nil // the end of the namespace ends the program
		case status = <-done:
			err = fmt.Errorf("%s %s", name, describe(status))
		}
		if !restart {
			return err
		}
		slog.Error("program ended and is started again", "program", name, "args", args[:min(1, len(args))], "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pauses.After(time.Since(began), status)):
		}
	}
}
