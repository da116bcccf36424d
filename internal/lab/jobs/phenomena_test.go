package jobs

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/metrics"
	"lockstep.dev/lockstep/internal/lab/page"
	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/lab/series"
	"lockstep.dev/lockstep/internal/lab/system"
)

// reportOf returns a report of complete runs of a scenario, of 100 pods each.
func reportOf(name string, runs ...*Run) *Report {
	for _, r := range runs {
		r.System, r.Scenario, r.Repeat = "lockstep", name, max(1, r.Repeat)
		r.Pods, r.Scheduled = 100, 100
		r.Invariants.Violations = []string{}
	}
	return &Report{Report: series.Report[*Run]{Runs: runs}}
}

// column returns the cells of one column of a table.
func columnOf(t *testing.T, table page.Table, title string) (out []string) {
	t.Helper()
	for i, c := range table.Columns {
		if c.Title != title {
			continue
		}
		for _, row := range table.Rows {
			out = append(out, row[i].Text)
		}
		return out
	}
	t.Fatalf("no column %s", title)
	return nil
}

// TestWhatAdmissionCosts has a webhook that costs little, one that slows down, and one by whose
// time-out nearly all creates fail.
func TestWhatAdmissionCosts(t *testing.T) {
	admitted := func(by string, seconds float64, refused, late int) *Run {
		r := &Run{Shape: "1x100", Settings: map[string]string{}, Result: analyse.Result{ScheduleSeconds: seconds, Writes: map[string]int{"pods/create": 100 + refused}}}
		if by != "" {
			r.Settings[admissionSetting] = by
		}
		if strings.HasPrefix(by, "webhook") {
			r.Metrics = &metrics.Figures{Server: &metrics.Server{Webhooks: map[string]metrics.Histogram{"w": {Count: 200, MeanMs: 10 * seconds}}}}
		}
		if refused > 0 {
			r.Refused = map[string]int{"pods/create 500": refused, "jobs/status 409": 7}
			r.Causes = map[string]int{`pods/create: failed calling webhook "w": Post "https://w/?timeout=10s": context deadline exceeded`: late}
			r.Causes[`pods/create: failed calling webhook "w": Post "https://w/?timeout=10s": connection refused`] = refused - late
		}
		return r
	}
	p := reportOf(scenario.Admission, admitted("", 1, 0, 0), admitted("cel", 1.1, 0, 0), admitted("webhook 0s, time-out 10s", 2.2, 0, 0),
		admitted("webhook 20ms, time-out 30s", 22, 40, 30), admitted("webhook 20ms, time-out 10s", 44, 2000, 2000)).Page()
	const want = "lockstep: CEL rules take 1.10 × the time without admission; compared with CEL rules it takes 2.0 × with webhook 0s and time-out 10s, " +
		"20 × with webhook 20ms and time-out 30s, 40 × with webhook 20ms and time-out 10s; 2,040 of 2,340 creates with webhooks were refused (2,030 by time-out), nothing lost"
	if p.Verdict != want {
		t.Errorf("%s\nwant %s", p.Verdict, want)
	}
	table := p.Sections[0].Tables[0]
	if diff := cmp.Diff([]string{"–", "costs little", "slows down", "refuses creates", "collapses"}, columnOf(t, table, "Verdict")); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"0", "0", "0", "40 (30 by time-out)", "2,000 (2,000 by time-out)"}, columnOf(t, table, "Creates refused")); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"–", "–", "22 ms", "220 ms", "440 ms"}, columnOf(t, table, "One review")); diff != "" {
		t.Errorf("reviews (-want +got):\n%s", diff)
	}
}

// TestTheValleyOfTheWriters has a V, a flat valley, and a curve that still falls at its end.
func TestTheValleyOfTheWriters(t *testing.T) {
	for want, seconds := range map[string][4]float64{
		"1 takes 4.0 × the time of 25, the best of 4 fixed numbers of writes in flight, and 600 takes 3.0 ×: too many are slower again":                          {8, 2, 3, 6},
		"1 takes 4.0 × the time of 25, the best of 4 fixed numbers of writes in flight, and 600 takes 1.05 ×: the valley is flat, too many do not collapse here": {8, 2, 2.2, 2.1},
		"1 takes 4.0 × the time of 600, the best of 4 fixed numbers of writes in flight, which is the highest: more do not collapse here":                        {8, 4, 3, 2},
		"few writes in flight do not starve the server here: with 1 it takes no longer than with 25, the best, and 600 takes 2.0 ×: too many are slower again":   {2.1, 2, 2.2, 4},
		"1, the fewest, are the best of 4 fixed numbers of writes in flight, and 600 takes 2.0 ×: too many are slower again":                                     {2, 2.2, 3, 4},
	} {
		var runs []*Run
		for i, n := range []string{"1", "25", "100", "600"} {
			runs = append(runs, &Run{Shape: "5x20", Settings: map[string]string{system.WritesInFlight: n}, Result: analyse.Result{ScheduleSeconds: seconds[i]}})
		}
		runs = append(runs, &Run{Shape: "5x20", Settings: map[string]string{system.WritesInFlight: "adaptive"}, Result: analyse.Result{ScheduleSeconds: 2.1}})
		p := reportOf(scenario.BatchWorkers, runs...).Page()
		if got, _, _ := strings.Cut(p.Verdict, ". Lockstep: adaptive takes"); got != want {
			t.Errorf("%s\nwant %s", p.Verdict, want)
		}
		if n := len(p.Sections[0].Charts); n != 1 || len(p.Sections[2].Charts) != 0 {
			t.Errorf("%d charts of the valley, %d of the times", n, len(p.Sections[2].Charts))
		}
		if seconds[3] == 6 {
			if diff := cmp.Diff([]string{"too few", "the best", "too many", "too many", "in the valley"}, columnOf(t, p.Sections[0].Tables[0], "Verdict")); diff != "" {
				t.Errorf("verdicts (-want +got):\n%s", diff)
			}
		}
	}
}

// TestTheTimeOverTheNumberOfJobs has three shapes, with gangs and without.
func TestTheTimeOverTheNumberOfJobs(t *testing.T) {
	var runs []*Run
	for i, shape := range []string{"100x1", "10x10", "1x100"} {
		for _, gang := range []bool{true, false} {
			r := &Run{Shape: shape, Gang: gang, Settings: map[string]string{}, Result: analyse.Result{ScheduleSeconds: []float64{6, 2, 3}[i]}}
			if floor := 1.5; gang {
				r.FloorSeconds, r.RatioToFloor = &floor, &floor
			}
			runs = append(runs, r)
		}
	}
	p := reportOf(scenario.BatchShapes, runs...).Page()
	const want = "lockstep, gang takes 2.00 s (10x10) to 6.00 s (100x1); lockstep takes 2.00 s (10x10) to 6.00 s (100x1), 1.50 × the floor, nothing lost"
	if p.Verdict != want {
		t.Errorf("%s\nwant %s", p.Verdict, want)
	}
	lines := p.Sections[0].Charts[0].Lines
	if len(lines) != 3 || lines[1].Name != "floor of lockstep, gang" {
		t.Fatalf("%+v", lines)
	}
	if diff := cmp.Diff(lines[0].X, []float64{1, 10, 100}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestTuneAdvisesWhatItTried has a run of stock Kubernetes that is faster with more syncs.
func TestTuneAdvisesWhatItTried(t *testing.T) {
	cfg := Config{Systems: []string{"kubernetes"}, Shapes: []scenario.Shape{{Jobs: 4, PodsPerJob: 25}}, Config: series.Config{Durable: true}}
	rungs, err := cfg.ladder()
	if err != nil {
		t.Fatal(err)
	}
	stock, err := system.New("kubernetes", system.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var runs []*Run
	for _, rung := range rungs {
		r := &Run{Shape: "4x25", Settings: stock.Settings(), Result: analyse.Result{ScheduleSeconds: 8}}
		if rung.parameter == "kubernetes-job-syncs" {
			r.ScheduleSeconds = 6
		}
		r.Metrics = &metrics.Figures{Controllers: map[string]*metrics.Controller{"kube-controller-manager": {Queues: map[string]metrics.Queue{
			"job": {DepthMax: 95, Wait: metrics.Histogram{Count: 100, MeanMs: 4000}, Work: metrics.Histogram{Count: 100, MeanMs: 490, Seconds: 39}}}}}}
		runs = append(runs, r)
	}
	rep := reportOf(ScenarioTune, runs...)
	rep.conclude(rungs)
	if len(rep.Tune.Findings) != 1 {
		t.Fatalf("findings %+v", rep.Tune.Findings)
	}
	advice := strings.Join(rep.Tune.Findings[0].Advice[1:], "; ")
	if want := system.JobSyncs + ": 20, now 5"; advice != want {
		t.Errorf("advice %q, want %q", advice, want)
	}
}
