// Package bench holds the verbs of the laboratory, which are below 'lockstep bench': run.go has the
// flags of all scenarios, a file for each measurement those of its own.
package bench

import (
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/lab"
	benchapps "lockstep.dev/lockstep/internal/lab/applications"
	benchcpus "lockstep.dev/lockstep/internal/lab/cpus"
	"lockstep.dev/lockstep/internal/lab/scenario"
	benchwf "lockstep.dev/lockstep/internal/lab/workflows"
	"lockstep.dev/lockstep/internal/localcluster"
)

// New returns the command 'bench'. version is the program's.
func New(s command.Streams, version string) *cobra.Command {
	return command.Group(&cobra.Command{
		Use:   "bench",
		Short: "Measure a system against the floor that the API server sets",
	}, newRun(s, version), newLoad(s))
}

// setPrograms finds the programs that control planes of the laboratory are started from.
func setPrograms(cfg *lab.Config) error {
	if cfg.Kubeconfig != "" {
		return nil
	}
	var err error
	if cfg.Kube, err = localcluster.FindKube(); err != nil {
		return err
	}
	cfg.Lockstep, err = os.Executable()
	return err
}

// outputs lists the output forms of 'bench run'.
var outputs = []string{"table", "wide", "json"}

// setOutDir sets the default of --out.
func setOutDir(cfg *lab.Config) {
	if cfg.OutDir == "" {
		cfg.OutDir = filepath.Join("out", "bench-"+time.Now().Format("20060102-150405"))
	}
}

// scenarios lists the scenarios of 'bench run'.
var scenarios = append([]string{scenario.Batch, benchwf.Queued, benchwf.Rate, benchcpus.Scenario}, benchapps.Scenarios...)
