package cli

import (
	"time"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/lab"
	benchcpus "lockstep.dev/lockstep/internal/lab/cpus"
)

// cpuBench holds the flags of the scenario cpu-topology.
type cpuBench struct{ cfg benchcpus.Config }

func (b *cpuBench) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.DurationVar(&b.cfg.LoadTime, "load-time", 10*time.Second, "of cpu-topology: how long each load is measured")
	f.IntVar(&b.cfg.Connections, "connections", 32, "of cpu-topology: requests on their way to the web server at a time")
}

// run measures the benefit of CPU pinning on this machine.
func (b *cpuBench) run(s streams, cmd *cobra.Command, common *lab.Config, output string) error {
	cfg := b.cfg
	var err error
	if cfg.Config, err = benchSeries(s, common, output); err != nil {
		return err
	}
	if err := cfg.Complete(); err != nil {
		return usageError{err}
	}
	ctx, stop := interruptible(cmd)
	defer stop()
	rep, err := benchcpus.Measure(ctx, cfg)
	if rep == nil || len(rep.Runs) == 0 {
		return err
	}
	return printSeries(s, cfg.OutDir, output, rep, err)
}

// newBenchLoad returns the hidden command whose verbs run in the pods of cpu-topology.
func newBenchLoad(s streams) *cobra.Command {
	cmd := &cobra.Command{Use: "load", Short: "The loads of cpu-topology, as they run in its pods", Hidden: true, Args: noArgs}
	var address, url string
	var connections, threads int
	var duration time.Duration
	serve := &cobra.Command{Use: "serve", Short: "A web server", Args: noArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		ctx, stop := interruptible(cmd)
		defer stop()
		return benchcpus.Serve(ctx, address)
	}}
	serve.Flags().StringVar(&address, "address", "127.0.0.1:8080", "address to listen on")
	drive := &cobra.Command{Use: "drive", Short: "Its client", Args: noArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		ctx, stop := interruptible(cmd)
		defer stop()
		result, err := benchcpus.Drive(ctx, url, connections, duration)
		if err != nil {
			return err
		}
		return result.Leave(s.out)
	}}
	drive.Flags().StringVar(&url, "url", "http://127.0.0.1:8080", "address of the server")
	drive.Flags().IntVar(&connections, "connections", 32, "requests under way at a time")
	pi := &cobra.Command{Use: "pi", Short: "The computation of pi", Args: noArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		ctx, stop := interruptible(cmd)
		defer stop()
		result, err := benchcpus.Pi(ctx, threads, duration)
		if err != nil {
			return err
		}
		return result.Leave(s.out)
	}}
	pi.Flags().IntVar(&threads, "threads", 1, "computations at a time")
	for _, c := range []*cobra.Command{drive, pi} {
		c.Flags().DurationVar(&duration, "for", 10*time.Second, "how long")
	}
	cmd.AddCommand(serve, drive, pi)
	return cmd
}
