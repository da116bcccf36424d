package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/submit/workflows"
	"lockstep.dev/lockstep/internal/workflow/cron"
	"lockstep.dev/lockstep/internal/workflow/cron/schedule"
)

// objectKind describes a kind, other than Workflow, that has verbs of its own.
type objectKind struct {
	use, noun, kind, resource string
	namespaced                bool
	newObject                 func() workflows.Object
	newList                   func() (list runtime.Object, items func() []workflows.Object)
	head                      []string
	row                       func(workflows.Object) []string
}

var (
	templateKind = objectKind{
		use: "template", noun: "workflow template", kind: "WorkflowTemplate", resource: workflows.Templates, namespaced: true,
		newObject: func() workflows.Object { return &wf.WorkflowTemplate{} },
		newList: func() (runtime.Object, func() []workflows.Object) {
			l := &wf.WorkflowTemplateList{}
			return l, objectsOf(&l.Items)
		},
		head: templateHead, row: func(o workflows.Object) []string { return templateRow(o, &o.(*wf.WorkflowTemplate).Spec) },
	}
	clusterTemplateKind = objectKind{
		use: "cluster-template", noun: "cluster workflow template", kind: "ClusterWorkflowTemplate", resource: workflows.ClusterTemplates,
		newObject: func() workflows.Object { return &wf.ClusterWorkflowTemplate{} },
		newList: func() (runtime.Object, func() []workflows.Object) {
			l := &wf.ClusterWorkflowTemplateList{}
			return l, objectsOf(&l.Items)
		},
		head: templateHead, row: func(o workflows.Object) []string { return templateRow(o, &o.(*wf.ClusterWorkflowTemplate).Spec) },
	}
	cronKind = objectKind{
		use: "cron", noun: "cron workflow", kind: "CronWorkflow", resource: workflows.Crons, namespaced: true,
		newObject: func() workflows.Object { return &wf.CronWorkflow{} },
		newList: func() (runtime.Object, func() []workflows.Object) {
			l := &wf.CronWorkflowList{}
			return l, objectsOf(&l.Items)
		},
		head: []string{"NAME", "AGE", "LAST RUN", "NEXT RUN", "SCHEDULES", "TIMEZONE", "SUSPENDED", "ACTIVE"},
		row: func(o workflows.Object) []string {
			c := o.(*wf.CronWorkflow)
			last := "never"
			if t := c.Status.LastScheduledTime; t != nil {
				last = duration.HumanDuration(time.Since(t.Time))
			}
			return []string{c.Name, ageOf(c), last, nextRun(c), strings.Join(c.Spec.AllSchedules(), ","), c.Spec.Timezone, fmt.Sprint(c.Spec.Suspend), fmt.Sprint(len(c.Status.Active))}
		},
	}
)

// objectsOf returns a function that returns the items of a list. It is called after the list was
// read.
func objectsOf[T any, P interface {
	*T
	workflows.Object
}](items *[]T) func() []workflows.Object {
	return func() []workflows.Object {
		out := make([]workflows.Object, len(*items))
		for i := range *items {
			out[i] = P(&(*items)[i])
		}
		return out
	}
}

var templateHead = []string{"NAME", "ENTRYPOINT", "TEMPLATES", "AGE"}

func templateRow(o workflows.Object, spec *wf.WorkflowSpec) []string {
	return []string{o.GetName(), spec.Entrypoint, fmt.Sprint(len(spec.Templates)), ageOf(o)}
}

func ageOf(o workflows.Object) string {
	return duration.HumanDuration(time.Since(o.GetCreationTimestamp().Time))
}

// nextRun returns when a CronWorkflow runs next, as text.
func nextRun(c *wf.CronWorkflow) string {
	switch {
	case c.Spec.Suspend:
		return "suspended"
	case c.Status.Phase == "Stopped":
		return "stopped"
	}
	times, err := schedule.Parse(c.Spec.AllSchedules(), c.Spec.Timezone, c.CreationTimestamp.Time)
	if err != nil {
		return "invalid"
	}
	now := time.Now()
	if next := times.Next(now); !next.IsZero() {
		return "in " + duration.HumanDuration(next.Sub(now))
	}
	return "never"
}

// newObjectCommand returns the verbs that all these kinds have: list, get, create, update, delete,
// lint. more are further verbs.
func newObjectCommand(s streams, k objectKind, aliases []string, more ...*cobra.Command) *cobra.Command {
	lint := newLintVerb(s, k.kind)
	lint.Example = k.example("lint templates/")
	return group(&cobra.Command{Use: k.use, Aliases: aliases, Short: "Act on " + k.noun + "s"},
		append([]*cobra.Command{k.list(s), k.get(s), k.send(s, "create"), k.send(s, "update"), k.delete(s), lint}, more...)...)
}

// example returns an example of a call of one of the verbs.
func (k objectKind) example(call string) string { return "  lockstep " + k.use + " " + call }

func (k objectKind) names(c *wfCommand) cobra.CompletionFunc {
	return c.complete(func(ctx context.Context, client *workflows.Client, namespace string) ([]string, error) {
		list, items := k.newList()
		if err := client.ListOf(ctx, k.resource, namespace, "", list); err != nil {
			return nil, err
		}
		var out []string
		for _, o := range items() {
			out = append(out, o.GetName())
		}
		return out, nil
	})
}

func (k objectKind) list(s streams) *cobra.Command {
	var labels, output string
	cmd := &cobra.Command{Use: "list", Short: "List " + k.noun + "s", Example: k.example("list"), Args: noArgs}
	c := newWFCommand(s, cmd)
	if k.namespaced {
		cmd.Flags().BoolVarP(&c.all, "all-namespaces", "A", false, "of every namespace")
	}
	cmd.Flags().StringVarP(&labels, "selector", "l", "", "label selector")
	outputFlag(cmd, &output, "name", "json", "yaml", "wide")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		client, namespace, err := c.connect()
		if err != nil {
			return err
		}
		ctx, stop := interruptible(cmd)
		defer stop()
		if c.all {
			namespace = ""
		}
		list, items := k.newList()
		if err := client.ListOf(ctx, k.resource, namespace, labels, list); err != nil {
			return err
		}
		if output != "" && output != "wide" {
			print, err := objectPrinter(output, s.out)
			if err != nil {
				return err
			}
			for _, o := range items() {
				warnMalformed(s.err, o)
				malformed.Unmark(o)
				k.setKind(o)
			}
			list.GetObjectKind().SetGroupVersionKind(wf.GroupVersion.WithKind(k.kind + "List"))
			return print(list)
		}
		if len(items()) == 0 {
			fmt.Fprintf(s.err, "No %ss found.\n", k.noun)
			return nil
		}
		out := printers.GetNewTabWriter(s.out)
		head := k.head
		if c.all {
			head = append([]string{"NAMESPACE"}, head...)
		}
		fmt.Fprintln(out, strings.Join(head, "\t"))
		for _, o := range items() {
			var row []string
			if warnMalformed(s.err, o) {
				row = []string{o.GetName(), malformedPhase}
			} else {
				row = k.row(o)
			}
			if c.all {
				row = append([]string{o.GetNamespace()}, row...)
			}
			fmt.Fprintln(out, strings.Join(row, "\t"))
		}
		return out.Flush()
	}
	return cmd
}

func (k objectKind) setKind(o workflows.Object) {
	o.GetObjectKind().SetGroupVersionKind(wf.GroupVersion.WithKind(k.kind))
}

func (k objectKind) get(s streams) *cobra.Command {
	var output string
	cmd := &cobra.Command{Use: "get NAME...", Short: "Show " + k.noun + "s", Example: k.example("get build -o yaml"), Args: minArgs(1, "NAME")}
	c := newWFCommand(s, cmd)
	outputFlag(cmd, &output, "name", "json", "yaml", "wide")
	cmd.ValidArgsFunction = k.names(c)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client, namespace, err := c.connect()
		if err != nil {
			return err
		}
		ctx, stop := interruptible(cmd)
		defer stop()
		for _, name := range args {
			o := k.newObject()
			if err := client.Read(ctx, k.resource, namespace, name, o); err != nil {
				return err
			}
			k.setKind(o)
			if output == "" || output == "wide" {
				k.describe(s, o)
				continue
			}
			print, err := objectPrinter(output, s.out)
			if err != nil {
				return err
			}
			if err := print(o); err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}

// describe prints an object's metadata and its columns of a list, line by line.
func (k objectKind) describe(s streams, o workflows.Object) {
	line := func(name string, value any) { fmt.Fprintf(s.out, "%-20s %v\n", name+":", value) }
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

// send returns create or update, which are submit for one kind.
func (k objectKind) send(s streams, verb string) *cobra.Command {
	cmd := newSubmit(s)
	cmd.Use, cmd.Example = verb+" FILE...", k.example(verb+" "+k.use+".yaml")
	cmd.Short = strings.ToUpper(verb[:1]) + verb[1:] + " " + k.noun + "s from manifests: the same as 'lockstep submit'"
	return cmd
}

func (k objectKind) delete(s streams) *cobra.Command {
	var all bool
	cmd := &cobra.Command{Use: "delete NAME...", Short: "Delete " + k.noun + "s", Example: k.example("delete build")}
	c := newWFCommand(s, cmd)
	cmd.Flags().BoolVar(&all, "all", false, "all of them, in the namespace")
	c.dryRun.addChecked(cmd)
	cmd.ValidArgsFunction = k.names(c)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if all == (len(args) > 0) {
			return usageError{errors.New("say which: give names, or --all")}
		}
		client, namespace, err := c.connect()
		if err != nil {
			return err
		}
		ctx, stop := interruptible(cmd)
		defer stop()
		if all {
			list, items := k.newList()
			if err := client.ListOf(ctx, k.resource, namespace, "", list); err != nil {
				return err
			}
			for _, o := range items() {
				args = append(args, o.GetName())
			}
		}
		var failed []error
		for _, name := range args {
			if err := client.Delete(ctx, k.resource, namespace, name); err != nil {
				failed = append(failed, err)
				continue
			}
			fmt.Fprintf(s.out, "%s %s %s\n", k.noun, name, c.dryRun.said("deleted"))
		}
		return errors.Join(failed...)
	}
	return cmd
}

func newCron(s streams) *cobra.Command {
	return newObjectCommand(s, cronKind, []string{"cwf", "cron-workflow"},
		cronSuspend(s, "suspend", "Keep cron workflows from starting anything", true),
		cronSuspend(s, "resume", "Let suspended cron workflows go on", false), newCronTrigger(s))
}

func cronSuspend(s streams, use, short string, suspend bool) *cobra.Command {
	cmd := &cobra.Command{Use: use + " NAME...", Short: short, Example: cronKind.example(use + " nightly"), Args: minArgs(1, "NAME")}
	c := newWFCommand(s, cmd)
	c.dryRun.addChecked(cmd)
	cmd.ValidArgsFunction = cronKind.names(c)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client, namespace, err := c.connect()
		if err != nil {
			return err
		}
		ctx, stop := interruptible(cmd)
		defer stop()
		for _, name := range args {
			if err := client.SuspendCron(ctx, namespace, name, suspend); err != nil {
				return err
			}
			fmt.Fprintf(s.out, "cron workflow %s %s\n", name, c.dryRun.said(strings.TrimSuffix(use, "e")+"ed"))
		}
		return nil
	}
	return cmd
}

func newCronTrigger(s streams) *cobra.Command {
	var f following
	cmd := &cobra.Command{
		Use:   "trigger NAME",
		Short: "Start a cron workflow's workflow now, whatever its schedule says",
		Long: `Start a cron workflow's workflow now, whatever its schedule says.

Exit codes: 0 started, and with --watch, --wait or --log succeeded; 1 otherwise; 2 wrong usage; 3 the --timeout ran out.`,
		Example: "  lockstep cron trigger nightly --watch",
		Args:    exactArgs("NAME"),
	}
	c := newWFCommand(s, cmd)
	f.add(cmd)
	c.dryRun.addChecked(cmd)
	cmd.ValidArgsFunction = cronKind.names(c)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.check(1); err != nil {
			return err
		}
		client, namespace, err := c.connect()
		if err != nil {
			return err
		}
		ctx, stop := c.bounded(cmd, f.timeout)
		defer stop()
		w, err := fromCron(ctx, client, namespace, args[0])
		if err != nil {
			return err
		}
		got := &wf.Workflow{}
		if err := client.Create(ctx, workflows.Workflows, w, got); err != nil {
			return err
		}
		fmt.Fprintf(s.out, "workflow %s %s\n", got.Name, c.dryRun.said("created"))
		return c.follow(ctx, client, f, []ref{{got.Namespace, got.Name}})
	}
	return cmd
}

// fromCron returns the workflow that a CronWorkflow would start now.
func fromCron(ctx context.Context, client *workflows.Client, namespace, name string) (*wf.Workflow, error) {
	c := &wf.CronWorkflow{}
	if err := client.Read(ctx, workflows.Crons, namespace, name, c); err != nil {
		return nil, err
	}
	return cron.Workflow(c, "", time.Time{}), nil
}
