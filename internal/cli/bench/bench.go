// Package bench holds the verbs of the laboratory, which are below 'lockstep bench'. run.go has the
// flags that all scenarios share; each measurement has a file for its own flags.
package bench

import (
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/lab/applications"
	"lockstep.dev/lockstep/internal/lab/cpus"
	"lockstep.dev/lockstep/internal/lab/replay"
	"lockstep.dev/lockstep/internal/lab/soak"
	"lockstep.dev/lockstep/internal/lab/workflows"
	"lockstep.dev/lockstep/internal/localcluster"
)

// New returns the command 'bench'. version is the version of this program.
func New(s command.Streams, version string) *cobra.Command {
	return command.Group(&cobra.Command{
		Use:   "bench",
		Short: "Measure a system against the floor that the API server sets",
	}, newRun(s, version), newCompare(s, version), newSweep(s, version), newTune(s, version), newReport(s), newRecord(s), newScenarios(s), newLoad(s))
}

// scenarios lists the scenarios of 'bench run', and outputs lists its output forms.
var (
	scenarios = append(append(slices.Clone(batches), workflows.Queued, workflows.Rate, cpus.Scenario, soak.Scenario, replay.Scenario),
		applications.Scenarios...)
	outputs = []string{"table", "wide", "json"}
)

// complete sets the default of --out, and finds the programs that start control planes.
func (f *flags) complete() (err error) {
	if f.OutDir == "" {
		f.OutDir = filepath.Join("out", "bench-"+time.Now().Format("20060102-150405"))
	}
	if f.withoutFloor {
		f.FloorConcurrency = nil
	}
	if f.Kubeconfig != "" {
		return nil
	}
	if f.Kube, err = localcluster.FindKube(); err != nil {
		return err
	}
	f.Lockstep, err = os.Executable()
	return err
}
