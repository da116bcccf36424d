package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/submit"
	"lockstep.dev/lockstep/internal/submit/workflows"
)

// kubeFlags adds kubectl's flags that every verb with a cluster takes: --kubeconfig, --context and
// -n.
func kubeFlags(cmd *cobra.Command) *genericclioptions.ConfigFlags {
	all := genericclioptions.NewConfigFlags(true)
	flags := &genericclioptions.ConfigFlags{KubeConfig: all.KubeConfig, Context: all.Context, Namespace: all.Namespace}
	flags.AddFlags(cmd.Flags())
	return flags
}

// where returns the configuration of the cluster that kubectl's flags choose, and the namespace to
// work in.
func where(flags *genericclioptions.ConfigFlags) (*rest.Config, string, error) {
	cfg, err := kubeclient.Load(*flags.KubeConfig, *flags.Context)
	if err != nil {
		return nil, "", err
	}
	namespace, _, err := flags.ToRawKubeConfigLoader().Namespace()
	return cfg, namespace, err
}

// submitFlags holds the flags of submit.
type submitFlags struct {
	files         []string
	recursive     bool
	dryRun        dryRun
	output        string
	from          string
	parameters    []string
	parameterFile string
	priority      int32
	labels        []string
	overrides     submit.Overrides
	following
}

func newSubmit(s streams) *cobra.Command {
	var o submitFlags
	cmd := &cobra.Command{
		Use:   "submit [FILE...] [-f FILE] [--from KIND/NAME]",
		Short: "Send manifests to a cluster, and wait for the runs they start",
		Long: `Send manifests to a cluster. Jobs and workflows are created: each is a run that happens once. Everything else (queues,
templates, config maps) is applied. FILE is a file, a folder, a URL, or - for standard input. With --from, a workflow
is started from workflowtemplate/NAME, clusterworkflowtemplate/NAME or cronworkflow/NAME of the cluster.

The flags about workflows change every workflow among the manifests.

Exit codes: 0 all was sent, and with --wait, --watch or --log every run succeeded; 1 something was refused, or a run failed;
2 wrong usage; 3 the --timeout ran out.`,
		Example: `  lockstep submit job.yaml --wait
  lockstep submit hello.yaml -p message=hi --watch
  lockstep submit --from workflowtemplate/build -p branch=main --log
  lockstep submit -f examples/batch --wait --timeout 5m
  cat job.yaml | lockstep submit - -n team-a -o name`,
	}
	c := newWFCommand(s, cmd)
	f := cmd.Flags()
	f.StringSliceVarP(&o.files, "filename", "f", nil, "file, folder or URL to send; - is standard input")
	f.BoolVarP(&o.recursive, "recursive", "R", false, "go into sub-folders of a folder")
	o.dryRun.add(cmd, `"client": print what would be sent; "server": have it checked and nothing kept`, dryRunClient, dryRunServer)
	outputFlag(cmd, &o.output, "name", "json", "yaml")
	f.StringVar(&o.from, "from", "", "start a workflow from workflowtemplate/NAME, clusterworkflowtemplate/NAME or cronworkflow/NAME")
	f.StringArrayVarP(&o.parameters, "parameter", "p", nil, "NAME=VALUE of a workflow's argument")
	f.StringVar(&o.parameterFile, "parameter-file", "", "file of arguments: a YAML or JSON object")
	f.StringVar(&o.overrides.Entrypoint, "entrypoint", "", "template of the workflow to start with")
	f.StringSliceVarP(&o.labels, "labels", "l", nil, "NAME=VALUE labels to put on workflows")
	f.StringVar(&o.overrides.Name, "name", "", "name of the workflow")
	f.StringVar(&o.overrides.GenerateName, "generate-name", "", "beginning of a name that the server completes")
	f.StringVar(&o.overrides.ServiceAccount, "serviceaccount", "", "service account of the workflow's pods")
	f.Int32Var(&o.priority, "priority", 0, "priority of the workflow")
	o.following.add(cmd)
	must(cmd.RegisterFlagCompletionFunc("from", c.completeFrom))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.files = append(args, o.files...)
		return c.submit(cmd, &o)
	}
	return cmd
}

// complete checks the flags and builds the changes to make to workflows.
func (o *submitFlags) complete(cmd *cobra.Command) error {
	switch {
	case len(o.files) == 0 && o.from == "":
		return usageError{errors.New("no manifest given: name a file, a folder, - for standard input, or --from KIND/NAME")}
	case len(o.files) > 0 && o.from != "":
		return usageError{errors.New("give manifests or --from, not both")}
	case o.overrides.Name != "" && o.overrides.GenerateName != "":
		return usageError{errors.New("give --name or --generate-name, not both")}
	}
	o.overrides.Parameters = map[string]string{}
	if o.parameterFile != "" {
		values, err := submit.ReadParameters(o.parameterFile)
		if err != nil {
			return err
		}
		o.overrides.Parameters = values
	}
	given, err := keyValues("--parameter", o.parameters)
	if err != nil {
		return err
	}
	maps.Copy(o.overrides.Parameters, given)
	if o.overrides.Labels, err = keyValues("--labels", o.labels); err != nil {
		return err
	}
	if cmd.Flags().Changed("priority") {
		o.overrides.Priority = &o.priority
	}
	return nil
}

// objects returns the objects to send.
func (c *wfCommand) objects(ctx context.Context, o *submitFlags) ([]*submit.Object, error) {
	if _, _, err := where(c.flags); err != nil {
		return nil, err
	}
	namespace, enforce, err := c.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, err
	}
	var out []*submit.Object
	if o.from == "" {
		if out, err = submit.Read(c.flags, namespace, enforce, o.files, o.recursive); err != nil {
			return nil, err
		}
	} else {
		w, err := c.workflowFrom(ctx, namespace, o.from)
		if err != nil {
			return nil, err
		}
		cfg, err := c.flags.ToRESTConfig()
		if err != nil {
			return nil, err
		}
		one, err := submit.NewWorkflow(c.flags, cfg, w)
		if err != nil {
			return nil, err
		}
		out = append(out, one)
	}
	for _, one := range out {
		if one.IsWorkflow() {
			if err := one.Override(o.overrides); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

func (c *wfCommand) workflowFrom(ctx context.Context, namespace, from string) (*wf.Workflow, error) {
	kind, name, _ := strings.Cut(from, "/")
	client, _, err := c.connect()
	switch {
	case name == "":
		return nil, usageError{fmt.Errorf("--from=%s: want KIND/NAME, for example workflowtemplate/build", from)}
	case err != nil:
		return nil, err
	case templateWords.has(kind):
		err := client.Read(ctx, workflows.Templates, namespace, name, &wf.WorkflowTemplate{})
		return submit.FromTemplate(namespace, name, false), err
	case clusterTemplateWords.has(kind):
		err := client.Read(ctx, workflows.ClusterTemplates, "", name, &wf.ClusterWorkflowTemplate{})
		return submit.FromTemplate(namespace, name, true), err
	case cronWords.has(kind):
		return fromCron(ctx, client, namespace, name)
	}
	return nil, usageError{fmt.Errorf("--from=%s: want workflowtemplate/NAME, clusterworkflowtemplate/NAME or cronworkflow/NAME", from)}
}

// completeFrom completes --from: first the kind, then the name.
func (c *wfCommand) completeFrom(cmd *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
	kinds := map[string]objectKind{"workflowtemplate": templateKind, "clusterworkflowtemplate": clusterTemplateKind, "cronworkflow": cronKind}
	kind, name, slash := strings.Cut(text, "/")
	if k, known := kinds[kind]; slash && known {
		names, directive := k.names(c)(cmd, nil, name)
		for i := range names {
			names[i] = kind + "/" + names[i]
		}
		return names, directive
	}
	return []string{"workflowtemplate/", "clusterworkflowtemplate/", "cronworkflow/"}, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
}

func (c *wfCommand) submit(cmd *cobra.Command, o *submitFlags) error {
	if err := o.complete(cmd); err != nil {
		return err
	}
	ctx, stop := c.bounded(cmd, o.timeout)
	defer stop()
	objects, err := c.objects(ctx, o)
	if err != nil {
		return err
	}
	runs := 0
	for _, one := range objects {
		if one.IsWorkflow() || !(o.watch || o.log) && one.IsRun() {
			runs++
		}
	}
	if err := o.check(runs); err != nil {
		return err
	}
	sent, err := send(ctx, c.s, objects, o.dryRun, o.output)
	if err != nil {
		return err
	}
	failed := len(objects) - len(sent)
	switch {
	case o.dryRun.on():
	case o.wait:
		n, err := waitForRuns(ctx, c.s.err, sent)
		if err != nil {
			return err
		}
		failed += n
	case o.watch || o.log:
		client, _, err := c.connect()
		if err != nil {
			return err
		}
		for _, one := range sent {
			if one.IsWorkflow() {
				namespace, name := one.Name()
				return errors.Join(refused(failed, len(objects)), c.follow(ctx, client, o.following, []ref{{namespace, name}}))
			}
		}
	}
	return refused(failed, len(objects))
}

// send sends or prints objects, and returns the accepted ones. It prints an error for each refused
// object.
func send(ctx context.Context, s streams, objects []*submit.Object, dry dryRun, output string) (sent []*submit.Object, err error) {
	if dry.client() && output == "" {
		output = "yaml"
	}
	print, err := objectPrinter(output, s.out)
	if err != nil {
		return nil, err
	}
	for _, one := range objects {
		if ctx.Err() != nil {
			return sent, ctx.Err()
		}
		verb := ""
		if !dry.client() {
			if verb, err = submit.Send(one, dry.server()); err != nil {
				fmt.Fprintf(s.err, "lockstep: %s: %v\n", one.Ref(), err)
				continue
			}
		}
		sent = append(sent, one)
		if print == nil {
			fmt.Fprintf(s.out, "%s %s\n", one.Ref(), dry.said(verb))
		} else if err := print(one.Object()); err != nil {
			return sent, err
		}
	}
	return sent, nil
}

// refused returns an error if objects were refused or failed.
func refused(failed, of int) error {
	if failed == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d objects were refused or failed", failed, of)
}

// waitForRuns waits for all runs in parallel, prints each change of phase, and returns how many
// runs failed.
func waitForRuns(ctx context.Context, progress io.Writer, objects []*submit.Object) (failed int, err error) {
	var (
		mu      sync.Mutex
		wg      sync.WaitGroup
		waiting []string
	)
	for _, o := range objects {
		if !o.IsRun() {
			continue
		}
		wg.Go(func() {
			out, e := submit.Wait(ctx, o, func(now submit.Outcome) {
				if now.Phase == "" {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if now.Message != "" {
					fmt.Fprintf(progress, "%s: %s: %s\n", o.Ref(), now.Phase, now.Message)
				} else {
					fmt.Fprintf(progress, "%s: %s\n", o.Ref(), now.Phase)
				}
			})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case e != nil && ctx.Err() != nil:
				waiting = append(waiting, o.Ref())
				err = ctx.Err()
			case e != nil:
				failed++
				fmt.Fprintf(progress, "lockstep: %v\n", e)
			case out.Failed:
				failed++
			}
		})
	}
	wg.Wait()
	if err != nil {
		slices.Sort(waiting)
		if more := len(waiting) - toldMax; more > 0 {
			waiting = append(waiting[:toldMax], fmt.Sprintf("%d others", more))
		}
		err = fmt.Errorf("not waited to the end for %s, which 'lockstep get' shows: %w", strings.Join(waiting, ", "), err)
	}
	return failed, err
}

// toldMax is the maximal number of runs that a message names.
const toldMax = 3
