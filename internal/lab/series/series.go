package series

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"lockstep.dev/lockstep/internal/lab/metrics"
	"lockstep.dev/lockstep/internal/lab/page"
	"lockstep.dev/lockstep/internal/localcluster"
)

// Names of the files in a directory of results.
const (
	ResultFile = "run.json"
	PageFile   = "report.html"
	// oldResultFile is the name of ResultFile in directories of earlier versions.
	oldResultFile = "result.json"
)

// Config is the configuration that all scenarios share.
type Config struct {
	// Repeat is how often every run is made.
	Repeat int
	// Timeout bounds each wait of a run.
	Timeout time.Duration
	// OutDir is the directory for the results.
	OutDir string
	// Lockstep and Kube are the paths of the programs of the control plane.
	Lockstep, Kube string
	Version        string
	// Nodes are the simulated nodes of the control planes. Durable runs etcd with fsync.
	Nodes   localcluster.Nodes
	Durable bool
	// ManagerArgs are additional flags for the manager.
	ManagerArgs []string
	// WriterConcurrency are the manager's writes in flight to measure; 0 is adaptive.
	WriterConcurrency []int
	// ClientConcurrency is how many objects the client creates concurrently.
	ClientConcurrency int
	// FloorConcurrency are the concurrencies that the calibration of the floor tries; if empty, no
	// floor is measured.
	FloorConcurrency []int
	// Free returns the free bytes of the disk that has a directory; nil asks the operating system.
	Free func(dir string) (int64, error)
	// Progress is called with each line of progress.
	Progress func(string)
}

// Complete sets defaults and validates the configuration.
func (c *Config) Complete() error {
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
	if c.Repeat < 1 || c.Timeout <= 0 {
		return errors.New("timeout and repeat must be positive")
	}
	return nil
}

// maxViolations bounds the length of Verdict.Violations.
const maxViolations = 50

// unfinished is the error of a run in progress.
const unfinished = "not finished"

// Verdict is the outcome of a run that embeds it.
type Verdict struct {
	// Error is the reason why a run has no result.
	Error string `json:"error,omitempty"`
	// Checked is the number of facts checked.
	Checked    int      `json:"checked"`
	Violations []string `json:"violations"`
	Circumstances
}

// Circumstances are what a reader of any figure of a run has to know.
type Circumstances struct {
	// TimedOut says that --timeout ran out, and how far the run was. Its figures are those of a part
	// of the load, and what only holds at rest was not checked.
	TimedOut string `json:"timedOut,omitempty"`
	// OtherCPUs is how many CPUs other work on this machine used during the load, on average.
	OtherCPUs float64 `json:"otherCPUs"`
	// Lost says which events the observer lost; empty if none. Such a run has no time and no ratio.
	Lost string `json:"observerLost,omitempty"`
	// FloorCut is true if the run was interrupted while its floor was measured: it has a result, and
	// no ratio.
	FloorCut bool `json:"floorInterrupted,omitempty"`
	// Metrics are what the processes reported about themselves during the load.
	Metrics *metrics.Figures `json:"metrics,omitempty"`
}

// busyShare is the share of the machine's CPUs that other work may use before a report says so.
const busyShare = 0.1

// Late implements Run.
func (c *Circumstances) Late() string { return c.TimedOut }

// Missed implements Run.
func (c *Circumstances) Missed() string { return c.Lost }

// Notes implements Run.
func (c *Circumstances) Notes(cpus int) (notes []string) {
	if c.TimedOut != "" {
		notes = append(notes, c.TimedOut)
	}
	if c.Lost != "" {
		notes = append(notes, "the observer lost events, so there is no time and no ratio: "+c.Lost)
	}
	if c.FloorCut {
		notes = append(notes, "the measurement of its floor was interrupted")
	}
	if note := c.busy(cpus); note != "" {
		notes = append(notes, note)
	}
	return notes
}

// FloorError returns the error of the measurement of a floor. An interruption is none: what was
// measured before it stays.
func (c *Circumstances) FloorError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		c.FloorCut = true
		return nil
	}
	return fmt.Errorf("floor: %w", err)
}

// Circumstance implements Run.
func (c *Circumstances) Circumstance() *Circumstances { return c }

// busy says that the machine was busy; empty if it was not.
func (c *Circumstances) busy(cpus int) string {
	if c.OtherCPUs <= busyShare*float64(cpus) {
		return ""
	}
	return fmt.Sprintf("the machine was busy: other work used %.1f of its %d CPUs", c.OtherCPUs, cpus)
}

// Bad adds a violation.
func (v *Verdict) Bad(format string, args ...any) {
	if len(v.Violations) < maxViolations {
		v.Violations = append(v.Violations, fmt.Sprintf(format, args...))
	}
}

// Outcome implements Run.
func (v *Verdict) Outcome() (failure *string, violations *[]string) { return &v.Error, &v.Violations }

// Run is the result of one run, which most scenarios implement by embedding Verdict.
type Run interface {
	// Outcome returns where the run keeps the reason why it has no result, and its violations.
	Outcome() (failure *string, violations *[]string)
	// Title returns the name of the run within its report.
	Title() string
	// Line returns the results of a measured run in one line.
	Line() string
	// Notes returns what a reader of any figure of the run has to know, on a machine with so many
	// CPUs.
	Notes(cpus int) []string
	// Circumstance returns the circumstances that Notes describes.
	Circumstance() *Circumstances
	// Late says that --timeout ran out, and how far the run was; empty if it did not.
	Late() string
	// Missed says which events the observer lost; empty if it lost none.
	Missed() string
	// Repeated returns where the run keeps its number among equal runs, from 1.
	Repeated() *int
}

// Schema is the version of the JSON of reports.
const Schema = "v1"

// Report is the report of one invocation.
type Report[R Run] struct {
	SchemaVersion string         `json:"schemaVersion"`
	Version       string         `json:"lockstepVersion"`
	Time          time.Time      `json:"time"`
	Config        map[string]any `json:"config"`
	Runs          []R            `json:"runs"`
	Machine       Machine        `json:"machine"`
}

// New returns a report without runs, and creates the directory for the results, so that an error is
// found before the first run. effective is the configuration, including defaults.
func New[R Run](cfg Config, effective map[string]any) (Report[R], error) {
	return Report[R]{SchemaVersion: Schema, Version: cfg.Version, Time: time.Now().UTC(), Config: effective, Runs: []R{},
			Machine: machine()},
		os.MkdirAll(cfg.OutDir, 0o755)
}

// Make adds a run to the report and calls measure to make it. The run is in the report from the
// beginning, so that its partial results can be saved; a run that could not be measured stays, with
// its error. Make returns an error only if ctx is done; a run that measure has made nevertheless
// keeps its result.
func (r *Report[R]) Make(ctx context.Context, run R, measure func(context.Context) error) error {
	failure, violations := run.Outcome()
	*failure, *violations = unfinished, []string{}
	r.Runs = append(r.Runs, run)
	err := measure(ctx)
	*failure = ""
	cause := context.Cause(ctx)
	switch {
	case err != nil && cause != nil:
		*failure = "interrupted: " + cause.Error()
	case err != nil:
		*failure = err.Error()
	}
	if run.Missed() != "" {
		*violations = []string{} // what was checked with events that are missing says nothing
	}
	return cause
}

// Planned is a run that is to be made.
type Planned[R Run] struct {
	Run     R
	Measure func(context.Context) error
	// SaveEvents, if set, saves the events of the run, the n-th of the report from 1. It is called
	// when the run has ended.
	SaveEvents func(n int) error
}

// MakeAll makes runs one after the other. After each run it calls save and reports the result and
// the expected time of the remaining runs as progress.
func (r *Report[R]) MakeAll(ctx context.Context, cfg *Config, save func() error, runs ...Planned[R]) error {
	began := time.Now()
	for i, p := range runs {
		err := r.Make(ctx, p.Run, p.Measure)
		if p.SaveEvents != nil {
			err = errors.Join(err, p.SaveEvents(len(r.Runs)))
		}
		if err := errors.Join(err, save()); err != nil {
			return err
		}
		cfg.Progress(Line(p.Run))
		if left := len(runs) - i - 1; left > 0 {
			each := time.Since(began) / time.Duration(i+1)
			cfg.Progress(fmt.Sprintf("%d of %d runs made, about %s left", i+1, len(runs), (each * time.Duration(left)).Round(time.Second)))
		}
	}
	return nil
}

// Empty reports whether no run was made.
func (r *Report[R]) Empty() bool { return len(r.Runs) == 0 }

// Line returns the result or the error of a run in one line.
func Line(run Run) string {
	failure, violations := run.Outcome()
	if *failure != "" {
		return run.Title() + ": not measured: " + *failure
	}
	if lost := run.Missed(); lost != "" {
		return run.Title() + ": no result: the observer lost events: " + lost
	}
	return fmt.Sprintf("%s: %s, %d violations", run.Title(), run.Line(), len(*violations))
}

// Measured returns the runs that have a result. Those whose observer lost events have none.
func (r *Report[R]) Measured() []R {
	var out []R
	for _, run := range r.Runs {
		if failure, _ := run.Outcome(); *failure == "" && run.Missed() == "" {
			out = append(out, run)
		}
	}
	return out
}

// Faults returns an error that lists the runs without a result, those with violations and those
// whose time ran out; nil if there are none.
func (r *Report[R]) Faults() error {
	var errs []error
	for _, run := range r.Runs {
		switch failure, violations := run.Outcome(); {
		case *failure != "":
			errs = append(errs, fmt.Errorf("%s: not measured: %s", run.Title(), *failure))
		case len(*violations) > 0:
			errs = append(errs, fmt.Errorf("%s: %d violations", run.Title(), len(*violations)))
		case run.Missed() != "":
			errs = append(errs, fmt.Errorf("%s: the observer lost events: %s", run.Title(), run.Missed()))
		case run.Late() != "":
			errs = append(errs, fmt.Errorf("%s: %s", run.Title(), run.Late()))
		}
	}
	return errors.Join(errs...)
}

// WriteFaults writes notes, errors and violations, one per line, below a table.
func (r *Report[R]) WriteFaults(w io.Writer) error {
	for _, run := range r.Runs {
		failure, violations := run.Outcome()
		lines := append(run.Notes(r.Machine.CPUs), *violations...)
		if *failure != "" {
			lines = append([]string{*failure}, lines...)
		}
		for _, line := range lines {
			if _, err := fmt.Fprintf(w, "%s: %s\n", run.Title(), line); err != nil {
				return err
			}
		}
	}
	return nil
}

// Save writes the report and its page into a directory.
func Save(dir string, report any, p page.Page) error {
	data, err := json.Marshal(report)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, ResultFile), append(data, '\n'), 0o644); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, PageFile))
	if err != nil {
		return err
	}
	return errors.Join(p.HTML(f), f.Close())
}

// Ms formats a time of x milliseconds, in seconds if it is 10 s or longer.
func Ms(x float64) string {
	if x >= 10_000 {
		return fmt.Sprintf("%.1fs", x/1e3)
	}
	return fmt.Sprintf("%.0fms", x)
}
