package jobs

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"lockstep.dev/lockstep/internal/lab/bottleneck"
	"lockstep.dev/lockstep/internal/lab/page"
	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/lab/series"
	"lockstep.dev/lockstep/internal/lab/system"
)

// ScenarioTune is the name of the scenario of 'bench tune' in reports.
const ScenarioTune = "tune"

// Tune is what limits a system, and what to do about it.
type Tune struct {
	// Findings are what limits the system, the most important first.
	Findings []bottleneck.Finding `json:"findings"`
	// Experiments are the times with one thing changed.
	Experiments []TuneExperiment `json:"experiments"`
	// Needs are the requests to give the system's controllers, by name and number of pods.
	Needs map[string][]bottleneck.Need `json:"needs,omitempty"`
}

// TuneExperiment is a run with one thing changed. Gain is the part of the time that it saves.
type TuneExperiment struct {
	Change  string  `json:"change"`
	Seconds float64 `json:"seconds"`
	Base    float64 `json:"baseSeconds"`
	Gain    float64 `json:"gain"`
}

// rung is a run of the ladder of experiments: the base with one parameter changed.
type rung struct {
	parameter, value string
	// change says what is changed, in words; empty for the base. tests is what it tests.
	change string
	tests  bottleneck.Kind
	// setting is the name in reports of the setting that the parameter is; empty if it is none.
	setting string
}

// baseRung is an unchanged run.
var baseRung = rung{}

// ladder returns the experiments on a system. The base is first and last, to see how much the
// machine changed meanwhile. An existing cluster has the base only.
func (c *Config) ladder() ([]rung, error) {
	if c.Kubeconfig != "" {
		return []rung{baseRung}, nil
	}
	shape := c.Shapes[0]
	half := scenario.Shape{Jobs: max(1, shape.Jobs/2), PodsPerJob: shape.PodsPerJob}
	if shape.Jobs == 1 {
		half.PodsPerJob = max(1, shape.PodsPerJob/2)
	}
	out := []rung{baseRung, {parameter: "shapes", value: half.String(), change: "half the load"}}
	if c.Durable {
		out = append(out, rung{parameter: "durable", value: "false", change: "etcd without fsync", tests: bottleneck.Fsync})
	}
	systems, err := c.variants(c.Systems[0], "")
	if err != nil {
		return nil, err
	}
	switch name := c.Systems[0]; name {
	case "lockstep": // its writer finds its concurrency by itself
	case "kubernetes":
		out = append(out, rung{"kubernetes-job-syncs", strconv.Itoa(4 * system.DefaultJobSyncs),
			fmt.Sprintf("%d concurrent job syncs", 4*system.DefaultJobSyncs), bottleneck.Workers, system.JobSyncs})
	default:
		settings := systems[0].Settings()
		for _, p := range system.ParametersOf(systems[0]) {
			n, err := strconv.Atoi(settings[p])
			if err != nil || n < 1 {
				continue
			}
			var tests bottleneck.Kind
			switch lower := strings.ToLower(p); {
			case strings.Contains(lower, "qps") || strings.Contains(lower, "burst"):
				tests = bottleneck.ClientLimit
			case strings.Contains(lower, "worker") || strings.Contains(lower, "sync"):
				tests = bottleneck.Workers
			}
			out = append(out, rung{fileParameter + p, strconv.Itoa(2 * n), fmt.Sprintf("%s=%d", p, 2*n), tests, p})
		}
	}
	return append(out, baseRung), nil
}

// MeasureTune runs a ladder of experiments on one system under one load, and finds what limits it.
func MeasureTune(ctx context.Context, cfg Config) (*Report, error) {
	cfg.Scenario, cfg.Repeat = ScenarioTune, 1
	if err := cfg.Complete(); err != nil {
		return nil, err
	}
	planned, err := cfg.plan()
	if err != nil {
		return nil, err
	}
	if len(planned) != 1 {
		return nil, fmt.Errorf("tune examines one system under one load, not %d", len(planned))
	}
	rungs, err := cfg.ladder()
	if err != nil {
		return nil, err
	}
	rep := &Report{Tune: &Tune{}}
	if rep.Report, err = series.New[*Run](cfg.Config, cfg.effective()); err != nil {
		return nil, err
	}
	var trials []*trial
	var runs []series.Planned[*Run]
	for i, r := range rungs {
		changed := cfg
		if r.parameter != "" {
			if err := changed.set(r.parameter, r.value); err != nil {
				return nil, err
			}
			changed.FloorConcurrency = nil // the base has the floor
		}
		if i > 0 {
			changed.FloorConcurrency = nil
		}
		experiments, err := changed.plan()
		if err != nil {
			return nil, err
		}
		e := experiments[0]
		t := &trial{cfg: &changed, experiment: e, index: i + 1, total: len(rungs), run: e.result()}
		t.run.Scenario = ScenarioTune
		if r.parameter != "" {
			t.run.Parameters = map[string]string{r.parameter: r.value}
		} else if i > 0 {
			t.run.Repeat = 2
		}
		trials, runs = append(trials, t), append(runs, t.planned())
	}
	if err := cfg.afford(trials, 0); err != nil {
		return nil, err
	}
	err = rep.MakeAll(ctx, &cfg.Config, func() error {
		rep.conclude(rungs)
		return series.Save(cfg.OutDir, rep, rep.Page())
	}, runs...)
	return rep, err
}

// conclude finds what limits the system, from the runs so far.
func (r *Report) conclude(rungs []rung) {
	var bases []*Run
	for i, run := range r.Runs {
		if rungs[i] == baseRung && run.complete() {
			bases = append(bases, run)
		}
	}
	r.Tune = &Tune{}
	if len(bases) == 0 {
		return
	}
	base, mean := bases[0], 0.0
	for _, b := range bases {
		mean += b.ScheduleSeconds / float64(len(bases))
	}
	var experiments []bottleneck.Experiment
	samples := map[string][]bottleneck.Sample{}
	for i, run := range r.Runs {
		if !run.complete() {
			continue
		}
		rung := rungs[i]
		if rung == baseRung || rung.parameter == "shapes" {
			for process, mib := range run.PeakRSSMiB {
				if !infrastructure[process] {
					samples[process] = append(samples[process], bottleneck.Sample{Pods: run.Pods, MemoryMiB: mib, CPUSeconds: run.CPUSeconds[process],
						Seconds: run.ScheduleSeconds})
				}
			}
			continue
		}
		e := bottleneck.Experiment{Change: rung.change, Tests: rung.tests, Setting: rung.setting, Value: rung.value,
			Seconds: run.ScheduleSeconds, Base: mean}
		experiments = append(experiments, e)
		r.Tune.Experiments = append(r.Tune.Experiments, TuneExperiment{Change: rung.change, Seconds: run.ScheduleSeconds, Base: mean, Gain: e.Gain()})
	}
	r.Tune.Findings = bottleneck.Find(r.evidence(base), experiments)
	for process, s := range samples {
		if needs := bottleneck.Size(s); needs != nil {
			if r.Tune.Needs == nil {
				r.Tune.Needs = map[string][]bottleneck.Need{}
			}
			r.Tune.Needs[componentTitle(process)] = needs
		}
	}
}

// infrastructure are processes that are no controllers of the system.
var infrastructure = map[string]bool{"apiserver": true, "etcd": true, "nodes": true, "client": true, "webhook": true}

// evidence returns the figures of a run for the search for its bottleneck.
func (r *Report) evidence(run *Run) bottleneck.Run {
	out := bottleneck.Run{Pods: run.Pods, Seconds: run.ScheduleSeconds, CreateSeconds: run.CreateSeconds, JobsSeconds: run.JobsSeconds,
		OtherCPUs: run.OtherCPUs, Metrics: run.Metrics, Settings: run.Settings, CPUSeconds: map[string]float64{}}
	for process, seconds := range run.CPUSeconds {
		out.CPUSeconds[componentTitle(process)] = seconds
	}
	if r.Config["cluster"] != "existing" {
		out.CPUs = r.Machine.CPUs
	}
	return out
}

// tuneVerdict names the bottleneck in one sentence.
func (r *Report) tuneVerdict() string {
	if len(r.Runs) == 0 || r.Tune == nil {
		return "nothing was measured"
	}
	subject := r.Runs[0].System
	if len(r.Tune.Findings) == 0 {
		if !r.Runs[0].complete() {
			return subject + ": no result, " + r.lost()
		}
		return subject + ": nothing explains a noticeable part of the time, " + r.lost()
	}
	f := r.Tune.Findings[0]
	return fmt.Sprintf("%s is limited by %s: %s, %s", subject, f.Kind, f.Evidence[0], r.lost())
}

// tuneSections are the findings, the settings to use and the experiments.
func (r *Report) tuneSections() []page.Section {
	t := page.Table{Columns: []page.Column{{Title: "What limits", Key: true}, {Title: "Part of the time", Right: true,
		Help: "about how much of the run's time it explains. Causes overlap, so that the parts do not add up"}}}
	s := page.Section{Title: "What limits the system"}
	for i, f := range r.Tune.Findings {
		t.Rows = append(t.Rows, []page.Cell{{Text: string(f.Kind), Tone: page.Strong}, {Text: fmt.Sprintf("%.0f %%", 100*f.Share), Bar: &page.Bar{Width: 100 * f.Share, Color: 1 + i}}})
	}
	if len(t.Rows) == 0 {
		s.Note = "Nothing explains a noticeable part of the time."
	} else {
		s.Tables = append(s.Tables, t)
	}
	for i, f := range r.Tune.Findings {
		why := page.Table{Title: fmt.Sprintf("%d. %s", i+1, f.Kind), Columns: []page.Column{{Title: "Evidence"}, {Title: "What to do"}}}
		for k := range max(len(f.Evidence), len(f.Advice)) {
			row := []page.Cell{{}, {}}
			if k < len(f.Evidence) {
				row[0] = page.Text(f.Evidence[k])
			}
			if k < len(f.Advice) {
				row[1] = page.Text(f.Advice[k])
			}
			why.Rows = append(why.Rows, row)
		}
		s.Tables = append(s.Tables, why)
	}
	out := []page.Section{s}
	if len(r.Tune.Experiments) > 0 {
		e := page.Table{Columns: []page.Column{{Title: "Change", Key: true}, {Title: "Time", Right: true}, {Title: "Unchanged", Right: true},
			{Title: "Saves", Right: true, Help: "the part of the time that the change saves. Equal runs differ by 5 to 15 % on a busy machine"}}}
		for _, x := range r.Tune.Experiments {
			e.Rows = append(e.Rows, []page.Cell{page.Text(x.Change), page.Text(page.Seconds(x.Seconds)), page.Text(page.Seconds(x.Base)), page.Textf("%.0f %%", 100*x.Gain)})
		}
		out = append(out, page.Section{Title: "Experiments", Tables: []page.Table{e}})
	}
	if len(r.Tune.Needs) > 0 {
		n := page.Table{Columns: []page.Column{{Title: "Controller", Key: true}, {Title: "Pods in the cluster", Key: true}, {Title: "Memory request", Right: true}, {Title: "CPU request", Right: true}}}
		for _, process := range slices.Sorted(maps.Keys(r.Tune.Needs)) {
			for _, need := range r.Tune.Needs[process] {
				n.Rows = append(n.Rows, []page.Cell{page.Text(process), page.Text(page.Thousands(need.Pods)), page.Textf("%dMi", need.MemoryMiB), page.Textf("%dm", need.MilliCPU)})
			}
		}
		out = append(out, page.Section{Title: "Resource requests by cluster size", Tables: []page.Table{n},
			Note: "Extrapolated from two loads, with a reserve of a quarter. The CPU is that of the full pace; with less, the controller is slower."})
	}
	return out
}

// writeTune writes the findings and the settings to use below the table for a terminal.
func (r *Report) writeTune(w io.Writer) {
	for i, f := range r.Tune.Findings {
		fmt.Fprintf(w, "\n%d. %s, %.0f %% of the time\n", i+1, f.Kind, 100*f.Share)
		for _, e := range f.Evidence {
			fmt.Fprintf(w, "   %s\n", e)
		}
		for _, a := range f.Advice {
			fmt.Fprintf(w, "   -> %s\n", a)
		}
	}
	for _, process := range slices.Sorted(maps.Keys(r.Tune.Needs)) {
		fmt.Fprintf(w, "\nrequests of %s\n", process)
		for _, n := range r.Tune.Needs[process] {
			fmt.Fprintf(w, "  %s pods: memory %dMi, cpu %dm\n", page.Thousands(n.Pods), n.MemoryMiB, n.MilliCPU)
		}
	}
}
