package jobs

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cli/workflows"
	"lockstep.dev/lockstep/internal/submit"
	client "lockstep.dev/lockstep/internal/submit/workflows"
)

// submission is the verb submit.
type submission struct {
	*workflows.Verb
	files     []string
	recursive bool
	output    string
	workflow  workflows.Submission
	following workflows.Following
}

// NewSubmit returns the verb submit.
func NewSubmit(s command.Streams) *cobra.Command {
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
	o := &submission{Verb: workflows.NewVerb(s, cmd)}
	cmd.Flags().StringSliceVarP(&o.files, "filename", "f", nil, "file, folder or URL to send; - is standard input")
	cmd.Flags().BoolVarP(&o.recursive, "recursive", "R", false, "go into sub-folders of a folder")
	o.DryRun.AddPrinted(cmd, "sent")
	command.OutputFlag(cmd, &o.output, "name", "json", "yaml")
	o.workflow.Add(cmd, o.Verb)
	o.following.Add(cmd, o.Verb)
	o.Check(func(args []string) error {
		o.files = append(args, o.files...)
		switch {
		case len(o.files) == 0 && o.workflow.From == "":
			return command.Usagef("no manifest given: name a file, a folder, - for standard input, or --from KIND/NAME")
		case len(o.files) > 0 && o.workflow.From != "":
			return command.Usagef("give manifests or --from, not both")
		}
		return o.workflow.Complete(cmd)
	})
	return o.Run(o.run)
}

func (o *submission) run(ctx context.Context, client *client.Client, namespace string, _ []string) error {
	objects, err := o.objects(ctx, client, namespace)
	if err != nil {
		return err
	}
	runs := 0
	for _, one := range objects {
		if one.IsWorkflow() || !(o.following.Watch || o.following.Log) && one.IsRun() {
			runs++
		}
	}
	if err := o.following.Check(o.Verb, runs); err != nil {
		return err
	}
	sent, err := command.Send(ctx, o.Streams, objects, o.DryRun, o.output)
	if err != nil {
		return err
	}
	failed := len(objects) - len(sent)
	switch {
	case o.DryRun.On():
	case o.following.Wait:
		n, err := command.WaitForRuns(ctx, o.Err, sent)
		if err != nil {
			return err
		}
		failed += n
	case o.following.Watch || o.following.Log:
		for _, one := range sent {
			if one.IsWorkflow() {
				namespace, name := one.Name()
				return errors.Join(command.Refused(failed, len(objects)),
					o.following.Follow(ctx, o.Verb, client, namespace, name))
			}
		}
	}
	return command.Refused(failed, len(objects))
}

// objects returns the objects to send.
func (o *submission) objects(ctx context.Context, client *client.Client,
	namespace string) (out []*submit.Object, err error) {
	if o.workflow.From == "" {
		out, err = submit.Read(o.Kube, o.files, o.recursive)
	} else {
		w, wrong := o.workflow.Workflow(ctx, client, namespace)
		if wrong != nil {
			return nil, wrong
		}
		out, err = submit.FromWorkflow(o.Kube, w)
	}
	if err != nil {
		return nil, err
	}
	for _, one := range out {
		if one.IsWorkflow() || one.IsCronWorkflow() {
			if err := one.Override(submit.Overrides{Labels: o.workflow.Instance()}); err != nil {
				return nil, err
			}
		}
		if one.IsWorkflow() {
			if err := one.Override(o.workflow.Overrides); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}
