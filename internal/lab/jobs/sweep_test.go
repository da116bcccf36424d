package jobs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/observe"
	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/lab/series"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// TestTheOrderOfASweep checks that every repetition has every setting once, and that a seed gives
// the same order again.
func TestTheOrderOfASweep(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Sweep{Seed: rapid.Uint64().Draw(t, "seed")}
		cells, repeats := rapid.IntRange(1, 20).Draw(t, "cells"), rapid.IntRange(1, 5).Draw(t, "repeats")
		order := s.order(cells, repeats)
		for r := range repeats {
			block := slices.Sorted(slices.Values(order[r*cells : (r+1)*cells]))
			for i, cell := range block {
				if i != cell {
					t.Fatalf("repetition %d has the cells %v", r, block)
				}
			}
		}
		if !slices.Equal(order, s.order(cells, repeats)) {
			t.Fatal("the seed does not determine the order")
		}
	})
	first := Sweep{Seed: 1}
	if other := (&Sweep{Seed: 2}); slices.Equal(first.order(20, 1), other.order(20, 1)) {
		t.Error("two seeds give one order")
	}
}

func TestSweepsThatAreRefused(t *testing.T) {
	base := Config{Shapes: []scenario.Shape{{Jobs: 1, PodsPerJob: 1}}, Gangs: []bool{true}, Systems: []string{"lockstep"},
		Config: series.Config{Repeat: 1, Nodes: localcluster.Nodes{Count: 10}, ClientConcurrency: 4, Timeout: time.Minute}}
	for want, vary := range map[string][]Parameter{
		"nothing to vary":                                              nil,
		`unknown parameter "colour"`:                                   {{"colour", []string{"red"}}},
		"parameter nodes: has a value twice":                           {{"nodes", []string{"1", "1"}}},
		"parameter nodes: is given twice":                              {{"nodes", []string{"1"}}, {"nodes", []string{"2"}}},
		`nodes=x: strconv.Atoi: parsing "x"`:                           {{"nodes", []string{"x"}}},
		"nodes=0, shapes=1x1: shape 1x1: the cluster has no nodes":     {{"shapes", []string{"1x1"}}, {"nodes", []string{"0"}}},
		"system=kubernetes, writer-concurrency=-1: writer concurrency": {{"system", []string{"kubernetes"}}, {"writer-concurrency", []string{"-1"}}},
		"system=./none.yaml: open ./none.yaml":                         {{"system", []string{"./none.yaml"}}},
	} {
		s := Sweep{Parameters: vary}
		if err := s.Check(base); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", vary, err, want)
		}
	}
	two := base
	two.Gangs = []bool{true, false}
	if err := (&Sweep{Parameters: []Parameter{{"nodes", []string{"5"}}}}).Check(two); err == nil || !strings.Contains(err.Error(), "nodes=5: is 2 runs") {
		t.Errorf("%v", err)
	}
}

// sweptReport has a run for each combination and repeat, with the seconds that took returns.
func sweptReport(repeats int, took func(values map[string]string, repeat int) float64, vary ...Parameter) *Report {
	s := &Sweep{Parameters: vary, Seed: 7, Figure: "scheduleSeconds"}
	r := &Report{Sweep: s}
	combinations := []map[string]string{{}}
	for _, p := range vary {
		var next []map[string]string
		for _, c := range combinations {
			for _, v := range p.Values {
				with := maps.Clone(c)
				with[p.Name] = v
				next = append(next, with)
			}
		}
		combinations = next
	}
	for repeat := range repeats {
		for _, values := range combinations {
			run := &Run{System: "lockstep", Shape: "10x10", Scenario: ScenarioSweep, Repeat: repeat + 1, Parameters: values, Settings: map[string]string{}}
			seconds := took(values, repeat)
			curve := analyse.Curve{AtSeconds: []float64{seconds / 2, seconds}, Count: []int{50, 100}}
			run.Result = analyse.Result{Pods: 100, Created: 100, Scheduled: 100, ScheduleSeconds: seconds, CreateSeconds: seconds,
				Curves: &analyse.Curves{Created: curve, Scheduled: curve}}
			run.Invariants.Violations = []string{}
			r.Runs = append(r.Runs, run)
		}
	}
	return r
}

func TestTheVerdictOfASweep(t *testing.T) {
	values := []string{"1", "4", "16", "64"}
	took := map[string]float64{"1": 4, "4": 2, "16": 2.01, "64": 3}
	noise := []float64{1, 1.02, 0.99}
	r := sweptReport(3, func(v map[string]string, repeat int) float64 {
		return took[v["nodes"]] * noise[repeat] * (1 + 0.01*float64((len(v["nodes"])+repeat)%2))
	}, Parameter{"nodes", values})
	const want = "the best of 4 settings is nodes=4: 2.02 s ± 0.05 s; the worst, nodes=1, takes 2.0 ×; not different beyond the error: nodes=16, nothing lost"
	if got := r.Page().Verdict; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	s := r.sweepSection()
	if len(s.Charts) != 1 || !s.Charts[0].Log || len(s.Charts[0].Lines) != 3 || !slices.Equal(s.Charts[0].Lines[0].X, []float64{1, 4, 16, 64}) {
		t.Errorf("charts %+v", s.Charts)
	}
	var html bytes.Buffer
	p := r.Page()
	if err := p.HTML(&html); err != nil {
		t.Fatal(err)
	}
}

func TestTheMapOfASweep(t *testing.T) {
	r := sweptReport(1, func(v map[string]string, _ int) float64 {
		return map[string]float64{"1": 1, "2": 2}[v["a"]] * map[string]float64{"x": 1, "y": 4}[v["b"]]
	}, Parameter{"a", []string{"1", "2"}}, Parameter{"b", []string{"y", "x"}})
	r.Runs = slices.DeleteFunc(r.Runs, func(run *Run) bool { return run.Parameters["a"] == "2" && run.Parameters["b"] == "x" })
	h := r.sweepSection().Heats[0]
	var got [][]string
	for _, row := range h.Cells {
		var line []string
		for _, c := range row {
			line = append(line, fmt.Sprintf("%s %.2f %v", c.Text, c.Shade, c.Best))
		}
		got = append(got, line)
	}
	if diff := cmp.Diff([][]string{{"4.00 s 0.67 false", "1.00 s 0.00 true"}, {"8.00 s 1.00 false", "– 0.00 false"}}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var html bytes.Buffer
	p := r.Page()
	if err := p.HTML(&html); err != nil || strings.Count(html.String(), "--shade:") != 3 {
		t.Errorf("%v, %d shades", err, strings.Count(html.String(), "--shade:"))
	}
}

// TestAnInterruptedSweepIsResumed interrupts a sweep over the rate of a toy in its second run, and
// continues it.
func TestAnInterruptedSweepIsResumed(t *testing.T) {
	localtest.Long(t)
	kube, err := localcluster.FindKube()
	if err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	path := toySystem(t, `env: {RATE: "20"`, `env: {RATE: "${PARAM_rate}"`, "settings:", "parameters: {rate: 20}\nsettings:")
	ctx, interrupt := context.WithCancelCause(t.Context())
	cfg := Config{
		Shapes: []scenario.Shape{{Jobs: 1, PodsPerJob: 20}}, Gangs: []bool{true}, Systems: []string{path},
		Config: series.Config{Repeat: 1, Nodes: localcluster.Nodes{Count: 10}, ClientConcurrency: 4, Timeout: time.Minute, OutDir: t.TempDir(), Kube: kube,
			Version: "test", Progress: func(line string) { t.Log(line) }},
		OnStep: func(s Step) {
			if s.Run == 2 && s.Stage == "scheduling" {
				interrupt(errors.New("enough"))
			}
		},
	}
	sweep := Sweep{Parameters: []Parameter{{"system.rate", []string{"10", "40"}}}, Seed: 3, Figure: "scheduleSeconds"}
	rep, err := MeasureSweep(ctx, cfg, sweep, nil)
	if err == nil || len(rep.Runs) == 0 {
		t.Fatalf("%d runs, %v", len(rep.Runs), err)
	}
	if left, err := os.ReadDir(filepath.Join(state, "lockstep", "bench")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if _, err := os.Stat(filepath.Join(cfg.OutDir, series.PageFile)); err != nil {
		t.Error(err)
	}
	part := &Report{}
	if err := series.Read(cfg.OutDir, part); err != nil {
		t.Fatal(err)
	}
	last := part.Runs[len(part.Runs)-1]
	if last.Error != "interrupted: enough" {
		t.Errorf("the interrupted run: %q", last.Error)
	}
	whole := len(part.Runs) - 1
	var made []string
	cfg.OnStep = func(s Step) {
		if s.Stage == "control plane" {
			made = append(made, s.Case)
		}
	}
	if rep, err = MeasureSweep(t.Context(), cfg, sweep, part); err != nil {
		t.Fatal(err)
	}
	if len(rep.Runs) != 2 || len(made) != 2-whole {
		t.Fatalf("%d runs, made again: %v", len(rep.Runs), made)
	}
	for _, run := range rep.Runs {
		if run.Error != "" || run.Scheduled != 20 || run.Settings["rate"] != run.Parameters["system.rate"] {
			t.Errorf("%s: error %q, %d scheduled, settings %v", run.Title(), run.Error, run.Scheduled, run.Settings)
		}
	}
	if events, err := filepath.Glob(filepath.Join(cfg.OutDir, "0[12]-*", observe.EventsFile)); err != nil || len(events) != 2 {
		t.Errorf("the events of the runs: %v, %v", events, err)
	}
	if points := rep.points(); len(points) != 2 {
		t.Errorf("%d settings have a figure", len(points))
	}
}

// TestALoadThatTheDiskCannotHoldIsRefused has a disk with 100 MiB.
func TestALoadThatTheDiskCannotHoldIsRefused(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	var lines []string
	cfg := Config{
		Shapes: []scenario.Shape{{Jobs: 500, PodsPerJob: 20}}, Gangs: []bool{true}, Systems: []string{"lockstep"},
		Config: series.Config{Repeat: 3, Nodes: localcluster.Nodes{Count: 1000}, ClientConcurrency: 4, Timeout: time.Minute, OutDir: t.TempDir(),
			FloorConcurrency: []int{64}, Free: func(string) (int64, error) { return 100 << 20, nil }, Progress: func(line string) { lines = append(lines, line) }},
	}
	_, err := Measure(t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), "which has 100 MiB: free the space, or make the load smaller") || !strings.Contains(err.Error(), "the measurement needs about ") {
		t.Errorf("%v", err)
	}
	if len(lines) != 1 || !strings.HasPrefix(lines[0], "3 runs, about ") {
		t.Errorf("progress %q", lines)
	}
}
