package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/lab/jobs"
	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/lab/series"
)

// flags holds the flags of 'bench run' that scenarios share.
type flags struct {
	command.Streams
	jobs.Config
	cmd              *cobra.Command
	scenario, output string
	shapes           []string
	withoutFloor     bool
}

// series returns the configuration that all scenarios share. It refuses --kubeconfig for those that
// start their own control planes.
func (f *flags) series() (series.Config, error) {
	if f.Kubeconfig != "" && f.scenario != scenario.Batch {
		return series.Config{}, command.Usagef("--kubeconfig: this scenario brings its own control plane")
	}
	if err := f.complete(); err != nil {
		return series.Config{}, err
	}
	cfg := f.Config.Config
	cfg.Progress = func(line string) { fmt.Fprintln(f.Err, line) }
	return cfg, nil
}

// runSeries makes a measurement, and prints the path of the report and the results.
func runSeries[T any, R interface {
	*T
	Table(w io.Writer, wide bool) error
	Faults() error
	Empty() bool
}](f *flags, cfg interface{ Complete() error }, measure func(context.Context) (R, error)) error {
	if err := cfg.Complete(); err != nil {
		return command.Usage(err)
	}
	ctx, stop := command.Interruptible(f.cmd, 0)
	defer stop()
	rep, err := measure(ctx)
	if rep == nil || rep.Empty() {
		return err
	}
	fmt.Fprintf(f.Err, "report: %s\n", filepath.Join(f.OutDir, series.PageFile))
	if err == nil {
		err = rep.Faults()
	}
	if f.output == "json" {
		return errors.Join(command.PrintJSON(f.Out, rep), err)
	}
	return errors.Join(rep.Table(f.Out, f.output == "wide"), err)
}
