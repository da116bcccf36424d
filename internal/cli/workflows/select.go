package workflows

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/submit/workflows"
	"lockstep.dev/lockstep/internal/workflow/nodeselect"
)

// selection chooses the workflows of a verb that acts on several: by name, or by a query.
type selection struct {
	query workflows.Query
	all   bool
}

func (s *selection) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&s.query.Labels, "selector", "l", "", "label selector")
	f.StringVar(&s.query.Fields, "field-selector", "", "field selector, for example metadata.name=hello")
	s.addInstance(cmd)
}

// instanceEnv is the environment variable with the default of --instanceid.
const instanceEnv = "ARGO_INSTANCEID"

// addInstance adds the flag --instanceid, if the verb does not have it.
func (s *selection) addInstance(cmd *cobra.Command) {
	if cmd.Flags().Lookup("instanceid") == nil {
		cmd.Flags().StringVar(&s.query.InstanceID, "instanceid", os.Getenv(instanceEnv),
			"only workflows of this instance of the controller (default $"+instanceEnv+")")
		cmd.Flags().Lookup("instanceid").DefValue = ""
	}
}

// addFilters adds the filter flags of list and delete.
func (s *selection) addFilters(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringSliceVar(&s.query.Statuses, "status", nil,
		"only with these phases: Pending, Running, Succeeded, Failed, Error, Malformed")
	f.BoolVar(&s.query.Completed, "completed", false, "only completed ones")
	f.BoolVar(&s.query.Resubmitted, "resubmitted", false, "only those submitted again")
	f.StringVar(&s.query.Prefix, "prefix", "", "only with names that begin so")
	f.DurationVar(&s.query.OlderFor, "older", 0, "only those created longer ago than this, for example 24h")
	s.addInstance(cmd)
	command.CompleteWords(cmd, "status", "Pending", "Running", "Succeeded", "Failed", "Error", workflows.Malformed)
}

// chosen returns the workflows that args name or, without args, those that the flags select.
func (s *selection) chosen(ctx context.Context, v *Verb, client *workflows.Client, namespace string,
	args []string) ([]ref, error) {
	q := s.query
	filtered := q.Labels != "" || q.Fields != "" || len(q.Statuses) > 0 || q.Completed || q.Resubmitted || q.Prefix != "" || q.OlderFor > 0
	var out []ref
	for _, name := range args {
		name, err := client.Name(ctx, namespace, name)
		if err != nil {
			return nil, err
		}
		if q.InstanceID != "" {
			if _, err := s.get(ctx, client, namespace, name); err != nil {
				return nil, err
			}
		}
		out = append(out, ref{namespace, name})
	}
	switch {
	case len(args) > 0 && (filtered || s.all):
		return nil, command.Usagef("give either names or flags that select")
	case len(args) > 0:
		return out, nil
	case !filtered && !s.all:
		return nil, command.Usagef("say which: name workflows, or select them with -l")
	}
	q.Namespace = v.in(namespace)
	err := client.List(ctx, q, func(w *wf.Workflow) error {
		out = append(out, ref{w.Namespace, w.Name})
		return nil
	})
	return out, err
}

// get returns a workflow, if it belongs to the instance of the controller that the flag names.
func (s *selection) get(ctx context.Context, client *workflows.Client, namespace, name string) (*wf.Workflow, error) {
	w, err := client.Get(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	if of := w.Labels[wf.LabelInstanceID]; s.query.InstanceID != "" && of != s.query.InstanceID {
		return nil, fmt.Errorf("workflow %s belongs to instance %q of the controller, not to %q", w.Name, of, s.query.InstanceID)
	}
	return w, nil
}

// matchNodes returns a function that selects nodes, or nil if neither a selector nor statuses are
// given.
func matchNodes(selector string, statuses []string) (func(*wf.NodeStatus) bool, error) {
	if selector == "" && len(statuses) == 0 {
		return nil, nil
	}
	match, err := nodeselect.Parse(selector)
	if err != nil {
		return nil, command.Usage(err)
	}
	return func(n *wf.NodeStatus) bool {
		return match(n) && (len(statuses) == 0 || slices.Contains(statuses, string(n.Phase)))
	}, nil
}
