package applications

import (
	"context"
	"encoding/json"
	"errors"
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

// TestAnInterruptedRunKeepsThePhasesThatWereDone interrupts a run on a real control plane after its
// first phase.
func TestAnInterruptedRunKeepsThePhasesThatWereDone(t *testing.T) {
	kube, err := localcluster.FindKube()
	if err != nil {
		t.Fatal(err)
	}
	lockstep := filepath.Join(t.TempDir(), "lockstep")
	if out, err := exec.Command("go", "build", "-o", lockstep, "lockstep.dev/lockstep/cmd/lockstep").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	ctx, interrupt := context.WithCancelCause(t.Context())
	why := errors.New("somebody pressed Ctrl-C")
	dir := t.TempDir()
	rep, err := Measure(ctx, Config{
		Config: series.Config{Nodes: localcluster.Nodes{Count: 1}, ClientConcurrency: 4, Repeat: 1, Timeout: time.Minute, OutDir: dir, Lockstep: lockstep, Kube: kube, Version: "test", Progress: func(line string) {
			t.Log(line)
			if line == "apps-small: delete" {
				interrupt(why)
			}
		}},
		Scenario: ScenarioSmall, Applications: 5, Delete: true,
	})
	if !errors.Is(err, why) {
		t.Fatalf("error %v", err)
	}
	data, err := os.ReadFile(filepath.Join(dir, series.ResultFile))
	if err != nil {
		t.Fatal(err)
	}
	saved := &Report{}
	if err := json.Unmarshal(data, saved); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*Report{rep, saved} {
		if len(r.Runs) != 1 || !strings.Contains(r.Runs[0].Error, why.Error()) {
			t.Fatalf("runs %+v", r.Runs)
		}
		if p := r.Runs[0].deployment(); p == nil || p.Done != 5 || p.WritesEach <= 0 {
			t.Errorf("the deployment: %+v", p)
		}
	}
	var table strings.Builder
	if err := rep.Table(&table, false); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(table.String(), "5/5") || !strings.Contains(table.String(), why.Error()) {
		t.Errorf("table:\n%s", table.String())
	}
}

// TestTheSameApplicationsAreDeployedAgain deploys with one manager, deletes, and deploys with two, sooner
// than the garbage collector knows of revisions.
func TestTheSameApplicationsAreDeployedAgain(t *testing.T) {
	localtest.Long(t)
	kube, err := localcluster.FindKube()
	if err != nil {
		t.Fatal(err)
	}
	lockstep := filepath.Join(t.TempDir(), "lockstep")
	if out, err := exec.Command("go", "build", "-o", lockstep, "lockstep.dev/lockstep/cmd/lockstep").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	rep, err := Measure(t.Context(), Config{
		Config: series.Config{Nodes: localcluster.Nodes{Count: 1}, ClientConcurrency: 4, Repeat: 1, Timeout: 2 * time.Minute, OutDir: t.TempDir(), Lockstep: lockstep,
			Kube: kube, Version: "test", Progress: func(line string) { t.Log(line) }},
		Scenario: ScenarioShards, Applications: 5, Managers: 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r := rep.Runs[0]; r.Error != "" || len(r.Violations) > 0 || len(r.Phases) != 5 {
		t.Errorf("error %q, %d phases, violations %q", r.Error, len(r.Phases), r.Violations)
	}
}
