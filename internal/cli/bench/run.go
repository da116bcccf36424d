package bench

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/lab/admission"
	"lockstep.dev/lockstep/internal/lab/applications"
	"lockstep.dev/lockstep/internal/lab/cpus"
	"lockstep.dev/lockstep/internal/lab/jobs"
	"lockstep.dev/lockstep/internal/lab/replay"
	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/lab/soak"
	"lockstep.dev/lockstep/internal/lab/system"
	"lockstep.dev/lockstep/internal/lab/workflows"
)

func newRun(s command.Streams, version string) *cobra.Command {
	cmd, _ := measurement(s, version)
	return cmd
}

// newCompare is 'bench run' for the systems that are its arguments.
func newCompare(s command.Streams, version string) *cobra.Command {
	cmd, o := measurement(s, version)
	cmd.Use = "compare SYSTEM SYSTEM..."
	cmd.Short = "Compare systems that run batch jobs, in alternation, and say which is faster and how certain that is"
	cmd.Long = `Measure systems as 'bench run' does, --repeat times each in alternation. The verdict compares the first system with each
other one by the ratios of their times in pairs, with a 95 % confidence interval: systems whose interval has 1 are equal within
the error. A system that is named twice is compared with itself, which shows the error of the method on this machine.

Exit codes: as of 'bench run'.`
	cmd.Example = `  lockstep bench compare lockstep kubernetes --shapes 500x20
  lockstep bench compare lockstep ./system.yaml --shapes 20x500,1x10000 --repeat 9 --without-floor`
	cmd.Args = command.Args(2, math.MaxInt, "want at least 2 systems, have %d")
	repeat := cmd.Flags().Lookup("repeat")
	command.Must(repeat.Value.Set(compareRepeat))
	repeat.DefValue, repeat.Changed = compareRepeat, false
	command.Must(cmd.Flags().MarkHidden("system"))
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, systems []string) error {
		if cmd.Flags().Changed("system") {
			return command.Usagef("--system: the systems are the arguments")
		}
		if !slices.Contains(batches, o.scenario) {
			return command.Usagef("--scenario=%s: this scenario has one system, and nothing to compare it with", o.scenario)
		}
		o.Systems = systems
		return run(cmd, nil)
	}
	return cmd
}

// compareRepeat is the default of --repeat for comparisons: enough pairs for an interval.
const compareRepeat = "5"

// measurement returns the command 'bench run' and its flags.
func measurement(s command.Streams, version string) (*cobra.Command, *flags) {
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run batch jobs through one or more systems and report how fast, at what cost, and whether correctly",
		Long: `Create jobs of each shape at once and measure until every pod has a node. Each run has a fresh control plane with
simulated nodes, and so begins under equal conditions; systems alternate. After each run the floor is measured on the
same control plane: how long a bare client takes to write the same objects with nobody in between.

The results are in --out: report.html, run.json, and the observed events of each run. Progress goes to stderr.

With --kubeconfig an existing cluster is measured, in which the system has to be running; without its audit log (--audit-log)
a watch gives the times, and there is no floor and no count of writes.

--system ./FILE.yaml measures a system that the file describes: what to start, what a job looks like, which pods are its own.

The scenario batch-shapes has the same pods in ten shapes, from many small jobs to one large one, with gangs and without;
batch-workers has one shape under ten fixed numbers of writes in flight and the adaptive one: the V-curve; admission has one
job whose pods are admitted by nothing, by CEL rules, or by a validating and a mutating webhook over TLS which compute for 0 or
20 ms each. contention, mixed, queues, rate, queued, enqueue, client-limits and foreign-pods each show the phenomenon that they
are named for, or say that it did not occur (docs/benchmarks.md).

The scenario cpu-topology is another measurement: programs that feel their CPUs, beside neighbours, on a real node of this
machine (as root), unpinned, pinned, as a kubelet would pin them, and static-burst. On a machine that cannot show a difference
it says so, and checks that pods run where they were to.

A load that the nodes cannot hold is refused before anything starts.

With --fail-if the exit code says whether a figure is worse than you allow, for use in pipelines. A run without the figure,
such as ratioToFloor where there is no floor, counts as worse.

Exit codes: 0 measured, every pod scheduled and no invariant violated; 1 otherwise; 2 wrong usage; 5 measured, but a threshold
of --fail-if was crossed; 130 interrupted.`,
		Example: `  lockstep bench run --shapes 500x20,1x10000 --gang both --nodes 1000
  lockstep bench run --shapes 500x20 --system lockstep,kubernetes -o json
  lockstep bench run --shapes 500x20 --fail-if 'ratioToFloor>1.2' --fail-if 'latencyMs.p99>20000' --export markdown
  lockstep bench run --scenario batch-workers --repeat 3
  lockstep bench run --scenario batch-shapes --scale 0.1 --system lockstep,kubernetes`,
		Args: command.NoArgs,
	}
	o := &flags{Streams: s, cmd: cmd}
	o.Version = version
	var gang string
	wfl, apps, cpu, churn, again := workflowBench{}, applicationBench{}, cpuBench{}, soakBench{}, replayBench{}
	f := cmd.Flags()
	f.StringVar(&o.scenario, "scenario", scenario.Batch, "what to do: "+strings.Join(scenarios, ", "))
	f.StringSliceVar(&o.shapes, "shapes", []string{"500x20"},
		"JOBSxPODS of each load; of workflows hello, chain-N, fanout-N or dag-N")
	f.Float64Var(&o.scale, "scale", 1, "size of the load of a scenario that has its own; 1 is about 10,000 pods")
	f.StringSliceVar(&o.ahead, "ahead", nil,
		"of batch, mixed: JOBSxPODS submitted just before each load, or none; of several each is measured")
	f.IntSliceVar(&o.Weights, "queue-weights", nil,
		"of queues: the weights of the tenants' queues, each of which gets the load")
	f.StringVar(&gang, "gang", "true",
		"true: all pods of a job get nodes together or none does; false; or both, one after the other")
	f.StringSliceVar(&o.Systems, "system", []string{"lockstep"},
		"what to measure, in alternation: "+strings.Join(system.Names(), ", ")+", or the file of a system (docs/systems.md)")
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
	f.StringSliceVar(&o.limits, "kubernetes-client-limits", nil,
		"QPS/BURST of kube-controller-manager and kube-scheduler, or unlimited; of several each is measured")
	f.StringSliceVar(&o.Foreign, "foreign", nil,
		"of foreign-pods: who creates the pods: "+strings.Join(scenario.Foreign, ", ")+"; gangs: Deployments whose pods start together; affinity: Deployments whose pods are on different nodes")
	f.StringSliceVar(&o.admissions, "admission", nil,
		"of batch: what admits each pod: none, cel, or webhook:WORK:TIMEOUT such as webhook:20ms:10s; of several each is measured")
	f.IntVar(&o.Repeat, "repeat", 1, "how often to run everything")
	f.IntVar(&o.ClientConcurrency, "client-concurrency", 64, "how many jobs the client creates at once")
	f.IntVar(&o.WarmUpPods, "warm-up", 3000,
		"pods that go through the system before it is measured, though no more than the load has")
	f.IntSliceVar(&o.FloorConcurrency, "floor-concurrency", []int{64, 16, 256, 1024},
		"writes in flight that the floor tries, to take the best")
	f.IntVar(&o.FloorTries, "floor-tries", 3,
		"of batch: how often the floor writes the whole load, to take the fastest")
	f.BoolVar(&o.withoutFloor, "without-floor", false, "do not measure the floor")
	f.BoolVar(&o.Durable, "durable", true, "etcd writes to disk before it answers, as in production")
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "measure the cluster of this kubeconfig instead of fresh ones")
	f.StringVar(&o.Context, "context", "", "context of the kubeconfig")
	f.StringArrayVar(&o.parameters, "set", nil, "NAME=VALUE: a parameter of the file of a system")
	f.StringArrayVar(&o.metrics, "metrics", nil, "with --kubeconfig: NAME=URL of a controller's metrics, for example through 'kubectl port-forward'")
	f.StringVar(&o.AuditLog, "audit-log", "", "with --kubeconfig: path of the API server's audit log")
	f.DurationVar(&o.Timeout, "timeout", 10*time.Minute, "bound of each run, from the first job to the last pod")
	f.StringVar(&o.OutDir, "out", "", "folder for the results (default out/bench-DATE-TIME)")
	o.output.add(cmd)
	addFile(cmd)
	groupHelp(cmd)
	wfl.add(o)
	o.paced = &wfl.cfg
	apps.add(o)
	cpu.add(o)
	churn.add(o)
	again.add(o)
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
		case o.scenario == soak.Scenario:
			return churn.run(o)
		case o.scenario == replay.Scenario:
			return again.run(o, gang)
		case slices.Contains(batches, o.scenario):
			return o.runJobs(gang)
		}
		return command.Usagef("--scenario=%s: want one of %s", o.scenario, strings.Join(scenarios, ", "))
	}
	return cmd, o
}

// runJobs measures batch jobs.
func (f *flags) runJobs(gang string) error {
	cfg, err := f.jobs(gang)
	if err != nil {
		return err
	}
	progress := newProgress(f.Err)
	cfg.OnStep, cfg.Progress = progress.step, progress.line
	return runSeries(f, &cfg, func(ctx context.Context) (*jobs.Report, error) {
		defer progress.end()
		return jobs.Measure(ctx, cfg)
	})
}

// jobs returns the configuration of a measurement of batch jobs.
func (f *flags) jobs(gang string) (cfg jobs.Config, err error) {
	if f.scale <= 0 || f.scale > 10 {
		return cfg, command.Usagef("--scale=%v: want more than 0 and at most 10", f.scale)
	}
	if f.scale != 1 && (f.scenario == scenario.Batch || f.cmd.Flags().Changed("shapes")) {
		return cfg, command.Usagef("--scale: the shapes are given by --shapes")
	}
	if f.Shapes, err = scenario.ParseShapes(f.shapes); err != nil {
		return cfg, command.Usagef("--shapes: %w", err)
	}
	if f.scenario != scenario.Queues && f.cmd.Flags().Changed("queue-weights") {
		return cfg, command.Usagef("--queue-weights: is of --scenario=%s", scenario.Queues)
	}
	gang = f.preset(gang)
	f.Ahead = nil
	for _, text := range f.ahead {
		var ahead scenario.Shape
		if text != "none" {
			if ahead, err = scenario.ParseShape(text); err != nil {
				return cfg, command.Usagef("--ahead: %w", err)
			}
		}
		f.Ahead = append(f.Ahead, ahead)
	}
	f.ClientLimits = nil
	for _, text := range f.limits {
		limit, err := system.ParseLimit(text)
		if err != nil {
			return cfg, command.Usagef("--kubernetes-client-limits: %w", err)
		}
		f.ClientLimits = append(f.ClientLimits, limit)
	}
	f.Admissions = nil
	for _, text := range f.admissions {
		a, err := admission.Parse(text)
		if err != nil {
			return cfg, command.Usagef("--admission: %w", err)
		}
		f.Admissions = append(f.Admissions, a)
	}
	switch gang {
	case "true":
		f.Gangs = []bool{true}
	case "false":
		f.Gangs = []bool{false}
	case "both":
		f.Gangs = []bool{true, false}
	default:
		return cfg, command.Usagef("--gang=%s: want true, false or both", gang)
	}
	if f.Parameters, err = command.KeyValues("set", f.parameters); err != nil {
		return cfg, err
	}
	if f.MetricsURLs, err = command.KeyValues("metrics", f.metrics); err != nil {
		return cfg, err
	}
	cfg = f.Config
	cfg.Config, err = f.series()
	return cfg, err
}
