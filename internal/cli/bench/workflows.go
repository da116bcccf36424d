package bench

import (
	"time"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/lab"
	benchwf "lockstep.dev/lockstep/internal/lab/workflows"
)

// workflowBench holds the flags of the scenarios about workflows.
type workflowBench struct{ cfg benchwf.Config }

func (b *workflowBench) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.IntVar(&b.cfg.Workflows, "workflows", 1000, "of workflows-queued: how many at once")
	f.Float64Var(&b.cfg.Start, "rate-start", 5, "of workflows-rate: workflows per second of the first step")
	f.Float64Var(&b.cfg.Growth, "rate-growth", 1.5, "of workflows-rate: each step's pace over that before")
	f.Float64Var(&b.cfg.Max, "rate-max", 0, "of workflows-rate: no step above this pace; 0 goes on until the system falls behind")
	f.DurationVar(&b.cfg.StepTime, "rate-step", 10*time.Second, "of workflows-rate: how long a step is")
	f.DurationVar(&b.cfg.PodTime, "pod-time", time.Second, "of workflows: how long a pod runs")
	f.StringVar(&b.cfg.PodGC, "pod-gc", "OnPodCompletion", "of workflows: when pods are collected; empty keeps them")
	f.IntVar(&b.cfg.WarmUp, "warm-up-workflows", 20, "of workflows: how many go through the system before it is measured")
}

// run measures workflows.
func (b *workflowBench) run(s command.Streams, cmd *cobra.Command, common *lab.Config, scenarioName string, shapes []string, output string, withoutFloor bool) error {
	cfg := b.cfg
	var err error
	if cfg.Config, err = seriesConfig(s, common, output); err != nil {
		return err
	}
	cfg.Scenario, cfg.Nodes, cfg.Durable = scenarioName, common.Nodes, common.Durable
	cfg.WriterConcurrency, cfg.ClientConcurrency, cfg.ManagerArgs = common.WriterConcurrency, common.ClientConcurrency, common.ManagerArgs
	if !cmd.Flags().Changed("nodes") {
		cfg.Nodes.Count = 100
	}
	if cfg.FloorConcurrency = common.FloorConcurrency; withoutFloor {
		cfg.FloorConcurrency = nil
	}
	for _, text := range shapes {
		shape, err := benchwf.ParseShape(text)
		if err != nil {
			return command.Usagef("--shapes: %w", err)
		}
		cfg.Shapes = append(cfg.Shapes, shape)
	}
	if err := cfg.Complete(); err != nil {
		return command.Usage(err)
	}
	ctx, stop := command.Interruptible(cmd, 0)
	defer stop()
	rep, err := benchwf.Measure(ctx, cfg)
	if rep == nil || len(rep.Runs) == 0 {
		return err
	}
	return printSeries(s, cfg.OutDir, output, rep, err)
}
