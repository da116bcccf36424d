package workflows

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cli/names"
	"lockstep.dev/lockstep/internal/submit/workflows"
	"lockstep.dev/lockstep/internal/workflow/archive"
	"lockstep.dev/lockstep/internal/workflow/compress"
	"lockstep.dev/lockstep/internal/workflow/rerun"
)

// archiveEnv is the environment variable with the default of --archive.
const archiveEnv = "LOCKSTEP_ARCHIVE"

// archiveFile is the archive's file name in the directory of a local cluster.
const archiveFile = "archive.db"

// archiveFlags holds the flags that locate the archive.
type archiveFlags struct{ source string }

func (a *archiveFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.source, "archive", os.Getenv(archiveEnv),
		"the archive: a path of SQLite, postgres://..., argo+postgres://..., argo+mysql://..., or @FILE whose first line is one of these (default $"+archiveEnv+")")
	// Help must not show the default: it may hold a password.
	cmd.Flags().Lookup("archive").DefValue = ""
}

// open opens the archive and returns it with the namespace to search. The caller closes the
// archive.
func (a *archiveFlags) open(ctx context.Context, v *Verb) (*archive.DB, string, error) {
	namespace, _, err := v.Kube.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, "", err
	}
	source := a.source
	if source == "" {
		// A local cluster keeps its archive beside its kubeconfig.
		for _, path := range append([]string{*v.Kube.KubeConfig}, filepath.SplitList(os.Getenv("KUBECONFIG"))...) {
			if beside := filepath.Join(filepath.Dir(path), archiveFile); path != "" && source == "" && exists(beside) {
				source = beside
			}
		}
	}
	if source == "" {
		return nil, "", command.Usagef("say where the archive is: --archive or $%s, with what the manager was given as --archive", archiveEnv)
	}
	db, err := archive.Open(ctx, source)
	return db, namespace, err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// getArchived does the same as Get with the workflows of the archive.
func (g *Getting) getArchived(ctx context.Context, v *Verb, names []string) error {
	db, namespace, err := g.archive.open(ctx, v)
	if err != nil {
		return err
	}
	defer db.Close()
	if len(names) == 0 {
		list, err := g.listArchived(ctx, v, db, v.in(namespace))
		if err != nil {
			return err
		}
		return g.printList(v, list, namespace)
	}
	for i, name := range names {
		w, err := archived(ctx, db, namespace, name)
		if err != nil {
			return err
		}
		if err := g.printOne(v, w, i > 0); err != nil {
			return err
		}
	}
	return nil
}

func (g *Getting) listArchived(ctx context.Context, v *Verb, db *archive.DB,
	namespace string) (list []wf.Workflow, err error) {
	q := archive.Query{Namespace: namespace, Prefix: g.query.Prefix, Phases: g.query.Statuses,
		Limit: int(g.PageSize)}
	if g.since > 0 {
		q.CreatedAfter = time.Now().Add(-g.since)
	}
	if g.query.OlderFor > 0 {
		q.CreatedBefore = time.Now().Add(-g.query.OlderFor)
	}
	if q.Labels, err = labels.Parse(g.Labels); err != nil {
		return nil, command.Usagef("--selector: %w", err)
	}
	if list, err = db.List(ctx, q); err == nil && len(list) == q.Limit {
		fmt.Fprintf(v.Err, "The archive may have more: these are the last %d (--chunk-size).\n", q.Limit)
	}
	return list, err
}

// archived returns a workflow of the archive by its UID or its name, with its nodes unpacked. If
// several have the name, it returns the latest.
func archived(ctx context.Context, db *archive.DB, namespace, name string) (*wf.Workflow, error) {
	w, err := db.Get(ctx, name)
	if errors.Is(err, archive.ErrNotFound) {
		w, err = db.Latest(ctx, namespace, name)
	}
	if err != nil {
		return nil, fmt.Errorf("workflow %s: %w", name, err)
	}
	if w.Status.Nodes, err = compress.Nodes(&w.Status); err != nil {
		return nil, err
	}
	w.Status.CompressedNodes = ""
	return w, nil
}

func newArchive(s command.Streams) *cobra.Command {
	list := Getting{inArchive: true}
	return command.Group(&cobra.Command{
		Use:   "archive",
		Short: "Look at, and start again, workflows that have left the cluster",
		Long: `Look at, and start again, workflows that have left the cluster. The archive is opened directly: give the same --archive
as the manager's. Where only the manager's pod reaches it, run this in there: kubectl exec deploy/lockstep-manager -- lockstep archive list.`,
	}, list.listing(s, &cobra.Command{Use: "list", Short: "List archived workflows, the latest first",
		Example: "  lockstep archive list --status Failed --since 24h"}, "json", "yaml", "name"),
		newArchiveGet(s), newArchiveDelete(s), newArchiveRetry(s), newArchiveResubmit(s))
}

func newArchiveGet(s command.Streams) *cobra.Command {
	g := Getting{inArchive: true}
	cmd := &cobra.Command{Use: "get NAME|UID...", Short: "Show archived workflows",
		Example: "  lockstep archive get hello -o yaml",
		Args:    command.SomeArgs("NAME or UID")}
	v := NewVerb(s, cmd)
	command.OutputFlag(cmd, &g.Output, "json", "yaml", "wide", "name")
	g.drawing.add(cmd)
	g.archive.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return g.Get(cmd, v, args) }
	return names.Take(cmd, names.Workflow, names.Offline)
}

// archiveChange is a verb that acts on archived workflows.
type archiveChange struct {
	*Verb
	cmd        *cobra.Command
	archive    archiveFlags
	parameters []string
}

func newArchiveChange(s command.Streams, use, short string) *archiveChange {
	cmd := &cobra.Command{Use: use + " NAME|UID...", Short: short, Example: "  lockstep archive " + use + " hello",
		Args: command.SomeArgs("NAME or UID")}
	c := &archiveChange{Verb: NewVerb(s, cmd), cmd: cmd}
	c.archive.add(cmd)
	c.DryRun.AddChecked(cmd)
	return c
}

func (c *archiveChange) addParameters() {
	c.cmd.Flags().StringArrayVarP(&c.parameters, "parameter", "p", nil, "NAME=VALUE: another value for an argument")
}

// run returns the verb's command. It calls act for each named workflow, and prints done after the
// name that act returns.
func (c *archiveChange) run(done string,
	act func(context.Context, *archive.DB, *wf.Workflow) (name string, err error)) *cobra.Command {
	c.cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, stop := command.Interruptible(cmd, 0)
		defer stop()
		db, namespace, err := c.archive.open(ctx, c.Verb)
		if err != nil {
			return err
		}
		defer db.Close()
		for _, name := range args {
			w, err := archived(ctx, db, namespace, name)
			if err != nil {
				return err
			}
			now, err := act(ctx, db, w)
			if err != nil {
				return fmt.Errorf("workflow %s: %w", name, err)
			}
			fmt.Fprintf(c.Out, "workflow %s %s\n", now, c.DryRun.Said(done))
		}
		return nil
	}
	return names.Take(c.cmd, names.Workflow, names.Offline)
}

func newArchiveDelete(s command.Streams) *cobra.Command {
	c := newArchiveChange(s, "delete", "Remove workflows from the archive")
	return c.run("deleted", func(ctx context.Context, db *archive.DB, w *wf.Workflow) (string, error) {
		if c.DryRun.On() {
			return w.Name, nil // the workflow is known to exist here
		}
		return w.Name, db.Delete(ctx, string(w.UID))
	})
}

func newArchiveResubmit(s command.Streams) *cobra.Command {
	c := newArchiveChange(s, "resubmit", "Start archived workflows anew, under new names")
	var o rerun.ResubmitOptions
	c.addParameters()
	c.cmd.Flags().BoolVar(&o.Memoized, "memoized", false,
		"take over the results of what succeeded; the workflow must have failed")
	return c.run("created", func(ctx context.Context, _ *archive.DB, w *wf.Workflow) (string, error) {
		client, _, err := c.Connect()
		if err != nil {
			return "", err
		}
		if o.Parameters, err = command.KeyValues("--parameter", c.parameters); err != nil {
			return "", err
		}
		got, err := resubmit(ctx, client, w, o)
		if err != nil {
			return "", err
		}
		return got.Name, nil
	})
}

func newArchiveRetry(s command.Streams) *cobra.Command {
	c := newArchiveChange(s, "retry", "Bring failed workflows back and run them from where they failed")
	c.addParameters()
	return c.run("retried", func(ctx context.Context, _ *archive.DB, w *wf.Workflow) (string, error) {
		client, _, err := c.Connect()
		if err != nil {
			return "", err
		}
		// The workflow is created again as a new object of the same name. If the old one still
		// exists, the user must retry that instead.
		if err := client.Read(ctx, workflows.Workflows, w.Namespace, w.Name, &wf.Workflow{}); err == nil {
			return "", fmt.Errorf("is still in the cluster: use 'lockstep retry %s'", w.Name)
		} else if !apierrors.IsNotFound(err) {
			return "", err
		}
		o := rerun.RetryOptions{Now: client.Now()}
		if o.Parameters, err = command.KeyValues("--parameter", c.parameters); err != nil {
			return "", err
		}
		plan, err := rerun.Retry(w, o)
		if err != nil {
			return "", err
		}
		fresh := plan.Workflow
		delete(fresh.Labels, wf.LabelArchivingStatus)
		meta := fresh.ObjectMeta
		fresh.ObjectMeta = metav1.ObjectMeta{Namespace: meta.Namespace, Name: meta.Name,
			GenerateName: meta.GenerateName,
			Labels:       meta.Labels, Annotations: meta.Annotations}
		return fresh.Name, client.Create(ctx, workflows.Workflows, fresh, &wf.Workflow{})
	})
}
