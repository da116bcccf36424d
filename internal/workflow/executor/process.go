package executor

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"lockstep.dev/lockstep/internal/workflow/execapi"
)

// errStart marks the error of a command that the kernel refused to start.
var errStart = errors.New("cannot be started")

// drainTime is how long output is read after the command has ended, if a process that outlives the
// command keeps the pipe open.
const drainTime = 200 * time.Millisecond

// child is the process of the command.
type child struct {
	pid    int
	group  bool // it leads a process group
	ended  bool // it received a signal to end
	copies []*copying
	forced *time.Timer
}

// start starts the command in its own process group, so that signals reach all of its processes.
func (r *run) start(path string) error {
	r.child = child{group: true, ended: r.child.ended}
	files := []uintptr{os.Stdin.Fd(), r.config.Stdout.Fd(), r.config.Stderr.Fd()}
	var ours []*os.File
	tee := func(fd int, out *os.File, keep ...sink) error {
		read, write, err := os.Pipe()
		if err != nil {
			return err
		}
		ours = append(ours, write)
		files[fd] = write.Fd()
		r.child.copies = append(r.child.copies, copyOutput(read, out, keep...))
		return nil
	}
	defer func() {
		for _, f := range ours {
			f.Close()
		}
	}()
	var sinks []sink // of stdout
	if r.plan.Result {
		sinks = append(sinks, &r.result)
	}
	if r.plan.Logs != "" {
		logs, err := openLog(r.plan.Logs)
		if err != nil {
			return err
		}
		if err := tee(2, r.config.Stderr, logs); err != nil {
			return err
		}
		sinks = append(sinks, logs)
	}
	if len(sinks) > 0 {
		if err := tee(1, r.config.Stdout, sinks...); err != nil {
			return err
		}
	}
	attr := &syscall.ProcAttr{Env: environment(), Files: files, Sys: &syscall.SysProcAttr{Setpgid: true}}
	if isTerminal(os.Stdin) {
		// A background process group could not read from the terminal.
		r.child.group, attr.Sys = false, nil
	}
	pid, err := syscall.ForkExec(path, r.argv, attr)
	if err != nil {
		for _, c := range r.child.copies {
			c.from.Close()
		}
		return fmt.Errorf("%s: %w: %w", path, errStart, err)
	}
	r.child.pid = pid
	return nil
}

// environment returns the command's environment: all variables except the plan.
func environment() []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, execapi.PlanEnv+"=") {
			env = append(env, e)
		}
	}
	return env
}

// supervise forwards signals and reaps processes until the command has ended. It returns the
// command's exit code.
func (r *run) supervise() (int, error) {
	exited := make(chan syscall.WaitStatus, 1)
	failed := make(chan error, 1)
	go func() {
		status, err := reap(r.child.pid)
		if err != nil {
			failed <- err
			return
		}
		exited <- status
	}()
	if r.child.ended { // the signal came before the process was started
		r.kill(syscall.SIGTERM)
	}
	for {
		select {
		case s := <-r.signals:
			r.forward(s.(syscall.Signal))
		case err := <-failed:
			return 0, err
		case status := <-exited:
			if r.child.forced != nil {
				r.child.forced.Stop()
			}
			for _, c := range r.child.copies {
				c.finish()
			}
			return exitCode(status), nil
		}
	}
}

func (r *run) forward(s syscall.Signal) {
	switch s {
	case syscall.SIGCHLD, syscall.SIGURG, syscall.SIGPIPE:
		return // signals of the Go runtime, and signals that concern only this process
	}
	if ends(s) {
		r.child.ended = true
		if r.plan.GraceSeconds > 0 && r.child.forced == nil {
			r.child.forced = time.AfterFunc(time.Duration(r.plan.GraceSeconds)*time.Second, func() { r.kill(syscall.SIGKILL) })
		}
	}
	r.kill(s)
}

// kill sends a signal to the command and its children. It ignores processes that have ended.
func (r *run) kill(s syscall.Signal) {
	pid := r.child.pid
	if r.child.group {
		pid = -pid
	}
	_ = syscall.Kill(pid, s)
}

// reap waits until the process has ended, and returns its status. Meanwhile it reaps the orphans
// that the first process of a container inherits.
func reap(pid int) (syscall.WaitStatus, error) {
	for {
		var status syscall.WaitStatus
		got, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, fmt.Errorf("waiting for the command: %w", err)
		case got == pid && (status.Exited() || status.Signaled()):
			return status, nil
		}
	}
}

// exitCode returns the exit code of a process as a shell reports it.
func exitCode(s syscall.WaitStatus) int {
	if s.Signaled() {
		return 128 + int(s.Signal())
	}
	return s.ExitStatus()
}
