package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"lockstep.dev/lockstep/internal/submit"
)

// kubeFlags are kubectl's flags that every verb with a cluster takes: --kubeconfig, --context and -n.
func kubeFlags(cmd *cobra.Command) *genericclioptions.ConfigFlags {
	all := genericclioptions.NewConfigFlags(true)
	flags := &genericclioptions.ConfigFlags{KubeConfig: all.KubeConfig, Context: all.Context, Namespace: all.Namespace}
	flags.AddFlags(cmd.Flags())
	return flags
}

func newSubmit(s streams) *cobra.Command {
	var (
		files     []string
		recursive bool
		wait      bool
		timeout   time.Duration
		dryRun    string
		output    string
	)
	cmd := &cobra.Command{
		Use:   "submit [FILE...] [-f FILE]",
		Short: "Send manifests to a cluster, and wait for the runs they start",
		Long: `Send manifests to a cluster. Jobs are created: each is a run that happens once. Everything else
(queues, pod groups, config maps) is applied. FILE is a file, a folder, a URL, or - for standard input.

Exit codes: 0 all was sent, and with --wait every run succeeded; 1 something was refused, or a run failed;
2 wrong usage; 3 the --timeout ran out.`,
		Example: `  lockstep submit job.yaml --wait
  lockstep submit -f examples/batch --wait --timeout 5m
  cat job.yaml | lockstep submit - -n team-a -o name`,
	}
	flags := kubeFlags(cmd)
	cmd.Flags().StringSliceVarP(&files, "filename", "f", nil, "file, folder or URL to send; - is standard input")
	cmd.Flags().BoolVarP(&recursive, "recursive", "R", false, "go into sub-folders of a folder")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until every run has ended")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "give up waiting after this time; 0 waits for ever")
	cmd.Flags().StringVar(&dryRun, "dry-run", "none", `"none", or "server" to have everything checked and nothing kept`)
	cmd.Flags().StringVarP(&output, "output", "o", "", "name|json|yaml; default: a line for each object")
	must(cmd.RegisterFlagCompletionFunc("dry-run", cobra.FixedCompletions([]string{"none", "server"}, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"name", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp)))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		files := append(args, files...)
		if len(files) == 0 {
			return usageError{errors.New("no manifest given: name a file, a folder, or - for standard input")}
		}
		if dryRun != "none" && dryRun != "server" {
			return usageError{fmt.Errorf("--dry-run=%s: want none or server", dryRun)}
		}
		if timeout < 0 {
			return usageError{fmt.Errorf("--timeout=%s: want zero or more", timeout)}
		}
		print, err := objectPrinter(output, s.out)
		if err != nil {
			return err
		}
		namespace, enforce, err := flags.ToRawKubeConfigLoader().Namespace()
		if err != nil {
			return err
		}
		objects, err := submit.Read(flags, namespace, enforce, files, recursive)
		if err != nil {
			return err
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		if timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, timeout)
			defer cancel()
		}
		var failed int
		var sent []*submit.Object
		for _, o := range objects {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			verb, err := submit.Send(o, dryRun == "server")
			if err != nil {
				failed++
				fmt.Fprintf(s.err, "lockstep: %s: %v\n", o.Ref(), err)
				continue
			}
			sent = append(sent, o)
			if dryRun == "server" {
				verb += " (dry run)"
			}
			if print == nil {
				fmt.Fprintf(s.out, "%s %s\n", o.Ref(), verb)
			} else if err := print(o.Object()); err != nil {
				return err
			}
		}
		if wait && dryRun == "none" {
			n, err := waitForRuns(ctx, s.err, sent)
			if err != nil {
				return err
			}
			failed += n
		}
		if failed > 0 {
			return fmt.Errorf("%d of %d objects were refused or failed", failed, len(objects))
		}
		return nil
	}
	return cmd
}

// waitForRuns waits for all runs side by side, tells of each change of phase, and returns how many failed.
func waitForRuns(ctx context.Context, progress io.Writer, objects []*submit.Object) (failed int, err error) {
	var (
		mu sync.Mutex
		wg sync.WaitGroup
	)
	for _, o := range objects {
		if !o.IsRun() {
			continue
		}
		wg.Go(func() {
			out, e := submit.Wait(ctx, o, func(now submit.Outcome) {
				if now.Phase == "" {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if now.Message != "" {
					fmt.Fprintf(progress, "%s: %s: %s\n", o.Ref(), now.Phase, now.Message)
				} else {
					fmt.Fprintf(progress, "%s: %s\n", o.Ref(), now.Phase)
				}
			})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case e != nil && ctx.Err() != nil:
				err = ctx.Err()
			case e != nil:
				failed++
				fmt.Fprintf(progress, "lockstep: %v\n", e)
			case out.Failed:
				failed++
			}
		})
	}
	wg.Wait()
	return failed, err
}
