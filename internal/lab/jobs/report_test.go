package jobs

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/capacity"
	"lockstep.dev/lockstep/internal/lab/drive"
	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/lab/series"
)

var update = flag.Bool("update", false, "write testdata/*.golden anew")

func sample() *Report {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var moments []time.Time
	for i := range 10_000 {
		moments = append(moments, start.Add(time.Duration(i)*time.Millisecond))
	}
	curve := analyse.CurveOf(start, moments)
	floor, ratio := 10.9, 1.128
	good := &Run{
		System: "lockstep", Scenario: "batch", Shape: "500x20", Gang: true, Repeat: 1,
		Settings: map[string]string{"manager writes in flight": "adaptive"},
		Floor: &Floor{Concurrency: 16, Jobs: 500, Pods: 10_000, Seconds: floor, PodsSeconds: 10.8, Curve: &curve,
			Calibration: []Calibration{{8, 810.5}, {16, 860}}},
		FloorSeconds: &floor, RatioToFloor: &ratio,
		CPUSeconds: Usage{"apiserver": 11.3, "etcd": 3.2, "manager": 2.5, "controllerManager": 0.4, "nodes": 2.2, "client": 0.6},
		PeakRSSMiB: Usage{"apiserver": 620, "etcd": 210, "manager": 131, "controllerManager": 90, "nodes": 120},
	}
	good.Result = analyse.Result{
		Pods: 10_000, Created: 10_000, Scheduled: 10_000, JobsSeconds: 0.9, CreateSeconds: 12.3, ScheduleSeconds: 12.3,
		Writes: map[string]int{"pods/create": 10_000, "jobs.batch.volcano.sh/status": 500}, WritesPerPod: 1.05,
		LatencyMs:  analyse.Percentiles{P50: 6123, P90: 11000, P99: 12100},
		Curves:     &analyse.Curves{Created: curve, Scheduled: curve, CreatedPerSecond: []int{1000}, ScheduledPerSecond: []int{1000}},
		Invariants: analyse.Invariants{Checked: 31_500, Violations: []string{}},
	}
	bad := &Run{System: "kubernetes", Scenario: "batch", Shape: "500x20", Repeat: 2, Settings: map[string]string{},
		CPUSeconds: Usage{}, PeakRSSMiB: Usage{}}
	bad.Result = analyse.Result{Pods: 10_000, Created: 10_000, Scheduled: 9_990, Failed: 10, CreateSeconds: 14, ScheduleSeconds: 600,
		Stalls:     analyse.Stalls{Count: 2, LongestSeconds: 3.5},
		Invariants: analyse.Invariants{Checked: 5, Violations: []string{"job </script><script>alert(1)</script>: lost"}}}
	unmeasured := &Run{System: "lockstep", Scenario: "batch", Shape: "1x1", Repeat: 1, Settings: map[string]string{}, Error: "no luck"}
	unmeasured.Invariants.Violations = []string{}
	return &Report{
		Report: series.Report[*Run]{SchemaVersion: "v1", Version: "v0.1.0", Time: start, Config: map[string]any{"nodes": 1000},
			Runs:    []*Run{good, bad, unmeasured},
			Machine: series.Machine{Hostname: "<b>host</b>", CPUs: 2, CPU: "Some CPU", MemoryMiB: 16000}}}
}

// TestContract checks the JSON for the fields that other programs rely on, with their types.
func TestContract(t *testing.T) {
	rep := sample()
	rep.DropCurves()
	data, err := json.Marshal(rep)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if got["schemaVersion"] != "v1" {
		t.Errorf("schemaVersion is %v", got["schemaVersion"])
	}
	if _, ok := got["machine"].(map[string]any); !ok {
		t.Error("no machine")
	}
	runs := got["runs"].([]any)
	for i, r := range runs {
		run := r.(map[string]any)
		for field, want := range map[string]any{
			"system": "", "scenario": "", "shape": "", "gang": false, "pods": 0.0, "created": 0.0, "scheduled": 0.0, "failed": 0.0,
			"createSeconds": 0.0, "scheduleSeconds": 0.0, "writesPerPod": 0.0,
			"latencyMs": map[string]any{"p50": 0.0, "p90": 0.0, "p99": 0.0}, "stalls": map[string]any{"count": 0.0, "longestSeconds": 0.0},
			"invariants": map[string]any{"checked": 0.0, "violations": []any{}},
		} {
			if diff := sameKind(want, run[field]); diff != "" {
				t.Errorf("run %d: %s: %s", i, field, diff)
			}
		}
		for _, field := range []string{"floorSeconds", "ratioToFloor", "writes", "cpuSeconds", "peakRSSMiB"} {
			if _, ok := run[field]; !ok {
				t.Errorf("run %d: no %s", i, field)
			}
		}
		if _, ok := run["curves"]; ok {
			t.Errorf("run %d has curves", i)
		}
	}
	first := runs[0].(map[string]any)
	if diff := cmp.Diff(map[string]any{"pods/create": 10000.0, "jobs.batch.volcano.sh/status": 500.0}, first["writes"]); diff != "" {
		t.Error(diff)
	}
	for _, component := range []string{"apiserver", "etcd", "manager", "controllerManager", "nodes"} {
		if _, ok := first["cpuSeconds"].(map[string]any)[component].(float64); !ok {
			t.Errorf("cpuSeconds has no %s", component)
		}
	}
}

func sameKind(want, got any) string {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return "is no object"
		}
		for k := range w {
			if diff := sameKind(w[k], g[k]); diff != "" {
				return k + " " + diff
			}
		}
	case string:
		if _, ok := got.(string); !ok {
			return "is no string"
		}
	case float64:
		if _, ok := got.(float64); !ok {
			return "is no number"
		}
	case bool:
		if _, ok := got.(bool); !ok {
			return "is no boolean"
		}
	case []any:
		if _, ok := got.([]any); !ok {
			return "is no list"
		}
	}
	return ""
}

func TestTable(t *testing.T) {
	var b bytes.Buffer
	if err := sample().Table(&b, false); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(b.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 100 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	const golden = "testdata/table.golden"
	if *update {
		if err := os.WriteFile(golden, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("(-want +got; go test -update writes it anew)\n%s", diff)
	}
}

// TestPageStandsAlone checks that nothing in the page makes a browser send a request, and that
// names are not interpreted as markup.
func TestPageStandsAlone(t *testing.T) {
	var b bytes.Buffer
	p := sample().Page()
	if err := p.HTML(&b); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	if m := regexp.MustCompile(`(?i)(src|href)\s*=|url\(\s*["']?(https?:)?//|@import|fetch\(|XMLHttpRequest`).FindAllString(page, -1); m != nil {
		t.Errorf("the page may load something: %q", m)
	}
	for _, raw := range []string{"<script>alert(1)", "<b>host</b>"} {
		if strings.Contains(page, raw) {
			t.Errorf("%q is in the page as it is", raw)
		}
	}
	for _, want := range []string{"500x20", "500 jobs of 20 pods", "1.13", "no luck", "Permission is hereby granted"} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not in the page", want)
		}
	}
}

// TestVerdicts checks the sentence at the head of the page.
func TestVerdicts(t *testing.T) {
	run := func(system, shape string, repeat int, seconds float64) *Run {
		return &Run{System: system, Shape: shape, Repeat: repeat, Result: analyse.Result{Pods: 100, Scheduled: 100, ScheduleSeconds: seconds}}
	}
	with := func(r *Run, change func(*Run)) *Run { change(r); return r }
	ratio := func(x float64) func(*Run) {
		return func(r *Run) { r.Floor, r.RatioToFloor, r.FloorSeconds = &Floor{}, &x, &x }
	}
	noFloor := func(r *Run) { r.Floor = &Floor{None: "no floor"} }
	writes := func(n string) func(*Run) {
		return func(r *Run) { r.Settings = map[string]string{"manager writes in flight": n} }
	}
	for want, runs := range map[string][]*Run{
		"lockstep: 100 pods in 2.00 s, 50 a second, 1.04 × the floor, nothing lost":                                             {with(run("lockstep", "1x100", 1, 2), ratio(1.04))},
		"lockstep: 5.1 times as fast as kubernetes, nothing lost":                                                               {run("lockstep", "1x100", 1, 2), run("kubernetes", "1x100", 1, 10.2)},
		"lockstep: 1.50 to 4.0 times as fast as kubernetes, nothing lost":                                                       {run("lockstep", "1x100", 1, 2), run("kubernetes", "1x100", 1, 3), run("lockstep", "10x10", 1, 2), run("kubernetes", "10x10", 1, 8)},
		"lockstep: slower than kubernetes, 2.0 times its time, nothing lost":                                                    {run("lockstep", "1x100", 1, 4), run("kubernetes", "1x100", 1, 2)},
		"lockstep: 0.50 to 2.0 times as fast as kubernetes, depending on the load, nothing lost":                                {run("lockstep", "1x100", 1, 4), run("kubernetes", "1x100", 1, 2), run("lockstep", "10x10", 1, 2), run("kubernetes", "10x10", 1, 4)},
		"lockstep: as fast as toy within the error (1.00 times), nothing lost":                                                  {run("lockstep", "1x100", 1, 2), run("toy", "1x100", 1, 2.2), run("lockstep", "1x100", 2, 2.2), run("toy", "1x100", 2, 2)},
		"lockstep: 2.5 times as fast as toy, which so few runs do not make certain (95 % confidence: 0.18 to 35), nothing lost": {run("lockstep", "1x100", 1, 2.8), run("toy", "1x100", 1, 8.55), run("lockstep", "1x100", 2, 3.95), run("toy", "1x100", 2, 7.95)},
		"lockstep: 2.0 times as fast as toy (95 % confidence: 2.0), nothing lost":                                               {run("lockstep", "1x100", 1, 2), run("toy", "1x100", 1, 4), run("lockstep", "1x100", 2, 3), run("toy", "1x100", 2, 6)},
		"lockstep: 100 pods in 1.00 s to 2.00 s, the fastest is lockstep, gang, nothing lost":                                   {run("lockstep", "1x100", 1, 2), with(run("lockstep", "1x100", 1, 1), func(r *Run) { r.Gang = true })},
		"lockstep: 100 pods in 2.00 s, 50 a second, 3 violations, 1 run not measured":                                           {with(run("lockstep", "1x100", 1, 2), func(r *Run) { r.Invariants.Violations = []string{"a", "b", "c"} }), {System: "kubernetes", Shape: "1x100", Error: "x"}},
		"toy: 40 pods failed or without a node, the time ran out in 1 run":                                                      {with(run("toy", "1x100", 1, 2), func(r *Run) { r.TimedOut, r.Failed = "--timeout", 40 })},
		"lockstep: 2 loads in 2.00 s to 3.00 s, 1.20 × the floor (no floor in 1 of 2 runs), nothing lost":                       {with(run("lockstep", "1x100", 1, 2), ratio(1.2)), with(run("lockstep", "10x10", 1, 3), noFloor)},
		"lockstep: 100 pods in 2.00 s, 50 a second, no floor, because the bare client was slower, nothing lost":                 {with(run("lockstep", "1x100", 1, 2), noFloor)},
		"lockstep: adaptive takes 1.10 × the time of the best of 3 fixed settings, lockstep w=16, nothing lost": {
			with(run("lockstep", "1x100", 1, 2.2), writes("adaptive")), with(run("lockstep", "1x100", 1, 8), writes("1")),
			with(run("lockstep", "1x100", 1, 2), writes("16")), with(run("lockstep", "1x100", 1, 3), writes("256"))},
		"nothing was measured": nil,
	} {
		r := &Report{Report: series.Report[*Run]{Runs: runs}}
		if got := r.verdict(); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}

// TestEqualRunsAreOneRow checks the table of a page with repeats.
func TestEqualRunsAreOneRow(t *testing.T) {
	var runs []*Run
	for i, seconds := range []float64{10, 12, 14} {
		for _, system := range []string{"lockstep", "kubernetes"} {
			if system == "kubernetes" {
				seconds *= 3
			}
			runs = append(runs, &Run{System: system, Shape: "1x100", Repeat: i + 1, Result: analyse.Result{Pods: 100, Scheduled: 100, ScheduleSeconds: seconds}})
		}
	}
	p := (&Report{Report: series.Report[*Run]{Runs: runs}}).Page()
	var text [][]string
	for _, row := range p.Sections[0].Tables[0].Rows {
		var cells []string
		for _, cell := range row[:5] {
			cells = append(cells, cell.Text)
		}
		text = append(text, cells)
	}
	want := [][]string{{"1x100", "lockstep", "12.0 s ± 4.97 s", "10.0 s to 14.0 s", "3.0 × (3.0 to 3.0)"},
		{"1x100", "kubernetes", "36.0 s ± 14.9 s", "30.0 s to 42.0 s", "slowest"}}
	if diff := cmp.Diff(want, text); diff != "" {
		t.Error(diff)
	}
	if n := len(p.Sections[1].Details); n != 6 {
		t.Errorf("%d of 6 runs have their figures", n)
	}
}

// TestAFasterRunHasNoFloor checks that a ratio is given only if the floor bounds the run.
func TestAFasterRunHasNoFloor(t *testing.T) {
	tries := []try{{Try: Try{Order: "slow", PodsSeconds: 3}}, {Try: Try{Order: "fast", Concurrency: 16, PodsSeconds: 2, Seconds: 2.5}}}
	r := &Run{Result: analyse.Result{ScheduleSeconds: 2.5}}
	r.judgeFloor(&Floor{}, tries)
	if r.RatioToFloor == nil || *r.RatioToFloor != 1.25 || *r.FloorSeconds != 2 || r.Floor.Order != "fast" || r.Floor.None != "" {
		t.Errorf("ratio %v, floor %+v", r.RatioToFloor, r.Floor)
	}
	r = &Run{Result: analyse.Result{ScheduleSeconds: 1.9}}
	r.judgeFloor(&Floor{}, tries)
	const want = "no floor: the run (1.90s) was faster than the bare client at its best (2.00s)"
	if r.RatioToFloor != nil || r.FloorSeconds != nil || r.Floor.None != want || len(r.Floor.Tries) != 2 {
		t.Errorf("ratio %v, floor %+v", r.RatioToFloor, r.Floor)
	}
	if line := r.Line(); !strings.Contains(line, want) {
		t.Error(line)
	}
}

// TestTheVerdictOnAStep has ten jobs a second, which wait for equally long, or longer and longer.
func TestTheVerdictOnAStep(t *testing.T) {
	for want, wait := range map[string]func(i int) time.Duration{
		capacity.KeptUp:     func(int) time.Duration { return time.Second },
		capacity.FellBehind: func(i int) time.Duration { return time.Duration(i) * 10 * time.Millisecond },
		capacity.TooShort:   func(int) time.Duration { return 6 * time.Second },
	} {
		var sent []drive.Sent
		var scheduled []time.Time
		start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		for i := range 100 {
			due := start.Add(time.Duration(i) * 100 * time.Millisecond)
			sent, scheduled = append(sent, drive.Sent{Due: due}), append(scheduled, due.Add(wait(i)))
		}
		s := RateStep{Jobs: len(sent)}
		if s.judge(sent, scheduled); s.Verdict != want {
			t.Errorf("%q, want %q: %d waiting, growth %v", s.Verdict, want, s.Waiting, s.Growth)
		}
	}
}

// TestSearchesThatEndedEarly has a search that was interrupted, whose steps are shown, and one whose
// observer lost events, which has no rate.
func TestSearchesThatEndedEarly(t *testing.T) {
	r := &Report{}
	for i, rate := range []Rate{{Sustained: 120, PodsPerJob: 1, Steps: []RateStep{{Rate: 120, Verdict: capacity.KeptUp}}}, {PodsPerJob: 1, Steps: []RateStep{}}} {
		run := &Run{System: []string{"cut", "lost"}[i], Scenario: scenario.Rate, Shape: "1x1", Repeat: 1, Rate: &rate, Settings: map[string]string{}}
		run.Invariants.Violations = []string{}
		r.Runs = append(r.Runs, run)
	}
	r.Runs[0].Error, r.Runs[1].Lost = "interrupted: signal", "the audit log was truncated"
	p := r.Page()
	const want = "cut keeps up with 120 jobs of 1 pod a second, as far as the search came, the observer lost events in 1 run, 1 run not measured"
	if p.Verdict != want || !p.Bad {
		t.Errorf("%s\nwant %s", p.Verdict, want)
	}
	if n := len(p.Sections[0].Tables[0].Rows); n != 1 {
		t.Errorf("%d rows", n)
	}
	if line := series.Line(r.Runs[1]); line != "lost 1x1: no result: the observer lost events: the audit log was truncated" {
		t.Error(line)
	}
}

// TestRatesAreCompared has a system that keeps up with every rate, and one that does not.
func TestRatesAreCompared(t *testing.T) {
	r := &Report{}
	for i, rate := range []Rate{{Sustained: 120, PodsPerJob: 1, Bound: "no rate above --rate-max was tried", Steps: []RateStep{{}}},
		{Sustained: 30, Behind: 31, PodsPerJob: 1, Steps: []RateStep{{}}}} {
		run := &Run{System: []string{"fast", "slow"}[i], Scenario: scenario.Rate, Shape: "1x1", Repeat: 1, Rate: &rate, Settings: map[string]string{}}
		run.Invariants.Violations = []string{}
		r.Runs = append(r.Runs, run)
	}
	const want = "fast keeps up with 120 jobs of 1 pod a second (no rate above --rate-max was tried); slow keeps up with 30.0 jobs of 1 pod a second " +
		"and falls behind at 31.0; fast has at least 4.0 times the rate of slow, nothing lost"
	if got := r.Page().Verdict; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}
