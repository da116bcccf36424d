// Package cli is the command tree of lockstep. It has the root command and exit codes; each noun
// has a package below, with a file for each verb and no logic beyond flags and printing:
//
//	jobs           get and submit, of jobs and any other kind
//	workflows      workflows, templates, crons and the archive
//	applications   applications and definitions
//	addons         packages of definitions
//	lint           manifests of workflows and applications
//	clusters       managed clusters
//	local          control planes on this machine
//	lint           checks of manifests without a cluster
//	install        installation in a cluster
//	migrate        what becomes of existing manifests
//	daemon         the manager and the agent
//	topology       CPU topology
//	bench          benchmarks
//	command, names what all of them share: streams, flags, printing; names of objects in arguments
//
// Package internal/submit implements the operations of the verbs in a cluster, as the user.
//
// Exit codes: 0 success; 1 the operation failed; 2 wrong usage; 3 a --timeout ran out; 4 only of
// install: the cluster has foreign objects in the way; 130 interrupted. Data goes to stdout;
// progress and errors go to stderr.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/client-go/util/exec"

	"lockstep.dev/lockstep/internal/cli/addons"
	"lockstep.dev/lockstep/internal/cli/applications"
	"lockstep.dev/lockstep/internal/cli/bench"
	"lockstep.dev/lockstep/internal/cli/clusters"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cli/daemon"
	"lockstep.dev/lockstep/internal/cli/install"
	"lockstep.dev/lockstep/internal/cli/jobs"
	"lockstep.dev/lockstep/internal/cli/lint"
	"lockstep.dev/lockstep/internal/cli/local"
	"lockstep.dev/lockstep/internal/cli/migrate"
	"lockstep.dev/lockstep/internal/cli/objects"
	"lockstep.dev/lockstep/internal/cli/topology"
	"lockstep.dev/lockstep/internal/cli/workflows"
	installation "lockstep.dev/lockstep/internal/install"
)

// Version is the program's version. The linker sets it.
var Version = "dev"

// Run runs one command line and returns the program's exit code.
func Run(args []string, in io.Reader, out, errOut io.Writer) int {
	root := newRoot(command.Streams{In: in, Out: out, Err: errOut})
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(context.Background())
	if err == nil {
		return command.ExitOK
	}
	fmt.Fprintf(errOut, "lockstep: %s\n", inWords.Replace(err.Error()))
	// The API client does not wrap every error, so compare the text.
	if strings.Contains(err.Error(), syscall.ECONNREFUSED.Error()) {
		fmt.Fprintln(errOut,
			"Nothing answers at the address that the kubeconfig has. 'lockstep status' shows the local clusters.")
	}
	code, advice := exitCode(err, cmd.CommandPath())
	fmt.Fprint(errOut, advice)
	return code
}

// exitCode returns the program's exit code for the error of a verb, and a line of advice or "".
func exitCode(err error, verb string) (code int, advice string) {
	var usage command.UsageError
	var foreign *installation.ForeignError
	var crossed command.ThresholdError
	var inPod exec.CodeExitError
	switch {
	case errors.As(err, &inPod): // the command of 'app exec'
		return inPod.Code, ""
	case errors.As(err, &foreign):
		return command.ExitForeign,
			"Nothing was changed. Remove what is named first, or add --take-over to replace its CRDs.\n"
	case errors.As(err, &crossed):
		return command.ExitThreshold, ""
	case errors.As(err, &usage):
		return command.ExitUsage, fmt.Sprintf("See '%s --help'.\n", verb)
	case errors.Is(err, context.DeadlineExceeded):
		return command.ExitTimeout, ""
	case errors.Is(err, context.Canceled):
		return command.ExitInterrupted, ""
	}
	return command.ExitFailed, ""
}

// inWords replaces the error texts of package context by texts for users.
var inWords = strings.NewReplacer(context.DeadlineExceeded.Error(), "the time is up", context.Canceled.Error(),
	"interrupted")

func newRoot(s command.Streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "lockstep",
		Short: "Batch jobs, workflows and applications on Kubernetes, at the API server's own speed",
		Long: `Batch jobs, workflows and applications on Kubernetes, at the API server's own speed.

Verbs that need a cluster find it as kubectl does: --kubeconfig, $KUBECONFIG, ~/.kube/config. Data goes to stdout, progress and
errors go to stderr.

Exit codes: 0 success; 1 the operation failed; 2 wrong usage; 3 a --timeout ran out; 4 only of install: others serve our kinds;
5 only of bench: a threshold was crossed; 130 interrupted. Where a verb's codes say more, its help does.`,
		Example: `  lockstep up --nodes 100 --merge-kubeconfig
  lockstep submit job.yaml --wait
  lockstep get jobs -A`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       Version,
		Args:          command.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return command.Usage(err) })
	root.AddCommand(
		jobs.NewSubmit(s),
		applications.New(s), applications.NewDefinitions(s), addons.New(s), clusters.New(s), topology.New(s),
		local.NewUp(s), local.NewDown(s), local.NewStatus(s), local.NewImage(s), local.NewSupervisor(),
		install.New(s), install.NewUninstall(s), lint.New(s, ""), migrate.New(s), daemon.NewManager(s), daemon.NewAgent(s, Version),
		bench.New(s, Version), newVersion(s))
	root.AddCommand(objects.New(s)...)
	root.AddCommand(objects.ForAllKinds(s, workflows.New(s, jobs.NewSubmit))...)
	return root
}
