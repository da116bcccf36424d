package bench

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/lab/workflows"
)

// TestScenariosOfBatchJobsSetFlags checks what the scenarios set, and that they leave alone what the
// user has set.
func TestScenariosOfBatchJobsSetFlags(t *testing.T) {
	parsed := func(name string, args ...string) (*flags, string) {
		f := &flags{cmd: &cobra.Command{}, scenario: name, scale: 0.1, paced: &workflows.Config{}}
		f.cmd.Flags().StringSliceVar(&f.shapes, "shapes", nil, "")
		gang := "true"
		f.cmd.Flags().StringVar(&gang, "gang", "true", "")
		f.cmd.Flags().IntVar(&f.FloorTries, "floor-tries", 3, "")
		f.cmd.Flags().IntSliceVar(&f.FloorConcurrency, "floor-concurrency", nil, "")
		f.cmd.Flags().IntSliceVar(&f.WriterConcurrency, "writer-concurrency", nil, "")
		f.cmd.Flags().StringSliceVar(&f.Systems, "system", []string{"lockstep"}, "")
		f.cmd.Flags().IntVar(&f.Nodes.Count, "nodes", 1000, "")
		command.Must(f.cmd.ParseFlags(args))
		gang = f.preset(gang)
		return f, gang
	}
	if f, gang := parsed(scenario.Batch); gang != "true" || f.FloorTries != 3 || f.withoutFloor || f.Shapes != nil {
		t.Errorf("batch: gang %s, %+v", gang, f.Config)
	}
	if f, gang := parsed(scenario.BatchShapes); gang != "both" || !f.withoutFloor || f.FloorTries != 1 || len(f.Shapes) != 10 || f.Shapes[0].String() != "1000x1" {
		t.Errorf("batch-shapes: gang %s, %+v", gang, f.Config)
	}
	if f, gang := parsed(scenario.BatchShapes, "--gang=false", "--floor-tries=2", "--shapes=1x1"); gang != "false" || f.withoutFloor || f.FloorTries != 2 || f.Shapes != nil {
		t.Errorf("batch-shapes with flags: gang %s, %+v", gang, f.Config)
	}
	if f, _ := parsed(scenario.BatchWorkers); len(f.WriterConcurrency) != 11 || !f.withoutFloor || len(f.Shapes) != 1 || f.Shapes[0].String() != "50x20" {
		t.Errorf("batch-workers: %+v", f.Config)
	}
	if f, _ := parsed(scenario.Admission); len(f.admissions) != 5 || !f.withoutFloor || len(f.Shapes) != 1 || f.Shapes[0].String() != "1x1000" {
		t.Errorf("admission: %+v", f.Config)
	}
	if f, _ := parsed(scenario.Contention); strings.Join(f.Systems, " ") != "lockstep kubernetes" || !f.withoutFloor || f.Shapes[0].String() != "50x20" {
		t.Errorf("contention: %+v", f.Config)
	}
	if f, _ := parsed(scenario.Contention, "--system=x", "--floor-tries=1"); strings.Join(f.Systems, " ") != "x" || f.withoutFloor {
		t.Errorf("contention with flags: %+v", f.Config)
	}
	if f, _ := parsed(scenario.Mixed); strings.Join(f.ahead, " ") != "none 1x1000" || f.Shapes[0].String() != "20x1" {
		t.Errorf("mixed: ahead %s, %+v", f.ahead, f.Config)
	}
	if f, _ := parsed(scenario.Queues, "--nodes=7"); len(f.Weights) != 3 || f.PodTime != 5*time.Second || f.Nodes.Count != 7 || f.Nodes.CPU != "1" ||
		f.Shapes[0].String() != "40x5" {
		t.Errorf("queues: %+v", f.Config)
	}
	if f, _ := parsed(scenario.Enqueue); len(f.Weights) != 0 || f.PodTime != 5*time.Second || f.Nodes.Count != 10 || f.Shapes[0].String() != "50x20" {
		t.Errorf("enqueue: %+v", f.Config)
	}
	if f, _ := parsed(scenario.Rate); f.Pace == nil || f.Pace.Search.Start != 20 || f.Pace.StepTime != 5*time.Second || f.Shapes[0].String() != "1x1" {
		t.Errorf("rate: %+v", f.Config)
	}
	if f, _ := parsed(scenario.Queued); f.ClientConcurrency != 1024 || f.Shapes[0].String() != "1000x1" {
		t.Errorf("queued: %+v", f.Config)
	}
	if f, _ := parsed(scenario.ClientLimits); len(f.limits) != 5 || f.Shapes[0].String() != "5x20" {
		t.Errorf("client-limits: %s, %+v", f.limits, f.Config)
	}
	if f, _ := parsed(scenario.ForeignPods); len(f.Foreign) != 2 {
		t.Errorf("foreign-pods: %+v", f.Config)
	}
	if f, _ := parsed(scenario.BatchWorkers, "--writer-concurrency=1,2", "--floor-tries=1"); len(f.WriterConcurrency) != 2 || f.withoutFloor {
		t.Errorf("batch-workers with flags: %+v", f.Config)
	}
}
