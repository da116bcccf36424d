package analyse

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write testdata/*.golden.json anew")

// t0 is when the synthetic runs begin.
var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func at(ms int) time.Time { return t0.Add(time.Duration(ms) * time.Millisecond) }

// write returns an event that took a millisecond and succeeded.
func write(ms int, actor, verb, resource, sub, name string) Event {
	return Event{Received: at(ms - 1), Time: at(ms), Actor: actor, Verb: verb, Resource: resource, Sub: sub,
		Namespace: "bench", Name: name, Code: 200}
}

func identify(pod string) (string, int) {
	parts := strings.Split(pod, "-")
	if len(parts) != 3 {
		return pod, -1
	}
	n, err := strconv.Atoi(parts[2])
	if err != nil {
		return parts[0], -1
	}
	return parts[0], n
}

// goodRun returns the input of a correct run: two gangs of two pods on two nodes, all created
// bound, one status each.
func goodRun() Input {
	in := Input{
		Namespace: "bench", JobResource: "jobs.batch.volcano.sh", Identify: identify,
		Jobs:       []Job{{Name: "a", Pods: 2, Min: 2}, {Name: "b", Pods: 2, Min: 2}},
		Nodes:      map[string]Resources{"n0": {1000, 1 << 30, 2}, "n1": {1000, 1 << 30, 2}},
		Request:    Resources{500, 1 << 28, 1},
		System:     map[string]bool{"manager": true},
		Heartbeats: map[string]bool{"leases.coordination.k8s.io": true},
	}
	in.Events = append(in.Events,
		write(1, "client", "create", "jobs.batch.volcano.sh", "", "a"),
		write(2, "client", "create", "jobs.batch.volcano.sh", "", "b"))
	ms := 10
	for _, job := range []string{"a", "b"} {
		for i := range 2 {
			name := fmt.Sprintf("%s-w-%d", job, i)
			e := write(ms, "manager", "create", "pods", "", name)
			e.Node = fmt.Sprintf("n%d", i)
			in.Events = append(in.Events, e, write(ms+20, "nodes", "patch", "pods", "status", name))
			in.Pods = append(in.Pods, Pod{Name: name, Job: job, Index: i, Node: e.Node, Phase: "Running", Request: in.Request})
			ms += 10
		}
		in.Events = append(in.Events, write(ms+100, "manager", "update", "jobs.batch.volcano.sh", "status", job))
		in.States = append(in.States, JobState{Name: job, Phase: "Running", Running: 2})
	}
	in.Events = append(in.Events, write(5, "manager", "update", "leases.coordination.k8s.io", "", "lock"))
	return in
}

func TestAGoodRunHasNoViolation(t *testing.T) {
	r := Analyse(goodRun())
	if len(r.Invariants.Violations) != 0 {
		t.Fatalf("violations: %q", r.Invariants.Violations)
	}
	if r.Pods != 4 || r.Created != 4 || r.Scheduled != 4 || r.Failed != 0 {
		t.Errorf("got %d pods, %d created, %d scheduled, %d failed", r.Pods, r.Created, r.Scheduled, r.Failed)
	}
	want := map[string]int{"pods/create": 4, "jobs.batch.volcano.sh/status": 2}
	if diff := cmp.Diff(want, r.Writes); diff != "" {
		t.Errorf("writes of the system (-want +got):\n%s", diff)
	}
	if r.WritesPerPod != 1.5 || r.WritesPerPodUntilScheduled != 1 {
		t.Errorf("writes per pod: %v in all, %v until scheduled", r.WritesPerPod, r.WritesPerPodUntilScheduled)
	}
	if r.ScheduleSeconds != 0.040 { // the first create reached the server at 0 ms
		t.Errorf("scheduled after %v s, want 0.040", r.ScheduleSeconds)
	}
}

// TestANameThatTheServerGeneratedTwice analyses an audit log that has the first pod's name twice
// and the second pod's name never.
func TestANameThatTheServerGeneratedTwice(t *testing.T) {
	in := goodRun()
	in.Events[2].Name, in.Events[2].Node, in.Events[4].Node = "a-w-1", "", ""
	for i := range 2 {
		bound := write(30+i, "scheduler", "create", "pods", "binding", fmt.Sprintf("a-w-%d", i))
		bound.Node = fmt.Sprintf("n%d", i)
		in.Events = append(in.Events, bound)
	}
	r := Analyse(in)
	if len(r.Invariants.Violations) != 0 || r.Created != 4 || r.Scheduled != 4 {
		t.Errorf("%d created, %d scheduled, violations: %q", r.Created, r.Scheduled, r.Invariants.Violations)
	}
}

// TestEveryInvariantFires breaks one thing at a time in a good run.
func TestEveryInvariantFires(t *testing.T) {
	cases := map[string]struct {
		mutate func(*Input)
		want   string
	}{
		"two pods of one index": {func(in *Input) {
			e := write(60, "manager", "create", "pods", "", "a-x-0")
			e.Node = "n1"
			in.Events = append(in.Events, e)
			in.Pods = append(in.Pods, Pod{Name: "a-x-0", Job: "a", Index: 0, Node: "n1", Phase: "Running", Request: in.Request})
			in.States[0].Running = 3
		}, "job a: 2 live pods of index 0 at once"},
		"more pods than the job has, without indices": {func(in *Input) {
			for i := range in.Pods {
				in.Pods[i].Index = -1
			}
			in.Identify = func(pod string) (string, int) { return pod[:1], -1 }
			in.Events = append(in.Events, write(60, "manager", "create", "pods", "", "a-w-9"))
			in.Pods = append(in.Pods, Pod{Name: "a-w-9", Job: "a", Index: -1, Phase: "Pending"})
		}, "job a: 3 live pods at once, but the job has 2"},
		"a duplicate that is gone at rest": {func(in *Input) {
			in.Events = append(in.Events, write(60, "manager", "create", "pods", "", "b-x-1"),
				write(80, "manager", "delete", "pods", "", "b-x-1"))
		}, "job b: 2 live pods of index 1 at once"},
		"an index beyond the job": {func(in *Input) {
			in.Pods[1].Name, in.Pods[1].Index = "a-w-7", 7
			in.Events[4].Name = "a-w-7"
		}, "index 7, but the job has 2 pods"},
		"a lost pod": {func(in *Input) {
			in.Pods = in.Pods[1:]
			in.States[0].Running = 1
		}, "job a: 1 of 2 pods exist at rest"},
		"a pod that nobody saw being created": {func(in *Input) { in.Events[2].Code = 500 }, "pod a-w-0 exists, but its creation was not observed"},
		"a pod of no job": {func(in *Input) {
			in.Events = append(in.Events, write(60, "manager", "create", "pods", "", "z-w-0"))
		}, "pod z-w-0 belongs to no job"},
		"cpu overcommitted":       {func(in *Input) { in.Nodes["n0"] = Resources{999, 1 << 30, 2} }, "node n0: overcommitted by pod b-w-0: 1000m of 999m cpu"},
		"memory overcommitted":    {func(in *Input) { in.Nodes["n1"] = Resources{1000, 1 << 28, 2} }, "node n1: overcommitted by pod b-w-1: 536870912 of 268435456 bytes"},
		"too many pods on a node": {func(in *Input) { in.Nodes["n0"] = Resources{1000, 1 << 30, 1} }, "node n0: overcommitted by pod b-w-0: 2 of 1 pods"},
		"overcommitted only for a moment": {func(in *Input) {
			e := write(60, "manager", "create", "pods", "", "a-x-5")
			e.Node = "n0"
			in.Events = append(in.Events, e, write(80, "manager", "delete", "pods", "", "a-x-5"))
		}, "node n0: overcommitted by pod a-x-5"},
		"an unknown node": {func(in *Input) { delete(in.Nodes, "n0") }, "is on node n0, which does not exist"},
		"a partial gang at rest": {func(in *Input) {
			in.Pods[0].Node, in.Pods[0].Phase = "", "Pending"
			in.Events[2].Node = ""
			in.States[0].Running, in.States[0].Explained = 1, true
		}, "job a: a part of its gang holds nodes at rest: 1 pods, minimum 2"},
		"a job that waits in silence": {func(in *Input) {
			for i := range 2 {
				in.Pods[i].Node, in.Pods[i].Phase = "", "Pending"
				in.Events[2+2*i].Node = ""
			}
			in.States[0].Running = 0
		}, "job a: 0 of 2 pods hold nodes at rest, and its status does not say why"},
		"a status that miscounts":     {func(in *Input) { in.States[1].Running = 1 }, "job b: its status says 1 running, 2 are"},
		"a failure that nobody tells": {func(in *Input) { in.Pods[0].Phase = "Failed" }, "job a: its status says 0 failed, 1 are"},
		"a job that is gone":          {func(in *Input) { in.States = in.States[:1] }, "job b does not exist at rest"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			in := goodRun()
			c.mutate(&in)
			got := Analyse(in).Invariants.Violations
			for _, v := range got {
				if strings.Contains(v, c.want) {
					return
				}
			}
			t.Errorf("violations %q, want one with %q", got, c.want)
		})
	}
}

func TestRoomIsReusedWithoutViolation(t *testing.T) {
	cases := map[string]func(in *Input){
		"after a delete": func(in *Input) {
			in.Events = append(in.Events, write(100, "client", "delete", "pods", "", "a-w-0"), write(110, "nodes", "delete", "pods", "", "a-w-0"))
			in.Pods = in.Pods[1:]
		},
		"after the pod finished, by a watch": func(in *Input) {
			in.Events = append(in.Events, write(110, "other", "finish", "pods", "", "a-w-0"))
			in.Pods[0].Phase = "Succeeded"
		},
		"after the pod finished, by its status": func(in *Input) { in.Pods[0].Phase, in.Pods[0].Finished = "Succeeded", at(110) },
	}
	for name, free := range cases {
		t.Run(name, func(t *testing.T) {
			in := goodRun()
			free(&in)
			in.Jobs = append(in.Jobs, Job{Name: "c", Pods: 1, Min: 1})
			e := write(120, "manager", "create", "pods", "", "c-w-0")
			e.Node = "n0"
			in.Events = append(in.Events, e)
			in.Pods = append(in.Pods, Pod{Name: "c-w-0", Job: "c", Node: "n0", Phase: "Running", Request: in.Request})
			for _, v := range Analyse(in).Invariants.Violations {
				if strings.Contains(v, "overcommitted") {
					t.Error(v)
				}
			}
		})
	}
}

func TestABindingMayBeAnsweredBeforeItsCreate(t *testing.T) {
	in := goodRun()
	create := &in.Events[2]
	create.Node = ""
	create.Time = at(60)
	bind := write(50, "manager", "create", "pods", "binding", create.Name)
	bind.Node = "n0"
	in.Events = append(in.Events, bind)
	r := Analyse(in)
	if len(r.Invariants.Violations) > 0 || r.Created != 4 || r.Scheduled != 4 || r.CreateSeconds != 0.050 || r.ScheduleSeconds != 0.050 {
		t.Errorf("%d created until %v s, %d scheduled until %v s, violations %q", r.Created, r.CreateSeconds, r.Scheduled, r.ScheduleSeconds, r.Invariants.Violations)
	}
}

func TestViolationsAreBounded(t *testing.T) {
	in := goodRun()
	for i := range 500 {
		in.Events = append(in.Events, write(200+i, "manager", "create", "pods", "", fmt.Sprintf("z%d-w-0", i)))
	}
	got := Analyse(in).Invariants.Violations
	if len(got) != maxViolations || got[maxViolations-1] != "... and 451 more" {
		t.Errorf("%d violations, the last %q", len(got), got[len(got)-1])
	}
}

func TestStalls(t *testing.T) {
	in := goodRun()
	// The last pod comes 1.5 s late.
	in.Events[9].Time = at(1540)
	s := Analyse(in).Stalls
	if s.Count != 1 || s.LongestSeconds != 1.51 || len(s.AtSeconds) != 1 || s.AtSeconds[0] != 0.030 {
		t.Errorf("stalls %+v; the events were %+v", s, in.Events[9])
	}
}

func TestPercentilesByNearestRank(t *testing.T) {
	var values []float64
	for i := 1; i <= 200; i++ {
		values = append(values, float64(i))
	}
	if got, want := PercentilesOf(values, 1), (Percentiles{100, 180, 198}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if got, want := PercentilesOf([]float64{7}, 1), (Percentiles{7, 7, 7}); got != want {
		t.Errorf("of one value: got %v, want %v", got, want)
	}
}

func TestCurveKeepsItsEnds(t *testing.T) {
	for _, n := range []int{1, 2, curvePoints - 1, curvePoints, curvePoints + 1, 10 * curvePoints, 10*curvePoints + 7} {
		var moments []time.Time
		for i := range n {
			moments = append(moments, at(n-i))
		}
		c := CurveOf(t0, moments)
		if len(c.Count) > curvePoints+1 || c.Count[0] != 1 || c.Count[len(c.Count)-1] != n || c.AtSeconds[len(c.Count)-1] != float64(n)/1e3 {
			t.Errorf("%d moments: %d points from %d to %d", n, len(c.Count), c.Count[0], c.Count[len(c.Count)-1])
		}
	}
}

// TestGolden analyses recorded event logs: testdata/NAME.jsonl, whose first line is the input
// without events.
func TestGolden(t *testing.T) {
	logs, err := filepath.Glob("testdata/*.jsonl")
	if err != nil || len(logs) == 0 {
		t.Fatalf("no event logs: %v", err)
	}
	for _, path := range logs {
		t.Run(filepath.Base(path), func(t *testing.T) {
			in := readLog(t, path)
			got, err := json.MarshalIndent(Analyse(in), "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden := strings.TrimSuffix(path, ".jsonl") + ".golden.json"
			if *update {
				if err := os.WriteFile(golden, append(got, '\n'), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.TrimSpace(string(want)), string(got)); diff != "" {
				t.Errorf("(-want +got; go test -update writes it anew)\n%s", diff)
			}
		})
	}
}

func readLog(t *testing.T, path string) Input {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	in := Input{Identify: identify}
	lines := bufio.NewScanner(f)
	for n := 0; lines.Scan(); n++ {
		if n == 0 {
			var head struct {
				Namespace, JobResource string
				Jobs                   []Job
				Pods                   []Pod
				States                 []JobState
				Nodes                  map[string]Resources
				Request                Resources
				System, Heartbeats     map[string]bool
			}
			if err := json.Unmarshal(lines.Bytes(), &head); err != nil {
				t.Fatal(err)
			}
			in.Namespace, in.JobResource, in.Jobs, in.Pods, in.States = head.Namespace, head.JobResource, head.Jobs, head.Pods, head.States
			in.Nodes, in.Request, in.System, in.Heartbeats = head.Nodes, head.Request, head.System, head.Heartbeats
			continue
		}
		var e Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("line %d: %v", n+1, err)
		}
		in.Events = append(in.Events, e)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return in
}

func TestPodsThatAreNotOfTheLoadAreIgnored(t *testing.T) {
	in := goodRun()
	want := Analyse(in)
	in.Events = append(in.Events, write(40, "manager", "create", "pods", "", "launcher"))
	in.OfLoad = func(pod string) bool { return pod != "launcher" }
	got := Analyse(in)
	if len(got.Invariants.Violations) > 0 || got.Created != want.Created {
		t.Errorf("violations %q, %d created", got.Invariants.Violations, got.Created)
	}
	if got.Writes["pods/create"] != want.Writes["pods/create"]+1 {
		t.Errorf("the write for the launcher is not counted: %v", got.Writes)
	}
}

// TestARunWhoseTimeRanOutIsNotJudgedAtRest checks that an unfinished run violates only what holds
// at any moment.
func TestARunWhoseTimeRanOutIsNotJudgedAtRest(t *testing.T) {
	in := goodRun()
	in.Pods, in.States[0].Running = in.Pods[:3], 0
	if got := Analyse(in).Invariants.Violations; len(got) == 0 {
		t.Fatal("at rest nothing is wrong with a lost pod and a wrong status")
	}
	in.Unfinished = true
	if got := Analyse(in).Invariants.Violations; len(got) > 0 {
		t.Errorf("%q", got)
	}
	in.Nodes["n0"] = Resources{500, 1 << 30, 2}
	if got := Analyse(in).Invariants.Violations; len(got) == 0 {
		t.Error("an overcommitted node is no violation of an unfinished run")
	}
}

func TestStatusesSettle(t *testing.T) {
	in := goodRun()
	if !StatusesSettled(in) {
		t.Error("the statuses of a good run are not settled")
	}
	in.States[1].Running = 1
	if StatusesSettled(in) {
		t.Error("a status that says 1 running of 2 is settled")
	}
	in.States[1].Running = Unknown
	if !StatusesSettled(in) {
		t.Error("a status without the count is not settled")
	}
}

func TestFailuresAreCountedByCause(t *testing.T) {
	in := goodRun()
	refused := func(cause string) Event {
		e := write(41, "manager", "create", "pods", "", "bench-00000-worker-0")
		e.Code, e.Cause = 500, cause
		return e
	}
	for i := range 2 * maxCauses {
		in.Events = append(in.Events, refused("timeout"), refused(fmt.Sprint("pod ", i)))
	}
	got := Analyse(in).Causes
	if got["pods/create: timeout"] != 2*maxCauses || got["pods/create: pod 0"] != 1 || len(got) != maxCauses+1 || got["others"] != maxCauses+1 {
		t.Errorf("%d causes: %v", len(got), got)
	}
	in = goodRun()
	for i := range 2 * maxCauses {
		e := refused(fmt.Sprintf(`pods "p-%d" is forbidden`, i))
		e.Name = fmt.Sprintf("p-%d", i)
		in.Events = append(in.Events, e)
	}
	if diff := cmp.Diff(map[string]int{`pods/create: pods "…" is forbidden`: 2 * maxCauses}, Analyse(in).Causes); diff != "" {
		t.Errorf("several pods refused for one cause (-want +got):\n%s", diff)
	}
	if got := Analyse(goodRun()).Causes; got != nil {
		t.Errorf("a good run has failures: %v", got)
	}
}
