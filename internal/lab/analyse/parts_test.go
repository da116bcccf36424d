package analyse

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// tenants returns the input of a run of two queues of weights 1 and 3: four generations of pods that
// run for 100 ms, of which queue a has one place and queue b three.
func tenants() Input {
	in := Input{
		Namespace: "bench", JobResource: "jobs.batch.volcano.sh", Identify: identify,
		Jobs:     []Job{{Name: "a", Pods: 4}, {Name: "b", Pods: 12, Part: 1}},
		Parts:    []Part{{Name: "one", Weight: 1}, {Name: "three", Weight: 3}},
		Nodes:    map[string]Resources{"n0": {1000, 1 << 30, 100}},
		Settling: 100 * time.Millisecond,
	}
	in.Events = append(in.Events, write(1, "client", "create", "jobs.batch.volcano.sh", "", "a"),
		write(2, "client", "create", "jobs.batch.volcano.sh", "", "b"))
	pod := func(job string, index, ms int) {
		name := fmt.Sprintf("%s-w-%d", job, index)
		e := write(ms, "manager", "create", "pods", "", name)
		e.Node = "n0"
		in.Events = append(in.Events, e, write(ms+5, "nodes", "update", "pods", "status", name), write(ms+100, "nodes", "update", "pods", "status", name))
		in.Pods = append(in.Pods, Pod{Name: name, Job: job, Index: index, Node: "n0", Phase: "Succeeded", Finished: at(ms + 100).Truncate(time.Second)})
	}
	for generation := range 4 {
		ms := 10 + 100*generation
		pod("a", generation, ms)
		for i := range 3 {
			pod("b", 3*generation+i, ms)
		}
	}
	return in
}

func TestSharesOfQueues(t *testing.T) {
	r := Analyse(tenants())
	s := r.Shares
	if s == nil || s.FromSeconds != 0.102 || s.UntilSeconds != 0.31 || s.Places != 4 || s.Deviation != 0 || len(s.Queues) != 2 {
		t.Fatalf("shares %+v", s)
	}
	if one, three := s.Queues[0], s.Queues[1]; one.Share != 0.25 || one.Deserved != 0.25 || three.Share != 0.75 || three.Weight != 3 {
		t.Errorf("shares %+v", s)
	}
	if r.WaitingMax != 16 || r.PendingMax != 0 {
		t.Errorf("%d waiting, %d pending", r.WaitingMax, r.PendingMax)
	}
	a, b := r.Parts[0], r.Parts[1]
	if a.Jobs != 1 || a.Pods != 4 || a.Scheduled != 4 || a.FirstSeconds != 0.01 || a.LastSeconds != 0.31 || a.MaxMs != 309 {
		t.Errorf("first part %+v", a)
	}
	if b.Scheduled != 12 || b.LatencyMs.P50 != 108 || b.Name != "three" {
		t.Errorf("second part %+v", b)
	}
	if held := r.Curves.Held[1]; held.Count[len(held.Count)-1] != 0 || max(held.Count[2], held.Count[3]) != 3 {
		t.Errorf("held %+v", held)
	}
}

func TestSharesThatAreNotWhatIsDeserved(t *testing.T) {
	in := tenants()
	in.Parts[0].Weight = 3
	if s := Analyse(in).Shares; s == nil || math.Abs(s.Deviation-0.25) > 1e-9 {
		t.Errorf("shares %+v", s)
	}
	in.Settling = time.Minute
	if s := Analyse(in).Shares; s != nil {
		t.Errorf("there was no time in which all wanted more: %+v", s)
	}
}

// TestPendingPods counts pods that are created first and bound later.
func TestPendingPods(t *testing.T) {
	in := goodRun()
	for i := range in.Events {
		if e := &in.Events[i]; e.Resource == "pods" && e.Verb == "create" {
			bound := write(200+i, "scheduler", "create", "pods", "binding", e.Name)
			bound.Node, e.Node = e.Node, ""
			in.Events = append(in.Events, bound)
		}
	}
	if r := Analyse(in); r.PendingMax != 4 || r.WaitingMax != 4 || r.Parts != nil || r.Shares != nil {
		t.Errorf("%d pending, %d waiting, parts %+v", r.PendingMax, r.WaitingMax, r.Parts)
	}
}
