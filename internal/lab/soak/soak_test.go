package soak

import (
	"bytes"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lockstep.dev/lockstep/internal/lab/series"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// toy builds the laboratory's toy controller and returns its system file, with another environment.
func toy(t *testing.T, env string) string {
	t.Helper()
	dir := t.TempDir()
	from := filepath.Join("..", "jobs", "testdata", "toy")
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "toy"), "lockstep.dev/lockstep/internal/lab/jobs/testdata/toy")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	path := filepath.Join(dir, "system.yaml")
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte(strings.Replace(string(text), `env: {RATE: "20"}`, "env: "+env, 1)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestALeakIsFlagged soaks a toy that keeps 400 KB and a goroutine for each pod, and one that keeps
// nothing.
func TestALeakIsFlagged(t *testing.T) {
	localtest.Long(t)
	kube, err := localcluster.FindKube()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	for _, c := range []struct {
		env   string
		leaks bool
	}{
		{`{RATE: "100", LEAK: "400000"}`, true},
		{`{RATE: "100"}`, false},
	} {
		rep, err := Measure(t.Context(), Config{
			SystemsConfig: series.SystemsConfig{Systems: []string{toy(t, c.env)},
				Config: series.Config{Repeat: 1, Timeout: 4 * time.Minute, OutDir: t.TempDir(), Kube: kube, Version: "test", Nodes: localcluster.Nodes{Count: 20},
					Progress: func(line string) { t.Log(line) }}},
			Duration: 45 * time.Second, JobsPerSecond: 2, PodsPerJob: 2, Life: 4 * time.Second,
		})
		if err != nil || len(rep.Runs) != 1 {
			t.Fatalf("%+v, %v", rep, err)
		}
		r := rep.Runs[0]
		if r.Error != "" || r.Jobs == 0 || r.Pods == 0 {
			t.Fatalf("error %q, %d jobs, %d pods", r.Error, r.Jobs, r.Pods)
		}
		grows := map[string]bool{}
		for _, g := range r.Growths {
			t.Logf("%+v", g)
			if g.Quantity == Objects && g.To <= 20 {
				t.Errorf("%.0f objects, and there are 20 nodes", g.To)
			}
			if g.Judged {
				grows[string(g.Quantity)+" "+g.Of] = g.Grows
			}
		}
		for _, of := range []string{"memory toy", "goroutines toy"} {
			if got, ok := grows[of]; !ok || got != c.leaks {
				t.Errorf("%s: %s grows: %v, judged %v", c.env, of, got, ok)
			}
		}
		if err := rep.Faults(); c.leaks && (err == nil || !strings.Contains(err.Error(), "grows without bound: memory of toy from ")) {
			t.Errorf("faults: %v", err)
		}
		if _, ok := grows["objects cluster"]; !ok {
			t.Error("objects are not judged")
		}
		if _, ok := grows["database etcd"]; !ok {
			t.Error("the database is not judged")
		}
		var text bytes.Buffer
		if err := rep.Table(&text, true); err != nil {
			t.Fatal(err)
		}
		t.Log(text.String())
	}
}

// TestOnlyTheSystemIsJudged has an API server whose memory grows, and a controller's queue.
func TestOnlyTheSystemIsJudged(t *testing.T) {
	r := &Run{SystemRun: series.SystemRun{System: "toy", Scenario: Scenario, Repeat: 1}, Seconds: 1819}
	r.Violations = []string{}
	for i := range 200 {
		at := float64(i)
		r.add(Memory, "kube-apiserver", at, 300+at)
		r.add(Memory, "toy", at, 50+3*math.Sin(at))
		r.add(Waiting, "toy: jobs", at, at)
	}
	r.add(Goroutines, "once", 100, 1) // nothing to draw
	r.judge(func(_ Quantity, of string) bool { return strings.HasPrefix(of, "toy") })
	const want = "grows without bound: queue of toy: jobs from 66 to 199 (3600 an hour)"
	if got := r.growing(); got != want || r.Growing != 1 {
		t.Errorf("%s, want %s", got, want)
	}
	rep := &Report{series.Report[*Run]{Runs: []*Run{r}}}
	p := rep.Page()
	if !p.Bad || !strings.Contains(p.Verdict, "toy: 30 minutes of churn, "+want) || len(p.Sections) != 1 || len(p.Sections[0].Charts) != 2 {
		t.Errorf("page: bad %v, verdict %q", p.Bad, p.Verdict)
	}
	r.Error = "interrupted: signal"
	if cut := rep.Page().Verdict; !strings.Contains(cut, want+", until it ended early, 1 run not measured") {
		t.Errorf("the verdict on a run that was interrupted: %q", cut)
	}
	long := rep.Page().Warnings
	r.Seconds = 60
	if short := rep.Page().Warnings; len(long) > 0 || len(short) != 1 || !strings.Contains(short[0], "half an hour can tell") {
		t.Errorf("warnings about half an hour %q, and about a minute %q", long, short)
	}
	r.Error = ""
	var html bytes.Buffer
	if err := p.HTML(&html); err != nil {
		t.Fatal(err)
	}
	short := &Run{}
	short.judge(func(Quantity, string) bool { return true })
	if got := short.growing(); got != "too short to judge" {
		t.Error(got)
	}
}

func TestSoaksThatAreRefused(t *testing.T) {
	good := Config{SystemsConfig: series.SystemsConfig{Systems: []string{"lockstep"},
		Config: series.Config{Repeat: 1, Timeout: time.Minute, Nodes: localcluster.Nodes{Count: 10}}},
		Duration: time.Minute, JobsPerSecond: 1, PodsPerJob: 1, Life: time.Second}
	if err := good.Complete(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Config){
		"less than 30s":         func(c *Config) { c.Duration = time.Second },
		"no system":             func(c *Config) { c.Systems = nil },
		"the load does not fit": func(c *Config) { c.PodsPerJob = 2000 },
		"want 0 to 1,000":       func(c *Config) { c.JobsPerSecond = 0 },
		`unknown system "x"`:    func(c *Config) { c.Systems = []string{"x"} },
	} {
		c := good
		change(&c)
		if err := c.Complete(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
