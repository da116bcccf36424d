package bottleneck

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"lockstep.dev/lockstep/internal/lab/metrics"
)

func server(change func(*metrics.Server)) *metrics.Figures {
	s := &metrics.Server{PodCreates: metrics.Histogram{Count: 1000, MeanMs: 50, Seconds: 50}}
	change(s)
	return &metrics.Figures{Server: s}
}

func controller(name string, c metrics.Controller) *metrics.Figures {
	return &metrics.Figures{Controllers: map[string]*metrics.Controller{name: &c}}
}

// TestFind has one run for each thing that can limit a system, of 10 s and 1,000 pods.
func TestFind(t *testing.T) {
	for sentence, c := range map[string]struct {
		change      func(*Run)
		experiments []Experiment
		want        Kind
		evidence    string
		advice      string
	}{
		"a client at its own limit": {func(r *Run) {
			r.Metrics = controller("controller", metrics.Controller{Throttled: &metrics.Histogram{Count: 1000, MeanMs: 400, Seconds: 400}})
			r.Settings = map[string]string{"qps": "20", "workers": "4"}
		}, nil, ClientLimit, "controller: 1000 requests waited 400 ms on average for the client's own limit", "qps: 40, now 20"},
		"a client that hardly waits": {func(r *Run) {
			r.Metrics = controller("controller", metrics.Controller{Throttled: &metrics.Histogram{Count: 100_000, MeanMs: 0.1, Seconds: 10}})
		}, nil, "", "", ""},
		"a slow webhook": {func(r *Run) {
			r.Metrics = server(func(s *metrics.Server) {
				s.Webhooks = map[string]metrics.Histogram{"check.example.com": {Count: 1000, MeanMs: 40, P99Ms: 90}}
			})
		}, nil, Webhook, "webhook check.example.com takes 40 ms (p99 90 ms) of the 50 ms of a pod's create", "ValidatingAdmissionPolicy"},
		"five workers for everything": {func(r *Run) {
			r.Metrics = controller("kube-controller-manager", metrics.Controller{Queues: map[string]metrics.Queue{
				"job": {Adds: 100, DepthMax: 95, Wait: metrics.Histogram{Count: 100, MeanMs: 5000}, Work: metrics.Histogram{Count: 100, MeanMs: 490, Seconds: 49}}}})
			r.Settings = map[string]string{"concurrent job syncs": "5"}
		}, nil, Workers, "up to 95 items waited, 5.0 s on average; the work on one takes 490 ms; on average 4.9 workers were busy", "concurrent job syncs: 10, now 5"},
		"more workers do not help": {func(r *Run) {
			r.Metrics = controller("kube-controller-manager", metrics.Controller{Queues: map[string]metrics.Queue{
				"job": {Adds: 100, DepthMax: 95, Wait: metrics.Histogram{Count: 100, MeanMs: 5000}, Work: metrics.Histogram{Count: 100, MeanMs: 490, Seconds: 49}}}})
		}, []Experiment{{Change: "20 syncs", Tests: Workers, Seconds: 9.9, Base: 10}}, "", "", ""},
		"no idle CPU, mostly for the API server": {func(r *Run) {
			r.CPUs, r.CPUSeconds = 2, map[string]float64{metrics.APIServer: 11, metrics.EtcdName: 4, "manager": 3}
		}, nil, APIServerCPU, "1.8 of 2 CPUs were busy: kube-apiserver 1.10, etcd 0.40, manager 0.30", "fewer writes"},
		"no idle CPU, mostly for others": {func(r *Run) {
			r.CPUs, r.CPUSeconds, r.OtherCPUs = 2, map[string]float64{metrics.APIServer: 4, "manager": 11}, 0.3
		}, nil, MachineCPU, "1.8 of 2 CPUs were busy: manager 1.10, kube-apiserver 0.40, other work 0.30", "give manager more CPU"},
		"no idle CPU, mostly for work that is not of the measurement": {func(r *Run) {
			r.CPUs, r.CPUSeconds, r.OtherCPUs = 2, map[string]float64{metrics.APIServer: 6, metrics.EtcdName: 2}, 1
		}, nil, MachineCPU, "1.8 of 2 CPUs were busy: kube-apiserver 0.60, etcd 0.20, other work 1.00", "no other work"},
		"an API server elsewhere without idle CPU": {func(r *Run) {
			r.Metrics = server(func(s *metrics.Server) { s.CPUSeconds, s.CPUs = 38, 4 })
		}, nil, APIServerCPU, "the API server used 3.8 of its 4 CPUs", ""},
		"a slow disk": {func(r *Run) {
			r.Metrics = &metrics.Figures{Etcd: &metrics.Etcd{Fsync: metrics.Histogram{Count: 400, MeanMs: 20, P99Ms: 60, Seconds: 8}}}
		}, []Experiment{{Change: "etcd without fsync", Tests: Fsync, Seconds: 4, Base: 10}}, Fsync,
			"etcd waited 8.0 s of 10.0 s for the disk: 400 syncs of 20.0 ms (p99 60.0 ms)", "disk of its own"},
		"a disk that only the experiment shows": {func(*Run) {}, []Experiment{{Change: "etcd without fsync", Tests: Fsync, Seconds: 4, Base: 10}}, Fsync,
			"etcd without fsync: 4.00 s instead of 10.00 s", "use etcd without fsync"},
		"a crowded priority level": {func(r *Run) {
			r.Metrics = server(func(s *metrics.Server) {
				s.Levels = map[string]metrics.Level{"workload-low": {Requests: 1000, Rejected: 10, Wait: metrics.Histogram{Count: 1000, MeanMs: 30, P99Ms: 80}}}
			})
		}, nil, FlowControl, "priority level workload-low: 1000 requests waited 30 ms on average (p99 80 ms), 10 were rejected", "FlowSchema"},
		"a scheduler that never rests": {func(r *Run) {
			r.Metrics = controller("kube-scheduler", metrics.Controller{Queues: map[string]metrics.Queue{
				metrics.Pods: {DepthMax: 800, Work: metrics.Histogram{Count: 1000, MeanMs: 9, Seconds: 9}}}})
		}, nil, Scheduler, "kube-scheduler: 1000 attempts of 9.0 ms take 9.0 s of 10.0 s, one after the other", "percentageOfNodesToScore"},
		"a client that submits slowly": {func(r *Run) { r.JobsSeconds = 9.9 }, nil, LoadClient, "the system waits for the client", "--client-concurrency"},
		"nothing":                      {func(*Run) {}, nil, "", "", ""},
	} {
		r := Run{Pods: 1000, Seconds: 10, CreateSeconds: 9, JobsSeconds: 1}
		c.change(&r)
		got := Find(r, c.experiments)
		if c.want == "" {
			if len(got) > 0 {
				t.Errorf("%s: found %+v", sentence, got)
			}
			continue
		}
		if len(got) != 1 || got[0].Kind != c.want || !strings.Contains(strings.Join(got[0].Evidence, "; "), c.evidence) ||
			!strings.Contains(strings.Join(got[0].Advice, "; "), c.advice) {
			t.Errorf("%s: found %+v", sentence, got)
		}
	}
}

// TestTheValueThatWasTriedIsAdvised has experiments on settings of a system: the advice is the value
// that helped, and no other for the settings that were tried.
func TestTheValueThatWasTriedIsAdvised(t *testing.T) {
	figures := controller("controller", metrics.Controller{
		Queues: map[string]metrics.Queue{
			"job":  {DepthMax: 95, Wait: metrics.Histogram{Count: 100, MeanMs: 5000}, Work: metrics.Histogram{Count: 100, MeanMs: 490, Seconds: 49}},
			"node": {DepthMax: 95, Wait: metrics.Histogram{Count: 100, MeanMs: 1000}, Work: metrics.Histogram{Count: 100, MeanMs: 190, Seconds: 19}}},
		Throttled: &metrics.Histogram{Count: 1000, MeanMs: 400, Seconds: 3}})
	settings := map[string]string{"concurrent job syncs": "5", "node workers": "3", "qps": "20", "burst": "30"}
	got := Find(Run{Seconds: 10, Metrics: figures, Settings: settings}, []Experiment{
		{Change: "20 concurrent job syncs", Tests: Workers, Setting: "concurrent job syncs", Value: "20", Seconds: 5, Base: 10},
		{Change: "qps=40", Tests: ClientLimit, Setting: "qps", Value: "40", Seconds: 7.5, Base: 10},
		{Change: "burst=60", Tests: ClientLimit, Setting: "burst", Value: "60", Seconds: 10.1, Base: 10},
	})
	type finding struct {
		Kind   Kind
		Share  float64
		Advice string
	}
	var said []finding
	for _, f := range got {
		said = append(said, finding{f.Kind, f.Share, strings.Join(f.Advice[1:], "; ")})
	}
	want := []finding{
		{Workers, 0.5, "concurrent job syncs: 20, now 5; node workers: 6, now 3"},
		{ClientLimit, 0.25, "qps: 40, now 20"},
		{Workers, 0.2, "node workers: 6, now 3"},
	}
	if diff := cmp.Diff(want, said); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(got) > 1 && !strings.Contains(strings.Join(got[1].Evidence, "; "), "burst=60: 10.10 s instead of 10.00 s") {
		t.Errorf("an experiment that did not help is evidence, too: %q", got[1].Evidence)
	}
}

// TestOtherWorkIsTheLast has a client at its own limit on a machine that is busy with other work, which
// explains more of the time and is no limit of the system.
func TestOtherWorkIsTheLast(t *testing.T) {
	r := Run{Seconds: 10, CPUs: 2, CPUSeconds: map[string]float64{metrics.APIServer: 1}, OtherCPUs: 1.9,
		Metrics: controller("controller", metrics.Controller{Throttled: &metrics.Histogram{Count: 100, MeanMs: 40, Seconds: 4}})}
	got := Find(r, nil)
	if len(got) != 2 || got[0].Kind != ClientLimit || got[1].Kind != MachineCPU || got[1].Share != 1 {
		t.Errorf("%+v", got)
	}
}

func TestTheMostImportantIsFirst(t *testing.T) {
	r := Run{Seconds: 10, CPUs: 2, CPUSeconds: map[string]float64{metrics.APIServer: 17},
		Metrics: &metrics.Figures{Etcd: &metrics.Etcd{Fsync: metrics.Histogram{Count: 1, Seconds: 3}}}}
	var kinds []Kind
	for _, f := range Find(r, nil) {
		kinds = append(kinds, f.Kind)
	}
	if diff := cmp.Diff([]Kind{APIServerCPU, Fsync}, kinds); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := Find(Run{}, nil); got != nil {
		t.Errorf("of a run that was not measured: %+v", got)
	}
}

// TestSize checks that requests cover what was measured, and grow with the cluster.
func TestSize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base, each := rapid.Float64Range(10, 500).Draw(t, "base"), rapid.Float64Range(0, 0.1).Draw(t, "each")
		busy := rapid.Float64Range(0, 8).Draw(t, "busy")
		var samples []Sample
		for _, pods := range []int{500, 3000} {
			samples = append(samples, Sample{Pods: pods, MemoryMiB: base + each*float64(pods), CPUSeconds: 2 * busy, Seconds: 2})
		}
		last := 0
		for i, n := range Size(samples) {
			if n.Pods != Sizes[i] || n.MemoryMiB < last || float64(n.MemoryMiB) < base+each*float64(n.Pods) || float64(n.MilliCPU) < 1000*busy ||
				float64(n.MilliCPU) > 1250*busy+2*cpuStep || float64(n.MemoryMiB) > 1.26*(base+each*float64(n.Pods))+2*memoryStep {
				t.Fatalf("%+v", n)
			}
			last = n.MemoryMiB
		}
	})
	if got := Size([]Sample{{Pods: 5}, {Pods: 5}}); got != nil {
		t.Errorf("of one size: %+v", got)
	}
}
