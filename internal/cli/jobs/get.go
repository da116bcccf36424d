package jobs

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cli/names"
	"lockstep.dev/lockstep/internal/cli/workflows"
	client "lockstep.dev/lockstep/internal/submit/workflows"
)

// aliases maps short words to Lockstep's kinds where the cluster may have other kinds of the same
// name (batch/v1 has jobs too).
var aliases = map[string]string{
	"job": "jobs.batch.volcano.sh", "jobs": "jobs.batch.volcano.sh",
	"queue": "queues.scheduling.volcano.sh", "queues": "queues.scheduling.volcano.sh",
	"podgroup": "podgroups.scheduling.volcano.sh", "podgroups": "podgroups.scheduling.volcano.sh",
}

// ourKinds replaces aliases in arguments by the full names of the kinds. The arguments are those of
// kubectl get: KIND[,KIND...] NAME..., or KIND/NAME...
func ourKinds(args []string) []string {
	out := slices.Clone(args)
	for i, arg := range args {
		kinds, name, slash := strings.Cut(arg, "/")
		if i > 0 && !slash {
			continue
		}
		words := strings.Split(kinds, ",")
		for j, w := range words {
			if full, ok := aliases[strings.ToLower(w)]; ok {
				words[j] = full
			}
		}
		if out[i] = strings.Join(words, ","); slash {
			out[i] += "/" + name
		}
	}
	return out
}

// getting is the verb get.
type getting struct {
	*workflows.Verb
	workflow workflows.Getting
}

// NewGet returns the verb get.
func NewGet(s command.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get KIND [NAME...]",
		Short: "Show workflows, jobs, queues, pod groups, or any other kind",
		Long: `List objects as kubectl get does. "jobs" are batch jobs (batch.volcano.sh); write jobs.batch for Kubernetes' own.

A workflow that is named (get wf NAME, or @latest) is drawn as the tree of its nodes; workflows in lists can be chosen by phase,
age and more, in the cluster or, with --archived, in the archive.`,
		Example: `  lockstep get wf
  lockstep get wf hello
  lockstep get wf --status Failed,Error --since 24h -A
  lockstep get wf --archived --prefix nightly-
  lockstep get jobs -A
  lockstep get queue research -o yaml`,
	}
	g := &getting{Verb: workflows.NewVerb(s, cmd)}
	kinds := []string{"workflows", "jobs", "queues", "podgroups", "pods", "nodes", "workflowtemplates",
		"clusterworkflowtemplates", "cronworkflows"}
	complete := g.Names(client.Query{})
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
		switch {
		case len(args) == 0:
			return kinds, cobra.ShellCompDirectiveNoFileComp
		case names.Workflow.Has(args[0]):
			return complete(cmd, args[1:], text)
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	g.workflow.Add(cmd)
	f := cmd.Flags()
	f.StringVar(&g.workflow.Fields, "field-selector", "", "field selector, for workflows")
	f.BoolVarP(&g.Everywhere, "all-namespaces", "A", false, "objects of every namespace")
	f.StringVarP(&g.workflow.Labels, "selector", "l", "", "label selector")
	command.OutputFlag(cmd, &g.workflow.Output, "json", "yaml", "wide", "name")
	cmd.RunE = g.run
	return cmd
}

func (g *getting) run(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return command.Usagef("say what to get, for example: lockstep get jobs")
	}
	if kind, _, slash := strings.Cut(args[0], "/"); names.Workflow.Has(kind) {
		if !slash && len(args) == 1 {
			return g.workflow.Get(cmd, g.Verb, nil)
		}
		named, err := names.Read(names.Workflow, args)
		if err != nil {
			return err
		}
		return g.workflow.Get(cmd, g.Verb, named)
	}
	if flag := g.workflow.Given(cmd); flag != "" {
		return command.Usagef("--%s is for workflows", flag)
	}
	_, namespace, err := command.Connection(g.Kube) // without a cluster the builder would try localhost
	if err != nil {
		return err
	}
	output := g.workflow.Output
	asTable := output == "" || output == "wide"
	b := resource.NewBuilder(g.Kube).
		Unstructured().
		NamespaceParam(namespace).DefaultNamespace().AllNamespaces(g.Everywhere).
		LabelSelectorParam(g.workflow.Labels).
		RequestChunksOf(500).
		ResourceTypeOrNameArgs(true, ourKinds(args)...).
		ContinueOnError().Latest().Flatten()
	if asTable {
		b = b.RequestChunksOf(0).TransformRequests(func(r *rest.Request) {
			r.SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
		})
	}
	result := b.Do()
	infos, err := result.Infos()
	if err != nil {
		return err
	}
	if asTable {
		return printTables(g.Streams, infos, g.Everywhere, output == "wide", namespace)
	}
	if output != "name" && !(len(infos) == 1 && result.TargetsSingleItems()) {
		list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "List"}}
		for _, info := range infos {
			list.Items = append(list.Items, *info.Object.(*unstructured.Unstructured))
		}
		return command.PrintObject(g.Out, output, list)
	}
	for _, info := range infos {
		if err := command.PrintObject(g.Out, output, info.Object); err != nil {
			return err
		}
	}
	return nil
}

// printTables prints the tables that the API server made, one for each kind.
func printTables(s command.Streams, infos []*resource.Info, withNamespace, wide bool, namespace string) error {
	out := printers.GetNewTabWriter(s.Out)
	printed := 0
	for _, info := range infos {
		table, err := decodeTable(info.Object)
		if err != nil {
			return err
		}
		if len(table.Rows) == 0 {
			continue
		}
		p := printers.NewTablePrinter(printers.PrintOptions{
			WithNamespace: withNamespace && info.Namespaced(), Wide: wide, NoHeaders: len(infos) > 1 && printed > 0 && sameKind(infos[0], info),
		})
		if err := p.PrintObj(table, out); err != nil {
			return err
		}
		printed++
	}
	if printed == 0 {
		where := "in namespace " + namespace
		if withNamespace || len(infos) > 0 && !infos[0].Namespaced() {
			where = "in the cluster"
		}
		fmt.Fprintf(s.Err, "No resources found %s.\n", where)
	}
	return out.Flush()
}

func sameKind(a, b *resource.Info) bool { return a.Mapping.Resource == b.Mapping.Resource }

func decodeTable(obj runtime.Object) (*metav1.Table, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok || u.GetKind() != "Table" {
		return nil, fmt.Errorf("the server returned %T, not a table; use -o yaml", obj)
	}
	table := &metav1.Table{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, table); err != nil {
		return nil, err
	}
	for i := range table.Rows {
		row := &table.Rows[i]
		if row.Object.Raw == nil || row.Object.Object != nil {
			continue
		}
		part := &unstructured.Unstructured{}
		if err := json.Unmarshal(row.Object.Raw, &part.Object); err != nil {
			return nil, err
		}
		row.Object.Object = part
	}
	return table, nil
}
