package jobs

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/lab/series"
	"lockstep.dev/lockstep/internal/lab/system"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// measureScenario measures a scenario on real control planes, and checks that its page can be made
// and has texts.
func measureScenario(t *testing.T, name string, change func(*Config), texts ...string) *Report {
	t.Helper()
	kube, err := localcluster.FindKube()
	if err != nil {
		t.Fatal(err)
	}
	lockstep := buildLockstep(t)
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	cfg := Config{
		Scenario: name, Gangs: []bool{true}, Systems: []string{"lockstep", "kubernetes"}, WarmUpPods: 10,
		Config: series.Config{Repeat: 1, Nodes: localcluster.Nodes{Count: 10}, ClientConcurrency: 8, Timeout: time.Minute,
			OutDir: t.TempDir(), Kube: kube, Lockstep: lockstep, Version: "test", Progress: func(line string) { t.Log(line) }},
	}
	change(&cfg)
	rep, err := Measure(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rep.Runs {
		if r.Error != "" || r.TimedOut != "" || len(r.Invariants.Violations) > 0 {
			t.Fatalf("%s: error %q, %s, violations %q", r.Title(), r.Error, r.TimedOut, r.Invariants.Violations)
		}
	}
	var html bytes.Buffer
	p := rep.Page()
	if err := p.HTML(&html); err != nil {
		t.Fatal(err)
	}
	t.Log(p.Verdict)
	for _, text := range texts {
		if !strings.Contains(html.String(), text) {
			t.Errorf("the page has no %q", text)
		}
	}
	return rep
}

// TestContentionOfTwoWrites measures a system that creates pods and binds them, and one that does
// both with one write.
func TestContentionOfTwoWrites(t *testing.T) {
	localtest.Long(t)
	rep := measureScenario(t, scenario.Contention, func(c *Config) { c.Shapes = []scenario.Shape{{Jobs: 20, PodsPerJob: 10}} },
		"Do creates and bindings compete?", "lockstep creates pods with their nodes: nothing to compete", "kubernetes binds ")
	if c := rep.Runs[0].Contention; c != nil {
		t.Errorf("lockstep: %+v", c)
	}
	c := rep.Runs[1].Contention
	if c == nil || c.Steps < 8 || c.BoundDuring <= 0 || c.CreatedPerSecond <= 0 || c.Low > c.Correlation || c.Correlation > c.Up {
		t.Errorf("kubernetes: %+v", c)
	}
}

// TestSmallJobsBehindALargeOne measures jobs alone and behind a large job.
func TestSmallJobsBehindALargeOne(t *testing.T) {
	localtest.Long(t)
	rep := measureScenario(t, scenario.Mixed, func(c *Config) {
		c.Shapes, c.Ahead = []scenario.Shape{{Jobs: 5, PodsPerJob: 1}}, []scenario.Shape{{}, {Jobs: 1, PodsPerJob: 60}}
		c.Systems, c.FloorConcurrency, c.FloorTries = []string{"lockstep"}, []int{16}, 1
	}, "How long do small jobs wait behind a large one?", "5 jobs of 1 pod wait ", "behind one of 60 pods, which takes ", "1x60&#43;5x1")
	if len(rep.Runs) != 2 {
		t.Fatalf("%d runs", len(rep.Runs))
	}
	for i, r := range rep.Runs {
		if i == 0 {
			if r.Shape != "5x1" || r.Scheduled != 5 || r.Parts != nil {
				t.Errorf("%s: %d scheduled, parts %+v", r.Title(), r.Scheduled, r.Parts)
			}
			continue
		}
		if r.Shape != "1x60+5x1" || r.Scheduled != 65 || len(r.Parts) != 2 || r.Floor == nil || r.Floor.Jobs != 6 || r.Floor.Pods != 65 {
			t.Fatalf("%s: %d scheduled, parts %+v, floor %+v", r.Title(), r.Scheduled, r.Parts, r.Floor)
		}
		ahead, behind := r.Parts[0], r.Parts[1]
		if ahead.Pods != 60 || ahead.Scheduled != 60 || behind.Jobs != 5 || behind.Scheduled != 5 || behind.MaxMs < behind.LatencyMs.P50 || behind.LastSeconds <= 0 {
			t.Errorf("%s: parts %+v", r.Title(), r.Parts)
		}
	}
}

// TestTenantsHaveTheirShares measures queues of weights 1 and 3 on nodes that hold 20 pods.
func TestTenantsHaveTheirShares(t *testing.T) {
	localtest.Long(t)
	rep := measureScenario(t, scenario.Queues, func(c *Config) {
		c.Systems, c.Shapes, c.Weights, c.PodTime = []string{"lockstep"}, []scenario.Shape{{Jobs: 60, PodsPerJob: 1}}, []int{1, 3}, time.Second
		c.Nodes = localcluster.Nodes{Count: 2, CPU: "1", Memory: "4Gi"}
	}, "Who has the places?", "tenants of weights 1:3 have ", "tenant-2 deserves")
	r := rep.Runs[0]
	if r.Scheduled != 120 || r.Shape != "2×60x1" || len(r.Parts) != 2 || r.Parts[1].Pods != 60 || r.Shares == nil {
		t.Fatalf("%d scheduled, parts %+v, shares %+v", r.Scheduled, r.Parts, r.Shares)
	}
	s := r.Shares
	if s.Queues[0].Deserved != 0.25 || s.Queues[1].Deserved != 0.75 || s.Places > 20.5 || s.Places < 5 {
		t.Errorf("shares %+v", s)
	}
	if s.Queues[1].Share < 0.6 || s.Queues[0].Share+s.Queues[1].Share < 0.999 {
		t.Errorf("the queue of weight 3 did not have its share: %+v", s)
	}
}

// TestPodsOfOthers measures pods of Deployments and plain pods.
func TestPodsOfOthers(t *testing.T) {
	localtest.Long(t)
	rep := measureScenario(t, scenario.ForeignPods, func(c *Config) {
		c.Systems, c.Shapes, c.Foreign = []string{"lockstep"}, []scenario.Shape{{Jobs: 4, PodsPerJob: 5}}, scenario.Foreign
	}, "How fast are pods of others scheduled?", "of 4x5 deployments the last has a node ", "of 20x1 pods the last has a node ", "kube-controller-manager")
	if len(rep.Runs) != 2 {
		t.Fatalf("%d runs", len(rep.Runs))
	}
	for i, shape := range []string{"4x5 deployments", "20x1 pods"} {
		r := rep.Runs[i]
		if r.Shape != shape || r.Scheduled != 20 || r.Failed != 0 || r.Gang || r.Writes["pods/binding"] < 20 || r.Contention == nil {
			t.Errorf("%s: %d scheduled, %d failed, writes %v", r.Title(), r.Scheduled, r.Failed, r.Writes)
		}
	}
}

// TestWhereWaitingPodsAre measures three times as many pods as the nodes hold.
func TestWhereWaitingPodsAre(t *testing.T) {
	localtest.Long(t)
	rep := measureScenario(t, scenario.Enqueue, func(c *Config) {
		c.Shapes, c.PodTime = []scenario.Shape{{Jobs: 12, PodsPerJob: 5}}, time.Second
		c.Nodes = localcluster.Nodes{Count: 2, CPU: "1", Memory: "4Gi"}
	}, "Where do pods wait that do not fit?", "lockstep: none of up to ")
	lockstep, kubernetes := rep.Runs[0], rep.Runs[1]
	if lockstep.PendingMax != 0 || lockstep.WaitingMax < 30 || lockstep.Scheduled != 60 {
		t.Errorf("lockstep: %d pending, %d waiting, %d scheduled", lockstep.PendingMax, lockstep.WaitingMax, lockstep.Scheduled)
	}
	if kubernetes.PendingMax < 20 || kubernetes.Scheduled != 60 {
		t.Errorf("kubernetes: %d pending, %d scheduled", kubernetes.PendingMax, kubernetes.Scheduled)
	}
}

// TestClientLimits measures stock Kubernetes with a limit that is lower than what it can do.
func TestClientLimits(t *testing.T) {
	localtest.Long(t)
	rep := measureScenario(t, scenario.ClientLimits, func(c *Config) {
		c.Systems, c.Shapes, c.WarmUpPods = []string{"kubernetes"}, []scenario.Shape{{Jobs: 10, PodsPerJob: 10}}, 0
		c.ClientLimits = []*system.Limit{{QPS: 20, Burst: 30}, nil}
	}, "own limit cost?", "pods a second with 20/30, ", "kubernetes qps=20/30")
	limited, free := rep.Runs[0], rep.Runs[1]
	if limited.Clients[0].QPS != "20" || limited.Clients[0].Burst != "30" || free.Clients[0].QPS != "unlimited" {
		t.Errorf("clients %+v, %+v", limited.Clients, free.Clients)
	}
	if limited.ScheduleSeconds < 2*free.ScheduleSeconds {
		t.Errorf("the limit costs nothing: %v s, without it %v s", limited.ScheduleSeconds, free.ScheduleSeconds)
	}
}
