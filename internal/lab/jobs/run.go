package jobs

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"lockstep.dev/lockstep/internal/lab/admission"
	"lockstep.dev/lockstep/internal/lab/series"
)

var notInFileNames = regexp.MustCompile(`[^a-zA-Z0-9.=-]+`)

// Measure makes all runs of the experiment and writes the report into OutDir after each. A run that
// could not be measured is included with its error.
func Measure(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.Complete(); err != nil {
		return nil, err
	}
	experiments, err := cfg.plan()
	if err != nil {
		return nil, err
	}
	inner, err := series.New[*Run](cfg.Config, cfg.effective())
	if err != nil {
		return nil, err
	}
	rep := &Report{Report: inner}
	var trials []*trial
	var runs []series.Planned[*Run]
	for i, e := range experiments {
		t := &trial{cfg: &cfg, experiment: e, index: i + 1, total: len(experiments), run: e.result()}
		t.run.Scenario = cfg.Scenario
		trials, runs = append(trials, t), append(runs, t.planned())
	}
	if err := cfg.afford(trials, 0); err != nil {
		return nil, err
	}
	return rep, rep.MakeAll(ctx, &cfg.Config, func() error { return series.Save(cfg.OutDir, rep, rep.Page()) }, runs...)
}

// planned returns the trial as a run of a report. Its events are saved under its number in the plan, which
// stays the same if a sweep is resumed.
func (t *trial) planned() series.Planned[*Run] {
	return series.Planned[*Run]{Run: &t.run, Measure: t.measure, SaveEvents: func(int) error {
		return t.SaveEvents(fmt.Sprintf("%02d-%s", t.index, strings.Trim(notInFileNames.ReplaceAllString(t.run.Title(), "-"), "-")))
	}}
}

// effective returns the configuration, including defaults, for the report.
func (c *Config) effective() map[string]any {
	shapes := []string{}
	for _, s := range c.Shapes {
		shapes = append(shapes, s.String())
	}
	out := map[string]any{
		"scenario": c.Scenario, "shapes": shapes, "gang": c.Gangs, "systems": c.Systems, "repeat": c.Repeat,
		"clientConcurrency": c.ClientConcurrency, "warmUpPods": c.WarmUpPods, "timeout": c.Timeout.String(),
		"floorConcurrencyTried": c.FloorConcurrency, "floorTries": c.FloorTries,
	}
	if len(c.Weights) > 0 {
		out["queueWeights"] = c.Weights
	}
	if p := c.Pace; p != nil {
		out["rateStart"], out["rateGrowth"], out["rateMax"], out["rateStep"] = p.Search.Start, p.Search.Growth, p.Search.Max, p.StepTime.String()
	}
	if c.PodTime > 0 {
		out["podTime"] = c.PodTime.String()
	}
	if len(c.Ahead) > 0 {
		ahead := []string{}
		for _, s := range c.Ahead {
			if name := s.String(); s.Jobs > 0 {
				ahead = append(ahead, name)
			} else {
				ahead = append(ahead, "none")
			}
		}
		out["ahead"] = ahead
	}
	if len(c.WriterConcurrency) > 0 {
		out["writerConcurrency"] = c.WriterConcurrency
	}
	if len(c.ManagerArgs) > 0 {
		out["managerArgs"] = c.ManagerArgs
	}
	if len(c.ClientLimits) > 0 {
		limits := []string{}
		for _, l := range c.ClientLimits {
			limits = append(limits, l.String())
		}
		out["kubernetesClientLimits"] = limits
	}
	if len(c.Foreign) > 0 {
		out["foreign"] = c.Foreign
	}
	if len(c.JobSyncs) > 0 {
		out["kubernetesJobSyncs"] = c.JobSyncs
	}
	if len(c.Admissions) > 1 || c.Admissions[0].Kind != admission.None {
		admissions := []string{}
		for _, a := range c.Admissions {
			admissions = append(admissions, a.Argument())
		}
		out["admission"] = admissions
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
