package command

import (
	"context"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// Exit codes of the program; users rely on them.
const (
	ExitOK          = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitTimeout     = 3
	ExitForeign     = 4 // only of install
	ExitThreshold   = 5 // only of bench
	ExitInterrupted = 130
)

// Streams holds the standard streams that a verb reads and writes.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// UsageError marks an error of usage. The program then exits with code 2 and points to --help.
type UsageError struct{ error }

func (e UsageError) Unwrap() error { return e.error }

// ThresholdError lists the thresholds of --fail-if that were crossed. The program then exits with
// code 5.
type ThresholdError struct{ Crossed []string }

func (e ThresholdError) Error() string { return strings.Join(e.Crossed, "\n") }

// Usage marks err as an error of usage.
func Usage(err error) error { return UsageError{err} }

// Usagef returns an error of usage.
func Usagef(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

// Must panics if err is not nil. It wraps calls that fail only through a mistake in this program.
func Must(err error) {
	if err != nil {
		panic(err)
	}
}

// Group makes cmd the parent of verbs, and returns cmd. To call cmd without a verb is wrong usage.
func Group(cmd *cobra.Command, verbs ...*cobra.Command) *cobra.Command {
	cmd.AddCommand(verbs...)
	cmd.Args = NoArgs
	cmd.RunE = func(*cobra.Command, []string) error {
		var names []string
		for _, v := range verbs {
			if !v.Hidden {
				names = append(names, v.Name())
			}
		}
		return Usagef("say what to do: lockstep %s %s", strings.TrimPrefix(cmd.CommandPath(), "lockstep "),
			strings.Join(names, "|"))
	}
	return cmd
}

// Interruptible returns a context for a command. The context ends at the first interrupt and, if
// timeout is not zero, after timeout. A second interrupt ends the process at once.
func Interruptible(cmd *cobra.Command, timeout time.Duration) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	if timeout <= 0 {
		return ctx, stop
	}
	bound, cancel := context.WithTimeout(ctx, timeout)
	return bound, func() { cancel(); stop() }
}
