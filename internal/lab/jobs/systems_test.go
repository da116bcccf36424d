package jobs

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/capacity"
	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/lab/series"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// measureFile measures one load on a system of a file.
func measureFile(t *testing.T, system string, shape scenario.Shape, change func(*Config)) *Report {
	t.Helper()
	kube, err := localcluster.FindKube()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	cfg := Config{
		Shapes: []scenario.Shape{shape}, Gangs: []bool{true}, Systems: []string{system},
		Config: series.Config{Repeat: 1, Nodes: localcluster.Nodes{Count: 10}, ClientConcurrency: 4, FloorConcurrency: []int{16},
			Timeout: time.Minute, OutDir: t.TempDir(), Kube: kube, Version: "test", Progress: func(line string) { t.Log(line) }},
	}
	change(&cfg)
	rep, err := Measure(t.Context(), cfg)
	if err != nil || len(rep.Runs) != 1 {
		t.Fatalf("%+v, %v", rep, err)
	}
	return rep
}

// docs returns the n-th YAML text of a page of the documentation.
func docs(t *testing.T, page string, n int) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", page))
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(string(text), "```yaml\n")
	yaml, _, _ := strings.Cut(parts[n], "```")
	return yaml
}

// TestStockKubernetesAsTheDocsDescribeIt measures the system file of docs/systems.md.
func TestStockKubernetesAsTheDocsDescribeIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stock.yaml")
	if err := os.WriteFile(path, []byte(docs(t, "systems.md", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	shape := scenario.Shape{Jobs: 6, PodsPerJob: 5}
	rep := measureFile(t, path, shape, func(c *Config) { c.WarmUpPods = 10 })
	r := rep.Runs[0]
	if r.Error != "" || r.Scheduled != 30 || r.Failed != 0 || len(r.Invariants.Violations) > 0 || r.System != "stock" || r.Gang {
		t.Fatalf("%s: error %q, %d scheduled, %d failed, violations %q", r.Title(), r.Error, r.Scheduled, r.Failed, r.Invariants.Violations)
	}
	if r.Writes["pods/create"] != 30 || r.Writes["pods/binding"] < 30 {
		t.Errorf("writes: %v", r.Writes)
	}
	if r.Floor == nil || r.Floor.Pods != 30 || r.Floor.Jobs != 6 {
		t.Errorf("floor: %+v", r.Floor)
	}
	var table bytes.Buffer
	if err := rep.Table(&table, false); err != nil {
		t.Fatal(err)
	}
	if want := "stock: kube-scheduler: QPS unlimited, burst unlimited"; !strings.Contains(table.String(), want) {
		t.Errorf("no %q in\n%s", want, table.String())
	}
}

// TestAFileDescribesAnInstalledSystem measures stock Kubernetes by its file in a cluster that runs.
func TestAFileDescribesAnInstalledSystem(t *testing.T) {
	cluster := localtest.Start(t, localtest.WithControllerManager(), localtest.WithScheduler(), localtest.WithNodes(localcluster.Nodes{Count: 10}))
	path := filepath.Join(t.TempDir(), "stock.yaml")
	text := docs(t, "systems.md", 1) + "processes:\n- {name: unused, command: [/nowhere]}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var lines []string
	rep, err := Measure(t.Context(), Config{
		Shapes: []scenario.Shape{{Jobs: 3, PodsPerJob: 4}}, Gangs: []bool{true}, Systems: []string{path},
		Config: series.Config{Repeat: 1, ClientConcurrency: 4, Timeout: time.Minute, OutDir: t.TempDir(),
			Progress: func(line string) { lines = append(lines, line) }},
		Kubeconfig: cluster.Kubeconfig(), AuditLog: cluster.AuditLogPath(),
	})
	if err != nil || len(rep.Runs) != 1 {
		t.Fatalf("%+v, %v", rep, err)
	}
	r := rep.Runs[0]
	if r.Error != "" || r.Scheduled != 12 || len(r.Invariants.Violations) > 0 || r.Writes["pods/create"] != 12 {
		t.Errorf("error %q, %d scheduled, violations %q, writes %v", r.Error, r.Scheduled, r.Invariants.Violations, r.Writes)
	}
	const want = "the processes and manifests of the file are not used: stock has to run in this cluster"
	if !slices.Contains(lines, want) {
		t.Errorf("no %q in %q", want, lines)
	}
}

// TestARunWhoseEventsWereLostHasNoRatio truncates the audit log of an existing cluster in the middle
// of a run.
func TestARunWhoseEventsWereLostHasNoRatio(t *testing.T) {
	cluster := localtest.Start(t, localtest.WithControllerManager(), localtest.WithScheduler(), localtest.WithNodes(localcluster.Nodes{Count: 10}))
	path := filepath.Join(t.TempDir(), "stock.yaml")
	if err := os.WriteFile(path, []byte(docs(t, "systems.md", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	truncated := false
	rep, err := Measure(t.Context(), Config{
		Shapes: []scenario.Shape{{Jobs: 3, PodsPerJob: 4}}, Gangs: []bool{true}, Systems: []string{path},
		Config:     series.Config{Repeat: 1, ClientConcurrency: 4, Timeout: time.Minute, OutDir: t.TempDir()},
		Kubeconfig: cluster.Kubeconfig(), AuditLog: cluster.AuditLogPath(),
		OnStep: func(s Step) {
			if s.Stage == "waiting until all is at rest" && !truncated {
				truncated = true
				if err := os.Truncate(cluster.AuditLogPath(), 0); err != nil {
					t.Error(err)
				}
			}
		},
	})
	if err != nil || len(rep.Runs) != 1 {
		t.Fatalf("%+v, %v", rep, err)
	}
	r := rep.Runs[0]
	if r.Error != "" || r.Lost != "the audit log was truncated" || r.RatioToFloor != nil || r.complete() {
		t.Errorf("error %q, lost %q, ratio %v", r.Error, r.Lost, r.RatioToFloor)
	}
	if r.Metrics == nil || r.Metrics.Server == nil || r.Metrics.Server.Requests["post pods"] < 12 {
		t.Errorf("metrics of the existing API server: %+v", r.Metrics)
	}
	var table bytes.Buffer
	if err := rep.Table(&table, false); err != nil {
		t.Fatal(err)
	}
	const want = "the observer lost events, so there is no time and no ratio: the audit log was truncated"
	if !strings.Contains(table.String(), want) {
		t.Errorf("no %q in\n%s", want, table.String())
	}
	if err := rep.Faults(); err == nil {
		t.Error("a run whose events were lost is no fault")
	}
}

// toySystem builds the toy and returns the path of its system file, in which old texts are replaced
// by new ones.
func toySystem(t *testing.T, oldnew ...string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "toy"))); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "toy"), "lockstep.dev/lockstep/internal/lab/jobs/testdata/toy")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	path := filepath.Join(dir, "system.yaml")
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte(strings.NewReplacer(oldnew...).Replace(string(text))), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestAStatusThatIsLateIsAwaited measures a toy that writes its statuses later than a run has to be
// quiet to be at rest, and one that never writes them.
func TestAStatusThatIsLateIsAwaited(t *testing.T) {
	const process, status = `env: {RATE: "20"`, "status: {running: '{.status.running}', settleTime: "
	late := toySystem(t, process, process+`, STATUS_AFTER: 4s`, "\npods:", "\n"+status+"20s}\npods:")
	never := toySystem(t, "\npods:", "\n"+status+"1s}\npods:")
	shape := scenario.Shape{Jobs: 2, PodsPerJob: 5}
	for system, want := range map[string][]string{
		late:  {},
		never: {"job bench-00000: its status says 0 running, 5 are", "job bench-00001: its status says 0 running, 5 are"},
	} {
		r := measureFile(t, system, shape, func(*Config) {}).Runs[0]
		if diff := cmp.Diff(want, r.Invariants.Violations); r.Error != "" || diff != "" {
			t.Errorf("error %q, violations (-want +got):\n%s", r.Error, diff)
		}
	}
}

// TestTheRateOfAToyIsMeasured measures a controller that creates exactly 20 pods per second.
func TestTheRateOfAToyIsMeasured(t *testing.T) {
	shape := scenario.Shape{Jobs: 8, PodsPerJob: 25}
	r := measureFile(t, toySystem(t), shape, func(c *Config) { c.WarmUpPods = 10 }).Runs[0]
	if r.Error != "" || r.Scheduled != 200 || len(r.Invariants.Violations) > 0 {
		t.Fatalf("error %q, %d scheduled, violations %q", r.Error, r.Scheduled, r.Invariants.Violations)
	}
	const rate = 20.0
	if got := float64(r.Scheduled) / r.ScheduleSeconds; got < 0.95*rate || got > 1.05*rate {
		t.Errorf("%.2f pods per second, not %.0f: %.2f s", got, rate, r.ScheduleSeconds)
	}
	if r.Writes["pods/create"] != 200 || r.WritesPerPod != 1 {
		t.Errorf("writes: %v, %v per pod", r.Writes, r.WritesPerPod)
	}
	if r.CPUSeconds["toy"] <= 0 || r.PeakRSSMiB["toy"] <= 0 {
		t.Errorf("usage of the toy: %v, %v", r.CPUSeconds, r.PeakRSSMiB)
	}
	if r.Floor == nil || r.RatioToFloor == nil || r.Floor.PodsSeconds >= r.ScheduleSeconds {
		t.Errorf("floor: %+v", r.Floor)
	}
}

// TestATimeoutIsCalledThat measures the toy for less time than it needs.
func TestATimeoutIsCalledThat(t *testing.T) {
	rep := measureFile(t, toySystem(t), scenario.Shape{Jobs: 1, PodsPerJob: 1000}, func(c *Config) { c.Timeout = 3 * time.Second })
	r := rep.Runs[0]
	if r.Error != "" || len(r.Invariants.Violations) > 0 || !strings.HasPrefix(r.TimedOut, "--timeout=3s ran out when ") {
		t.Errorf("error %q, timed out %q, violations %q", r.Error, r.TimedOut, r.Invariants.Violations)
	}
	if r.Scheduled == 0 || r.Floor != nil {
		t.Errorf("%d scheduled, floor %+v", r.Scheduled, r.Floor)
	}
	if err := rep.Faults(); err == nil || err.Error() != "toy 1x1000: "+r.TimedOut {
		t.Errorf("faults: %v", err)
	}
}

func TestALoadThatCannotFitIsRefused(t *testing.T) {
	node := analyse.Resources{MilliCPU: 1000, MemoryBytes: 1 << 30, Pods: 110}
	request := analyse.Resources{MilliCPU: 100, MemoryBytes: 128 << 20, Pods: 1}
	for sentence, c := range map[string]struct {
		nodes map[string]analyse.Resources
		pods  int
		want  string
	}{
		"no nodes":       {nil, 1, "the cluster has no nodes"},
		"just enough":    {map[string]analyse.Resources{"a": node, "b": node}, 16, ""},
		"one too many":   {map[string]analyse.Resources{"a": node, "b": node}, 17, "the load does not fit: 2 nodes have room for 16 pods of 100m cpu and 128 MiB, and the load has 17"},
		"a node is over": {map[string]analyse.Resources{"a": node, "b": {MilliCPU: -5000, MemoryBytes: 1, Pods: 3}}, 8, ""},
	} {
		err := fits(c.nodes, request, c.pods)
		if got := ""; err != nil && err.Error() != c.want || err == nil && got != c.want {
			t.Errorf("%s: %v", sentence, err)
		}
	}
}

// TestTheCapacityOfAToyIsFound searches the rate of jobs that a controller of 20 pods per second keeps
// up with.
func TestTheCapacityOfAToyIsFound(t *testing.T) {
	localtest.Long(t)
	rep := measureFile(t, toySystem(t), scenario.Shape{Jobs: 1, PodsPerJob: 1}, func(c *Config) {
		c.Scenario, c.WarmUpPods, c.FloorConcurrency = scenario.Rate, 10, nil
		c.Pace = &Pace{Search: capacity.Search{Start: 15, Growth: 1.5}, StepTime: 6 * time.Second}
	})
	r := rep.Runs[0]
	if r.Error != "" || r.Rate == nil || r.Failed != 0 || r.Scheduled != r.Pods || len(r.Invariants.Violations) > 0 {
		t.Fatalf("error %q, rate %+v, %d of %d scheduled, violations %q", r.Error, r.Rate, r.Scheduled, r.Pods, r.Invariants.Violations)
	}
	for _, s := range r.Rate.Steps {
		t.Logf("%.2f/s: %s, growth %.3f, wait p50 %.0f ms, client late p99 %.1f ms", s.Rate, s.Verdict, s.Growth, s.WaitMs.P50, s.LagMs.P99)
	}
	const capacity = 20.0
	if low, high := r.Rate.Sustained, r.Rate.Behind; low < 0.95*capacity || low > 1.05*capacity || high <= low || high > 1.075*capacity || r.Rate.Bound != "" {
		t.Errorf("%v to %v jobs a second, not %v: %s", low, high, capacity, r.Rate.Bound)
	}
	p := rep.Page()
	if !strings.HasPrefix(p.Verdict, "toy keeps up with ") || !strings.HasSuffix(p.Verdict, ", nothing lost") || len(p.Sections) < 2 {
		t.Errorf("verdict %q, %d sections", p.Verdict, len(p.Sections))
	}
	var table bytes.Buffer
	if err := rep.Table(&table, false); err != nil || !strings.Contains(table.String(), "keeps up with") {
		t.Errorf("%v\n%s", err, table.String())
	}
}
