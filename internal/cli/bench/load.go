package bench

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/lab/admission"
	"lockstep.dev/lockstep/internal/lab/cpus"
)

// newLoad returns the hidden command whose verbs run in the pods of cpu-topology, and as the webhook of
// admission.
func newLoad(s command.Streams) *cobra.Command {
	cmd := &cobra.Command{Use: "load", Short: "The loads of cpu-topology, as they run in its pods, and the webhook of admission", Hidden: true,
		Args: command.NoArgs}
	var address, url string
	var connections, threads int
	var duration time.Duration
	serve := &cobra.Command{Use: "serve", Short: "A web server", Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := command.Interruptible(cmd, 0)
			defer stop()
			return cpus.Serve(ctx, address)
		}}
	serve.Flags().StringVar(&address, "address", "127.0.0.1:8080", "address to listen on")
	drive := &cobra.Command{Use: "drive", Short: "Its client", Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := command.Interruptible(cmd, 0)
			defer stop()
			result, err := cpus.Drive(ctx, url, connections, duration)
			if err != nil {
				return err
			}
			return result.Leave(s.Out)
		}}
	drive.Flags().StringVar(&url, "url", "http://127.0.0.1:8080", "address of the server")
	drive.Flags().IntVar(&connections, "connections", 32, "requests under way at a time")
	pi := &cobra.Command{Use: "pi", Short: "The computation of pi", Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := command.Interruptible(cmd, 0)
			defer stop()
			result, err := cpus.Pi(ctx, threads, duration)
			if err != nil {
				return err
			}
			return result.Leave(s.Out)
		}}
	pi.Flags().IntVar(&threads, "threads", 1, "computations at a time")
	var bytes int
	kernel := &cobra.Command{Use: "kernel KERNEL", Short: "A program that feels which CPUs it has: " + kernels(), Args: command.OneArg("KERNEL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := command.Interruptible(cmd, 0)
			defer stop()
			result, err := cpus.RunKernel(ctx, cpus.Kernel(args[0]), bytes, threads, duration)
			if err != nil {
				return err
			}
			return result.Leave(s.Out)
		}}
	kernel.Flags().IntVar(&bytes, "bytes", 16<<20, "memory that its threads use together")
	kernel.Flags().IntVar(&threads, "threads", 1, "threads")
	for _, c := range []*cobra.Command{drive, pi, kernel} {
		c.Flags().DurationVar(&duration, "for", 10*time.Second, "how long")
	}
	cmd.AddCommand(serve, drive, pi, kernel, newWebhook(s))
	return cmd
}

// newWebhook returns the command that is the webhook of a control plane under measurement.
func newWebhook(s command.Streams) *cobra.Command {
	var kubeconfig, listen, admits string
	cmd := &cobra.Command{Use: "webhook", Short: "A webhook for all pods", Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := admission.Parse(admits)
			if err != nil || a.Kind != admission.Webhook {
				return command.Usagef("--admission=%s: want a webhook: %w", admits, err)
			}
			cfg, err := kubeclient.Load(kubeconfig, "")
			if err != nil {
				return err
			}
			ctx, stop := command.Interruptible(cmd, 0)
			defer stop()
			return admission.Serve(ctx, cfg, listen, a, s.Out)
		}}
	f := cmd.Flags()
	f.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig of the control plane")
	f.StringVar(&listen, "listen", "127.0.0.1:0", "address to listen on")
	f.StringVar(&admits, "admission", string(admission.Webhook), "webhook or webhook:WORK:TIMEOUT")
	return cmd
}

// kernels lists the kernels, for a help text.
func kernels() string {
	var names []string
	for _, k := range cpus.Kernels {
		names = append(names, string(k))
	}
	return strings.Join(names, ", ")
}
