package bench

import (
	"time"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/cli/command"
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
func (b *cpuBench) run(s command.Streams, cmd *cobra.Command, common *lab.Config, output string) error {
	cfg := b.cfg
	var err error
	if cfg.Config, err = seriesConfig(s, common, output); err != nil {
		return err
	}
	if err := cfg.Complete(); err != nil {
		return command.Usage(err)
	}
	ctx, stop := command.Interruptible(cmd, 0)
	defer stop()
	rep, err := benchcpus.Measure(ctx, cfg)
	if rep == nil || len(rep.Runs) == 0 {
		return err
	}
	return printSeries(s, cfg.OutDir, output, rep, err)
}
