package sandbox

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"lockstep.dev/lockstep/internal/clip"
	"lockstep.dev/lockstep/internal/race"
)

// startMax is the maximum time until a child is ready. childNice is the priority (nice value) of
// children.
const (
	startMax  = 30 * time.Second
	childNice = 5
)

// child is a child process, as seen by its parent. It has one request at a time.
//
//	starting ── hello ──▶ idle ◀─ response ── busy ── killed or dead ──▶ gone
//	                       └────── request ────▶┘
type child struct {
	limits *Limits
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    io.ReadCloser
	said   *head
	done   chan struct{} // closed when the process has ended

	// memory is the memory held after the last answer, in bytes; cpu is the CPU time of that
	// request.
	memory int64
	cpu    time.Duration
	// The pool uses these fields: the number of requests answered, and since when the child is
	// idle.
	served    int
	idleSince time.Time

	mu    sync.Mutex
	cause error // why it was killed
	slow  bool  // its priority has been lowered
}

// starter starts processes from one thread that lives as long as the program, because the kernel
// ends a child with the thread that started it (PDEATHSIG), not with the process.
var starter = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		// Children inherit the priority of this thread: they give way to the manager itself.
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, childNice)
		for f := range work {
			f()
		}
	}()
	return work
})

// start starts a child and waits until it is ready. missing lists the limits that the system does
// not enforce.
func start(limits *Limits) (c *child, missing string, err error) {
	settings, err := json.Marshal(limits)
	if err != nil {
		return nil, "", err
	}
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{childName, string(settings)}, Env: []string{}, Dir: "/",
		SysProcAttr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true},
	}
	c = &child{limits: limits, cmd: cmd, said: &head{}, done: make(chan struct{})}
	cmd.Stderr = c.said
	if c.in, err = cmd.StdinPipe(); err == nil {
		c.out, err = cmd.StdoutPipe()
	}
	if err != nil {
		return nil, "", &startError{err}
	}
	started := make(chan error)
	starter() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, "", &startError{err}
	}
	// Wait closes the pipe that is read from: it must not be called before the last read. See end.
	late := time.AfterFunc(startMax, func() { c.kill(fmt.Errorf("it was not ready after %s", startMax)) })
	defer late.Stop()
	kind, hello, err := readFrame(c.out, 1<<16)
	if err == nil && kind != frameHello {
		err = fmt.Errorf("it began with a frame of kind %d", kind)
	}
	if err != nil {
		c.kill(nil)
		c.end()
		return nil, "", &startError{fmt.Errorf("%w: %s", err, c.said.line())}
	}
	return c, string(hello), nil
}

// kill ends the process at once. Only the first cause counts.
func (c *child) kill(cause error) {
	c.mu.Lock()
	c.cause = cmp.Or(c.cause, cause)
	c.mu.Unlock()
	_ = c.cmd.Process.Kill()
}

// end waits for the end of a process that has been killed or has closed its output.
func (c *child) end() {
	_ = c.in.Close()
	_ = c.cmd.Wait()
	close(c.done)
}

// call sends a request and waits for the response. If alive is false, the child must be ended by
// death.
func (c *child) call(name string, request []byte) (response []byte, alive bool, err error) {
	err = writeFrame(c.in, frameRequest, []byte{byte(len(name))}, []byte(name), request)
	var kind byte
	if err == nil {
		kind, response, err = readFrame(c.out, c.limits.OutputBytesMax+1<<10)
	}
	if err == nil && len(response) < weightBytes {
		err = fmt.Errorf("it answered with %d bytes", len(response))
	}
	if err != nil {
		return nil, false, nil
	}
	c.memory, c.cpu = int64(binary.BigEndian.Uint64(response)), time.Duration(binary.BigEndian.Uint64(response[8:]))
	response = response[weightBytes:]
	switch kind {
	case frameDone:
		return response, true, nil
	case frameFailed:
		return nil, true, &Failed{string(response)}
	case frameTooLong:
		return nil, true, &Exceeded{Output, bytesText(c.limits.OutputBytesMax)}
	case framePanic:
		return nil, false, &Crashed{firstLine(string(response))}
	}
	return nil, false, &Crashed{fmt.Sprintf("it answered with a frame of kind %d", kind)}
}

// death ends the process and returns the reason why its request has no answer: said, if not nil,
// else the reason why the process ended.
func (c *child) death(said error) error {
	// The process may only have closed its output; an ended process keeps its exit status.
	_ = c.cmd.Process.Kill()
	c.end()
	if said != nil {
		return said
	}
	c.mu.Lock()
	cause := c.cause
	c.mu.Unlock()
	if cause != nil {
		return cause
	}
	text := c.said.String()
	status, _ := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
	memory := &Exceeded{Memory, bytesText(c.limits.MemoryBytes)}
	switch {
	case strings.Contains(text, "stack exceeds") || strings.Contains(text, "stack overflow"):
		return &Exceeded{Stack, bytesText(c.limits.StackBytes)}
	case strings.Contains(text, "out of memory"), strings.Contains(text, "cannot allocate memory"),
		strings.Contains(text, "failed to create new OS thread"),
		// The stack of a thread could not grow; other faults of Go programs are panics.
		strings.Contains(text, "SIGSEGV"):
		return memory
	case strings.Contains(text, "SIGXCPU"), status.Signaled() && status.Signal() == syscall.SIGXCPU:
		return &Exceeded{CPU, durationText(c.limits.CPU)}
	case status.Signaled() && status.Signal() == syscall.SIGKILL && text == "":
		return memory // only the kernel kills without a cause, for lack of memory
	case text != "":
		return &Crashed{c.said.line()}
	}
	return &Crashed{c.cmd.ProcessState.String()}
}

// lower permanently lowers the priority of the process. All its threads are in its process group.
func (c *child) lower() {
	c.mu.Lock()
	c.slow = true
	c.mu.Unlock()
	_ = unix.Setpriority(unix.PRIO_PGRP, c.cmd.Process.Pid, slowNice)
}

func (c *child) isSlow() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.slow
}

// watch checks a running request every watchEvery. stop ends the checks.
func (c *child) watch(onSlow func()) (stop func()) {
	began := time.Now()
	var base time.Duration // CPU time before the request
	known := false
	var mu sync.Mutex
	var timer *time.Timer
	stopped := false
	look := func() {
		mu.Lock()
		defer mu.Unlock()
		if stopped {
			return
		}
		elapsed := time.Since(began)
		if elapsed > c.limits.Wall {
			c.kill(ErrLate)
			return
		}
		if u, err := usageOf(c.cmd.Process.Pid); err == nil {
			if !known {
				base, known = max(0, u.cpu-elapsed), true
			}
			switch {
			case u.cpu-base > c.limits.CPU:
				c.kill(&Exceeded{CPU, durationText(c.limits.CPU)})
				return
			case u.memory > (c.limits.MemoryBytes+residentBytes)*race.Factor:
				c.kill(&Exceeded{Memory, bytesText(c.limits.MemoryBytes)})
				return
			case u.cpu-base >= slowAfter && !c.isSlow():
				c.lower()
				onSlow()
			}
		}
		timer.Reset(watchEvery)
	}
	mu.Lock()
	timer = time.AfterFunc(watchEvery, look)
	mu.Unlock()
	return func() {
		mu.Lock()
		stopped = true
		mu.Unlock()
		timer.Stop()
	}
}

// head keeps the beginning of the data written to it.
type head struct {
	mu   sync.Mutex
	data []byte
}

const headBytesMax = 8 << 10

func (h *head) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.data = append(h.data, p[:min(len(p), headBytesMax-len(h.data))]...)
	return len(p), nil
}

func (h *head) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return string(h.data)
}

func (h *head) line() string { return firstLine(h.String()) }

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return clip.Text(line, 200)
}

// resident returns the resident memory of the process in bytes, or 0 if the process has ended.
func (c *child) resident() int64 {
	u, err := usageOf(c.cmd.Process.Pid)
	if errors.Is(err, os.ErrNotExist) {
		return 0
	}
	return u.memory
}
