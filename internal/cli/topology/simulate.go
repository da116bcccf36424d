package topology

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cputopology/machines"
	"lockstep.dev/lockstep/internal/cputopology/simulate"
)

// simulation holds the flags of `topology simulate`.
type simulation struct {
	machines, mixes, policies []string
	nodes                     []int
	seeds, workers            int
	load, turnover            float64
	output, page              string
	cluster, strict           bool
	source                    *clusterSource
}

// simulationReport is the JSON form of `topology simulate`.
type simulationReport struct {
	SchemaVersion string             `json:"schemaVersion"`
	Load          float64            `json:"load,omitempty"`
	Turnover      float64            `json:"turnover,omitempty"`
	Summaries     []simulate.Summary `json:"summaries"`
	Results       []simulate.Result  `json:"results"`
}

func newSimulate(s command.Streams) *cobra.Command {
	var o simulation
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Compare CPU placement policies on simulated clusters under load, or on a cluster's own pods",
		Long: `Fill a simulated cluster to a load with pods of random sizes, let pods leave and arrive, and print for each policy how many
pods were split over L3 domains and NUMA nodes although they need not have been, how many L3 domains were kept free for
large pods, and what a decision took. The table gives means over the seeds; -o json gives every run.

The policy lockstep is the manager with its defaults, which moves pods within their nodes (see repack), in the simulation after
each change; lockstep-without-moves is the manager with --repack-moves-per-hour 0. The others choose a node and then cores.

With --cluster or --from-dump, the pods of a cluster that ask for CPUs of their own are placed anew on its empty nodes by each
policy, in the order in which they were created (in random orders for seeds above 1), beside the placement that they have.`,
		Example: `  lockstep topology simulate
  lockstep topology simulate --nodes 20,1000 --policy lockstep,lockstep-without-moves,least-allocated+packed-cores --check
  lockstep topology simulate --html report.html
  kubectl get nodetopologies,nodes,pods -A -o json | lockstep topology simulate --from-dump -`,
		Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), s) },
	}
	o.source = addClusterSource(cmd, s)
	f := cmd.Flags()
	f.BoolVar(&o.cluster, "cluster", false, "the pods and nodes of the cluster instead of random ones")
	f.StringSliceVar(&o.machines, "machine", []string{machines.AMD256NPS1.Name, machines.AMD256NPS4.Name},
		"models of the nodes: "+strings.Join(machines.Names(), ", "))
	f.StringSliceVar(&o.mixes, "mix", mixNames(), "distributions of pod sizes")
	f.StringSliceVar(&o.policies, "policy", policyNames(), "policies to compare")
	f.IntSliceVar(&o.nodes, "nodes", []int{20}, "nodes of the cluster; several numbers for several clusters")
	f.IntVar(&o.seeds, "seeds", 5, "runs of each combination, with seeds 1 to this")
	f.Float64Var(&o.turnover, "turnover", 1, "pods placed under load, as a multiple of those that fill the cluster")
	f.Float64Var(&o.load, "load", 0.85, "share of all CPUs in use")
	f.IntVar(&o.workers, "workers", runtime.NumCPU(), "simulations at a time; use 1 to measure latencies")
	command.WordFlag(cmd, &o.output, "output", "o", "json: every run", "json")
	f.BoolVar(&o.strict, "check", false,
		"exit with 1 unless the policy lockstep is what is wanted everywhere:\n"+simulate.Wanted)
	f.StringVar(&o.page, "html", "", "also write the table to this file, as one page that needs nothing else")
	return cmd
}

func mixNames() []string {
	var names []string
	for _, m := range simulate.Mixes() {
		names = append(names, m.Name)
	}
	return names
}

func policyNames() []string {
	var names []string
	for _, p := range simulate.Policies() {
		names = append(names, p.Name())
	}
	return names
}

func (o *simulation) run(ctx context.Context, s command.Streams) error {
	if err := o.check(); err != nil {
		return command.Usage(err)
	}
	report := simulationReport{SchemaVersion: "v2"}
	var err error
	if o.cluster || o.source.dump != "" {
		report.Results, err = o.existing(s)
	} else {
		report.Load, report.Turnover = o.load, o.turnover
		report.Results, err = o.generated(ctx, s)
	}
	if err != nil {
		return err
	}
	report.Summaries = simulate.Summarise(report.Results)
	if o.page != "" {
		if err := writeFile(o.page,
			func(w io.Writer) error { return simulate.Page(w, report.Summaries, o.load, o.turnover) }); err != nil {
			return err
		}
		fmt.Fprintf(s.Err, "written to %s\n", o.page)
	}
	if o.output == "json" {
		return command.PrintJSON(s.Out, report)
	}
	if err := printSimulation(s.Out, report.Summaries); err != nil {
		return err
	}
	if o.cluster || o.source.dump != "" {
		return nil
	}
	return o.judge(s, report.Summaries)
}

// judge prints the combinations in which Lockstep's policies miss their targets. It returns an
// error if --check is set and the policy simulate.Own misses them.
func (o *simulation) judge(s command.Streams, summaries []simulate.Summary) error {
	missed := 0
	for _, r := range summaries {
		if !strings.HasPrefix(r.Policy, simulate.Own) || r.Holds() {
			continue
		}
		fmt.Fprintf(s.Err, "%s on %d nodes of %s, mix %s: not what is wanted (%s)\n", r.Policy, r.Nodes, r.Machine,
			r.Mix, simulate.Wanted)
		if r.Policy == simulate.Own {
			missed++
		}
	}
	if o.strict && missed > 0 {
		return fmt.Errorf("%d of the combinations of machine, nodes and mix are not what is wanted", missed)
	}
	return nil
}

func (o *simulation) check() error {
	switch {
	case len(o.nodes) == 0 || slices.Min(o.nodes) < 1 || o.seeds < 1 || o.workers < 1:
		return errors.New("--nodes, --seeds and --workers must be at least 1")
	case o.strict && (o.cluster || o.source.dump != "" || !slices.Contains(o.policies, simulate.Own)):
		return fmt.Errorf("--check judges the policy %s on simulated clusters", simulate.Own)
	case o.load <= 0 || o.load > 1 || o.turnover < 0:
		return errors.New("--load must be above 0 and at most 1, --turnover at least 0")
	}
	for _, p := range o.policies {
		if !slices.Contains(policyNames(), p) {
			return fmt.Errorf("--policy %q: there are %s", p, strings.Join(policyNames(), ", "))
		}
	}
	return nil
}

// newPolicies returns new instances of the chosen policies.
func (o *simulation) newPolicies() []simulate.Policy {
	return slices.DeleteFunc(simulate.Policies(),
		func(p simulate.Policy) bool { return !slices.Contains(o.policies, p.Name()) })
}

// generated runs every combination of machine, nodes, mix, policy and seed.
func (o *simulation) generated(ctx context.Context, s command.Streams) ([]simulate.Result, error) {
	var runs []simulate.Config
	for _, nodes := range o.nodes {
		for _, machine := range o.machines {
			m, err := machines.ByName(machine)
			if err != nil {
				return nil, command.Usage(err)
			}
			for _, name := range o.mixes {
				mix, err := simulate.MixByName(name)
				if err != nil {
					return nil, command.Usage(err)
				}
				for seed := range o.seeds {
					runs = append(runs, simulate.Config{Machine: m, Nodes: nodes, Mix: mix, Seed: uint64(seed + 1), Load: o.load,
						Turnover: o.turnover, Now: time.Now})
				}
			}
		}
	}
	policies := len(o.newPolicies())
	results := make([]simulate.Result, len(runs)*policies)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(o.workers)
	for i, cfg := range runs {
		for k := range policies {
			g.Go(func() error {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				r, err := simulate.Run(cfg, o.newPolicies()[k])
				results[i*policies+k] = r
				return err
			})
		}
		if i%o.seeds == 0 {
			fmt.Fprintf(s.Err, "%s, mix %s %v, %d nodes, %d seeds\n", cfg.Machine.Name, cfg.Mix.Name, cfg.Mix.Sizes,
				cfg.Nodes, o.seeds)
		}
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	// Sort by nodes, machine and mix, then policy, then seed.
	order := policyNames()
	slices.SortStableFunc(results, func(a, b simulate.Result) int {
		return cmp.Or(cmp.Compare(slices.Index(o.nodes, a.Nodes), slices.Index(o.nodes, b.Nodes)),
			cmp.Compare(slices.Index(o.machines, a.Machine), slices.Index(o.machines, b.Machine)),
			cmp.Compare(slices.Index(o.mixes, a.Mix), slices.Index(o.mixes, b.Mix)),
			cmp.Compare(slices.Index(order, a.Policy), slices.Index(order, b.Policy)))
	})
	return results, nil
}

// existing compares the actual placement of a cluster's pods with each policy's placement of them.
func (o *simulation) existing(s command.Streams) ([]simulate.Result, error) {
	c, err := o.source.read()
	if err != nil {
		return nil, err
	}
	warn(s, c)
	e := simulate.Existing{Name: cmp.Or(o.source.dump, "cluster")}
	for _, n := range c.Nodes {
		e.Nodes = append(e.Nodes, n.State.Node)
	}
	for _, p := range c.Pods {
		e.Sizes = append(e.Sizes, p.CPUs)
	}
	if len(e.Sizes) == 0 {
		return nil, errors.New("no pod asks for CPUs of its own (annotation cpu.lockstep.dev/request, cpuset-scheduler, or Koordinator's LSE and LSR)")
	}
	first, err := simulate.AsItIs(e)
	if err != nil {
		return nil, err
	}
	results := []simulate.Result{first}
	for i := range o.newPolicies() {
		for seed := range o.seeds {
			r, err := simulate.Anew(e, o.newPolicies()[i], uint64(seed+1), time.Now)
			if err != nil {
				return nil, err
			}
			results = append(results, r)
		}
	}
	return results, nil
}

// printSimulation prints the mean over seeds for each machine, number of nodes, mix and policy.
func printSimulation(out io.Writer, summaries []simulate.Summary) error {
	w := command.Columns(out)
	fmt.Fprintln(w, "MACHINE\tNODES\tMIX\tPOLICY\tPLACED\tL3 SPLIT\tAVOIDABLE\tNUMA SPLIT\tAVOIDABLE\tFREE L3 KEPT\tWORST\tWITHIN NODES\tOF IDLE\tMOVES/100\tP50\tP99")
	for _, r := range summaries {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%.0f\t%.2f %%\t%.2f %%\t%.2f %%\t%.2f %%\t%.1f %%\t%.1f %%\t%.1f %%\t%.1f %%\t%.1f\t%.0f µs\t%.0f µs\n",
			r.Machine, r.Nodes, r.Mix, r.Policy, r.Placed, r.L3SplitPercent, r.L3SplitAvoidablePercent, r.NUMASplitPercent,
			r.NUMASplitAvoidablePercent, r.FreeL3Percent, r.FreeL3PercentMin, r.FreeL3WithinPercent, r.FreeL3IdlePercent, r.MovesPer100, r.LatencyP50Micros, r.LatencyP99Micros)
	}
	return w.Flush()
}
