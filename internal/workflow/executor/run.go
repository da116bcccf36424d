package executor

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"lockstep.dev/lockstep/internal/workflow/execapi"
)

// Config holds the executor's files and dependencies that are not in the plan. The zero value is
// right in a container.
type Config struct {
	Stdout, Stderr *os.File
	// Message is the file of the termination message; "" means the plan's, or /dev/termination-log.
	Message string
	Dir     string // "" means execapi.Dir
	Task    func(*execapi.Task, *execapi.Report) error
}

// defaultMessage is where the kubelet reads the termination message by default.
const defaultMessage = "/dev/termination-log"

// Exit codes for commands that could not be started, as in a shell.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

// run is the state of one container.
type run struct {
	plan    *execapi.Plan
	config  Config
	argv    []string
	signals chan os.Signal
	child   child
	result  tail
	report  execapi.Report
}

// Run runs a command according to a plan and returns the container's exit code.
func Run(plan *execapi.Plan, argv []string, config Config) int {
	config.Stdout, config.Stderr = cmp.Or(config.Stdout, os.Stdout), cmp.Or(config.Stderr, os.Stderr)
	config.Dir, config.Message = cmp.Or(config.Dir, execapi.Dir), cmp.Or(config.Message, plan.Message, defaultMessage)
	r := &run{plan: plan, config: config, argv: argv, signals: make(chan os.Signal, 64), result: tail{max: execapi.MaxResult}}
	signal.Notify(r.signals)
	defer signal.Stop(r.signals)
	return r.container()
}

func (r *run) container() int {
	//   1. Announce this container to those that wait for it.
	announce := func(int) error { return nil }
	if r.plan.Announce {
		var err error
		if announce, err = r.announce(); err != nil {
			return r.fail(err)
		}
	}
	code := r.life()
	//   5. Announce how it ended, now that all its outputs are there.
	if err := announce(code); err != nil {
		return r.fail(err)
	}
	return code
}

func (r *run) life() int {
	//   2. Wait for the containers that it comes after.
	if omitted, err := r.await(); err != nil {
		return r.fail(err)
	} else if omitted != "" {
		r.report.Omitted = omitted
		r.write(r.report.Fit(r.maxMessage()))
		return execapi.ExitExecutor
	}
	//   3. Run the command.
	watched := r.watchProgress()
	code, err := r.attempts()
	r.report.Progress = watched()
	if err != nil {
		return r.fail(err)
	}
	//   4. Collect its outputs.
	if err := r.outputs(code); err != nil {
		r.report.Exit = &code
		return r.fail(err)
	}
	if code != 0 {
		r.report.Message = r.commandsMessage()
	}
	return r.finish(code)
}

// attempts runs the command until it succeeds or no retries are left.
func (r *run) attempts() (int, error) {
	delay := time.Duration(0)
	if r.plan.RetryDelay != "" {
		var err error
		if delay, err = time.ParseDuration(r.plan.RetryDelay); err != nil {
			return 0, fmt.Errorf("retryStrategy.duration: %w", err)
		}
	}
	for attempt := 0; ; attempt++ {
		code, err := r.command()
		if err != nil || code == 0 || attempt >= r.plan.Retries || r.child.ended {
			return code, err
		}
		r.result.reset()
		if r.pause(delay) {
			return code, nil
		}
	}
}

// pause waits for d. It reports whether a signal to end the container came meanwhile.
func (r *run) pause(d time.Duration) bool {
	done := time.After(d)
	for {
		select {
		case <-done:
			return false
		case s := <-r.signals:
			if ends(s) {
				return true
			}
		}
	}
}

// command runs the command once. It returns an error only if the executor itself fails; a command
// that cannot be started has an exit code.
func (r *run) command() (int, error) {
	if len(r.argv) == 0 {
		return 0, errors.New("no command")
	}
	path, err := lookPath(r.argv[0])
	if err == nil {
		err = r.start(path)
	}
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, exec.ErrNotFound):
		r.note(err)
		return exitNotFound, nil
	case errors.Is(err, errStart), errors.Is(err, os.ErrPermission):
		r.note(err)
		return exitNotExecutable, nil
	case err != nil:
		return 0, err
	}
	return r.supervise()
}

func lookPath(name string) (string, error) {
	if os.Getenv("PATH") == "" {
		if err := os.Setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"); err != nil {
			return "", err
		}
	}
	path, err := exec.LookPath(name)
	if errors.Is(err, exec.ErrDot) { // found through a relative entry of PATH, which the image sets
		err = nil
	}
	return path, err
}

// note records the reason why the command did not start in the log and in the report.
func (r *run) note(err error) {
	fmt.Fprintf(r.config.Stderr, "lockstep-exec: %v\n", err)
	r.report.Message = execapi.Shorten(err.Error())
}

// fail ends the container because of a failure of the executor.
func (r *run) fail(err error) int {
	fmt.Fprintf(r.config.Stderr, "lockstep-exec: %v\n", err)
	r.report.Failed, r.report.Message = true, execapi.Shorten(err.Error())
	r.report.Result, r.report.Parameters = nil, nil
	r.write(r.report.Fit(r.maxMessage()))
	return execapi.ExitExecutor
}

// commandsMessage returns the termination message that the command itself left.
func (r *run) commandsMessage() string {
	if r.report.Message != "" {
		return r.report.Message
	}
	f, err := os.Open(r.config.Message)
	if err != nil {
		return ""
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, execapi.MaxText))
	if err != nil {
		return ""
	}
	return execapi.Shorten(strings.TrimSpace(strings.ToValidUTF8(string(text), "")))
}

// finish writes the report. Outputs that are too large for a termination message go into a
// WorkflowTaskResult.
func (r *run) finish(code int) int {
	text, err := Compose(r.report, r.maxMessage(), r.plan.Task, r.config.Task)
	if err != nil {
		r.report.Exit = &code
		return r.fail(err)
	}
	r.write(text)
	return code
}

// Compose returns the termination message for a report. Outputs that are too large for it are
// passed to put, which writes a WorkflowTaskResult; if put is nil, Compose writes it with the pod's
// service account.
func Compose(report execapi.Report, maxMessage int, task *execapi.Task, put func(*execapi.Task, *execapi.Report) error) (string, error) {
	text, fits := report.Encode(maxMessage)
	if fits {
		return text, nil
	}
	if task == nil {
		return "", errors.New("the outputs are too large")
	}
	if put == nil {
		put = createTaskResult
	}
	if err := put(task, &report); err != nil {
		return "", fmt.Errorf("the outputs do not fit into %d bytes, and no WorkflowTaskResult can be made: %w", maxMessage, err)
	}
	return execapi.Report{Elsewhere: true, Message: report.Message}.Fit(maxMessage), nil
}

func (r *run) maxMessage() int { return cmp.Or(r.plan.MaxMessage, execapi.MaxMessage) }

// write writes the termination message. An empty report is not written, so that the kubelet may use
// the end of the log instead.
func (r *run) write(text string) {
	if text == `{"lockstep":1}` {
		return
	}
	if err := os.WriteFile(r.config.Message, []byte(text), 0o644); err != nil {
		fmt.Fprintf(r.config.Stderr, "lockstep-exec: termination message: %v\n", err)
	}
}

// ends reports whether a signal asks the container to end.
func ends(s os.Signal) bool {
	return s == syscall.SIGTERM || s == syscall.SIGINT || s == syscall.SIGQUIT
}
