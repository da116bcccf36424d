package bench

import (
	"context"
	"time"

	"lockstep.dev/lockstep/internal/lab/cpus"
)

// cpuBench holds the flags of the scenario cpu-topology.
type cpuBench struct{ cfg cpus.Config }

func (b *cpuBench) add(flags *flags) {
	f := flags.cmd.Flags()
	f.DurationVar(&b.cfg.LoadTime, "load-time", 10*time.Second, "of cpu-topology: how long each load is measured")
	f.IntVar(&b.cfg.Connections, "connections", 32,
		"of cpu-topology: requests on their way to the web server at a time")
}

// run measures the effect of CPU pinning on this machine.
func (b *cpuBench) run(f *flags) (err error) {
	cfg := b.cfg
	if cfg.Config, err = f.series(); err != nil {
		return err
	}
	return runSeries(f, &cfg, func(ctx context.Context) (*cpus.Report, error) { return cpus.Measure(ctx, cfg) })
}
