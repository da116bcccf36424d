package cpus

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
		got := sizesFor(c.machine)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
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
	r.Plan.Programs = []Program{{Name: "chase-8", Kernel: Chase}}
	misses, throttled := 0.5, 20.0
	r.Runs[0].Programs = []Ran{{"chase-8", Result{PerSecond: 2e6, P50Ms: 0.002, P99Ms: 0.004, ThrottledMs: &throttled}}}
	r.Runs[1].Programs = []Ran{{"chase-8", Result{PerSecond: 5e6, P50Ms: 0.001, P99Ms: 0.001, LLCMisses: &misses}}}
	var table, html bytes.Buffer
	if err := r.Table(&table, false); err != nil {
		t.Fatal(err)
	}
	p := r.Page()
	if err := p.HTML(&html); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"cannot show a difference: it has 2 CPUs", "1.50", "it would need 8 CPUs at least", "several L3 caches",
		"several NUMA nodes", "chase-8", "5.00 M/s", "2.50", "20 ms", "0.25"} {
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

// TestPrograms checks the programs of each kind of machine: they leave a third of it free, as the
// plan does, and STREAM runs where there are NUMA nodes to compare.
func TestPrograms(t *testing.T) {
	for name, c := range map[string]struct {
		machine topologyv1alpha1.Counts
		streams int
		lacks   []string
	}{
		"two CPUs":                    {topologyv1alpha1.Counts{CPUs: 2, L3: 1, NUMA: 1}, 0, []string{"8 CPUs", "L3 caches", "NUMA nodes"}},
		"one L3":                      {topologyv1alpha1.Counts{CPUs: 16, L3: 1, NUMA: 1}, 0, []string{"L3 caches", "NUMA nodes"}},
		"many L3 in one NUMA node":    {topologyv1alpha1.Counts{CPUs: 128, L3: 16, NUMA: 1}, 0, []string{"NUMA nodes"}},
		"256 CPUs in 8 NUMA nodes":    {topologyv1alpha1.Counts{CPUs: 256, L3: 32, NUMA: 8}, 8, nil},
		"two sockets, two NUMA nodes": {topologyv1alpha1.Counts{CPUs: 104, L3: 2, NUMA: 2}, 2, nil},
	} {
		plan, streams := planFor(c.machine), 0
		for _, p := range plan.Programs {
			if p.Kernel == Stream {
				streams = p.Pods
			}
			if used := p.CPUs*p.Pods + p.Neighbours*p.NeighbourCPUs; used > max(int(c.machine.CPUs)*2/3+plan.Pi, p.CPUs) {
				t.Errorf("%s: %s uses %d CPUs of %d", name, p.Name, used, c.machine.CPUs)
			}
			if p.MiB<<20 > workBytesMax || (p.Neighbours > 0) != (plan.Together && p.Kernel != Stream) {
				t.Errorf("%s: %+v", name, p)
			}
		}
		if streams != c.streams || len(plan.Programs) < 5 {
			t.Errorf("%s: %d streams of %d programs", name, streams, len(plan.Programs))
		}
		got := Lacks(c.machine)
		if len(got) != len(c.lacks) {
			t.Fatalf("%s: lacks %q", name, got)
		}
		for i, want := range c.lacks {
			if !strings.Contains(got[i], want) {
				t.Errorf("%s: lacks %q, want %q", name, got[i], want)
			}
		}
	}
}

// TestKernelsMeasure runs every kernel for a moment.
func TestKernelsMeasure(t *testing.T) {
	for _, k := range Kernels {
		t.Run(string(k), func(t *testing.T) {
			t.Parallel()
			var got Result
			// A busy machine may make no step in a short time.
			for long := 20 * time.Millisecond; got.PerSecond == 0; long *= 2 {
				var err error
				if got, err = RunKernel(t.Context(), k, 1<<20, 2, long); err != nil {
					t.Fatal(err)
				}
			}
			if got.P50Ms <= 0 || got.P99Ms < got.P50Ms || got.Allowed == "" {
				t.Errorf("%+v", got)
			}
			if got.ThrottledMs != nil && *got.ThrottledMs < 0 || got.LLCMisses != nil && *got.LLCMisses < 0 {
				t.Errorf("%+v", got)
			}
		})
	}
	for _, bad := range []struct{ bytes, threads int }{{1 << 20, 0}, {100, 1}, {1 << 20, 2000}} {
		if _, err := RunKernel(t.Context(), Chase, bad.bytes, bad.threads, time.Millisecond); err == nil {
			t.Errorf("%+v: no error", bad)
		}
	}
	if _, err := RunKernel(t.Context(), "sleep", 1<<20, 1, time.Millisecond); err == nil || !strings.Contains(err.Error(), "chase") {
		t.Error(err)
	}
}

// TestTheCycleOfPointersIsWhole: a shorter cycle would fit a smaller cache than it is meant for.
func TestTheCycleOfPointersIsWhole(t *testing.T) {
	const lines = chaseSteps
	next := chase(lines * lineBytes)(0)
	if next() != lines {
		t.Fatal("a step is of another length")
	}
	seen := chaseOrder(lines)
	at, count := uint32(0), 0
	for {
		at = seen[at]
		if count++; at == 0 || count > lines {
			break
		}
	}
	if count != lines {
		t.Errorf("the cycle has %d of %d lines", count, lines)
	}
}

// TestPodsOfOneProgramAreJoined: rates add up, latencies are the worst, and what one pod could not
// read is not known.
func TestPodsOfOneProgramAreJoined(t *testing.T) {
	one, three := 1.0, 3.0
	r := Ran{Program: "stream"}
	r.join(Result{PerSecond: 10, P50Ms: 1, P99Ms: 5, ThrottledMs: &one, LLCMisses: &one, RemoteLoads: &one, Allowed: "0-3"})
	r.join(Result{PerSecond: 30, P50Ms: 2, P99Ms: 4, ThrottledMs: &three, LLCMisses: &three, Allowed: "4-7"})
	if r.PerSecond != 40 || r.P50Ms != 2 || r.P99Ms != 5 || *r.ThrottledMs != 4 || *r.LLCMisses != 2.5 || r.RemoteLoads != nil ||
		r.Allowed != "0-3,4-7" {
		t.Errorf("%+v", r)
	}
}
