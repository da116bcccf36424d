package jobs

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lockstep.dev/lockstep/internal/lab/bottleneck"
	"lockstep.dev/lockstep/internal/lab/observe"
	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/lab/series"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// TestTuneNamesAClientLimit tunes stock Kubernetes whose controllers may send five requests a second,
// by the file of the documentation.
func TestTuneNamesAClientLimit(t *testing.T) {
	localtest.Long(t)
	kube, err := localcluster.FindKube()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	text := docs(t, "systems.md", 1)
	const args = "kube-controller-manager: [--concurrent-job-syncs=5]"
	limited := strings.Replace(text, args, `kube-controller-manager: ["--kube-api-qps=${PARAM_qps}", "--kube-api-burst=${PARAM_qps}"]`, 1) + "parameters: {qps: 5, unused: some words}\n"
	if !strings.Contains(text, args) {
		t.Fatalf("no %s in\n%s", args, text)
	}
	path := filepath.Join(t.TempDir(), "limited.yaml")
	if err := os.WriteFile(path, []byte(limited), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Shapes: []scenario.Shape{{Jobs: 4, PodsPerJob: 10}}, Gangs: []bool{true}, Systems: []string{path},
		Config: series.Config{Repeat: 1, Nodes: localcluster.Nodes{Count: 10}, ClientConcurrency: 4, Timeout: 2 * time.Minute, OutDir: t.TempDir(), Kube: kube,
			Version: "test", Progress: func(line string) { t.Log(line) }},
	}
	rep, err := MeasureTune(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.Runs) != 4 || len(rep.Tune.Experiments) != 1 {
		t.Fatalf("%d runs, experiments %+v", len(rep.Runs), rep.Tune.Experiments)
	}
	for _, run := range rep.Runs {
		if !run.complete() {
			t.Fatalf("%s: error %q, %s", run.Title(), run.Error, run.TimedOut)
		}
	}
	if events, err := filepath.Glob(filepath.Join(cfg.OutDir, "0[1-4]-*", observe.EventsFile)); err != nil || len(events) != 4 {
		t.Errorf("the events of the runs: %v, %v", events, err)
	}
	if len(rep.Tune.Findings) == 0 || rep.Tune.Findings[0].Kind != bottleneck.ClientLimit {
		t.Fatalf("findings %+v", rep.Tune.Findings)
	}
	evidence := strings.Join(rep.Tune.Findings[0].Evidence, "; ")
	if !strings.Contains(evidence, "kube-controller-manager: ") || !strings.Contains(evidence, "qps=10: ") {
		t.Errorf("evidence: %s", evidence)
	}
	if advice := strings.Join(rep.Tune.Findings[0].Advice, "; "); !strings.Contains(advice, "qps: 10, now 5") {
		t.Errorf("advice: %s", advice)
	}
	if needs := rep.Tune.Needs["kube-controller-manager"]; len(needs) != len(bottleneck.Sizes) || needs[0].MemoryMiB < 20 {
		t.Errorf("needs: %+v", rep.Tune.Needs)
	}
	var table, html bytes.Buffer
	if err := rep.Table(&table, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"1. client limit, ", "-> qps: 10, now 5", "requests of kube-controller-manager", "100,000 pods: memory "} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no %q in\n%s", want, table.String())
		}
	}
	p := rep.Page()
	if want := "stock is limited by client limit: "; !strings.HasPrefix(p.Verdict, want) {
		t.Errorf("verdict %q, want %s", p.Verdict, want)
	}
	if err := p.HTML(&html); err != nil || !strings.Contains(html.String(), "Resource requests by cluster size") {
		t.Errorf("page: %v", err)
	}
}
