package workflows

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cli/names"
	"lockstep.dev/lockstep/internal/submit/workflows"
	"lockstep.dev/lockstep/internal/workflow/display"
)

func newWait(s command.Streams) *cobra.Command {
	var ignore bool
	cmd := &cobra.Command{
		Use:     "wait WORKFLOW...",
		Short:   "Wait until workflows are completed",
		Example: "  lockstep wait hello other --timeout 10m",
		Long: `Wait until workflows are completed.

Exit codes: 0 all succeeded; 1 one failed, or could not be waited for; 2 wrong usage; 3 the --timeout ran out.`,
		Args: command.SomeArgs("WORKFLOW"),
	}
	v := NewVerb(s, cmd)
	cmd.Flags().DurationVar(&v.Timeout, "timeout", 0, "give up after this time; 0 waits for ever")
	cmd.Flags().BoolVar(&ignore, "ignore-not-found", false, "a workflow that does not exist counts as succeeded")
	cmd.ValidArgsFunction = v.Names(workflows.Query{Running: true})
	return names.Take(v.Run(func(ctx context.Context, client *workflows.Client, namespace string, args []string) error {
		errs := make([]error, len(args))
		var waiting sync.WaitGroup
		var lock sync.Mutex
		for i, name := range args {
			waiting.Go(func() {
				w, err := client.Wait(ctx, namespace, name)
				if err != nil {
					if !ignore || !apierrors.IsNotFound(err) {
						errs[i] = err
					}
					return
				}
				lock.Lock()
				defer lock.Unlock()
				fmt.Fprintf(s.Out, "%s %s\n", w.Name, display.OneLine(string(w.Status.Phase)))
				errs[i] = verdict(w)
			})
		}
		waiting.Wait()
		return errors.Join(errs...)
	}), names.Workflow)
}
