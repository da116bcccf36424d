package bench

import (
	"testing"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/lab/scenario"
)

// TestScenariosOfBatchJobsSetFlags checks what the scenarios set, and that they leave alone what the
// user has set.
func TestScenariosOfBatchJobsSetFlags(t *testing.T) {
	parsed := func(name string, args ...string) (*flags, string) {
		f := &flags{cmd: &cobra.Command{}, scenario: name, scale: 0.1}
		f.cmd.Flags().StringSliceVar(&f.shapes, "shapes", nil, "")
		gang := "true"
		f.cmd.Flags().StringVar(&gang, "gang", "true", "")
		f.cmd.Flags().IntVar(&f.FloorTries, "floor-tries", 3, "")
		f.cmd.Flags().IntSliceVar(&f.FloorConcurrency, "floor-concurrency", nil, "")
		f.cmd.Flags().IntSliceVar(&f.WriterConcurrency, "writer-concurrency", nil, "")
		command.Must(f.cmd.ParseFlags(args))
		gang = f.preset(gang)
		return f, gang
	}
	if f, gang := parsed(scenario.Batch); gang != "true" || f.FloorTries != 3 || f.withoutFloor || f.Shapes != nil {
		t.Errorf("batch: gang %s, %+v", gang, f.Config)
	}
	if f, gang := parsed(scenario.BatchShapes); gang != "both" || f.FloorTries != 1 || len(f.Shapes) != 10 || f.Shapes[0].String() != "1000x1" {
		t.Errorf("batch-shapes: gang %s, %+v", gang, f.Config)
	}
	if f, gang := parsed(scenario.BatchShapes, "--gang=false", "--floor-tries=2", "--shapes=1x1"); gang != "false" || f.FloorTries != 2 || f.Shapes != nil {
		t.Errorf("batch-shapes with flags: gang %s, %+v", gang, f.Config)
	}
	if f, _ := parsed(scenario.BatchWorkers); len(f.WriterConcurrency) != 11 || !f.withoutFloor || len(f.Shapes) != 1 || f.Shapes[0].String() != "50x20" {
		t.Errorf("batch-workers: %+v", f.Config)
	}
	if f, _ := parsed(scenario.Admission); len(f.admissions) != 5 || !f.withoutFloor || len(f.Shapes) != 1 || f.Shapes[0].String() != "1x1000" {
		t.Errorf("admission: %+v", f.Config)
	}
	if f, _ := parsed(scenario.BatchWorkers, "--writer-concurrency=1,2", "--floor-tries=1"); len(f.WriterConcurrency) != 2 || f.withoutFloor {
		t.Errorf("batch-workers with flags: %+v", f.Config)
	}
}
