package objects

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/kubectl/pkg/cmd/get"
	"k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/util/completion"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cli/names"
	"lockstep.dev/lockstep/internal/cli/workflows"
	client "lockstep.dev/lockstep/internal/submit/workflows"
)

// getting is the verb get.
type getting struct {
	*workflows.Verb
	kubectl  *get.GetOptions
	workflow workflows.Getting
}

// ownOutputs are the values of -o for which workflows are printed by package workflows.
var ownOutputs = []string{"", "json", "yaml", "wide", "name"}

func newGet(s command.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get KIND [NAME...]",
		Short: "Show workflows, jobs, queues, pod groups, or any other kind",
		Long: `List objects as kubectl get does. "jobs" and "cronjobs" are those of batch.volcano.sh; write jobs.batch for Kubernetes' own.

A workflow that is named (get wf NAME, or @latest) is drawn as the tree of its nodes; workflows in lists can be chosen by phase,
age and more, in the cluster or, with --archived, in the archive. An interrupted -w ends with exit code 1, as kubectl's does.`,
		Example: `  lockstep get wf
  lockstep get wf hello
  lockstep get wf --status Failed,Error --since 24h -A
  lockstep get wf --archived --prefix nightly-
  lockstep get jobs -A --sort-by=.metadata.creationTimestamp
  lockstep get jobs,queues
  lockstep get jobs -w
  lockstep get queue research -o jsonpath={.status.state}`,
	}
	g := &getting{Verb: workflows.NewVerb(s, cmd), kubectl: get.NewGetOptions("lockstep", streams(s))}
	g.workflow.Add(cmd)
	o, f := g.kubectl, cmd.Flags()
	o.PrintFlags.AddFlags(cmd)
	f.BoolVarP(&o.Watch, "watch", "w", false, "list, and then show every change")
	f.BoolVar(&o.WatchOnly, "watch-only", false, "show every change, without a list first")
	f.BoolVar(&o.OutputWatchEvents, "output-watch-events", false, "with -w: show whether an object was added, changed or deleted")
	f.BoolVar(&o.IgnoreNotFound, "ignore-not-found", false, "an object that does not exist is no error")
	f.StringVar(&o.FieldSelector, "field-selector", "", "field selector")
	f.BoolVarP(&o.AllNamespaces, "all-namespaces", "A", false, "objects of every namespace")
	f.BoolVar(&o.ServerPrint, "server-print", true, "print the columns that the server chooses")
	f.Int64Var(&o.ChunkSize, "chunk-size", util.DefaultChunkSize, "how many the server sends at a time; 0 is all")
	f.StringVarP(&o.LabelSelector, "selector", "l", "", "label selector")
	f.StringVar(&o.Subresource, "subresource", "", "get this subresource, for example status")
	cmd.ValidArgsFunction = g.complete
	cmd.RunE = g.run
	return cmd
}

// complete completes kinds, and then names of objects.
func (g *getting) complete(cmd *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 && names.Workflow.Has(args[0]) {
		return g.Names(client.Query{})(cmd, args[1:], text)
	}
	f, err := factory(g.Kube)
	if err != nil {
		return []string{"workflows", "jobs", "queues", "podgroups"}, cobra.ShellCompDirectiveNoFileComp
	}
	return completion.ResourceTypeAndNameCompletionFunc(f)(cmd, names.InFull(args), text)
}

func (g *getting) run(cmd *cobra.Command, args []string) error {
	o := g.kubectl
	if len(args) == 0 {
		return command.Usagef("say what to get, for example: lockstep get jobs")
	}
	output := *o.PrintFlags.OutputFormat
	if _, err := o.PrintFlags.ToPrinter(); err != nil {
		return command.Usage(err)
	}
	only := g.workflow.Given(cmd)
	kind, _, slash := strings.Cut(args[0], "/")
	if names.Workflow.Has(kind) {
		kubectls := g.kubectls(cmd, output)
		if kubectls == "" {
			g.workflow.Output, g.workflow.Labels, g.workflow.Fields = output, o.LabelSelector, o.FieldSelector
			g.workflow.PageSize, g.workflow.NoHeaders, g.Everywhere = o.ChunkSize, *o.PrintFlags.NoHeaders, o.AllNamespaces
			var named []string
			if slash || len(args) > 1 {
				var err error
				if named, err = names.Read(names.Workflow, args); err != nil {
					return err
				}
			}
			return g.workflow.Get(cmd, g.Verb, named)
		}
		if only != "" {
			return command.Usagef("--%s and --%s do not go together", only, kubectls)
		}
	} else if only != "" {
		return command.Usagef("--%s is for workflows", only)
	}
	f, err := factory(g.Kube)
	if err != nil {
		return err
	}
	args = names.InFull(args)
	if err := o.Complete(f, cmd, args); err != nil {
		return err
	}
	if err := o.Validate(); err != nil {
		return command.Usage(err)
	}
	return o.Run(f, args)
}

// kubectls returns the name of a given flag with which kubectl prints workflows, too, or "".
func (g *getting) kubectls(cmd *cobra.Command, output string) (flag string) {
	if !slices.Contains(ownOutputs, output) {
		return "output=" + output
	}
	for _, name := range kubectlFlags {
		if cmd.Flags().Changed(name) {
			return name
		}
	}
	return ""
}

// kubectlFlags are the flags of get that package workflows does not have.
var kubectlFlags = []string{"allow-missing-template-keys", "ignore-not-found", "label-columns", "output-watch-events", "server-print",
	"show-kind", "show-labels", "show-managed-fields", "sort-by", "subresource", "template", "watch", "watch-only"}
