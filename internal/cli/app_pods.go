package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/portforward"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/submit/applications"
	"lockstep.dev/lockstep/internal/submit/workflows"
)

// podChoice are flags that say which pods of an application are meant.
type podChoice struct{ component, pod, container string }

func (p *podChoice) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&p.component, "component", "c", "", "only pods of this component")
	f.StringVar(&p.pod, "pod", "", "only this pod")
	f.StringVar(&p.container, "container", "", "container of the pods; the first one by default")
}

// pods returns the application and its chosen pods. It fails if no pod is chosen.
func (p *podChoice) pods(ctx context.Context, client *applications.Client, namespace, name string) (*oam.Application, []corev1.Pod, error) {
	app, err := client.Get(ctx, namespace, name)
	if err != nil {
		return nil, nil, err
	}
	all, err := client.Pods(ctx, app, p.component)
	if err != nil {
		return nil, nil, err
	}
	chosen := p.pod // or pod/NAME, as kubectl prints it
	if kind, name, ok := strings.Cut(p.pod, "/"); ok && podWords.has(kind) {
		chosen = name
	}
	var out []corev1.Pod
	for _, pod := range all {
		if chosen == "" || pod.Name == chosen {
			out = append(out, pod)
		}
	}
	switch {
	case len(out) > 0:
		return app, out, nil
	case p.pod != "":
		return nil, nil, fmt.Errorf("application %s has no pod %s: see lockstep app status %s --pod", name, p.pod, name)
	}
	return nil, nil, fmt.Errorf("application %s has no pods now; it is %s: see lockstep app status %s", name, app.Status.Phase, name)
}

// one returns a chosen pod that runs, for a verb that talks to one pod.
func (p *podChoice) one(ctx context.Context, client *applications.Client, namespace, name string) (*corev1.Pod, error) {
	_, pods, err := p.pods(ctx, client, namespace, name)
	if err != nil {
		return nil, err
	}
	for i := range pods {
		if pods[i].Status.Phase == corev1.PodRunning && pods[i].DeletionTimestamp == nil {
			return &pods[i], nil
		}
	}
	return nil, fmt.Errorf("no pod of application %s runs now; %s is %s", name, pods[0].Name, pods[0].Status.Phase)
}

// onePod connects to the cluster and returns a chosen pod of an application that runs.
func (c *appCommand) onePod(ctx context.Context, choice *podChoice, name string) (*applications.Client, string, *corev1.Pod, error) {
	client, namespace, err := c.connect()
	if err != nil {
		return nil, "", nil, err
	}
	pod, err := choice.one(ctx, client, namespace, name)
	return client, namespace, pod, err
}

func newAppLogs(s streams) *cobra.Command {
	var o workflows.LogOptions
	var choice podChoice
	var grep string
	var tail int64
	cmd := &cobra.Command{
		Use:     "logs NAME",
		Short:   "Print what the pods of an application wrote",
		Long:    "Print what the pods of an application wrote, each line after the name of its pod.",
		Example: "  lockstep app logs shop\n  lockstep app logs shop -c web -f --tail 10",
		Args:    exactArgs("NAME"),
	}
	c := newAppCommand(s, cmd)
	cmd.ValidArgsFunction = first(c.names())
	choice.flags(cmd)
	f := cmd.Flags()
	f.BoolVarP(&o.Follow, "follow", "f", false, "go on as long as the pods write")
	f.BoolVarP(&o.Previous, "previous", "p", false, "the containers' run before")
	f.BoolVar(&o.Timestamps, "timestamps", false, "put its time before each line")
	f.DurationVar(&o.Since, "since", 0, "only lines at most this old")
	f.Int64Var(&tail, "tail", -1, "only this many last lines of each pod; -1 is all")
	f.StringVar(&grep, "grep", "", "only lines that match this regular expression")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if tail >= 0 {
			o.TailLines = &tail
		}
		if grep != "" {
			var err error
			if o.Grep, err = regexp.Compile(grep); err != nil {
				return usageError{fmt.Errorf("--grep: %w", err)}
			}
		}
		o.Container = choice.container
		client, namespace, err := c.connect()
		if err != nil {
			return err
		}
		ctx, stop := interruptible(cmd)
		defer stop()
		_, pods, err := choice.pods(ctx, client, namespace, args[0])
		if err != nil {
			return err
		}
		return client.Logs(ctx, pods, o, logLine(s.out, len(pods) > 1))
	}
	return cmd
}

func newAppExec(s streams) *cobra.Command {
	var choice podChoice
	var stdin, tty bool
	cmd := &cobra.Command{
		Use:   "exec NAME -- COMMAND...",
		Short: "Run a command in a pod of an application",
		Long: `Run a command in the first pod of the application that runs, or the one that is named.

Exit code: the command's, where it ran.`,
		Example: "  lockstep app exec shop -- ls /\n  lockstep app exec shop -c web -it -- sh",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usageError{errors.New("want an application and, after --, a command")}
			}
			return nil
		},
	}
	c := newAppCommand(s, cmd)
	cmd.ValidArgsFunction = first(c.names())
	choice.flags(cmd)
	f := cmd.Flags()
	f.BoolVarP(&stdin, "stdin", "i", false, "give the command what comes on standard input")
	f.BoolVarP(&tty, "tty", "t", false, "give the command a terminal")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, stop := interruptible(cmd)
		defer stop()
		client, _, pod, err := c.onePod(ctx, &choice, args[0])
		if err != nil {
			return err
		}
		o := applications.ExecOptions{Container: choice.container, Command: args[1:], Out: s.out, Err: s.err}
		if stdin {
			o.In = s.in
		}
		if o.Container == "" {
			o.Container = pod.Spec.Containers[0].Name
		}
		if in, ok := s.in.(*os.File); ok && tty && term.IsTerminal(int(in.Fd())) {
			before, err := term.MakeRaw(int(in.Fd()))
			if err != nil {
				return err
			}
			defer func() { _ = term.Restore(int(in.Fd()), before) }()
			o.TTY = true
		} else if tty {
			fmt.Fprintln(s.err, "standard input is not a terminal: the command gets none")
		}
		return client.Exec(ctx, pod, o)
	}
	return cmd
}

func newAppPortForward(s streams) *cobra.Command {
	var choice podChoice
	var addresses []string
	cmd := &cobra.Command{
		Use:   "port-forward NAME [[LOCAL:]REMOTE...]",
		Short: "Reach a port of an application from this machine",
		Long: `Forward ports of this machine to a pod of the application, until interrupted. Without ports, the first port of its
first Service, or of its first container that has one. A local port that is empty, as in :80, is chosen.`,
		Example: "  lockstep app port-forward shop\n  lockstep app port-forward shop 8080:80 -c web",
		Args:    minArgs(1, "NAME"),
	}
	c := newAppCommand(s, cmd)
	cmd.ValidArgsFunction = first(c.names())
	choice.flags(cmd)
	cmd.Flags().StringSliceVar(&addresses, "address", []string{"127.0.0.1"}, "addresses of this machine to listen on")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, stop := interruptible(cmd)
		defer stop()
		client, namespace, pod, err := c.onePod(ctx, &choice, args[0])
		if err != nil {
			return err
		}
		ports := args[1:]
		if len(ports) == 0 {
			if ports, err = somePort(ctx, client, namespace, args[0], choice.component, pod); err != nil {
				return err
			}
		}
		return client.Forward(ctx, pod, addresses, ports, io.Discard, s.err, func(list []portforward.ForwardedPort) {
			for _, p := range list {
				fmt.Fprintf(s.out, "Forwarding from %s:%d -> %s port %d\n", addresses[0], p.Local, pod.Name, p.Remote)
			}
		})
	}
	return cmd
}

// somePort returns a port to forward if the user names none.
func somePort(ctx context.Context, client *applications.Client, namespace, name, component string, pod *corev1.Pod) ([]string, error) {
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
	return nil, usageError{fmt.Errorf("pod %s says nothing of its ports: name one, for example lockstep app port-forward %s 8080:80", pod.Name, name)}
}

// printPods prints the table of 'app status --pod'.
func printPods(out io.Writer, pods []corev1.Pod) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprint(w, "CLUSTER\tCOMPONENT\tPOD NAME\tNAMESPACE\tPHASE\tCREATE TIME\tREVISION\tHOST\n")
	for _, p := range pods {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", oam.LocalCluster, p.Labels[oam.AppComponentLabel], p.Name, p.Namespace, p.Status.Phase,
			p.CreationTimestamp.Format(time.DateTime), p.Labels[oam.AppRevisionLabel], p.Spec.NodeName)
	}
	return w.Flush()
}

// printEndpoints prints where an application's Services can be reached.
func printEndpoints(out io.Writer, services []corev1.Service) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprint(w, "CLUSTER\tCOMPONENT\tREF(KIND/NAMESPACE/NAME)\tENDPOINT\tINNER\n")
	for _, s := range services {
		hosts, inner := []string{s.Name + "." + s.Namespace}, true
		if s.Spec.Type == corev1.ServiceTypeLoadBalancer && len(s.Status.LoadBalancer.Ingress) > 0 {
			hosts, inner = nil, false
			for _, i := range s.Status.LoadBalancer.Ingress {
				hosts = append(hosts, i.Hostname+i.IP)
			}
		}
		for _, host := range hosts {
			for _, p := range s.Spec.Ports {
				fmt.Fprintf(w, "%s\t%s\tService/%s/%s\t%s:%d\t%t\n", oam.LocalCluster, s.Labels[oam.AppComponentLabel], s.Namespace, s.Name,
					strings.TrimSpace(host), p.Port, inner)
			}
		}
	}
	return w.Flush()
}
