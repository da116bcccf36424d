package cli

import (
	"context"
	"errors"
	"fmt"
	"os/user"
	"strings"

	"github.com/spf13/cobra"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/submit/workflows"
)

// changeVerb returns a verb that changes workflows, which are named or selected.
func changeVerb(s streams, use, short, long, done string, running bool,
	setup func(cmd *cobra.Command), prepare func() error, act func(context.Context, *workflows.Client, ref) error) *cobra.Command {
	var choice selection
	cmd := &cobra.Command{Use: use + " [WORKFLOW...]", Short: short, Long: long,
		Example: "  lockstep " + use + " hello\n  lockstep " + use + " -l team=data --dry-run"}
	c := newWFCommand(s, cmd)
	choice.add(cmd)
	c.dryRun.addChecked(cmd)
	if setup != nil {
		setup(cmd)
	}
	cmd.ValidArgsFunction = c.completeWorkflows(workflows.Query{Running: running})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if prepare != nil {
			if err := prepare(); err != nil {
				return err
			}
		}
		client, namespace, err := c.connect()
		if err != nil {
			return err
		}
		ctx, stop := interruptible(cmd)
		defer stop()
		list, err := choice.chosen(ctx, client, namespace, false, args)
		if err != nil {
			return err
		}
		return c.each(list, done, func(r ref) error { return act(ctx, client, r) })
	}
	return cmd
}

func newSuspend(s streams) *cobra.Command {
	return changeVerb(s, "suspend", "Keep workflows from starting anything new",
		"Keep workflows from starting anything new (spec.suspend). What runs goes on. 'resume' takes it back.", "suspended", true, nil, nil,
		func(ctx context.Context, client *workflows.Client, r ref) error {
			return client.Suspend(ctx, r.namespace, r.name)
		})
}

func newResume(s streams) *cobra.Command {
	var selector string
	var change workflows.NodeChange
	return changeVerb(s, "resume", "Let suspended workflows go on",
		`Let suspended workflows go on: as a whole (spec.suspend), and in the nodes that wait to be resumed. With
--node-field-selector only those nodes of them that match.`, "resumed", true,
		func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&selector, "node-field-selector", "", "only nodes that match, for example displayName=approve")
		},
		func() (err error) {
			change.Match, err = matchNodes(selector, nil)
			change.Message = "Resumed by: " + me()
			return err
		},
		func(ctx context.Context, client *workflows.Client, r ref) error {
			return client.Resume(ctx, r.namespace, r.name, change)
		})
}

// me returns the user's name, for messages about who made a change.
func me() string {
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return "unknown"
}

func newStop(s streams) *cobra.Command {
	var selector, message string
	var match func(*wf.NodeStatus) bool
	return changeVerb(s, "stop", "End workflows; their exit handlers still run",
		`End workflows: running pods are stopped, and exit handlers run. With --node-field-selector, only fail the suspended nodes that
match, and let the rest of the workflow see to it. 'terminate' runs no exit handlers.`, "stopped", true,
		func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&selector, "node-field-selector", "", "only these suspended nodes, for example displayName=approve")
			cmd.Flags().StringVar(&message, "message", "", "why, for the nodes")
		},
		func() (err error) {
			match, err = matchNodes(selector, nil)
			if err == nil && message != "" && match == nil {
				err = usageError{errors.New("--message is for nodes: give --node-field-selector")}
			}
			return err
		},
		func(ctx context.Context, client *workflows.Client, r ref) error {
			if match != nil {
				return client.FailNodes(ctx, r.namespace, r.name, workflows.NodeChange{Match: match, Message: message})
			}
			return client.Stop(ctx, r.namespace, r.name)
		})
}

func newTerminate(s streams) *cobra.Command {
	return changeVerb(s, "terminate", "End workflows at once, without exit handlers",
		"End workflows at once: running pods are stopped, and exit handlers do not run.", "terminated", true, nil, nil,
		func(ctx context.Context, client *workflows.Client, r ref) error {
			return client.Terminate(ctx, r.namespace, r.name)
		})
}

func newNode(s streams) *cobra.Command {
	return group(&cobra.Command{Use: "node", Short: "Act on nodes of a workflow"}, newNodeSet(s))
}

func newNodeSet(s streams) *cobra.Command {
	var (
		selector, phase string
		outputs         []string
		change          workflows.NodeChange
	)
	cmd := &cobra.Command{
		Use:   "set WORKFLOW",
		Short: "Supply outputs to suspended nodes, or end them",
		Long: `Supply outputs to suspended nodes, or end them with a phase. A node that has got its outputs waits for 'lockstep resume',
unless --phase ends it.`,
		Example: `  lockstep node set release --node-field-selector displayName=approve --output-parameter approved=yes
  lockstep node set release --node-field-selector displayName=approve --phase Succeeded`,
		Args: exactArgs("WORKFLOW"),
	}
	c := newWFCommand(s, cmd)
	f := cmd.Flags()
	f.StringVar(&selector, "node-field-selector", "", "which nodes, for example displayName=approve")
	wordFlag(cmd, &phase, "phase", "", "end the nodes: Succeeded, Skipped, Failed or Error",
		string(wf.PhaseSucceeded), string(wf.PhaseSkipped), string(wf.PhaseFailed), string(wf.PhaseError))
	f.StringArrayVarP(&outputs, "output-parameter", "p", nil, "NAME=VALUE of a parameter that waits to be supplied")
	f.StringVarP(&change.Message, "message", "m", "", "message to put on the nodes")
	c.dryRun.addChecked(cmd)
	cmd.ValidArgsFunction = c.completeWorkflows(workflows.Query{Running: true})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if selector == "" {
			return usageError{errors.New("say which nodes: --node-field-selector displayName=NAME")}
		}
		change.Phase = wf.NodePhase(phase)
		values, err := keyValues("--output-parameter", outputs)
		if err != nil {
			return err
		}
		if change.Phase == "" && change.Message == "" && len(values) == 0 {
			return usageError{errors.New("nothing to set: give --phase, --output-parameter or --message")}
		}
		change.Outputs = values
		if change.Match, err = matchNodes(selector, nil); err != nil {
			return err
		}
		client, namespace, err := c.connect()
		if err != nil {
			return err
		}
		ctx, stop := interruptible(cmd)
		defer stop()
		name := args[0]
		if err := client.SetNode(ctx, namespace, name, change); err != nil {
			return fmt.Errorf("workflow %s: %w", name, err)
		}
		fmt.Fprintf(s.out, "workflow %s %s\n", name, c.dryRun.said("node set"))
		return nil
	}
	return cmd
}

// keyValues parses NAME=VALUE texts.
func keyValues(flag string, texts []string) (map[string]string, error) {
	out := map[string]string{}
	for _, text := range texts {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, usageError{fmt.Errorf("%s %q: want NAME=VALUE", flag, text)}
		}
		out[name] = value
	}
	return out, nil
}

func newDelete(s streams) *cobra.Command {
	var choice selection
	cmd := &cobra.Command{
		Use:   "delete [WORKFLOW...]",
		Short: "Delete workflows, and with them their pods",
		Example: `  lockstep delete hello
  lockstep delete --completed --older 168h -A`,
	}
	c := newWFCommand(s, cmd)
	c.allNamespaces(cmd)
	choice.add(cmd)
	choice.addFilters(cmd)
	cmd.Flags().BoolVar(&choice.all, "all", false, "all workflows of the namespace")
	c.dryRun.addChecked(cmd)
	cmd.ValidArgsFunction = c.completeWorkflows(workflows.Query{})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client, namespace, err := c.connect()
		if err != nil {
			return err
		}
		ctx, stop := interruptible(cmd)
		defer stop()
		list, err := choice.chosen(ctx, client, namespace, c.all, args)
		if err != nil {
			return err
		}
		return c.each(list, "deleted", func(r ref) error {
			return client.Delete(ctx, workflows.Workflows, r.namespace, r.name)
		})
	}
	return cmd
}
