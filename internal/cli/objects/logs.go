package objects

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cli/names"
	"lockstep.dev/lockstep/internal/submit"
	"lockstep.dev/lockstep/internal/submit/workflows"
)

// logs returns the verb logs for jobs and pods.
func logs(s command.Streams) *branch {
	return &branch{
		about: `The pods of a batch job are read in the same way (logs job/hello [POD]), and so is a single pod (logs pod/hello-0). For an
application there is 'lockstep app logs'.`,
		both: []string{"container", "follow", "grep", "no-color", "previous", "selector", "since", "since-time", "tail", "timestamps"},
		run: func(cmd *cobra.Command, kube *genericclioptions.ConfigFlags, args []string) error {
			o, err := logFlags(cmd.Flags())
			if err != nil {
				return err
			}
			named := 2 // KIND NAME
			if strings.Contains(args[0], "/") {
				named = 1
			}
			switch len(args) - named {
			case 0:
			case 1:
				if o.Pod, err = names.Pod.Name(args[named]); err != nil {
					return err
				}
			default:
				return command.Usagef("want a job, and maybe one of its pods")
			}
			objects, err := submit.Find(kube, args[:named], "")
			if err != nil {
				return err
			}
			rest, _, err := command.Connection(kube)
			if err != nil {
				return err
			}
			core, err := kubernetes.NewForConfig(rest)
			if err != nil {
				return err
			}
			ctx, stop := command.Interruptible(cmd, 0)
			defer stop()
			return printLogs(ctx, core, objects[0], o.LogOptions, command.LogLine(s.Out, !isSet(cmd.Flags(), "no-color") && o.Pod == ""))
		},
	}
}

// logFlags returns the values of the flags of the verb logs.
func logFlags(given *pflag.FlagSet) (o command.LogFlags, err error) {
	var own cobra.Command
	o.Add(&own, "", "")
	given.Visit(func(f *pflag.Flag) {
		if to := own.Flags().Lookup(f.Name); to != nil && err == nil {
			err = to.Value.Set(f.Value.String())
		}
	})
	o.Labels = given.Lookup("selector").Value.String()
	if given.Changed("container") {
		o.Container = given.Lookup("container").Value.String()
	}
	if err == nil {
		err = o.Complete()
	}
	return o, err
}

// printLogs prints the logs of a pod, or of the pods of a job.
func printLogs(ctx context.Context, core kubernetes.Interface, of *submit.Object, o workflows.LogOptions, print func(workflows.Line)) error {
	namespace, name := of.Name()
	switch of.Kind() {
	case jobKind:
		return workflows.LogsOf(ctx, core, workflows.LogSource{
			Namespace: namespace, Labels: batch.JobNameKey + "=" + name,
			Wait: func(ctx context.Context) error {
				_, err := submit.Wait(ctx, of, nil)
				return err
			},
			Without: func(context.Context) error {
				return fmt.Errorf("job %s has no pods now: see lockstep get job %s", name, name)
			},
		}, o, print)
	case corev1.SchemeGroupVersion.WithKind("Pod").GroupKind():
		pod, err := core.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return workflows.StreamPod(ctx, core, pod, o, o.Filter(print))
	}
	return command.Usagef("%s: logs are of workflows, jobs and pods; for an application there is 'lockstep app logs'", of.Ref())
}
