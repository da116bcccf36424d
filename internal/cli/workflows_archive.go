package cli

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
	"lockstep.dev/lockstep/internal/submit/workflows"
	"lockstep.dev/lockstep/internal/workflow/archive"
	"lockstep.dev/lockstep/internal/workflow/compress"
	"lockstep.dev/lockstep/internal/workflow/rerun"
)

// archiveEnv is the environment variable with the default of --archive.
const archiveEnv = "LOCKSTEP_ARCHIVE"

// archiveFlags holds the flags that say where the archive is.
type archiveFlags struct{ source string }

func (a *archiveFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.source, "archive", os.Getenv(archiveEnv),
		"the archive: a path of SQLite, postgres://..., or @FILE whose first line is one of these (default $"+archiveEnv+")")
	// Help must not show the default: it may hold a password.
	cmd.Flags().Lookup("archive").DefValue = ""
}

func (a *archiveFlags) open(ctx context.Context, c *wfCommand) (*archive.DB, error) {
	source := a.source
	if source == "" {
		// A local cluster keeps its archive beside its kubeconfig.
		for _, path := range append([]string{*c.flags.KubeConfig}, filepath.SplitList(os.Getenv("KUBECONFIG"))...) {
			if beside := filepath.Join(filepath.Dir(path), archiveFile); path != "" && source == "" && exists(beside) {
				source = beside
			}
		}
	}
	if source == "" {
		return nil, usageError{fmt.Errorf("say where the archive is: --archive or $%s, with what the manager was given as --archive", archiveEnv)}
	}
	return archive.Open(ctx, source)
}

// archiveFile is the archive's file name in the directory of a local cluster.
const archiveFile = "archive.db"

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// opened opens the archive and returns it with the namespace to look in. The caller closes the
// archive.
func (a *archiveFlags) opened(ctx context.Context, c *wfCommand) (*archive.DB, string, error) {
	namespace, _, err := c.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, "", err
	}
	db, err := a.open(ctx, c)
	return db, namespace, err
}

// get runs 'get workflows --archived'.
func (a *archiveFlags) get(ctx context.Context, c *wfCommand, g *workflowGet, names []string) error {
	db, namespace, err := a.opened(ctx, c)
	if err != nil {
		return err
	}
	defer db.Close()
	if len(names) == 0 {
		q := archive.Query{Namespace: namespace, Prefix: g.query.Prefix, Phases: g.query.Statuses, Limit: int(g.query.PageSize)}
		if c.all {
			q.Namespace = ""
		}
		if g.since > 0 {
			q.CreatedAfter = time.Now().Add(-g.since)
		}
		if g.query.OlderFor > 0 {
			q.CreatedBefore = time.Now().Add(-g.query.OlderFor)
		}
		if q.Labels, err = labels.Parse(g.query.Labels); err != nil {
			return usageError{fmt.Errorf("--selector: %w", err)}
		}
		list, err := db.List(ctx, q)
		if err != nil {
			return err
		}
		if len(list) == q.Limit {
			fmt.Fprintf(c.s.err, "The archive may have more: these are the last %d (--chunk-size).\n", q.Limit)
		}
		return g.printList(c, list, namespace)
	}
	for i, name := range names {
		w, err := archived(ctx, db, namespace, name)
		if err != nil {
			return err
		}
		if err := g.printOne(c, w, i > 0); err != nil {
			return err
		}
	}
	return nil
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

func newArchive(s streams) *cobra.Command {
	var g workflowGet
	list := &cobra.Command{Use: "list", Short: "List archived workflows, the latest first", Example: "  lockstep archive list --status Failed --since 24h", Args: noArgs}
	lc := newWFCommand(s, list)
	lc.allNamespaces(list)
	list.Flags().StringVarP(&g.query.Labels, "selector", "l", "", "label selector")
	outputFlag(list, &g.output, "json", "yaml", "name")
	g.add(list)
	list.RunE = func(cmd *cobra.Command, _ []string) error {
		g.archived = true
		return g.run(lc, cmd, nil)
	}
	var one workflowGet
	get := &cobra.Command{Use: "get NAME|UID...", Short: "Show archived workflows", Example: "  lockstep archive get hello -o yaml", Args: minArgs(1, "NAME or UID")}
	gc := newWFCommand(s, get)
	outputFlag(get, &one.output, "json", "yaml", "wide", "name")
	one.drawing.add(get)
	one.archive.add(get)
	get.RunE = func(cmd *cobra.Command, args []string) error {
		one.archived = true
		return one.run(gc, cmd, args)
	}
	return group(&cobra.Command{
		Use:   "archive",
		Short: "Look at, and start again, workflows that have left the cluster",
		Long: `Look at, and start again, workflows that have left the cluster. The archive is opened directly: give the same --archive
as the manager's. Where only the manager's pod reaches it, run this in there: kubectl exec deploy/lockstep-manager -- lockstep archive list.`,
	}, list, get,
		archiveVerb(s, "delete", "Remove workflows from the archive", "deleted", nil,
			func(ctx context.Context, c *wfCommand, db *archive.DB, w *wf.Workflow) (string, error) {
				if c.dryRun.on() {
					return w.Name, nil // the workflow is known to exist here
				}
				return w.Name, db.Delete(ctx, string(w.UID))
			}),
		newArchiveAgain(s, true), newArchiveAgain(s, false))
}

// archiveVerb returns a verb about archived workflows.
func archiveVerb(s streams, use, short, done string, setup func(*cobra.Command),
	act func(context.Context, *wfCommand, *archive.DB, *wf.Workflow) (string, error)) *cobra.Command {
	var a archiveFlags
	cmd := &cobra.Command{Use: use + " NAME|UID...", Short: short, Example: "  lockstep archive " + use + " hello", Args: minArgs(1, "NAME or UID")}
	c := newWFCommand(s, cmd)
	a.add(cmd)
	c.dryRun.addChecked(cmd)
	if setup != nil {
		setup(cmd)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, stop := interruptible(cmd)
		defer stop()
		db, namespace, err := a.opened(ctx, c)
		if err != nil {
			return err
		}
		defer db.Close()
		for _, name := range args {
			w, err := archived(ctx, db, namespace, name)
			if err != nil {
				return err
			}
			now, err := act(ctx, c, db, w)
			if err != nil {
				return fmt.Errorf("workflow %s: %w", name, err)
			}
			fmt.Fprintf(s.out, "workflow %s %s\n", now, c.dryRun.said(done))
		}
		return nil
	}
	return cmd
}

// newArchiveAgain returns 'archive retry' or 'archive resubmit'.
func newArchiveAgain(s streams, retry bool) *cobra.Command {
	var (
		parameters []string
		memoized   bool
	)
	setup := func(cmd *cobra.Command) {
		cmd.Flags().StringArrayVarP(&parameters, "parameter", "p", nil, "NAME=VALUE: another value for an argument")
		if !retry {
			cmd.Flags().BoolVar(&memoized, "memoized", false, "take over the results of what succeeded; the workflow must have failed")
		}
	}
	act := func(ctx context.Context, c *wfCommand, _ *archive.DB, w *wf.Workflow) (string, error) {
		client, _, err := c.connect()
		if err != nil {
			return "", err
		}
		values, err := keyValues("--parameter", parameters)
		if err != nil {
			return "", err
		}
		if !retry {
			got, err := resubmitWorkflow(ctx, client, w, rerun.ResubmitOptions{Memoized: memoized, Parameters: values})
			if err != nil {
				return "", err
			}
			return got.Name, nil
		}
		// The workflow is created again as a new object of the same name. If the old one still
		// exists, the user must retry that instead.
		var there wf.Workflow
		if err := client.Read(ctx, workflows.Workflows, w.Namespace, w.Name, &there); err == nil {
			return "", fmt.Errorf("is still in the cluster: use 'lockstep retry %s'", w.Name)
		} else if !apierrors.IsNotFound(err) {
			return "", err
		}
		plan, err := rerun.Retry(w, rerun.RetryOptions{Parameters: values, Now: client.Now()})
		if err != nil {
			return "", err
		}
		fresh := plan.Workflow
		delete(fresh.Labels, wf.LabelArchivingStatus)
		meta := fresh.ObjectMeta
		fresh.ObjectMeta = metav1.ObjectMeta{Namespace: meta.Namespace, Name: meta.Name, GenerateName: meta.GenerateName, Labels: meta.Labels, Annotations: meta.Annotations}
		return fresh.Name, client.Create(ctx, workflows.Workflows, fresh, &wf.Workflow{})
	}
	if retry {
		return archiveVerb(s, "retry", "Bring failed workflows back and run them from where they failed", "retried", setup, act)
	}
	return archiveVerb(s, "resubmit", "Start archived workflows anew, under new names", "created", setup, act)
}
