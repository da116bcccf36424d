package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/lab"
	benchapps "lockstep.dev/lockstep/internal/lab/applications"
	benchcpus "lockstep.dev/lockstep/internal/lab/cpus"
	"lockstep.dev/lockstep/internal/lab/scenario"
	benchwf "lockstep.dev/lockstep/internal/lab/workflows"
)

// benchScenarios are the scenarios of 'bench run'.
var benchScenarios = append([]string{scenario.Batch, benchwf.Queued, benchwf.Rate, benchcpus.Scenario}, benchapps.Scenarios...)

// workflowBench are the flags of the scenarios about workflows.
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
	f.StringSliceVar(&b.cfg.ManagerArgs, "manager-args", nil, "of workflows and applications: more flags for the manager")
	f.IntVar(&b.cfg.WarmUp, "warm-up-workflows", 20, "of workflows: how many go through the system before it is measured")
}

// run measures workflows.
func (b *workflowBench) run(s streams, cmd *cobra.Command, common *lab.Config, scenarioName string, shapes []string, output string, withoutFloor bool) error {
	cfg := b.cfg
	cfg.Scenario, cfg.Repeat, cfg.Nodes, cfg.Durable, cfg.Version = scenarioName, common.Repeat, common.Nodes, common.Durable, common.Version
	cfg.WriterConcurrency, cfg.ClientConcurrency, cfg.Timeout = common.WriterConcurrency, common.ClientConcurrency, common.Timeout
	if !cmd.Flags().Changed("nodes") {
		cfg.Nodes.Count = 100
	}
	if cfg.FloorConcurrency = common.FloorConcurrency; withoutFloor {
		cfg.FloorConcurrency = nil
	}
	if common.Kubeconfig != "" {
		return usageError{errors.New("--kubeconfig: scenarios about workflows bring their own control plane")}
	}
	if !slices.Contains([]string{"table", "wide", "json"}, output) {
		return usageError{fmt.Errorf("--output=%s: want table, wide or json", output)}
	}
	for _, text := range shapes {
		shape, err := benchwf.ParseShape(text)
		if err != nil {
			return usageError{fmt.Errorf("--shapes: %w", err)}
		}
		cfg.Shapes = append(cfg.Shapes, shape)
	}
	if cfg.OutDir = common.OutDir; cfg.OutDir == "" {
		cfg.OutDir = filepath.Join("out", "bench-"+time.Now().Format("20060102-150405"))
	}
	if err := cfg.Validate(); err != nil {
		return usageError{err}
	}
	if err := benchPrograms(common); err != nil {
		return err
	}
	cfg.Lockstep, cfg.Kube = common.Lockstep, common.Kube
	cfg.Progress = func(line string) { fmt.Fprintln(s.err, line) }
	ctx, stop := (&wfCommand{}).context(cmd)
	defer stop()
	rep, err := benchwf.Measure(ctx, cfg)
	if rep == nil || len(rep.Runs) == 0 {
		return err
	}
	fmt.Fprintf(s.err, "report: %s\n", filepath.Join(cfg.OutDir, "report.html"))
	if output == "json" {
		encoder := json.NewEncoder(s.out)
		encoder.SetIndent("", "  ")
		err = errors.Join(err, encoder.Encode(rep))
	} else {
		err = errors.Join(err, rep.Table(s.out))
	}
	return errors.Join(err, rep.Faults())
}
