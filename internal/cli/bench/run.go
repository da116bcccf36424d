package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/lab/applications"
	"lockstep.dev/lockstep/internal/lab/cpus"
	"lockstep.dev/lockstep/internal/lab/jobs"
	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/lab/system"
	"lockstep.dev/lockstep/internal/lab/workflows"
)

func newRun(s command.Streams, version string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run batch jobs through one or more systems and report how fast, at what cost, and whether correctly",
		Long: `Create jobs of each shape at once and measure until every pod has a node. Each run has a fresh control plane with
simulated nodes, and so begins under equal conditions; systems alternate. After each run the floor is measured on the
same control plane: how long a bare client takes to write the same objects with nobody in between.

The results are in --out: report.html, result.json, and the observed events of each run. Progress goes to stderr.

With --kubeconfig an existing cluster is measured, in which the system has to be running; without its audit log (--audit-log)
a watch gives the times, and there is no floor and no count of writes.

The scenario cpu-topology is another measurement: programs that feel their CPUs, beside neighbours, on a real node of this
machine (as root), unpinned, pinned, as a kubelet would pin them, and static-burst. On a machine that cannot show a difference
it says so, and checks that pods run where they were to.

Exit codes: 0 measured, every pod scheduled and no invariant violated; 1 otherwise; 2 wrong usage; 130 interrupted.`,
		Example: `  lockstep bench run --shapes 500x20,1x10000 --gang both --nodes 1000
  lockstep bench run --shapes 500x20 --system lockstep,kubernetes -o json
  lockstep bench run --shapes 500x20 --writer-concurrency 0,1,4,16,64,256,1024`,
		Args: command.NoArgs,
	}
	o := &flags{Streams: s, cmd: cmd, output: "table"}
	o.Version = version
	var gang string
	wfl, apps, cpu := workflowBench{}, applicationBench{}, cpuBench{}
	f := cmd.Flags()
	f.StringVar(&o.scenario, "scenario", scenario.Batch, "what to do: "+strings.Join(scenarios, ", "))
	f.StringSliceVar(&o.shapes, "shapes", []string{"500x20"},
		"JOBSxPODS of each load; of workflows hello, chain-N, fanout-N or dag-N")
	f.StringVar(&gang, "gang", "true",
		"true: all pods of a job get nodes together or none does; false; or both, one after the other")
	f.StringSliceVar(&o.Systems, "system", []string{"lockstep"},
		"what to measure, in alternation: "+strings.Join(system.Names(), ", "))
	f.IntVar(&o.Nodes.Count, "nodes", 1000, "number of simulated nodes")
	f.StringVar(&o.Nodes.CPU, "node-cpu", "32", "cpu of each node")
	f.StringVar(&o.Nodes.Memory, "node-memory", "256Gi", "memory of each node")
	f.IntVar(&o.Nodes.Pods, "node-pods", 110, "pods that each node takes")
	f.IntSliceVar(&o.WriterConcurrency, "writer-concurrency", nil,
		"the manager's writes in flight, 0 is adaptive; of several each is measured")
	f.StringSliceVar(&o.ManagerArgs, "manager-args", nil, "more flags for Lockstep's manager, such as --pprof")
	f.IntSliceVar(&o.JobSyncs, "kubernetes-job-syncs", nil,
		fmt.Sprintf("how many Jobs stock Kubernetes syncs at once (default %d, its own); of several each is measured",
			system.DefaultJobSyncs))
	f.IntVar(&o.Repeat, "repeat", 1, "how often to run everything")
	f.IntVar(&o.ClientConcurrency, "client-concurrency", 64, "how many jobs the client creates at once")
	f.IntVar(&o.WarmUpPods, "warm-up", 3000,
		"pods that go through the system before it is measured, though no more than the load has")
	f.IntSliceVar(&o.FloorConcurrency, "floor-concurrency", []int{64, 16, 256, 1024},
		"writes in flight that the floor tries, to take the best")
	f.BoolVar(&o.withoutFloor, "without-floor", false, "do not measure the floor")
	f.BoolVar(&o.Durable, "durable", true, "etcd writes to disk before it answers, as in production")
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "measure the cluster of this kubeconfig instead of fresh ones")
	f.StringVar(&o.Context, "context", "", "context of the kubeconfig")
	f.StringVar(&o.AuditLog, "audit-log", "", "with --kubeconfig: path of the API server's audit log")
	f.DurationVar(&o.Timeout, "timeout", 10*time.Minute, "bound of each run, from the first job to the last pod")
	f.StringVar(&o.OutDir, "out", "", "folder for the results (default out/bench-DATE-TIME)")
	command.WordFlag(cmd, &o.output, "output", "o", "what to print: table, wide or json", outputs...)
	wfl.add(o)
	apps.add(o)
	cpu.add(o)
	for flag, values := range map[string][]string{"scenario": scenarios, "gang": {"true", "false", "both"},
		"system": system.Names()} {
		command.CompleteWords(cmd, flag, values...)
	}

	cmd.RunE = func(*cobra.Command, []string) error {
		switch {
		case o.scenario == workflows.Queued || o.scenario == workflows.Rate:
			return wfl.run(o)
		case slices.Contains(applications.Scenarios, o.scenario):
			return apps.run(o)
		case o.scenario == cpus.Scenario:
			return cpu.run(o)
		case o.scenario == scenario.Batch:
			return o.runJobs(gang)
		}
		return command.Usagef("--scenario=%s: want one of %s", o.scenario, strings.Join(scenarios, ", "))
	}
	return cmd
}

// runJobs measures batch jobs.
func (f *flags) runJobs(gang string) (err error) {
	if f.Shapes, err = scenario.ParseShapes(f.shapes); err != nil {
		return command.Usagef("--shapes: %w", err)
	}
	switch gang {
	case "true":
		f.Gangs = []bool{true}
	case "false":
		f.Gangs = []bool{false}
	case "both":
		f.Gangs = []bool{true, false}
	default:
		return command.Usagef("--gang=%s: want true, false or both", gang)
	}
	cfg := f.Config
	if cfg.Config, err = f.series(); err != nil {
		return err
	}
	progress := newProgress(f.Err)
	cfg.OnStep, cfg.Progress = progress.step, progress.line
	return runSeries(f, &cfg, func(ctx context.Context) (*jobs.Report, error) {
		defer progress.end()
		rep, err := jobs.Measure(ctx, cfg)
		if rep != nil {
			rep.DropCurves()
		}
		return rep, err
	})
}
