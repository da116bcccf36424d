package applications

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/portforward"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cli/names"
	"lockstep.dev/lockstep/internal/submit/applications"
)

func newPortForward(s command.Streams) *cobra.Command {
	var choice podChoice
	var addresses []string
	cmd := &cobra.Command{
		Use:   "port-forward NAME [[LOCAL:]REMOTE...]",
		Short: "Reach a port of an application from this machine",
		Long: `Forward ports of this machine to a pod of the application, until interrupted. Without ports, the first port of its
first Service, or of its first container that has one. A local port that is empty, as in :80, is chosen.`,
		Example: "  lockstep app port-forward shop\n  lockstep app port-forward shop 8080:80 -c web",
		Args:    command.SomeArgs("NAME"),
	}
	v := newVerb(s, cmd)
	cmd.ValidArgsFunction = command.First(v.names())
	choice.flags(cmd)
	cmd.Flags().StringSliceVar(&addresses, "address", []string{"127.0.0.1"}, "addresses of this machine to listen on")
	return v.onNamed(func(ctx context.Context, client *applications.Client, namespace string, args []string) error {
		pod, err := choice.one(ctx, client, namespace, args[0])
		if err != nil {
			return err
		}
		ports := args[1:]
		if len(ports) == 0 {
			if ports, err = somePort(ctx, client, namespace, args[0], choice.component, pod); err != nil {
				return err
			}
		}
		return client.Forward(ctx, pod, addresses, ports, io.Discard, s.Err, func(list []portforward.ForwardedPort) {
			for _, p := range list {
				fmt.Fprintf(s.Out, "Forwarding from %s:%d -> %s port %d\n", addresses[0], p.Local, pod.Name, p.Remote)
			}
		})
	}, names.First, names.Offline)
}

// somePort returns the port to forward if the user names none: the first of the application's
// Services, or else of the pod's containers.
func somePort(ctx context.Context, client *applications.Client, namespace, name, component string,
	pod *corev1.Pod) ([]string, error) {
	app, err := client.Get(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	services, err := client.Services(ctx, app, component)
	if err != nil {
		return nil, err
	}
	for _, s := range services {
		for _, p := range s.Spec.Ports {
			if p.TargetPort.IntValue() > 0 {
				return []string{":" + p.TargetPort.String()}, nil
			}
			for _, container := range pod.Spec.Containers {
				for _, own := range container.Ports {
					if own.Name == p.TargetPort.StrVal {
						return []string{":" + strconv.Itoa(int(own.ContainerPort))}, nil
					}
				}
			}
		}
	}
	for _, container := range pod.Spec.Containers {
		for _, p := range container.Ports {
			return []string{":" + strconv.Itoa(int(p.ContainerPort))}, nil
		}
	}
	return nil, command.Usagef("pod %s says nothing of its ports: name one, for example lockstep app port-forward %s 8080:80", pod.Name, name)
}
