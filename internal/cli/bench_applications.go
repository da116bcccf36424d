package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/lab"
	benchapps "lockstep.dev/lockstep/internal/lab/applications"
)

// applicationBench are the flags of the scenarios about applications.
type applicationBench struct{ cfg benchapps.Config }

func (b *applicationBench) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.IntVar(&b.cfg.Applications, "applications", 1000, "of apps-*: how many at once")
	f.IntVar(&b.cfg.Rounds, "rounds", 5, "of apps-updates: how often each application is changed")
	f.DurationVar(&b.cfg.Hold, "hold", 30*time.Second, "of apps-*: how long nothing is done, once all run")
	f.IntVar(&b.cfg.Replicas, "replicas", 0, "of apps-*: replicas of each Deployment; 0 measures applications without pods")
	f.BoolVar(&b.cfg.Delete, "delete", true, "of apps-*: measure the deletion of all, too")
	f.Float64Var(&b.cfg.Limits.CPU, "manager-cpu", 0, "of apps-*: cores that the manager may use; 0 is no limit (needs root)")
	f.Int64Var(&b.cfg.Limits.MemoryMiB, "manager-memory", 0, "of apps-*: MiB that the manager may use; 0 is no limit (needs root)")
	f.BoolVar(&b.cfg.Profile, "manager-profile", false, "of apps-*: keep a CPU profile of the manager's deployment of the load")
}

// run measures applications.
func (b *applicationBench) run(s streams, cmd *cobra.Command, common *lab.Config, scenarioName, output string, managerArgs []string, withoutFloor bool) error {
	cfg := b.cfg
	cfg.Scenario, cfg.Repeat, cfg.Nodes, cfg.Durable, cfg.Version = scenarioName, common.Repeat, common.Nodes, common.Durable, common.Version
	cfg.ClientConcurrency, cfg.Timeout, cfg.ManagerArgs = common.ClientConcurrency, common.Timeout, managerArgs
	if !cmd.Flags().Changed("nodes") {
		cfg.Nodes.Count = 10
	}
	if cfg.FloorConcurrency = common.FloorConcurrency; withoutFloor {
		cfg.FloorConcurrency = nil
	} else if !cmd.Flags().Changed("floor-concurrency") {
		cfg.FloorConcurrency = []int{16, 64, 256}
	}
	if common.Kubeconfig != "" {
		return usageError{errors.New("--kubeconfig: scenarios about applications bring their own control plane")}
	}
	if !slices.Contains([]string{"table", "wide", "json"}, output) {
		return usageError{fmt.Errorf("--output=%s: want table, wide or json", output)}
	}
	if cfg.OutDir = common.OutDir; cfg.OutDir == "" {
		cfg.OutDir = filepath.Join("out", "bench-"+time.Now().Format("20060102-150405"))
	}
	if err := cfg.Complete(); err != nil {
		return usageError{err}
	}
	if err := benchPrograms(common); err != nil {
		return err
	}
	cfg.Lockstep, cfg.Kube = common.Lockstep, common.Kube
	cfg.Progress = func(line string) { fmt.Fprintln(s.err, line) }
	ctx, stop := (&wfCommand{}).context(cmd)
	defer stop()
	rep, err := benchapps.Measure(ctx, cfg)
	if rep == nil || len(rep.Runs) == 0 {
		return err
	}
	fmt.Fprintf(s.err, "results: %s\n", filepath.Join(cfg.OutDir, "result.json"))
	if output == "json" {
		encoder := json.NewEncoder(s.out)
		encoder.SetIndent("", "  ")
		err = errors.Join(err, encoder.Encode(rep))
	} else {
		err = errors.Join(err, rep.Table(s.out))
	}
	return errors.Join(err, rep.Faults())
}
