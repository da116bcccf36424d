package bench

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/lab"
	"lockstep.dev/lockstep/internal/lab/series"
)

// seriesConfig returns the configuration of a scenario that starts its own control plane, from the
// common flags. It refuses --kubeconfig.
func seriesConfig(s command.Streams, common *lab.Config, output string) (series.Config, error) {
	if common.Kubeconfig != "" {
		return series.Config{}, command.Usagef("--kubeconfig: this scenario brings its own control plane")
	}
	setOutDir(common)
	if err := setPrograms(common); err != nil {
		return series.Config{}, err
	}
	return series.Config{
		Repeat: common.Repeat, Timeout: common.Timeout, OutDir: common.OutDir, Version: common.Version, Lockstep: common.Lockstep, Kube: common.Kube,
		Progress: func(line string) { fmt.Fprintln(s.Err, line) },
	}, nil
}

// printSeries prints where the results are, and then the results. It returns failed, or else an
// error if the report has faults.
func printSeries(s command.Streams, dir, output string, rep interface {
	Table(io.Writer) error
	Faults() error
}, failed error) error {
	fmt.Fprintf(s.Err, "report: %s\n", filepath.Join(dir, series.PageFile))
	if failed == nil {
		failed = rep.Faults()
	}
	if output == "json" {
		return errors.Join(command.PrintJSON(s.Out, rep), failed)
	}
	return errors.Join(rep.Table(s.Out), failed)
}
