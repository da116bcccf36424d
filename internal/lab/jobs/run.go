package jobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"lockstep.dev/lockstep/internal/lab/report"
	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/lab/series"
)

// Measure makes all runs of the experiment. The report contains the runs that ended, even if
// Measure fails; a run that could not be measured is included with its error. After each run,
// OutDir has the results so far:
//
//	result.json                the report, with curves
//	report.html                the same for people
//	NN-case/events.jsonl.gz    what was observed, one event a line
func Measure(ctx context.Context, cfg Config) (*report.Report, error) {
	if cfg.OnProgress == nil {
		cfg.OnProgress = func(Progress) {}
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	experiments, err := cfg.plan()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.OutDir, 0o755); err != nil {
		return nil, err
	}
	rep := &report.Report{
		SchemaVersion: report.SchemaVersion, Version: cfg.Version, Time: time.Now().UTC(),
		Machine: machine(), Config: cfg.effective(), Runs: []report.Run{},
	}
	for i, e := range experiments {
		t := &trial{config: &cfg, experiment: e, index: i + 1, total: len(experiments),
			run: report.Run{System: e.sys.Name(), Scenario: scenario.Batch, Shape: e.shape.String(), Gang: e.gang,
				Repeat: e.repeat, Settings: e.sys.Settings(), Pods: e.shape.Pods(),
				Invariants: report.Invariants{Violations: []string{}}}}
		err := t.measure(ctx)
		if ctx.Err() != nil {
			return rep, context.Cause(ctx)
		}
		if err != nil {
			t.run.Error = err.Error()
		}
		rep.Runs = append(rep.Runs, t.run)
		if err := errors.Join(t.saveEvents(),
			series.Save(cfg.OutDir, rep, func(w io.Writer) error { return report.HTML(w, rep) })); err != nil {
			return rep, err
		}
		t.progress(Progress{Result: report.Line(&t.run)})
	}
	return rep, nil
}

// effective returns the configuration, including defaults, for the report.
func (c *Config) effective() map[string]any {
	shapes := []string{}
	for _, s := range c.Shapes {
		shapes = append(shapes, s.String())
	}
	out := map[string]any{
		"scenario": scenario.Batch, "shapes": shapes, "gang": c.Gangs, "systems": c.Systems, "repeat": c.Repeat,
		"clientConcurrency": c.ClientConcurrency, "warmUpPods": c.WarmUpPods, "timeout": c.Timeout.String(),
		"floorConcurrencyTried": c.FloorConcurrency,
	}
	if len(c.WriterConcurrency) > 0 {
		out["writerConcurrency"] = c.WriterConcurrency
	}
	if len(c.ManagerArgs) > 0 {
		out["managerArgs"] = c.ManagerArgs
	}
	if len(c.JobSyncs) > 0 {
		out["kubernetesJobSyncs"] = c.JobSyncs
	}
	if c.Kubeconfig != "" {
		out["cluster"] = "existing"
		return out
	}
	out["cluster"] = "fresh for each run"
	out["nodes"], out["nodeCPU"], out["nodeMemory"], out["nodePods"] = c.Nodes.Count, c.Nodes.CPU, c.Nodes.Memory, c.Nodes.Pods
	out["etcdDurable"] = c.Durable
	return out
}

var notInFileNames = regexp.MustCompile(`[^a-zA-Z0-9.=-]+`)

func (t *trial) saveEvents() error {
	name := strings.Trim(notInFileNames.ReplaceAllString(t.experiment.String(), "-"), "-")
	return series.SaveEvents(filepath.Join(t.config.OutDir, fmt.Sprintf("%02d-%s", t.index, name)), &t.log)
}
