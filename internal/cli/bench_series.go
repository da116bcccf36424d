package cli

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"lockstep.dev/lockstep/internal/lab"
	"lockstep.dev/lockstep/internal/lab/series"
)

// benchOutputs lists the output forms of 'bench run'.
var benchOutputs = []string{"table", "wide", "json"}

// benchOut sets the default of --out.
func benchOut(cfg *lab.Config) {
	if cfg.OutDir == "" {
		cfg.OutDir = filepath.Join("out", "bench-"+time.Now().Format("20060102-150405"))
	}
}

// benchSeries returns the configuration of a scenario that starts its own control plane, from the
// common flags. It refuses --kubeconfig.
func benchSeries(s streams, common *lab.Config, output string) (series.Config, error) {
	if common.Kubeconfig != "" {
		return series.Config{}, usageError{errors.New("--kubeconfig: this scenario brings its own control plane")}
	}
	benchOut(common)
	if err := benchPrograms(common); err != nil {
		return series.Config{}, err
	}
	return series.Config{
		Repeat: common.Repeat, Timeout: common.Timeout, OutDir: common.OutDir, Version: common.Version, Lockstep: common.Lockstep, Kube: common.Kube,
		Progress: func(line string) { fmt.Fprintln(s.err, line) },
	}, nil
}

// printSeries prints where the results are, and then the results. It returns failed, or else an
// error if the report has faults.
func printSeries(s streams, dir, output string, rep interface {
	Table(io.Writer) error
	Faults() error
}, failed error) error {
	fmt.Fprintf(s.err, "report: %s\n", filepath.Join(dir, series.PageFile))
	if failed == nil {
		failed = rep.Faults()
	}
	if output == "json" {
		return errors.Join(printJSON(s.out, rep), failed)
	}
	return errors.Join(rep.Table(s.out), failed)
}
