package workflows

import (
	"bytes"
	"cmp"
	"strings"
	"testing"
	"time"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/capacity"
	"lockstep.dev/lockstep/internal/lab/drive"
	"lockstep.dev/lockstep/internal/lab/floor"
	"lockstep.dev/lockstep/internal/lab/rig"
	"lockstep.dev/lockstep/internal/lab/series"
)

func TestReports(t *testing.T) {
	curve := analyse.Curve{AtSeconds: []float64{0.1, 5}, Count: []int{1, 300}}
	r := &Report{series.Report[*Run]{Runs: []*Run{
		{Scenario: Queued, Shape: "hello", Repeat: 1, Workflows: 300, Succeeded: 300, Seconds: 5, PerMinute: 3600, FloorSeconds: 4, Ratio: 1.25, Created: curve, Ended: curve,
			BeyondMs: analyse.Percentiles{P50: 321}, FloorSamples: []floor.Sample{{Concurrency: 16, PerSecond: 91}},
			Writes: analyse.Writes{ByKind: map[string]int{"pods/create": 300}, Total: 300, Refused: map[string]int{"pods/create 409": 3}},
			Used:   rig.Used{CPUSeconds: map[string]float64{"manager": 2.5}, PeakMiB: map[string]float64{"manager": 77}}, Verdict: series.Verdict{Checked: 600}},
		{Scenario: Rate, Shape: "chain-3", Repeat: 1, Workflows: 100, Seconds: 10, SustainedPerSecond: 7.5, Steps: []Step{{Asked: 5, Sent: 5, KeptUp: true, Verdict: capacity.KeptUp}, {Asked: 7.5, Verdict: capacity.FellBehind}},
			Verdict: series.Verdict{Violations: []string{"w-00001 is <b>lost</b>"}}},
		{Scenario: Queued, Shape: "hello", Repeat: 2, WritesInFlight: 4, Verdict: series.Verdict{Error: "no disk"}},
		{Scenario: Rate, Shape: "hello", Repeat: 1, SustainedPerSecond: 9, Steps: []Step{{Asked: 9, Sent: 8.9, KeptUp: true, Verdict: capacity.KeptUp}}, Verdict: series.Verdict{Error: "interrupted: signal"}},
	}}}
	var table, html bytes.Buffer
	if err := r.Table(&table, false); err != nil {
		t.Fatal(err)
	}
	p := r.Page()
	if err := p.HTML(&html); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"321ms", "3600", "1.25", "7.5/s", "no disk", "queued hello w=4 #2", "rate chain-3"} {
		shown := map[string]string{"321ms": "321 ms", "3600": "3,600"} // on the page
		if !strings.Contains(table.String(), want) || !strings.Contains(html.String(), cmp.Or(shown[want], want)) {
			t.Errorf("%q is missing in the page or in:\n%s", want, table.String())
		}
	}
	for _, want := range []string{"refused: pods/create 409", "77 MiB", "91/s", "fell behind", "The search did not come to its end.", "8.9/s",
		"keeps up with 7.5 to 9.0 workflows a second, as far as the search came, 300 of 400 workflows succeeded, 3,600 a minute, 1.25 × the floor, 2 runs not measured, 1 violation"} {
		if !strings.Contains(html.String(), want) {
			t.Errorf("%q is missing in the page", want)
		}
	}
	if strings.Contains(html.String(), "<b>lost</b>") {
		t.Error("the page is not escaped")
	}
}

// TestTheVerdictOnAStep has ten workflows a second, each of one pod of 4 s, which end with the same delay,
// or with a longer and longer one, or are sent later and later.
func TestTheVerdictOnAStep(t *testing.T) {
	const pods = 4 * time.Second
	constant := func(d time.Duration) func(int) time.Duration { return func(int) time.Duration { return d } }
	growing := func(i int) time.Duration { return time.Duration(i) * 10 * time.Millisecond }
	for sentence, c := range map[string]struct {
		delay, lag func(i int) time.Duration
		want       string
	}{
		"a short delay beside long pods":                 {constant(2 * time.Second), constant(0), capacity.KeptUp},
		"a growing delay":                                {growing, constant(0), capacity.FellBehind},
		"a delay that is longer than half of the step":   {constant(6 * time.Second), constant(0), capacity.TooShort},
		"a client that sends later and later than asked": {growing, growing, capacity.ClientBehind},
	} {
		var sent []drive.Sent
		start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		for i := range 100 {
			sent = append(sent, drive.Sent{Due: start.Add(time.Duration(i) * 100 * time.Millisecond), Lag: c.lag(i)})
		}
		s := Step{}
		s.judge(sent, func(i int) time.Time { return sent[i].Due.Add(c.delay(i) + pods) }, pods)
		if s.Verdict != c.want || s.KeptUp != (c.want == capacity.KeptUp) {
			t.Errorf("%s: %q, want %q: %+v", sentence, s.Verdict, c.want, s)
		}
	}
}
