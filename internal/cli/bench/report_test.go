package bench

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/jobs"
	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/lab/series"
)

// results writes the results of one run of each system.
func results(t *testing.T, scenario string, lockstep, kubernetes float64) string {
	t.Helper()
	dir := t.TempDir()
	rep := &jobs.Report{Report: series.Report[*jobs.Run]{SchemaVersion: series.Schema, Time: time.Now(), Config: map[string]any{"scenario": scenario},
		Machine: series.Machine{Hostname: "h", CPUs: 2}}}
	for system, seconds := range map[string]float64{"lockstep": lockstep, "kubernetes": kubernetes} {
		ratio := seconds / 10
		curve := analyse.Curve{AtSeconds: []float64{seconds / 10, seconds}, Count: []int{10, 100}}
		rep.Runs = append(rep.Runs, &jobs.Run{System: system, Scenario: scenario, Shape: "10x10", Repeat: 1, RatioToFloor: &ratio, FloorSeconds: &seconds,
			Result: analyse.Result{Pods: 100, Created: 100, Scheduled: 100, ScheduleSeconds: seconds, CreateSeconds: seconds,
				Curves: &analyse.Curves{Created: curve, Scheduled: curve}}})
	}
	if rep.Runs[0].System != "lockstep" {
		rep.Runs[0], rep.Runs[1] = rep.Runs[1], rep.Runs[0]
	}
	if err := series.Save(dir, rep, rep.Page()); err != nil {
		t.Fatal(err)
	}
	return dir
}

func run(args ...string) (string, error) {
	var out bytes.Buffer
	cmd := New(command.Streams{Out: &out, Err: io.Discard}, "test")
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(append([]string{"report"}, args...))
	err := cmd.Execute()
	return out.String(), err
}

// TestAnExportHasTheFiguresOfCurves exports a report whose verdict has a rate that is computed from a
// curve: exports have no curves.
func TestAnExportHasTheFiguresOfCurves(t *testing.T) {
	dir := results(t, scenario.Queued, 10, 20)
	if _, err := run(dir, "--export", "markdown"); err != nil {
		t.Fatal(err)
	}
	const want = "drained at 10.0/s"
	if text, err := os.ReadFile(filepath.Join(dir, "report.md")); err != nil || !strings.Contains(string(text), want) {
		t.Errorf("%v, no %q in\n%s", err, want, text)
	}
}

func TestReport(t *testing.T) {
	first, second := results(t, scenario.Batch, 11, 30), results(t, scenario.Batch, 12, 36)
	if err := os.Remove(filepath.Join(first, series.PageFile)); err != nil {
		t.Fatal(err)
	}
	out, err := run(first, "--export", "markdown,csv,json")
	if err != nil || !strings.Contains(out, "11.0s") || !strings.HasSuffix(out, "\n\nlockstep: 2.7 times as fast as kubernetes, 1.10 × the floor, nothing lost\n") {
		t.Errorf("%v\n%s", err, out)
	}
	for name, want := range map[string]string{
		series.PageFile: "lockstep: 2.7 times as fast as kubernetes, 1.10 × the floor, nothing lost", "report.md": "| 10x10 | lockstep | 11.0 s |",
		"report.csv": "scheduleSeconds,", "report.json": `"scheduleSeconds": 11`,
	} {
		if text, err := os.ReadFile(filepath.Join(first, name)); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %v, no %q in\n%.2000s", name, err, want, text)
		}
	}
	if text, err := os.ReadFile(filepath.Join(first, "report.json")); err != nil || strings.Contains(string(text), "curves") {
		t.Errorf("the curves are exported: %v", err)
	}
	// Two folders are repeats of the same runs.
	both := filepath.Join(t.TempDir(), "both")
	if _, err := run(first, second, "--out", both, "--export=markdown"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(both, "report.md"))
	if want := "2.9 times as fast as kubernetes"; err != nil || !strings.Contains(string(text), want) || !strings.Contains(string(text), "11.5 s ± 6.35 s") {
		t.Errorf("%v, no %q in\n%s", err, want, text)
	}
	if text, err := os.ReadFile(filepath.Join(both, series.PageFile)); err != nil || !strings.Contains(string(text), `"name":"lockstep (median of 2)"`) {
		t.Errorf("the curves are lost: %v", err)
	}
}

func TestThresholdsHaveAnExitCode(t *testing.T) {
	dir := results(t, scenario.Batch, 11, 30)
	var crossed command.ThresholdError
	if _, err := run(dir, "--fail-if", "ratioToFloor>3"); err != nil {
		t.Error(err)
	}
	_, err := run(dir, "--fail-if", "ratioToFloor>1.2", "--fail-if=invariants.violations>0")
	if !errors.As(err, &crossed) || len(crossed.Crossed) != 1 || crossed.Crossed[0] != "kubernetes 10x10: ratioToFloor is 3: ratioToFloor>1.2" {
		t.Error(err)
	}
	var usage command.UsageError
	for _, text := range []string{"ratio>1", "ratioToFloor", "system>1"} {
		if _, err := run(dir, "--fail-if", text); !errors.As(err, &usage) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestReportsThatCannotBeCombinedAreRefused(t *testing.T) {
	batch, other := results(t, scenario.Batch, 1, 2), results(t, "workflows-queued", 1, 2)
	var usage command.UsageError
	for sentence, args := range map[string][]string{
		"no place for the report of two": {batch, batch}, "an unknown form": {batch, "--export=pdf"}, "no folder": {},
	} {
		if _, err := run(args...); !errors.As(err, &usage) {
			t.Errorf("%s: %v", sentence, err)
		}
	}
	for sentence, args := range map[string][]string{
		"two scenarios": {batch, other, "--out", t.TempDir()}, "no results": {t.TempDir()},
		"an unknown scenario": {results(t, "x", 1, 2)},
	} {
		if _, err := run(args...); err == nil {
			t.Errorf("%s: accepted", sentence)
		}
	}
}
