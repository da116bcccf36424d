package series

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/page"
)

type run struct {
	Name   string `json:"name"`
	Repeat int    `json:"repeat"`
	Verdict
}

func (r *run) Title() string { return r.Name }
func (r *run) Line() string  { return "3 of 3" }

func (r *run) Repeated() *int { return &r.Repeat }

func TestRunsAreTakenInWithWhatCameOfThem(t *testing.T) {
	r, err := New[*run](Config{OutDir: filepath.Join(t.TempDir(), "out"), Version: "v"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	good, bad, failed, missed := &run{Name: "good"}, &run{Name: "bad"}, &run{Name: "failed"}, &run{Name: "missed"}
	for _, c := range []struct {
		run     *run
		measure func(context.Context) error
		line    string
	}{
		{good, func(context.Context) error { return nil }, "good: 3 of 3, 0 violations"},
		{bad, func(context.Context) error { bad.Bad("%d pods are %s", 2, "lost"); return nil }, "bad: 3 of 3, 1 violations"},
		{failed, func(context.Context) error { return errors.New("no disk") }, "failed: not measured: no disk"},
		{missed, func(context.Context) error {
			missed.Bad("a pod is lost, as far as the events say")
			missed.Lost = "the log was cut"
			return nil
		}, "missed: no result: the observer lost events: the log was cut"},
	} {
		if err := r.Make(t.Context(), c.run, c.measure); err != nil {
			t.Fatal(err)
		}
		if got := Line(c.run); got != c.line {
			t.Errorf("%q, want %q", got, c.line)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cut := &run{Name: "cut"}
	err = r.Make(ctx, cut, func(context.Context) error {
		if n := len(r.Runs); n != 5 || r.Runs[4] != cut || cut.Error == "" {
			t.Errorf("while it is made, a run is not in the report as one that is not finished: %+v of %d", r.Runs[n-1], n)
		}
		cancel()
		return errors.New("connection refused")
	})
	if !errors.Is(err, context.Canceled) || len(r.Runs) != 5 || cut.Error != "interrupted: context canceled" {
		t.Errorf("an interrupted run: %v, and %d runs, the last %+v", err, len(r.Runs), cut)
	}
	kept := &run{Name: "kept"}
	err = r.Make(ctx, kept, func(ctx context.Context) error { return kept.FloorError(ctx, errors.New("connection refused")) })
	if !errors.Is(err, context.Canceled) || kept.Error != "" || !slices.Contains(kept.Notes(2), "the measurement of its floor was interrupted") {
		t.Errorf("a run that was interrupted while its floor was measured: %v, %+v", err, kept)
	}
	r.Runs = r.Runs[:4]
	if n := len(missed.Violations); n > 0 {
		t.Errorf("%d violations by events of which some are missing", n)
	}
	if diff := cmp.Diff([]*run{good, bad}, r.Measured()); diff != "" {
		t.Error(diff)
	}
	if err := r.Faults(); err == nil || err.Error() != "bad: 1 violations\nfailed: not measured: no disk\nmissed: the observer lost events: the log was cut" {
		t.Errorf("faults: %v", err)
	}
	var faults bytes.Buffer
	if err := r.WriteFaults(&faults); err != nil || faults.String() != "bad: 2 pods are lost\nfailed: no disk\n"+
		"missed: the observer lost events, so there is no time and no ratio: the log was cut\n" {
		t.Errorf("%q, %v", faults.String(), err)
	}
}

func TestViolationsAreBounded(t *testing.T) {
	var v Verdict
	for range 10 * maxViolations {
		v.Bad("again")
	}
	if len(v.Violations) != maxViolations {
		t.Error(len(v.Violations))
	}
}

func TestSavedReportsAreWholeAndEscaped(t *testing.T) {
	dir := t.TempDir()
	type report struct {
		Report[*run]
		Extra int `json:"extra"`
	}
	inner, err := New[*run](Config{OutDir: dir}, map[string]any{"flag": []string{"<i>"}})
	if err != nil {
		t.Fatal(err)
	}
	r := report{inner, 7}
	r.Runs = append(r.Runs, &run{Name: "<b>one</b>", Verdict: Verdict{Violations: []string{"<script>bad"}}})
	p := r.Page("a <page>")
	p.Verdict, p.Sections = "one <u>", []page.Section{{Title: "s", Charts: []page.Chart{{Lines: []page.Line{
		page.Cumulative("half </script>", analyse.Curve{AtSeconds: []float64{0, 5}, Count: []int{0, 4}})}}}}}
	if err := Save(dir, r, p); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, ResultFile))
	if err != nil {
		t.Fatal(err)
	}
	var saved report
	if err := json.Unmarshal(data, &saved); err != nil {
		t.Fatal(err)
	}
	if saved.Extra != 7 || saved.SchemaVersion != "v1" || len(saved.Runs) != 1 || saved.Runs[0].Violations[0] != "<script>bad" {
		t.Errorf("saved %s", data)
	}
	html, err := os.ReadFile(filepath.Join(dir, PageFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, raw := range []string{"<b>one", "<script>bad", "a <page>", "<i>", "one <u>", "half </script>"} {
		if strings.Contains(string(html), raw) {
			t.Errorf("%s is not escaped", raw)
		}
	}
	if want := `"x":[0,0,5],"y":[0,0,4]`; !strings.Contains(string(html), want) {
		t.Errorf("the chart has no %s", want)
	}
}

func TestWhatAReaderHasToKnowIsNoted(t *testing.T) {
	c := Circumstances{OtherCPUs: 0.2}
	if got := c.Notes(2); got != nil {
		t.Error(got)
	}
	c = Circumstances{OtherCPUs: 0.5, TimedOut: "--timeout=1s ran out"}
	want := []string{"--timeout=1s ran out", "the machine was busy: other work used 0.5 of its 2 CPUs"}
	if diff := cmp.Diff(want, c.Notes(2)); diff != "" {
		t.Error(diff)
	}
}

// TestABusyMachineIsNotedOnce has three runs of which two were disturbed.
func TestABusyMachineIsNotedOnce(t *testing.T) {
	r := &Report[*run]{Machine: Machine{CPUs: 2}}
	for name, cpus := range map[string]float64{"a": 0.5, "b": 0.1, "c": 1.25} {
		r.Runs = append(r.Runs, &run{Name: name, Verdict: Verdict{Circumstances: Circumstances{OtherCPUs: cpus, Lost: map[string]string{"b": "all"}[name]}}})
	}
	want := []string{"b: the observer lost events, so there is no time and no ratio: all", "the machine was busy in 2 of 3 runs: other work used 0.5 to 1.2 of its 2 CPUs"}
	if diff := cmp.Diff(want, r.Page("").Warnings); diff != "" {
		t.Error(diff)
	}
	r.Runs = []*run{{Name: "a", Verdict: Verdict{Circumstances: Circumstances{OtherCPUs: 0.5}}}}
	if diff := cmp.Diff([]string{"a: the machine was busy: other work used 0.5 of its 2 CPUs"}, r.Page("").Warnings); diff != "" {
		t.Error(diff)
	}
}

func TestReportsAreCombined(t *testing.T) {
	read := func(runs ...*run) *Report[*run] {
		return &Report[*run]{SchemaVersion: Schema, Version: "v1", Config: map[string]any{"nodes": 10.0, "same": "x"}, Runs: runs,
			Machine: Machine{Hostname: "a", CPUs: 2}}
	}
	r, other := read(&run{Name: "a", Repeat: 1}, &run{Name: "a", Repeat: 2}), read(&run{Name: "a", Repeat: 1})
	other.Config["nodes"], other.Version = 20.0, "v2"
	if err := r.Combine(other); err != nil {
		t.Fatal(err)
	}
	if len(r.Runs) != 3 || r.Runs[2].Repeat != 3 || r.Version != "v1, v2" {
		t.Errorf("%+v", r)
	}
	if diff := cmp.Diff(map[string]any{"nodes": "10; 20", "same": "x"}, r.Config); diff != "" {
		t.Error(diff)
	}
	other.Machine.Hostname = "b"
	if err := r.Combine(other); err == nil {
		t.Error("reports of two machines are combined")
	}
}

func TestOnlyTheKnownSchemaIsRead(t *testing.T) {
	dir := t.TempDir()
	var r Report[*run]
	for text, want := range map[string]string{
		`{"schemaVersion":"v1","runs":[{"name":"a"}]}`: "", `{"schemaVersion":"v2"}`: `the schema version is "v2", and this program reads v1`, `{`: "unexpected end",
	} {
		if err := os.WriteFile(filepath.Join(dir, ResultFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Read(dir, &r); err == nil && want != "" || err != nil && (want == "" || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if len(r.Runs) != 1 || r.Runs[0].Name != "a" {
		t.Errorf("%+v", r)
	}
	// A directory of an earlier version has the report under its old name.
	if err := errors.Join(os.Remove(filepath.Join(dir, ResultFile)),
		os.WriteFile(filepath.Join(dir, oldResultFile), []byte(`{"schemaVersion":"v1","runs":[{"name":"old"}]}`), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := Read(dir, &r); err != nil || len(r.Runs) != 1 || r.Runs[0].Name != "old" {
		t.Errorf("%+v, %v", r, err)
	}
	if err := Read(t.TempDir(), &r); err == nil || !strings.Contains(err.Error(), ResultFile) {
		t.Errorf("no report: %v", err)
	}
}

func TestCSVHasALineForEachRun(t *testing.T) {
	r := Report[*run]{Runs: []*run{{Name: `a "b", c`, Repeat: 1, Verdict: Verdict{Checked: 3, Violations: []string{"x", "y"}}},
		{Name: "d", Repeat: 2, Verdict: Verdict{Circumstances: Circumstances{TimedOut: "late", OtherCPUs: 0.25}}}}}
	var b bytes.Buffer
	if err := writeCSV(&b, r); err != nil {
		t.Fatal(err)
	}
	const want = "checked,name,otherCPUs,repeat,timedOut,violations\n3,\"a \"\"b\"\", c\",0,1,,2\n0,d,0.25,2,late,\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
}
