package localcluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// command is the command line of one component, with its working directory and log.
type command struct {
	path string
	args []string
	dir  string
	log  string   // path of the file to which stdout and stderr are appended
	env  []string // nil means the environment of this process
}

// process is one run of a component.
type process struct {
	pid     int
	started StartTicks
	// done is closed once the process has been reaped; err and usage are set before that.
	done  chan struct{}
	err   error
	usage Usage
	// noted is closed once the component's state shows that the process has ended.
	noted chan struct{}
}

// spawner starts child processes from one OS thread that lives until close. The kernel kills a
// child when the thread that forked it ends (Pdeathsig): so children never outlive their parent,
// even one killed with SIGKILL, and never die because the Go runtime retired a thread.
type spawner struct{ requests chan func() }

func newSpawner() *spawner {
	s := &spawner{requests: make(chan func())}
	go func() {
		lockThread()
		for f := range s.requests {
			f()
		}
	}()
	return s
}

func (s *spawner) close() { close(s.requests) }

// start runs c as a child in its own process group, so that a Ctrl-C at the terminal reaches only
// the parent, which then stops the children in order.
func (s *spawner) start(c command) (*process, error) {
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(c.path, c.args...)
	cmd.Dir, cmd.Env = c.dir, c.env
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = childAttributes()
	started := make(chan error)
	s.requests <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", strings.Join(append([]string{c.path}, c.args...)[:min(2, 1+len(c.args))], " "), err)
	}
	p := &process{pid: cmd.Process.Pid, started: StartOf(cmd.Process.Pid), done: make(chan struct{}),
		noted: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		p.usage = exitUsage(cmd.ProcessState)
		close(p.done)
	}()
	return p, nil
}

// running reports whether the process, which may be nil, has not been reaped yet.
func (p *process) running() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// signal sends sig, unless the process has been reaped, after which its pid may belong to another
// process.
func (p *process) signal(sig syscall.Signal) error {
	if !p.running() {
		return os.ErrProcessDone
	}
	return syscall.Kill(p.pid, sig)
}

// current returns the usage so far, or the final usage.
func (p *process) current() (Usage, error) {
	if !p.running() {
		return p.usage, nil
	}
	return processUsage(p.pid)
}

// exitReason returns a description of how a process ended, from the error of exec.Cmd.Wait.
func exitReason(err error) string {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return "exited with code 0"
	case errors.As(err, &exit):
		if ws := waitStatus(err); ws.Signaled() {
			return "killed by " + unix.SignalName(ws.Signal())
		}
		return fmt.Sprintf("exited with code %d", exit.ExitCode())
	}
	return err.Error()
}

// waitStatus returns the kernel's wait status of a process from the error of exec.Cmd.Wait, or 0 if
// err does not contain it.
func waitStatus(err error) syscall.WaitStatus {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return 0
	}
	ws, _ := exit.Sys().(syscall.WaitStatus)
	return ws
}

// tail returns the last lines of a file, at most n lines and 16 KiB, or a note that the file cannot
// be read.
func tail(path string, n int) string {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	defer f.Close()
	const window = 16 << 10
	if info, err := f.Stat(); err == nil && info.Size() > window {
		if _, err := f.Seek(-window, io.SeekEnd); err != nil {
			return fmt.Sprintf("(no log: %v)", err)
		}
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	lines := bytes.Split(bytes.TrimRight(data, "\n"), []byte("\n"))
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return string(bytes.Join(lines, []byte("\n")))
}

// Usage is a component's use of resources, summed over its runs.
type Usage struct {
	// CPU is user and system time.
	CPU time.Duration
	// RSSBytes is the resident memory now (0 if not running); PeakRSSBytes is the peak of any run.
	RSSBytes, PeakRSSBytes int64
	// AnonBytes is the anonymous part of the resident memory, without pages of files such as the
	// program, which the kernel can reclaim at any time.
	AnonBytes int64
}

func (u Usage) add(o Usage) Usage {
	return Usage{CPU: u.CPU + o.CPU, RSSBytes: u.RSSBytes + o.RSSBytes, AnonBytes: u.AnonBytes + o.AnonBytes,
		PeakRSSBytes: max(u.PeakRSSBytes, o.PeakRSSBytes)}
}
