package cpus

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/lab/series"
)

func TestPlans(t *testing.T) {
	for name, c := range map[string]struct {
		machine topologyv1alpha1.Counts
		want    Plan
	}{
		"two CPUs":             {topologyv1alpha1.Counts{CPUs: 2, L3: 1}, Plan{Small: true, Why: "it has 2 CPUs", Server: 1, Pi: 1, PiPods: 1}},
		"one L3":               {topologyv1alpha1.Counts{CPUs: 16, L3: 1}, Plan{Small: true, Why: "its 16 CPUs share one L3 cache", Server: 2, Pi: 2, PiPods: 1}},
		"two L3":               {topologyv1alpha1.Counts{CPUs: 16, L3: 2}, Plan{Server: 4, Pi: 4, PiPods: 1, Together: true}},
		"256 CPUs in 32 L3":    {topologyv1alpha1.Counts{CPUs: 256, L3: 32}, Plan{Server: 8, Pi: 8, PiPods: 20, Together: true}},
		"two sockets, two L3s": {topologyv1alpha1.Counts{CPUs: 104, L3: 2}, Plan{Server: 26, Pi: 26, PiPods: 1, Together: true}},
	} {
		got := planFor(c.machine)
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
		if used := got.Server + got.Pi*got.PiPods; !got.Small && used > int(c.machine.CPUs)*2/3+got.Pi {
			t.Errorf("%s: %d CPUs are used", name, used)
		}
	}
}

func TestDigitsOfPi(t *testing.T) {
	if got := digits(50).String(); got != "314159265358979323846264338327950288419716939937510" {
		t.Error(got)
	}
}

func TestLoadsSayWhatTheyDid(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, address) }()
	var web Result
	// A busy machine may answer no request in a short time.
	for long := 50 * time.Millisecond; web.PerSecond == 0; long *= 2 {
		var err error
		if web, err = Drive(ctx, "http://"+address, 2, long); err != nil {
			t.Fatal(err)
		}
	}
	if web.PerSecond <= 0 || web.P50Ms <= 0 || web.P99Ms < web.P50Ms || web.Errors != 0 || web.Allowed == "" {
		t.Errorf("%+v", web)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := http.Get("http://" + address); err == nil {
		t.Error("it serves after its end")
	}
	var pi Result
	for long := 50 * time.Millisecond; pi.PerSecond == 0; long *= 2 {
		var err error
		if pi, err = Pi(t.Context(), 1, long); err != nil {
			t.Fatal(err)
		}
	}
	if pi.Allowed != web.Allowed {
		t.Errorf("%+v", pi)
	}
}

func TestReports(t *testing.T) {
	r := &Report{Plan: Plan{Small: true, Why: "it has 2 CPUs"}, Report: series.Report[*Run]{Runs: []*Run{
		{Mode: Unpinned, Web: Result{PerSecond: 100, P99Ms: 2}, Pi: Result{PerSecond: 10}, Pods: []Placed{{"web", "", "0-1"}}},
		{Mode: Pinned, Web: Result{PerSecond: 150, P99Ms: 1}, Pi: Result{PerSecond: 11}, Pods: []Placed{{"web", "0", "0"}}},
		{Mode: StaticBurst, Verdict: series.Verdict{Error: "<b>no</b>"}},
	}}}
	var table, html bytes.Buffer
	if err := r.Table(&table, false); err != nil {
		t.Fatal(err)
	}
	p := r.Page()
	if err := p.HTML(&html); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"cannot show a difference: it has 2 CPUs", "1.50"} {
		if !strings.Contains(table.String(), want) || !strings.Contains(html.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, table.String())
		}
	}
	if strings.Contains(html.String(), "<b>no</b>") {
		t.Error("the page is not escaped")
	}
	if err := r.Faults(); err == nil || !strings.Contains(err.Error(), "static-burst: not measured") {
		t.Error(err)
	}
}
