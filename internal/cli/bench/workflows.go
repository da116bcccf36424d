package bench

import (
	"context"
	"time"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/lab/workflows"
)

// workflowBench holds the flags of the scenarios about workflows.
type workflowBench struct{ cfg workflows.Config }

func (b *workflowBench) add(flags *flags) {
	f := flags.cmd.Flags()
	f.IntVar(&b.cfg.Workflows, "workflows", 1000, "of workflows-queued: how many at once")
	f.Float64Var(&b.cfg.Start, "rate-start", 5, "of rate, workflows-rate: arrivals per second of the first step (20 for jobs)")
	f.Float64Var(&b.cfg.Growth, "rate-growth", 1.5, "of rate, workflows-rate: each step's pace over that before, until the system falls behind")
	f.Float64Var(&b.cfg.Max, "rate-max", 0,
		"of rate, workflows-rate: no step above this pace; 0 goes on until the system falls behind")
	f.DurationVar(&b.cfg.StepTime, "rate-step", 10*time.Second, "of rate, workflows-rate: how long a step is (20s for jobs, at scale 1)")
	f.DurationVar(&b.cfg.PodTime, "pod-time", time.Second, "of workflows, queues, enqueue: how long a pod runs (5s for jobs)")
	f.StringVar(&b.cfg.PodGC, "pod-gc", "OnPodCompletion", "of workflows: when pods are collected; empty keeps them")
	f.IntVar(&b.cfg.WarmUp, "warm-up-workflows", 20,
		"of workflows: how many go through the system before it is measured")
}

// run measures workflows.
func (b *workflowBench) run(f *flags) (err error) {
	cfg := b.cfg
	if cfg.Config, err = f.series(); err != nil {
		return err
	}
	cfg.Scenario = f.scenario
	if !f.cmd.Flags().Changed("nodes") {
		cfg.Nodes.Count = 100
	}
	if !f.cmd.Flags().Changed("shapes") {
		f.shapes = []string{"hello"}
	}
	for _, text := range f.shapes {
		shape, err := workflows.ParseShape(text)
		if err != nil {
			return command.Usagef("--shapes: %w", err)
		}
		cfg.Shapes = append(cfg.Shapes, shape)
	}
	return runSeries(f, &cfg,
		func(ctx context.Context) (*workflows.Report, error) { return workflows.Measure(ctx, cfg) })
}
