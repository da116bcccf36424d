package replay

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lockstep.dev/lockstep/internal/lab/series"
	"lockstep.dev/lockstep/internal/lab/system"
	"lockstep.dev/lockstep/internal/lab/trace"
	"lockstep.dev/lockstep/internal/localcluster"
)

// toy builds the laboratory's toy controller and returns its system file.
func toy(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("..", "jobs", "testdata", "toy"))); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "toy"), "lockstep.dev/lockstep/internal/lab/jobs/testdata/toy")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return filepath.Join(dir, "system.yaml")
}

// TestReplay replays four jobs, of which three end.
func TestReplay(t *testing.T) {
	kube, err := localcluster.FindKube()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	load, err := trace.Parse(strings.NewReader("arrival,pods,duration\n0,3,2\n1,2,1\n2,4,0\n8,1,1\n"))
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		SystemsConfig: series.SystemsConfig{Systems: []string{toy(t)}, Config: series.Config{Repeat: 1, Timeout: 2 * time.Minute, OutDir: t.TempDir(), Kube: kube, Version: "test", Nodes: localcluster.Nodes{Count: 5},
			ClientConcurrency: 4, Progress: func(line string) { t.Log(line) }}},
		Trace: load, TraceName: "four", Speed: 2,
	}
	rep, err := Measure(t.Context(), cfg)
	if err != nil || len(rep.Runs) != 1 {
		t.Fatalf("%+v, %v", rep, err)
	}
	r := rep.Runs[0]
	if r.Error != "" || r.Started != 4 || r.Jobs != 4 || r.Pods != 10 || len(r.Violations) > 0 || r.TimedOut != "" {
		t.Fatalf("error %q, %d of %d jobs with %d pods, violations %q, %s", r.Error, r.Started, r.Jobs, r.Pods, r.Violations, r.TimedOut)
	}
	if r.ByKind["pods/create"] != 10 || r.WaitMs.P99 <= 0 || r.Metrics == nil {
		t.Errorf("writes %v, wait %v, metrics %v", r.ByKind, r.WaitMs, r.Metrics)
	}
	last := func(l *Line) int { return l.Pods[len(l.Pods)-1] }
	if last(r.Waiting) != 0 || last(r.Running) != 4 {
		t.Errorf("at the end %d pods wait, and %d run: those without an end", last(r.Waiting), last(r.Running))
	}
	var text bytes.Buffer
	if err := rep.Table(&text, false); err != nil {
		t.Fatal(err)
	}
	t.Log(text.String())
	again := &Report{}
	if err := series.Read(cfg.OutDir, again); err != nil || len(again.Runs) != 1 {
		t.Errorf("%+v, %v", again, err)
	}
}

// TestTheVerdictOfAReplay compares two systems.
func TestTheVerdictOfAReplay(t *testing.T) {
	rep := &Report{}
	for name, ms := range map[string]float64{"slow": 12_000, "fast": 3_000} {
		r := &Run{SystemRun: series.SystemRun{System: name, Scenario: Scenario, Repeat: 1, Clients: []system.Client{{Name: name, QPS: "20", Burst: "30"}}}, Jobs: 7, Started: 7}
		r.WaitMs.P50, r.WaitMs.P99 = ms/2, ms
		rep.Runs = append(rep.Runs, r)
	}
	p := rep.Page()
	const want = "fast replay: 99 % of 7 jobs waited less than 3.00 s for their nodes, half of them less than 1.50 s; " +
		"slow replay: 99 % of 7 jobs waited less than 12.0 s for their nodes, half of them less than 6.00 s (4.0 and 4.0 times as long as fast replay); nothing lost"
	if p.Verdict != want {
		t.Errorf("%s\nwant %s", p.Verdict, want)
	}
	if last := p.Sections[len(p.Sections)-1]; last.Title != "Client limits" || len(last.Tables[0].Rows) != 2 {
		t.Errorf("client limits: %+v", last)
	}
}

// TestAnInterruptedReplayKeepsItsWaits has two of three jobs with nodes when it is interrupted.
func TestAnInterruptedReplayKeepsItsWaits(t *testing.T) {
	sys, err := system.New("lockstep", system.Options{})
	if err != nil {
		t.Fatal(err)
	}
	load := &trace.Trace{Jobs: []trace.Job{{Pods: 2}, {Arrival: 1, Pods: 3}, {Arrival: 2, Pods: 1}}}
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r := &Run{SystemRun: series.SystemRun{System: "lockstep", Scenario: Scenario, Repeat: 1, Verdict: series.Verdict{Error: "interrupted: signal"}}, Jobs: 3, Pods: 6}
	r.analyse(load, nil, map[string]*progress{
		jobName(0): {arrived: start, started: start.Add(time.Second)},
		jobName(1): {arrived: start.Add(time.Second), started: start.Add(2 * time.Second)},
		jobName(2): {},
	}, sys)
	rep := &Report{series.Report[*Run]{Runs: []*Run{r}}}
	p := rep.Page()
	const want = "lockstep replay: 99 % of the 2 of 3 jobs that had their nodes waited less than 1.00 s for their nodes, half of them less than 1.00 s; 1 run not measured"
	if p.Verdict != want || len(r.Violations) > 0 {
		t.Errorf("%s\nwant %s\nviolations %q", p.Verdict, want, r.Violations)
	}
	if lines := p.Sections[0].Charts[0].Lines; len(p.Sections[0].Tables[0].Rows) != 1 || len(lines) != 1 {
		t.Errorf("the page has no waits: %+v", p.Sections[0])
	}
	if r.complete(); len(r.Violations) != 1 {
		t.Errorf("a whole run in which a job has no nodes: violations %q", r.Violations)
	}
}

func TestReplaysThatAreRefused(t *testing.T) {
	good := Config{SystemsConfig: series.SystemsConfig{Systems: []string{"lockstep"},
		Config: series.Config{Repeat: 1, Timeout: time.Minute, Nodes: localcluster.Nodes{Count: 10}, ClientConcurrency: 1}},
		Trace: &trace.Trace{Jobs: []trace.Job{{Pods: 5}}}, Speed: 1}
	if err := good.Complete(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Config){
		"no system":           func(c *Config) { c.Systems = nil },
		"no trace":            func(c *Config) { c.Trace = &trace.Trace{} },
		"speed: 0":            func(c *Config) { c.Speed = 0 },
		"the largest job has": func(c *Config) { c.Trace = &trace.Trace{Jobs: []trace.Job{{Pods: 5000}}} },
	} {
		c := good
		change(&c)
		if err := c.Complete(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
