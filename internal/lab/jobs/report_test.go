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
