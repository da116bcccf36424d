package bench

import (
	"context"
	"time"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/lab/soak"
)

// soakBench holds the flags of the scenario soak.
type soakBench struct{ cfg soak.Config }

func (b *soakBench) add(flags *flags) {
	f := flags.cmd.Flags()
	f.DurationVar(&b.cfg.Duration, "duration", 30*time.Minute, "of soak: how long jobs come")
	f.Float64Var(&b.cfg.JobsPerSecond, "soak-rate", 2, "of soak: jobs that come in a second")
	f.IntVar(&b.cfg.PodsPerJob, "soak-pods", 5, "of soak: pods of each job")
	f.DurationVar(&b.cfg.Life, "soak-life", 20*time.Second, "of soak: after how long a job is deleted")
}

// run measures a steady churn.
func (b *soakBench) run(f *flags) (err error) {
	cfg := b.cfg
	if cfg.Config, err = f.series(); err != nil {
		return err
	}
	if cfg.Parameters, err = command.KeyValues("set", f.parameters); err != nil {
		return err
	}
	cfg.Systems = f.Systems
	if !f.cmd.Flags().Changed("nodes") {
		cfg.Nodes.Count = 100
	}
	return runSeries(f, &cfg, func(ctx context.Context) (*soak.Report, error) { return soak.Measure(ctx, cfg) })
}
