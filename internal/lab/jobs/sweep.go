package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"lockstep.dev/lockstep/internal/lab/admission"
	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/lab/series"
	"lockstep.dev/lockstep/internal/lab/threshold"
)

// ScenarioSweep is the name of the scenario of sweeps in reports.
const ScenarioSweep = "sweep"

// Parameter is a setting that a sweep varies.
type Parameter struct {
	Name   string   `json:"name"`
	Values []string `json:"values"`
}

// Sweep says what a sweep varies, and in which order.
type Sweep struct {
	Parameters []Parameter `json:"parameters"`
	// Seed determines the order of the runs.
	Seed uint64 `json:"seed"`
	// Figure is the figure that the sweep minimises, named as in thresholds.
	Figure string `json:"figure"`
	// Discarded is the number of runs that were made before the first and are not in the report.
	Discarded int `json:"discarded"`
}

// parameters maps the names of parameters to what sets them.
var parameters = map[string]func(c *Config, value string) error{
	"shapes": func(c *Config, v string) (err error) { c.Shapes, err = scenario.ParseShapes([]string{v}); return err },
	"gang": func(c *Config, v string) error {
		gang, err := strconv.ParseBool(v)
		c.Gangs = []bool{gang}
		return err
	},
	"system": func(c *Config, v string) error { c.Systems = []string{v}; return nil },
	"admission": func(c *Config, v string) error {
		a, err := admission.Parse(v)
		c.Admissions = []admission.Admission{a}
		return err
	},
	"durable":              func(c *Config, v string) (err error) { c.Durable, err = strconv.ParseBool(v); return err },
	"nodes":                func(c *Config, v string) (err error) { c.Nodes.Count, err = strconv.Atoi(v); return err },
	"node-pods":            func(c *Config, v string) (err error) { c.Nodes.Pods, err = strconv.Atoi(v); return err },
	"client-concurrency":   func(c *Config, v string) (err error) { c.ClientConcurrency, err = strconv.Atoi(v); return err },
	"writer-concurrency":   func(c *Config, v string) error { return one(&c.WriterConcurrency, v) },
	"kubernetes-job-syncs": func(c *Config, v string) error { return one(&c.JobSyncs, v) },
}

func one(into *[]int, value string) error {
	n, err := strconv.Atoi(value)
	*into = []int{n}
	return err
}

// Prefixes of parameters whose names are open: flags of Lockstep's manager, and parameters of the
// system's file.
const (
	managerFlag   = "manager."
	fileParameter = "system."
)

// Parameters returns the names of the parameters of sweeps.
func Parameters() []string {
	return append(slices.Sorted(maps.Keys(parameters)), managerFlag+"FLAG", fileParameter+"PARAMETER")
}

// set changes one parameter of a configuration, which shares nothing with others afterwards.
func (c *Config) set(name, value string) error {
	var err error
	flag, isFlag := strings.CutPrefix(name, managerFlag)
	parameter, isParameter := strings.CutPrefix(name, fileParameter)
	switch set := parameters[name]; {
	case set != nil:
		err = set(c, value)
	case isFlag && flag != "":
		c.ManagerArgs = append(slices.Clone(c.ManagerArgs), "--"+flag+"="+value)
	case isParameter && parameter != "":
		c.Parameters = maps.Clone(c.Parameters)
		if c.Parameters == nil {
			c.Parameters = map[string]string{}
		}
		c.Parameters[parameter] = value
	default:
		return fmt.Errorf("unknown parameter %q; there are: %s", name, strings.Join(Parameters(), ", "))
	}
	if err != nil {
		return fmt.Errorf("%s=%s: %w", name, value, err)
	}
	return nil
}

// cell is one combination of values.
type cell struct {
	values map[string]string
	cfg    *Config
}

// cells returns all combinations of values, each with the configuration of its runs.
func (s *Sweep) cells(base Config) ([]cell, error) {
	if len(s.Parameters) == 0 {
		return nil, errors.New("nothing to vary")
	}
	base.Repeat, base.Scenario = 1, ScenarioSweep
	cells := []cell{{map[string]string{}, &base}}
	seen := map[string]bool{}
	for _, p := range s.Parameters {
		if seen[p.Name] || len(p.Values) == 0 {
			return nil, fmt.Errorf("parameter %s: is given twice, or has no values", p.Name)
		}
		seen[p.Name] = true
		if unique := slices.Compact(slices.Sorted(slices.Values(p.Values))); len(unique) < len(p.Values) {
			return nil, fmt.Errorf("parameter %s: has a value twice", p.Name)
		}
		var next []cell
		for _, c := range cells {
			for _, value := range p.Values {
				cfg, values := *c.cfg, maps.Clone(c.values)
				if err := cfg.set(p.Name, value); err != nil {
					return nil, err
				}
				values[p.Name] = value
				next = append(next, cell{values, &cfg})
			}
		}
		cells = next
	}
	for _, c := range cells {
		if err := c.cfg.Complete(); err != nil {
			return nil, fmt.Errorf("%s: %w", describe(c.values), err)
		}
		experiments, err := c.cfg.plan()
		if err != nil {
			return nil, err
		}
		if len(experiments) != 1 {
			return nil, fmt.Errorf("%s: is %d runs; give one shape, system, gang and setting, and vary them with --vary",
				describe(c.values), len(experiments))
		}
	}
	return cells, nil
}

func describe(values map[string]string) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		parts = append(parts, name+"="+values[name])
	}
	return strings.Join(parts, ", ")
}

// Check returns an error if the sweep cannot be made with a configuration.
func (s *Sweep) Check(base Config) error {
	_, err := s.cells(base)
	return err
}

// order returns the indexes of the cells of each repetition in their order: every repetition has
// every cell once, in an order of its own, so that a slow hour of the machine affects no value more
// than another.
func (s *Sweep) order(cells, repeats int) (out []int) {
	random := rand.New(rand.NewPCG(s.Seed, 0))
	for range repeats {
		out = append(out, random.Perm(cells)...)
	}
	return out
}

// MeasureSweep makes all runs of a sweep, or the missing ones of the report in resumed, which may be
// nil. The report is written after each run.
func MeasureSweep(ctx context.Context, cfg Config, s Sweep, resumed *Report) (*Report, error) {
	repeats := cfg.Repeat
	if err := cfg.Complete(); err != nil {
		return nil, err
	}
	cells, err := s.cells(cfg)
	if err != nil {
		return nil, err
	}
	rep := &Report{Sweep: &s}
	if rep.Report, err = series.New[*Run](cfg.Config, s.effective(&cfg)); err != nil {
		return nil, err
	}
	done := map[string]bool{}
	if resumed != nil {
		rep.Time = resumed.Time
		for _, run := range resumed.Runs {
			if run.Error == "" {
				rep.Runs = append(rep.Runs, run)
				done[runKey(run.Parameters, run.Repeat)] = true
			}
		}
	}
	order := s.order(len(cells), repeats)
	var trials []*trial
	for i, index := range order {
		c := cells[index]
		experiments, err := c.cfg.plan()
		if err != nil {
			return nil, err
		}
		e := experiments[0]
		e.repeat = i/len(cells) + 1
		if done[runKey(c.values, e.repeat)] {
			continue
		}
		t := &trial{cfg: c.cfg, experiment: e, index: i + 1, total: len(order), run: e.result()}
		t.run.Scenario, t.run.Parameters = ScenarioSweep, c.values
		trials = append(trials, t)
	}
	if len(trials) == 0 {
		return rep, nil
	}
	if err := cfg.afford(trials, s.Discarded); err != nil {
		return nil, err
	}
	for range s.Discarded {
		first := trials[0]
		t := &trial{cfg: first.cfg, experiment: first.experiment, index: 0, total: len(order), run: first.run}
		cfg.Progress("a run to be discarded: " + t.run.Title())
		if err := t.measure(ctx); err != nil {
			return nil, fmt.Errorf("the run to be discarded: %w", err)
		}
	}
	var runs []series.Planned[*Run]
	for _, t := range trials {
		runs = append(runs, t.planned())
	}
	return rep, rep.MakeAll(ctx, &cfg.Config, func() error { return series.Save(cfg.OutDir, rep, rep.Page()) }, runs...)
}

func runKey(values map[string]string, repeat int) string {
	return fmt.Sprintf("%s #%d", describe(values), repeat)
}

func (s *Sweep) effective(cfg *Config) map[string]any {
	out := cfg.effective()
	out["scenario"], out["seed"], out["figure"], out["discardedRuns"] = ScenarioSweep, s.Seed, s.Figure, s.Discarded
	for _, p := range s.Parameters {
		out["vary "+p.Name] = p.Values
	}
	return out
}

// PlanFile is the name of the file from which a sweep can be resumed: the flags of its command.
const PlanFile = "sweep.json"

// SavePlan writes the flags of a sweep, by name, into the directory of its results.
func SavePlan(dir string, flags map[string]string) error {
	data, err := json.MarshalIndent(flags, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, PlanFile), append(data, '\n'), 0o644)
}

// ReadPlan reads the flags of a sweep.
func ReadPlan(dir string) (flags map[string]string, err error) {
	data, err := os.ReadFile(filepath.Join(dir, PlanFile))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &flags); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, PlanFile), err)
	}
	return flags, nil
}

// figure returns the figure of a run that a sweep minimises.
func (s *Sweep) figure(r *Run) (float64, bool) {
	if !r.complete() {
		return 0, false
	}
	x, ok, err := threshold.Value(r, s.Figure)
	return x, ok && err == nil
}
