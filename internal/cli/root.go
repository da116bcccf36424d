// Package cli is the command tree of lockstep: one file per verb, with no logic beyond flags,
// printing and exit codes.
//
// Exit codes: 0 success; 1 the operation failed; 2 wrong usage; 3 a --timeout ran out; 4 only of
// install: the cluster holds foreign objects in the way; 130 interrupted. Data goes to stdout;
// progress and errors go to stderr.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"lockstep.dev/lockstep/internal/install"
)

// Version is the program's version. The linker sets it.
var Version = "dev"

// Exit codes of the program; users rely on them.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitTimeout     = 3
	exitForeign     = 4 // only of install
	exitInterrupted = 130
)

// usageError marks an error of usage. The program then exits with code 2 and points to --help.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// streams holds the standard streams that a verb reads and writes.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// Run runs one command line and returns the program's exit code.
func Run(args []string, in io.Reader, out, errOut io.Writer) int {
	// The API client reports failures as errors; its log lines are discarded. Long-running verbs
	// set a log of their own.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	root := newRoot(streams{in, out, errOut})
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(context.Background())
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(errOut, "lockstep: %s\n", inWords.Replace(err.Error()))
	// the API client does not wrap every error
	if strings.Contains(err.Error(), syscall.ECONNREFUSED.Error()) {
		fmt.Fprintln(errOut, "Nothing answers at the address that the kubeconfig has. 'lockstep status' shows the local clusters.")
	}
	var usage usageError
	var foreign *install.ForeignError
	switch {
	case errors.As(err, &foreign):
		fmt.Fprintln(errOut, "Nothing was changed. Remove what is named first, or add --take-over to replace its CRDs.")
		return exitForeign
	case errors.As(err, &usage):
		fmt.Fprintf(errOut, "See '%s --help'.\n", cmd.CommandPath())
		return exitUsage
	case errors.Is(err, context.DeadlineExceeded):
		return exitTimeout
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	}
	return exitFailed
}

// inWords replaces the error texts of package context by words for users.
var inWords = strings.NewReplacer(context.DeadlineExceeded.Error(), "the time is up", context.Canceled.Error(), "interrupted")

// interruptible returns the context of a command that ends at the first interrupt. A second
// interrupt ends the process at once.
func interruptible(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

func newRoot(s streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "lockstep",
		Short: "Batch jobs, workflows and applications on Kubernetes, at the API server's own speed",
		Long: `Batch jobs, workflows and applications on Kubernetes, at the API server's own speed.

Verbs that need a cluster find it as kubectl does: --kubeconfig, $KUBECONFIG, ~/.kube/config. Data goes to stdout, progress and
errors go to stderr.

Exit codes: 0 success; 1 the operation failed; 2 wrong usage; 3 a --timeout ran out; 130 interrupted. Where a verb's codes say
more, its help does.`,
		Example: `  lockstep up --nodes 100 --merge-kubeconfig
  lockstep submit job.yaml --wait
  lockstep get jobs -A`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       Version,
		Args:          noArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(newAgent(s), newApp(s), newBench(s), newCluster(s), newDef(s), newDown(s), newGet(s), newImage(s), newInstall(s), newManager(s), newStatus(s), newSubmit(s), newSupervisor(), newTopology(s), newUp(s))
	root.AddCommand(newArchive(s), newCron(s), newDelete(s), newLint(s), newList(s), newLogs(s), newNode(s), newResubmit(s), newResume(s),
		newRetry(s), newStop(s), newSuspend(s), newTerminate(s), newUninstall(s), newVersion(s), newWait(s), newWatch(s),
		newObjectCommand(s, templateKind, []string{"wftmpl", "workflow-template"}), newObjectCommand(s, clusterTemplateKind, []string{"cwft", "cluster-workflow-template"}))
	readNames(root)
	return root
}
