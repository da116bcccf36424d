package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/lab/jobs"
	"lockstep.dev/lockstep/internal/lab/page"
	"lockstep.dev/lockstep/internal/lab/series"
	"lockstep.dev/lockstep/internal/lab/threshold"
	"lockstep.dev/lockstep/internal/lab/workflows"
)

// flags holds the flags of 'bench run' that scenarios share.
type flags struct {
	command.Streams
	jobs.Config
	cmd        *cobra.Command
	output     output
	scenario   string
	scale      float64
	admissions []string
	ahead      []string
	limits     []string
	parameters []string
	metrics    []string
	// paced has the values of the flags about rates and pods that end, which scenarios of workflows
	// have, too.
	paced        *workflows.Config
	shapes       []string
	withoutFloor bool
}

// series returns the configuration that all scenarios share. It refuses --kubeconfig for those that
// start their own control planes.
func (f *flags) series() (series.Config, error) {
	if f.Kubeconfig != "" && !slices.Contains(inExistingClusters, f.scenario) {
		return series.Config{}, command.Usagef("--kubeconfig: this scenario brings its own control plane")
	}
	if err := f.complete(); err != nil {
		return series.Config{}, err
	}
	cfg := f.Config.Config
	cfg.Progress = func(line string) { fmt.Fprintln(f.Err, line) }
	return cfg, nil
}

// report is a pointer to a report of one kind of scenarios.
type report[T any] interface {
	*T
	Table(w io.Writer, wide bool) error
	Page() page.Page
	Faults() error
	Empty() bool
	CheckThresholds([]threshold.Threshold) error
	Crossed([]threshold.Threshold) ([]string, error)
}

// output holds the flags about what becomes of a report.
type output struct {
	form    string
	exports []string
	failIf  []string

	thresholds []threshold.Threshold
}

func (o *output) add(cmd *cobra.Command) {
	o.form = "table"
	command.WordFlag(cmd, &o.form, "output", "o", "what to print: table, wide or json", outputs...)
	f := cmd.Flags()
	f.StringSliceVar(&o.exports, "export", nil, "write the report as markdown, csv or json, too, into the folder of the results")
	f.StringArrayVar(&o.failIf, "fail-if", nil,
		"exit with code 5 if a run crosses this, for example 'ratioToFloor>1.2'; figures are named as in -o json")
	command.CompleteWords(cmd, "export", slices.Sorted(maps.Keys(series.Exports))...)
}

// parse checks the flags for reports of one kind.
func parse[T any, R report[T]](o *output) error {
	for _, form := range o.exports {
		if series.Exports[form] == "" {
			return command.Usagef("--export=%s: want markdown, csv or json", form)
		}
	}
	for _, text := range o.failIf {
		t, err := threshold.Parse(text)
		if err != nil {
			return command.Usagef("--fail-if: %w", err)
		}
		o.thresholds = append(o.thresholds, t)
	}
	var none T
	if err := R(&none).CheckThresholds(o.thresholds); err != nil {
		return command.Usagef("--fail-if: %w", err)
	}
	return nil
}

// deliver prints and exports a report. It returns measured, the error of the measurement, or else
// what is wrong with the report, or else which thresholds were crossed.
func deliver[T any, R report[T]](s command.Streams, o *output, dir string, rep R, measured error) error {
	fmt.Fprintf(s.Err, "report: %s\n", filepath.Join(dir, series.PageFile))
	var errs []error
	p := rep.Page() // some figures are those of curves
	if o.form != "json" {
		errs = append(errs, rep.Table(s.Out, o.form == "wide"))
		fmt.Fprintf(s.Out, "\n%s\n", p.Verdict)
	}
	if r, ok := any(rep).(interface{ DropCurves() }); ok {
		r.DropCurves() // they are in the page and in its run.json
	}
	for _, form := range o.exports {
		errs = append(errs, series.Export(dir, form, rep, p))
	}
	if o.form == "json" {
		errs = append(errs, command.PrintJSON(s.Out, rep))
	}
	crossed, err := rep.Crossed(o.thresholds)
	errs = append(errs, err)
	if measured == nil {
		measured = rep.Faults()
	}
	switch {
	case measured != nil && len(crossed) > 0:
		// The runs that crossed a threshold are named, but the exit code says that the measurement
		// itself failed.
		errs = append(errs, measured, errors.New(strings.Join(crossed, "\n")))
	case len(crossed) > 0:
		errs = append(errs, command.ThresholdError{Crossed: crossed})
	default:
		errs = append(errs, measured)
	}
	return errors.Join(errs...)
}

// runSeries makes a measurement, and delivers the report.
func runSeries[T any, R report[T]](f *flags, cfg interface{ Complete() error }, measure func(context.Context) (R, error)) error {
	if err := cfg.Complete(); err != nil {
		return command.Usage(err)
	}
	if err := parse[T, R](&f.output); err != nil {
		return err
	}
	ctx, stop := command.Interruptible(f.cmd, 0)
	defer stop()
	rep, err := measure(ctx)
	if rep == nil || rep.Empty() {
		return err
	}
	return deliver[T](f.Streams, &f.output, f.OutDir, rep, err)
}
