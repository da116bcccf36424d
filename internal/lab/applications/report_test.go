package applications

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/floor"
	"lockstep.dev/lockstep/internal/lab/observe"
	"lockstep.dev/lockstep/internal/lab/rig"
	"lockstep.dev/lockstep/internal/lab/series"
)

func TestReports(t *testing.T) {
	curve := analyse.Curve{AtSeconds: []float64{0.1, 5}, Count: []int{1, 300}}
	r := &Report{series.Report[*Run]{Runs: []*Run{
		{Scenario: ScenarioSmall, Repeat: 1, Applications: 300, FloorPerSecond: 90, FloorConcurrency: 16, Ratio: 1.5, RestCPUSeconds: 20.1, RestCPUMsPerHour: 0.25,
			FloorSamples: []floor.Sample{{Concurrency: 16, PerSecond: 91}}, Phases: []Phase{
				{Name: "deploy", Done: 300, Seconds: 5, PerSecond: 60, TotalMs: analyse.Percentiles{P50: 1234}, Asked: &curve, Ran: &curve,
					Writes: analyse.Writes{ByKind: map[string]int{"deployments.apps/create": 300}, Total: 300, Refused: map[string]int{"secrets/create 409": 3}},
					Used:   rig.Used{CPUSeconds: map[string]float64{"manager": 2.5}, PeakMiB: map[string]float64{"manager": 77}}},
				{Name: "hold", Seconds: 30},
				{Name: driftPhase, Done: driftMax, TotalMs: analyse.Percentiles{P50: 17, P99: 43}},
			}, Verdict: series.Verdict{Checked: 600, Violations: []string{"app-00001 is <b>lost</b>"}}},
		{Scenario: ScenarioSmall, Repeat: 2, Verdict: series.Verdict{Error: "no disk"}},
	}}}
	var table, html bytes.Buffer
	if err := r.Table(&table, false); err != nil {
		t.Fatal(err)
	}
	p := r.Page()
	if err := p.HTML(&html); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"1234ms", "90.0/s", "1.50", "0.25", "no disk", "apps-small #2"} {
		shown := want
		if want == "1234ms" {
			shown = "1.23 s"
		}
		if !strings.Contains(table.String(), want) || !strings.Contains(html.String(), shown) {
			t.Errorf("%q is missing in the page or in:\n%s", want, table.String())
		}
	}
	for _, want := range []string{"refused: secrets/create 409", "77 MiB", "91/s", "300 of 300 applications ran, 60.0 a second, 1.50 × the floor, 99 % of what others changed or deleted was repaired within 43 ms, 1 run not measured, 1 violation",
		"100 of 100"} {
		if !strings.Contains(html.String(), want) {
			t.Errorf("%q is missing in the page", want)
		}
	}
	if strings.Contains(html.String(), "<b>lost</b>") {
		t.Error("the page is not escaped")
	}
}

func TestWhatIsHeldIsToldAndExtrapolated(t *testing.T) {
	used := func(manager, server float64) rig.Used {
		return rig.Used{AnonMiB: map[string]float64{"manager": manager, "kube-apiserver": server, "kwok": 15}}
	}
	none, all := Phase{Name: "hold, none", Used: used(50, 300)}, Phase{Name: "hold", Used: used(60, 700)}
	got := held(&none, &all, 1024)
	if diff := cmp.Diff(map[string]float64{"manager": 10, "kube-apiserver": 400}, got); diff != "" {
		t.Fatal(diff)
	}
	if got := held(&Phase{Ran: &analyse.Curve{}}, &all, 1024); got != nil {
		t.Errorf("without a hold before there are any applications: %v", got)
	}
	r := &Report{series.Report[*Run]{Runs: []*Run{{Scenario: ScenarioHold, Applications: 1024, RestCPUSeconds: 9, RestCPUSecondsNone: 8, RestCPUMsPerHour: 0.1,
		Held: held(&none, &all, 1024), Phases: []Phase{none, all}}}}}
	var table, html bytes.Buffer
	p := r.Page()
	if err := errors.Join(r.Table(&table, false), p.HTML(&html)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"kube-apiserver 400.0 KiB, manager 10.0 KiB", "kube-apiserver 38.1 GiB, manager 1.0 GiB; 18.0 s"} {
		if !strings.Contains(table.String(), want) || !strings.Contains(html.String(), want) {
			t.Errorf("%q is missing in the page or in:\n%s", want, table.String())
		}
	}
}

// TestRepairsWhoseAnswersAreLate checks that answers may come in any order.
func TestRepairsWhoseAnswersAreLate(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	event := func(actor, name string, received, answered int) analyse.Event {
		return analyse.Event{Actor: actor, Resource: "secrets", Namespace: namespace, Name: name, Received: at(received), Time: at(answered), Code: 200}
	}
	got := repairs([]analyse.Event{
		event(observe.Manager, "a", 0, 5), // a creation, not a repair
		event(observe.Client, "a", 10, 20), event(observe.Manager, "a", 30, 60),
		event(observe.Manager, "b", 72, 75), event(observe.Client, "b", 70, 80),
		event(observe.Client, "c", 90, 95),
	})
	if diff := cmp.Diff([]float64{40, 0}, got); diff != "" {
		t.Error(diff)
	}
}

// TestTheVerdictOfSeveralManagers has a deployment by one manager and by three.
func TestTheVerdictOfSeveralManagers(t *testing.T) {
	curve := analyse.Curve{AtSeconds: []float64{0.1, 5}, Count: []int{1, 300}}
	r := &Report{series.Report[*Run]{Runs: []*Run{{Scenario: ScenarioShards, Applications: 300, TakeoverSeconds: 13, Phases: []Phase{
		{Name: "1 manager", Done: 300, PerSecond: 20, Ran: &curve}, {Name: "3 managers", Done: 300, PerSecond: 30, Ran: &curve}, {Name: "delete, 2 managers", PerSecond: 50},
	}}}}}
	const want = "Lockstep: 300 of 300 applications ran, 20.0 a second, 3 managers: 30.0 a second, 1.50 times the rate of one, " +
		"everything that was changed when one was killed ran within 13.0 s, nothing lost"
	if got := r.Page().Verdict; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}
