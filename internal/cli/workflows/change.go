package workflows

import (
	"context"
	"fmt"
	"os/user"

	"github.com/spf13/cobra"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cli/names"
	"lockstep.dev/lockstep/internal/submit/workflows"
)

// change is a verb that changes workflows, which the user names or selects.
type change struct {
	*Verb
	cmd    *cobra.Command
	choice selection
}

// newChange returns a verb that changes workflows. If running is true, only the names of running
// workflows are completed.
func newChange(s command.Streams, use, short, long string, running bool) *change {
	cmd := &cobra.Command{Use: use + " [WORKFLOW...]", Short: short, Long: long,
		Example: "  lockstep " + use + " hello\n  lockstep " + use + " -l team=data --dry-run"}
	c := &change{Verb: NewVerb(s, cmd), cmd: cmd}
	c.choice.add(cmd)
	c.DryRun.AddChecked(cmd)
	cmd.ValidArgsFunction = c.Names(workflows.Query{Running: running})
	return c
}

// run returns the verb's command. It calls act for each chosen workflow, and then prints done.
func (c *change) run(done string, act func(context.Context, *workflows.Client, ref) error) *cobra.Command {
	return names.Take(c.Run(func(ctx context.Context, client *workflows.Client, namespace string, args []string) error {
		list, err := c.choice.chosen(ctx, c.Verb, client, namespace, args)
		if err != nil {
			return err
		}
		return c.each(list, done, func(r ref) error { return act(ctx, client, r) })
	}), names.Workflow)
}

func newSuspend(s command.Streams) *cobra.Command {
	return newChange(s, "suspend", "Keep workflows from starting anything new",
		"Keep workflows from starting anything new (spec.suspend). What runs goes on. 'resume' takes it back.", true).
		run("suspended", func(ctx context.Context, client *workflows.Client, r ref) error {
			return client.Suspend(ctx, r.namespace, r.name)
		})
}

func newResume(s command.Streams) *cobra.Command {
	c := newChange(s, "resume", "Let suspended workflows go on",
		`Let suspended workflows go on: as a whole (spec.suspend), and in the nodes that wait to be resumed. With
--node-field-selector only those nodes of them that match.`, true)
	var selector string
	var to workflows.NodeChange
	c.cmd.Flags().StringVar(&selector, "node-field-selector", "",
		"only nodes that match, for example displayName=approve")
	c.Check(func([]string) (err error) {
		to.Match, err = matchNodes(selector, nil)
		to.Message = "Resumed by: " + me()
		return err
	})
	return c.run("resumed", func(ctx context.Context, client *workflows.Client, r ref) error {
		return client.Resume(ctx, r.namespace, r.name, to)
	})
}

// me returns the user's name, for messages about who made a change.
func me() string {
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return "unknown"
}

func newStop(s command.Streams) *cobra.Command {
	c := newChange(s, "stop", "End workflows; their exit handlers still run",
		`End workflows: running pods are stopped, and exit handlers run. With --node-field-selector, only fail the suspended nodes that
match, and let the rest of the workflow see to it. 'terminate' runs no exit handlers.`, true)
	var selector, message string
	var match func(*wf.NodeStatus) bool
	c.cmd.Flags().StringVar(&selector, "node-field-selector", "",
		"only these suspended nodes, for example displayName=approve")
	c.cmd.Flags().StringVar(&message, "message", "", "why, for the nodes")
	c.Check(func([]string) (err error) {
		match, err = matchNodes(selector, nil)
		if err == nil && message != "" && match == nil {
			err = command.Usagef("--message is for nodes: give --node-field-selector")
		}
		return err
	})
	return c.run("stopped", func(ctx context.Context, client *workflows.Client, r ref) error {
		if match != nil {
			return client.FailNodes(ctx, r.namespace, r.name, workflows.NodeChange{Match: match, Message: message})
		}
		return client.Stop(ctx, r.namespace, r.name)
	})
}

func newTerminate(s command.Streams) *cobra.Command {
	return newChange(s, "terminate", "End workflows at once, without exit handlers",
		"End workflows at once: running pods are stopped, and exit handlers do not run.", true).
		run("terminated", func(ctx context.Context, client *workflows.Client, r ref) error {
			return client.Terminate(ctx, r.namespace, r.name)
		})
}

func newDelete(s command.Streams) *cobra.Command {
	c := newChange(s, "delete", "Delete workflows, and with them their pods", "", false)
	c.cmd.Example = "  lockstep delete hello\n  lockstep delete --completed --older 168h -A"
	c.allNamespaces(c.cmd, "workflows of every namespace")
	c.choice.addFilters(c.cmd)
	c.cmd.Flags().Int64Var(&c.choice.query.PageSize, "chunk-size", 500, "how many the server sends at a time")
	c.cmd.Flags().BoolVar(&c.choice.all, "all", false, "all workflows of the namespace")
	return c.run("deleted", func(ctx context.Context, client *workflows.Client, r ref) error {
		return client.Delete(ctx, workflows.Workflows, r.namespace, r.name)
	})
}

func newNode(s command.Streams) *cobra.Command {
	return command.Group(&cobra.Command{Use: "node", Short: "Act on nodes of a workflow"}, newNodeSet(s))
}

func newNodeSet(s command.Streams) *cobra.Command {
	var (
		selector, phase string
		outputs         []string
		to              workflows.NodeChange
	)
	cmd := &cobra.Command{
		Use:   "set WORKFLOW",
		Short: "Supply outputs to suspended nodes, or end them",
		Long: `Supply outputs to suspended nodes, or end them with a phase. A node that has got its outputs waits for 'lockstep resume',
unless --phase ends it.`,
		Example: `  lockstep node set release --node-field-selector displayName=approve --output-parameter approved=yes
  lockstep node set release --node-field-selector displayName=approve --phase Succeeded`,
		Args: command.OneArg("WORKFLOW"),
	}
	v := NewVerb(s, cmd)
	f := cmd.Flags()
	f.StringVar(&selector, "node-field-selector", "", "which nodes, for example displayName=approve")
	command.WordFlag(cmd, &phase, "phase", "", "end the nodes: Succeeded, Skipped, Failed or Error",
		string(wf.PhaseSucceeded), string(wf.PhaseSkipped), string(wf.PhaseFailed), string(wf.PhaseError))
	f.StringArrayVarP(&outputs, "output-parameter", "p", nil, "NAME=VALUE of a parameter that waits to be supplied")
	f.StringVarP(&to.Message, "message", "m", "", "message to put on the nodes")
	v.DryRun.AddChecked(cmd)
	cmd.ValidArgsFunction = v.Names(workflows.Query{Running: true})
	v.Check(func([]string) (err error) {
		if selector == "" {
			return command.Usagef("say which nodes: --node-field-selector displayName=NAME")
		}
		to.Phase = wf.NodePhase(phase)
		if to.Outputs, err = command.KeyValues("--output-parameter", outputs); err != nil {
			return err
		}
		if to.Phase == "" && to.Message == "" && len(to.Outputs) == 0 {
			return command.Usagef("nothing to set: give --phase, --output-parameter or --message")
		}
		to.Match, err = matchNodes(selector, nil)
		return err
	})
	return names.Take(v.Run(func(ctx context.Context, client *workflows.Client, namespace string, args []string) error {
		if err := client.SetNode(ctx, namespace, args[0], to); err != nil {
			return fmt.Errorf("workflow %s: %w", args[0], err)
		}
		fmt.Fprintf(s.Out, "workflow %s %s\n", args[0], v.DryRun.Said("node set"))
		return nil
	}), names.Workflow)
}
