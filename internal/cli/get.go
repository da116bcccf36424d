package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/rest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.dev/lockstep/internal/submit/workflows"
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

func newGet(s streams) *cobra.Command {
	var (
		allNamespaces bool
		selector      string
		output        string
		workflow      workflowGet
	)
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
	c := newWFCommand(s, cmd)
	flags := c.flags
	kinds := []string{"workflows", "jobs", "queues", "podgroups", "pods", "nodes", "workflowtemplates", "clusterworkflowtemplates", "cronworkflows"}
	names := c.completeWorkflows(workflows.Query{})
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
		switch {
		case len(args) == 0:
			return kinds, cobra.ShellCompDirectiveNoFileComp
		case workflowWords.has(args[0]):
			return names(cmd, args[1:], text)
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	workflow.add(cmd)
	cmd.Flags().StringVar(&workflow.query.Fields, "field-selector", "", "field selector, for workflows")
	cmd.Flags().BoolVarP(&allNamespaces, "all-namespaces", "A", false, "objects of every namespace")
	cmd.Flags().StringVarP(&selector, "selector", "l", "", "label selector")
	outputFlag(cmd, &output, "json", "yaml", "wide", "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usageError{errors.New("say what to get, for example: lockstep get jobs")}
		}
		if kind, _, slash := strings.Cut(args[0], "/"); workflowWords.has(kind) {
			c.all, workflow.output, workflow.query.Labels = allNamespaces, output, selector
			if !slash && len(args) == 1 {
				return workflow.run(c, cmd, nil)
			}
			names, err := takes{kind: workflowWords}.read(args, nil)
			if err != nil {
				return err
			}
			return workflow.run(c, cmd, names)
		}
		if flag := workflow.given(cmd); flag != "" {
			return usageError{fmt.Errorf("--%s is for workflows", flag)}
		}
		args = ourKinds(args)
		_, namespace, err := where(flags) // without a cluster the builder would try localhost
		if err != nil {
			return err
		}
		asTable := output == "" || output == "wide"
		b := resource.NewBuilder(flags).
			Unstructured().
			NamespaceParam(namespace).DefaultNamespace().AllNamespaces(allNamespaces).
			LabelSelectorParam(selector).
			RequestChunksOf(500).
			ResourceTypeOrNameArgs(true, args...).
			ContinueOnError().Latest().Flatten()
		if asTable {
			b = b.TransformRequests(func(r *rest.Request) {
				r.SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
			})
			b = b.RequestChunksOf(0)
		}
		result := b.Do()
		infos, err := result.Infos()
		if err != nil {
			return err
		}
		if asTable {
			return printTables(s, infos, allNamespaces, output == "wide", namespace)
		}
		print, err := objectPrinter(output, s.out)
		if err != nil {
			return err
		}
		if output != "name" && !(len(infos) == 1 && result.TargetsSingleItems()) {
			list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "List"}}
			for _, info := range infos {
				list.Items = append(list.Items, *info.Object.(*unstructured.Unstructured))
			}
			return print(list)
		}
		for _, info := range infos {
			if err := print(info.Object); err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}

// printTables prints the tables that the API server made, one for each kind.
func printTables(s streams, infos []*resource.Info, withNamespace, wide bool, namespace string) error {
	out := printers.GetNewTabWriter(s.out)
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
		fmt.Fprintf(s.err, "No resources found %s.\n", where)
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

// objectPrinter returns a function that prints objects in the form of -o. It returns nil for the
// verb's default form, and an error for an unknown word.
func objectPrinter(output string, out io.Writer) (func(runtime.Object) error, error) {
	var p printers.ResourcePrinter
	switch output {
	case "":
		return nil, nil
	case "name":
		p = &printers.NamePrinter{}
	case "json":
		p = &printers.JSONPrinter{}
	case "yaml":
		p = &printers.YAMLPrinter{}
	default:
		return nil, usageError{fmt.Errorf("--output=%s: want json, yaml, wide or name", output)}
	}
	omit := &printers.OmitManagedFieldsPrinter{Delegate: p}
	return func(o runtime.Object) error { return omit.PrintObj(o, out) }, nil
}

// must panics if err is not nil. It wraps calls that fail only through a mistake in this program.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
