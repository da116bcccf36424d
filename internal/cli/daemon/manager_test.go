package daemon

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/manager"
	"lockstep.dev/lockstep/internal/scheduler/place"
)

// TestSchedulerConfig reads a scheduler configuration as 'lockstep manager' does.
func TestSchedulerConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "scheduler.conf")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`
actions: "allocate, preempt"
tiers:
- plugins:
  - {name: sla, arguments: {sla-waiting-time: 5m}}
  - {name: binpack, arguments: {binpack.weight: 5}}
  - {name: usage}
`)
	for _, args := range [][]string{nil, {"--overdue-after=1h", "--node-score=least"}} {
		var log bytes.Buffer
		cfg := manager.Config{NodeScore: "least", OverdueAfter: time.Hour, Log: slog.New(slog.NewTextHandler(&log, nil))}
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		flags.Duration("overdue-after", 0, "")
		flags.Duration("usage-half-life", 0, "")
		flags.Bool("preempt-across-queues", false, "")
		flags.String("node-score", "", "")
		if err := flags.Parse(args); err != nil {
			t.Fatal(err)
		}
		if err := configureScheduler(flags, file, &cfg); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(log.String(), "usage") {
			t.Errorf("the log does not name what is missing: %s", log.String())
		}
		want := manager.Config{
			NodeScore: "most", OverdueAfter: 5 * time.Minute, NoReclaim: true,
			Scores: place.Weights{Resources: 5, Balanced: 1, NodeAffinity: 2, Taints: 3},
		}
		if args != nil {
			want.NodeScore, want.OverdueAfter = "least", time.Hour
		}
		cfg.Log = nil
		if diff := cmp.Diff(want.Scores, cfg.Scores); diff != "" || cfg.NodeScore != want.NodeScore || cfg.OverdueAfter != want.OverdueAfter ||
			!cfg.NoReclaim || cfg.NoPreemption {
			t.Errorf("with %v: %s, %v, no preemption %t, no reclaim %t; weights:\n%s", args, cfg.NodeScore, cfg.OverdueAfter, cfg.NoPreemption,
				cfg.NoReclaim, diff)
		}
	}

	write("actions: alocate\n")
	var errOut bytes.Buffer
	cmd := NewManager(command.Streams{In: strings.NewReader(""), Out: &errOut, Err: &errOut})
	cmd.SetArgs([]string{"--scheduler-config", file})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), `line 1: actions: there is no action "alocate"`) {
		t.Errorf("the error is %v", err)
	}
}
