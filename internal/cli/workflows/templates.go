package workflows

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cli/lint"
	"lockstep.dev/lockstep/internal/cli/names"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/submit/workflows"
	"lockstep.dev/lockstep/internal/workflow/display"
)

// objectKind describes a kind, other than Workflow, that has verbs of its own.
type objectKind struct {
	use, noun, kind, resource string
	aliases                   []string
	words                     names.Kind
	namespaced                bool
	head                      []string
	row                       func(workflows.Object) []string
}

var (
	templateKind = objectKind{
		use: "template", noun: "workflow template", kind: "WorkflowTemplate", resource: workflows.Templates, namespaced: true,
		aliases: []string{"wftmpl", "workflow-template"}, words: names.WorkflowTemplate, head: templateHead, row: templateRow,
	}
	clusterTemplateKind = objectKind{
		use: "cluster-template", noun: "cluster workflow template", kind: "ClusterWorkflowTemplate", resource: workflows.ClusterTemplates,
		aliases: []string{"cwft", "cluster-workflow-template"}, words: names.ClusterWorkflowTemplate, head: templateHead, row: templateRow,
	}
)

var templateHead = []string{"NAME", "ENTRYPOINT", "TEMPLATES", "AGE"}

func templateRow(o workflows.Object) []string {
	var spec *wf.WorkflowSpec
	switch t := o.(type) {
	case *wf.WorkflowTemplate:
		spec = &t.Spec
	case *wf.ClusterWorkflowTemplate:
		spec = &t.Spec
	}
	return []string{o.GetName(), spec.Entrypoint, fmt.Sprint(len(spec.Templates)), age(o)}
}

func age(o workflows.Object) string {
	return duration.HumanDuration(time.Since(o.GetCreationTimestamp().Time))
}

// command returns the kind's command with the verbs that all these kinds have: list, get, create,
// update, delete, lint. more are further verbs.
func (k objectKind) command(s command.Streams, newSubmit func(command.Streams) *cobra.Command,
	more ...*cobra.Command) *cobra.Command {
	check := lint.New(s, k.kind)
	check.Example = k.example("lint templates/")
	return command.Group(&cobra.Command{Use: k.use, Aliases: k.aliases, Short: "Act on " + k.noun + "s"},
		append([]*cobra.Command{k.list(s), k.get(s), k.send(newSubmit(s), "create"), k.send(newSubmit(s), "update"), k.delete(s), check}, more...)...)
}

// example returns an example of a call of one of the verbs.
func (k objectKind) example(call string) string { return "  lockstep " + k.use + " " + call }

// read returns the list of the kind's objects in the cluster, and its items.
func (k objectKind) read(ctx context.Context, client *workflows.Client,
	namespace, labels string) (list runtime.Object, items []workflows.Object, err error) {
	if list, err = scheme.Scheme.New(wf.GroupVersion.WithKind(k.kind + "List")); err != nil {
		return nil, nil, err
	}
	if err := client.ListOf(ctx, k.resource, namespace, labels, list); err != nil {
		return nil, nil, err
	}
	return list, items, meta.EachListItem(list, func(o runtime.Object) error {
		items = append(items, o.(workflows.Object))
		return nil
	})
}

// names returns a function that completes names of the kind's objects.
func (k objectKind) names(v *Verb) cobra.CompletionFunc {
	return v.Complete(func(ctx context.Context, client *workflows.Client, namespace string) (out []string, err error) {
		_, items, err := k.read(ctx, client, namespace, "")
		for _, o := range items {
			out = append(out, o.GetName())
		}
		return out, err
	})
}

func (k objectKind) list(s command.Streams) *cobra.Command {
	var labels, output string
	cmd := &cobra.Command{Use: "list", Short: "List " + k.noun + "s", Example: k.example("list"), Args: command.NoArgs}
	v := NewVerb(s, cmd)
	if k.namespaced {
		v.allNamespaces(cmd, "of every namespace")
	}
	cmd.Flags().StringVarP(&labels, "selector", "l", "", "label selector")
	command.OutputFlag(cmd, &output, "name", "json", "yaml", "wide")
	return v.Run(func(ctx context.Context, client *workflows.Client, namespace string, _ []string) error {
		list, items, err := k.read(ctx, client, v.in(namespace), labels)
		switch {
		case err != nil:
			return err
		case output == "" || output == "wide":
			return k.printList(v, items)
		}
		for _, o := range items {
			v.Malformed(o)
			malformed.Unmark(o)
			k.setKind(o)
		}
		list.GetObjectKind().SetGroupVersionKind(wf.GroupVersion.WithKind(k.kind + "List"))
		return command.PrintObject(s.Out, output, list)
	})
}

func (k objectKind) printList(v *Verb, items []workflows.Object) error {
	if len(items) == 0 {
		fmt.Fprintf(v.Err, "No %ss found.\n", k.noun)
		return nil
	}
	out := printers.GetNewTabWriter(v.Out)
	line := func(namespace string, row []string) {
		if v.Everywhere {
			row = append([]string{namespace}, row...)
		}
		cells := make([]string, len(row))
		for i, text := range row {
			cells[i] = display.OneLine(text)
		}
		fmt.Fprintln(out, strings.Join(cells, "\t"))
	}
	line("NAMESPACE", k.head)
	for _, o := range items {
		if v.Malformed(o) {
			line(o.GetNamespace(), []string{o.GetName(), workflows.Malformed})
		} else {
			line(o.GetNamespace(), k.row(o))
		}
	}
	return out.Flush()
}

func (k objectKind) setKind(o workflows.Object) {
	o.GetObjectKind().SetGroupVersionKind(wf.GroupVersion.WithKind(k.kind))
}

func (k objectKind) get(s command.Streams) *cobra.Command {
	var output string
	cmd := &cobra.Command{Use: "get NAME...", Short: "Show " + k.noun + "s", Example: k.example("get build -o yaml"),
		Args: command.SomeArgs("NAME")}
	v := NewVerb(s, cmd)
	command.OutputFlag(cmd, &output, "name", "json", "yaml", "wide")
	cmd.ValidArgsFunction = k.names(v)
	return names.Take(v.Run(func(ctx context.Context, client *workflows.Client, namespace string, args []string) error {
		for i, name := range args {
			fresh, err := scheme.Scheme.New(wf.GroupVersion.WithKind(k.kind))
			if err != nil {
				return err
			}
			o := fresh.(workflows.Object)
			if err := client.Read(ctx, k.resource, namespace, name, o); err != nil {
				return err
			}
			k.setKind(o)
			if output == "" || output == "wide" {
				k.describe(s, o)
			} else if err := command.PrintNext(s.Out, output, o, i > 0); err != nil {
				return err
			}
		}
		return nil
	}), k.words)
}

// describe prints an object's metadata and its columns of a list, line by line.
func (k objectKind) describe(s command.Streams, o workflows.Object) {
	line := func(name string, value any) {
		fmt.Fprintf(s.Out, "%-20s %s\n", display.OneLine(name)+":", display.OneLine(fmt.Sprint(value)))
	}
	row := k.row(o)
	line("Name", o.GetName())
	if k.namespaced {
		line("Namespace", o.GetNamespace())
	}
	line("Created", o.GetCreationTimestamp().UTC().Format("Mon Jan 02 15:04:05 -0700 2006"))
	for i, title := range k.head {
		if title != "NAME" && title != "AGE" && row[i] != "" {
			line(strings.ToUpper(title[:1])+strings.ToLower(title[1:]), row[i])
		}
	}
	c, ok := o.(*wf.CronWorkflow)
	if !ok {
		return
	}
	line("Concurrency", strings.TrimSpace(string(c.Spec.ConcurrencyPolicy)))
	line("Phase", c.Status.Phase)
	line("Succeeded", c.Status.Succeeded)
	line("Failed", c.Status.Failed)
	for _, r := range c.Status.Active {
		line("Active workflow", r.Name)
	}
	for _, condition := range c.Status.Conditions {
		line(string(condition.Type), condition.Message)
	}
}

// send returns the verb create or update, which is the verb submit with another name.
func (k objectKind) send(submit *cobra.Command, verb string) *cobra.Command {
	submit.Use, submit.Example = verb+" FILE...", k.example(verb+" "+k.use+".yaml")
	submit.Short = strings.ToUpper(verb[:1]) + verb[1:] + " " + k.noun + "s from manifests: the same as 'lockstep submit'"
	return submit
}

func (k objectKind) delete(s command.Streams) *cobra.Command {
	var all bool
	cmd := &cobra.Command{Use: "delete NAME...", Short: "Delete " + k.noun + "s", Example: k.example("delete build")}
	v := NewVerb(s, cmd)
	cmd.Flags().BoolVar(&all, "all", false, "all of them, in the namespace")
	v.DryRun.AddChecked(cmd)
	cmd.ValidArgsFunction = k.names(v)
	v.Check(func(args []string) error {
		if all == (len(args) > 0) {
			return command.Usagef("say which: give names, or --all")
		}
		return nil
	})
	return names.Take(v.Run(func(ctx context.Context, client *workflows.Client, namespace string, args []string) error {
		if all {
			_, items, err := k.read(ctx, client, namespace, "")
			if err != nil {
				return err
			}
			for _, o := range items {
				args = append(args, o.GetName())
			}
		}
		var failed []error
		for _, name := range args {
			if err := client.Delete(ctx, k.resource, namespace, name); err != nil {
				failed = append(failed, err)
				continue
			}
			fmt.Fprintf(s.Out, "%s %s %s\n", k.noun, name, v.DryRun.Said("deleted"))
		}
		return errors.Join(failed...)
	}), k.words)
}
