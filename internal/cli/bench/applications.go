package bench

import (
	"context"
	"time"

	"lockstep.dev/lockstep/internal/lab/applications"
)

// applicationBench holds the flags of the scenarios about applications.
type applicationBench struct{ cfg applications.Config }

func (b *applicationBench) add(flags *flags) {
	f := flags.cmd.Flags()
	f.IntVar(&b.cfg.Applications, "applications", 1000, "of apps-*: how many at once")
	f.IntVar(&b.cfg.Rounds, "rounds", 5, "of apps-updates: how often each application is changed")
	f.DurationVar(&b.cfg.Hold, "hold", 30*time.Second, "of apps-*: how long nothing is done, once all run")
	f.IntVar(&b.cfg.Replicas, "replicas", 0,
		"of apps-*: replicas of each Deployment; 0 measures applications without pods")
	f.IntVar(&b.cfg.Clusters, "clusters", 10,
		"of apps-multicluster: managed clusters, each an API server of its own (about 300 MiB)")
	f.DurationVar(&b.cfg.RoundTrip, "round-trip", 80*time.Millisecond,
		"of apps-multicluster: how far the clusters are in the last part")
	f.IntVar(&b.cfg.Managers, "managers", 3,
		"of apps-shards: how many managers share the applications, after one alone")
	f.BoolVar(&b.cfg.Delete, "delete", true, "of apps-*: measure the deletion of all, too")
	f.Float64Var(&b.cfg.Limits.CPU, "manager-cpu", 0,
		"of apps-*: cores that the manager may use; 0 is no limit (needs root)")
	f.Int64Var(&b.cfg.Limits.MemoryMiB, "manager-memory", 0,
		"of apps-*: MiB that the manager may use; 0 is no limit (needs root)")
	f.BoolVar(&b.cfg.Profile, "manager-profile", false,
		"of apps-*: keep profiles of the manager's CPU time while it deploys the load, and of its memory after each phase")
}

// run measures applications.
func (b *applicationBench) run(f *flags) (err error) {
	cfg := b.cfg
	if cfg.Config, err = f.series(); err != nil {
		return err
	}
	cfg.Scenario = f.scenario
	if !f.cmd.Flags().Changed("nodes") {
		cfg.Nodes.Count = 10
	}
	if cfg.FloorConcurrency != nil && !f.cmd.Flags().Changed("floor-concurrency") {
		cfg.FloorConcurrency = []int{16, 64, 256}
	}
	return runSeries(f, &cfg,
		func(ctx context.Context) (*applications.Report, error) { return applications.Measure(ctx, cfg) })
}
