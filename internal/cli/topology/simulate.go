package topology

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/machines"
	"lockstep.dev/lockstep/internal/cputopology/simulate"
)

// simulation holds the flags of `topology simulate`.
type simulation struct {
	machines, mixes, policies []string
	sysfs, sizes              []string
	nodes                     []int
	seeds, workers            int
	load, turnover            float64
	output, page              string
	cluster, strict           bool
	source                    *clusterSource
	clusters                  []namedCluster // by machine and number of nodes
	distributions             []simulate.Mix
}

// namedCluster is a cluster of one or several machines.
type namedCluster struct {
	machine string
	groups  []simulate.Group
}

func (c namedCluster) nodes() int {
	n := 0
	for _, g := range c.groups {
		n += g.Nodes
	}
	return n
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

The column OF AT MOST is a bound of the free L3 domains: no packing of the running pods over the whole cluster could keep more
without splitting pods more than they are. WITHIN NODES is the same bound for each node's pods on their node, in percent of the former: no moves
within nodes could keep more.

To plan for machines and pods of your own: --sysfs DIR:COUNT adds COUNT nodes whose /sys was copied to DIR/sys, --machine
MODEL:COUNT such of a model, all to one cluster; --sizes 3:2,8:1 draws pods of 3 CPUs twice as often as pods of 8, and
--sizes 6-14 each size from 6 to 14.

With --cluster or --from-dump, the pods of a cluster that ask for CPUs of their own are placed anew on its empty nodes by each
policy, in the order in which they were created (in random orders for seeds above 1), beside the placement that they have. With
--sysfs or --machine, they are placed on those machines instead, as many as COUNT says; with --mix cluster, their sizes are the
distribution from which the pods of a simulated cluster are drawn.`,
		Example: `  lockstep topology simulate
  lockstep topology simulate --nodes 20,1000 --policy lockstep,lockstep-without-moves,least-allocated+packed-cores --check
  lockstep topology simulate --html report.html
  lockstep topology simulate --sysfs rack-a:12 --machine amd256-nps4:4 --sizes 3:2,8:1 --load 0.95
  lockstep topology simulate --from-dump dump.json --machine amd256-nps4:40
  kubectl get nodetopologies,nodes,pods -A -o json | lockstep topology simulate --from-dump -`,
		Args: command.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		changed := cmd.Flags().Changed
		if (len(o.sysfs) > 0 || o.existingPods()) && !changed("machine") {
			o.machines = nil
		}
		if len(o.sizes) > 0 && !changed("mix") {
			o.mixes = nil
		}
		return o.run(cmd.Context(), s)
	}
	o.source = addClusterSource(cmd, s)
	f := cmd.Flags()
	f.BoolVar(&o.cluster, "cluster", false, "the pods and nodes of the cluster instead of random ones")
	f.StringSliceVar(&o.machines, "machine", []string{machines.AMD256NPS1.Name, machines.AMD256NPS4.Name},
		"models of the nodes, each for a cluster of its own, or MODEL:COUNT for one cluster of several machines: "+
			strings.Join(machines.Names(), ", "))
	f.StringSliceVar(&o.sysfs, "sysfs", nil,
		"DIR or DIR:COUNT: nodes whose sysfs was copied to DIR/sys, in one cluster with those of MODEL:COUNT")
	f.StringSliceVar(&o.mixes, "mix", mixNames(), "distributions of pod sizes, or cluster: the sizes of the cluster's or dump's pods")
	f.StringSliceVar(&o.sizes, "sizes", nil, "a distribution of your own: SIZE, SIZE:WEIGHT, or FROM-TO:WEIGHT for each size of a range")
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
	report := simulationReport{SchemaVersion: "v3"}
	e, err := o.readExisting(s)
	if err != nil {
		return err
	}
	if err := o.prepare(s, e); err != nil {
		return err
	}
	if e != nil && len(o.distributions) == 0 {
		report.Results, err = o.existing(*e)
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
	if o.existingPods() {
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
	case o.strict && (o.existingPods() || !slices.Contains(o.policies, simulate.Own)):
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

// existingPods reports whether the pods are those of a cluster.
func (o *simulation) existingPods() bool { return o.cluster || o.source.dump != "" }

// clusterMix is the name of the mix of the sizes of a cluster's pods.
const clusterMix = "cluster"

// prepare reads the machines and the distributions of sizes that the flags name. e is the cluster
// whose pods are placed, or nil.
func (o *simulation) prepare(s command.Streams, e *simulate.Existing) error {
	var err error
	if o.clusters, err = o.readMachines(s); err != nil {
		return err
	}
	if e != nil && !slices.Contains(o.mixes, clusterMix) && len(o.sizes) == 0 {
		if len(o.clusters) > 1 {
			return command.Usagef("several clusters for the same pods: give each machine a COUNT")
		}
		return nil // its pods are placed, and no others
	}
	for _, name := range o.mixes {
		if name == clusterMix {
			if e == nil {
				return command.Usagef("--mix %s takes the sizes of a cluster's pods: name one with --cluster or --from-dump", clusterMix)
			}
			o.distributions = append(o.distributions, simulate.Mix{Name: clusterMix, Sizes: e.Sizes})
			continue
		}
		if e != nil {
			continue // the default, all mixes, is not meant
		}
		mix, err := simulate.MixByName(name)
		if err != nil {
			return command.Usage(err)
		}
		o.distributions = append(o.distributions, mix)
	}
	if len(o.sizes) > 0 {
		mix, err := simulate.ParseMix(strings.Join(o.sizes, ","))
		if err != nil {
			return command.Usage(fmt.Errorf("--sizes: %w", err))
		}
		o.distributions = append(o.distributions, mix)
	}
	if len(o.clusters) == 0 { // sizes of the cluster's pods on its own machines
		o.clusters = []namedCluster{{machine: e.Name, groups: e.Groups()}}
	}
	return nil
}

// readMachines returns the clusters: one of each model and number of nodes or, with DIR or a COUNT,
// one of all machines for each number of nodes.
func (o *simulation) readMachines(s command.Streams) ([]namedCluster, error) {
	mixed := len(o.sysfs) > 0
	type machine struct {
		name  string
		topo  *cputopology.Topology
		count int // 0: the number of --nodes
	}
	var all []machine
	for _, v := range o.machines {
		name, count, err := splitCount(v)
		if err != nil {
			return nil, command.Usage(fmt.Errorf("--machine: %w", err))
		}
		topo, err := chosenTopology(s, "", name)
		if err != nil {
			return nil, err
		}
		mixed = mixed || count > 0
		all = append(all, machine{name, topo, count})
	}
	for _, v := range o.sysfs {
		dir, count, err := splitCount(v)
		if err != nil {
			return nil, command.Usage(fmt.Errorf("--sysfs: %w", err))
		}
		topo, err := chosenTopology(s, dir, "")
		if err != nil {
			return nil, fmt.Errorf("--sysfs %s: %w", dir, err)
		}
		all = append(all, machine{filepath.Base(dir), topo, count})
	}
	var out []namedCluster
	for _, nodes := range o.nodes {
		var together namedCluster
		for _, m := range all {
			g := simulate.Group{Topology: m.topo, Nodes: cmp.Or(m.count, nodes)}
			if !mixed {
				out = append(out, namedCluster{m.name, []simulate.Group{g}})
				continue
			}
			if len(together.groups) > 0 {
				together.machine += " + "
			}
			if together.machine += m.name; len(all) > 1 {
				together.machine += fmt.Sprintf(":%d", g.Nodes)
			}
			together.groups = append(together.groups, g)
		}
		if mixed {
			out = append(out, together)
		}
	}
	return out, nil
}

// splitCount splits NAME:COUNT. The count is 0 if there is none.
func splitCount(v string) (name string, count int, err error) {
	i := strings.LastIndexByte(v, ':')
	if i < 0 {
		return v, 0, nil
	}
	count, err = strconv.Atoi(v[i+1:])
	if err != nil || count < 1 || count > nodesMax {
		return "", 0, fmt.Errorf("%q: the number after the colon must be from 1 to %d", v, nodesMax)
	}
	return v[:i], count, nil
}

const nodesMax = 100000

// generated runs every combination of machine, nodes, mix, policy and seed.
func (o *simulation) generated(ctx context.Context, s command.Streams) ([]simulate.Result, error) {
	var runs []simulate.Config
	for _, c := range o.clusters {
		for _, mix := range o.distributions {
			for seed := range o.seeds {
				runs = append(runs, simulate.Config{Name: c.machine, Cluster: c.groups, Mix: mix, Seed: uint64(seed + 1),
					Load: o.load, Turnover: o.turnover, Now: time.Now})
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
			fmt.Fprintf(s.Err, "%s, mix %s, %d nodes, %d seeds\n", cfg.Name, cfg.Mix.Name,
				namedCluster{groups: cfg.Cluster}.nodes(), o.seeds)
		}
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	// Sort by cluster and mix, then policy, then seed.
	position := func(r simulate.Result) (cluster, mix int) {
		return slices.IndexFunc(o.clusters, func(c namedCluster) bool { return c.machine == r.Machine && c.nodes() == r.Nodes }),
			slices.IndexFunc(o.distributions, func(m simulate.Mix) bool { return m.Name == r.Mix })
	}
	order := policyNames()
	slices.SortStableFunc(results, func(a, b simulate.Result) int {
		clusterA, mixA := position(a)
		clusterB, mixB := position(b)
		return cmp.Or(cmp.Compare(clusterA, clusterB), cmp.Compare(mixA, mixB),
			cmp.Compare(slices.Index(order, a.Policy), slices.Index(order, b.Policy)))
	})
	return results, nil
}

// readExisting reads the cluster whose pods are placed. It returns nil if the flags name none.
func (o *simulation) readExisting(s command.Streams) (*simulate.Existing, error) {
	if !o.existingPods() {
		return nil, nil
	}
	c, err := o.source.read()
	if err != nil {
		return nil, err
	}
	warn(s, c)
	e := &simulate.Existing{Name: cmp.Or(o.source.dump, "cluster")}
	for _, n := range c.Nodes {
		e.Nodes = append(e.Nodes, n.State.Node)
	}
	for _, p := range c.Pods {
		e.Sizes = append(e.Sizes, p.CPUs)
	}
	if len(e.Sizes) == 0 {
		return nil, errors.New("no pod asks for CPUs of its own (annotation cpu.lockstep.dev/request, cpuset-scheduler, or Koordinator's LSE and LSR)")
	}
	return e, nil
}

// existing compares each policy's placement of a cluster's pods with the actual one or, if other
// machines are named, places the pods on these.
func (o *simulation) existing(e simulate.Existing) ([]simulate.Result, error) {
	var results []simulate.Result
	if len(o.clusters) > 0 {
		other, err := e.On(o.clusters[0].machine, o.clusters[0].groups)
		if err != nil {
			return nil, err
		}
		e = other
	} else {
		first, err := simulate.AsItIs(e)
		if err != nil {
			return nil, err
		}
		results = append(results, first)
	}
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
	fmt.Fprintln(w, "MACHINE\tNODES\tMIX\tPOLICY\tPLACED\tUNPLACED\tL3 SPLIT\tAVOIDABLE\tNUMA SPLIT\tAVOIDABLE\tFREE L3 KEPT\tOF AT MOST\t\tWORST\tWITHIN NODES\tOF IDLE\tMOVES/100\tP50\tP99")
	for _, r := range summaries {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%.0f\t%.0f\t%.2f %%\t%.2f %%\t%.2f %%\t%.2f %%\t%.1f\t%.1f\t%.1f %%\t%.1f %%\t%.1f %%\t%.1f %%\t%.1f\t%.0f µs\t%.0f µs\n",
			r.Machine, r.Nodes, r.Mix, r.Policy, r.Placed, r.Unplaced, r.L3SplitPercent, r.L3SplitAvoidablePercent, r.NUMASplitPercent,
			r.NUMASplitAvoidablePercent, r.FreeL3, r.FreeL3Possible, r.FreeL3Percent, r.FreeL3PercentMin, r.FreeL3WithinPercent, r.FreeL3IdlePercent, r.MovesPer100, r.LatencyP50Micros, r.LatencyP99Micros)
	}
	return w.Flush()
}
