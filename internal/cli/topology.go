package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/draw"
	"lockstep.dev/lockstep/internal/cputopology/machines"
	"lockstep.dev/lockstep/internal/cputopology/simulate"
	"lockstep.dev/lockstep/internal/cputopology/sysfs"
)

func newTopology(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "topology",
		Short: "CPU topology: show a machine, simulate placement policies",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTopologyShow(s), newTopologySimulate(s))
	return cmd
}

func newTopologyShow(s streams) *cobra.Command {
	var root, machine, output string
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Draw a machine: sockets, NUMA nodes, L3 domains, cores and threads",
		Long: `Draw this machine, a machine whose sysfs was copied to a directory (--sysfs), or one of the built-in models (--machine):
` + strings.Join(machineNames(), ", "),
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			topo, err := chosenTopology(root, machine)
			if err != nil {
				return err
			}
			switch output {
			case "":
				return draw.Machine(s.out, topo)
			case "json":
				return printJSON(s.out, topo.Encode())
			}
			return usageError{fmt.Errorf("--output %q: not json", output)}
		},
	}
	cmd.Flags().StringVar(&root, "sysfs", "/", "directory that holds sys/devices/system")
	cmd.Flags().StringVar(&machine, "machine", "", "a built-in model instead of a sysfs tree")
	cmd.Flags().StringVarP(&output, "output", "o", "", "json: the compact form that the API carries")
	return cmd
}

func chosenTopology(root, machine string) (*cputopology.Topology, error) {
	if machine == "" {
		return sysfs.Read(os.DirFS(root))
	}
	m, err := machines.ByName(machine)
	if err != nil {
		return nil, usageError{err}
	}
	return m.Topology()
}

func machineNames() []string {
	var names []string
	for _, m := range machines.All() {
		names = append(names, m.Name)
	}
	return names
}

// simulation is the flags of `topology simulate`.
type simulation struct {
	machines, mixes, policies []string
	nodes, seeds, arrivals    int
	load                      float64
	output                    string
}

// simulationReport is the JSON form of `topology simulate`.
type simulationReport struct {
	SchemaVersion string            `json:"schemaVersion"`
	Load          float64           `json:"load"`
	Results       []simulate.Result `json:"results"`
}

func newTopologySimulate(s streams) *cobra.Command {
	var o simulation
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Compare CPU placement policies on simulated clusters under load",
		Long: `Fill a simulated cluster to a load with pods of random sizes, let pods leave and arrive, and print for each policy how many
pods were split over L3 domains and NUMA nodes although they need not have been, how many L3 domains were kept free for
large pods, and what a decision took. The table gives means over the seeds; -o json gives every run.`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error { return o.run(s) },
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.machines, "machine", []string{machines.AMD256NPS1.Name, machines.AMD256NPS4.Name}, "models of the nodes: "+strings.Join(machineNames(), ", "))
	f.StringSliceVar(&o.mixes, "mix", mixNames(), "distributions of pod sizes")
	f.StringSliceVar(&o.policies, "policy", policyNames(), "policies to compare")
	f.IntVar(&o.nodes, "nodes", 20, "nodes of the cluster")
	f.IntVar(&o.seeds, "seeds", 5, "runs of each combination, with seeds 1 to this")
	f.IntVar(&o.arrivals, "arrivals", 0, "pods placed under load; 0 for as many as filling the cluster takes")
	f.Float64Var(&o.load, "load", 0.85, "share of all CPUs in use")
	f.StringVarP(&o.output, "output", "o", "", "json: every run")
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

func (o *simulation) run(s streams) error {
	if o.output != "" && o.output != "json" {
		return usageError{fmt.Errorf("--output %q: not json", o.output)}
	}
	if o.nodes < 1 || o.seeds < 1 || o.arrivals < 0 || o.load <= 0 || o.load > 1 {
		return usageError{fmt.Errorf("--nodes and --seeds must be at least 1, --arrivals at least 0, --load above 0 and at most 1")}
	}
	for _, p := range o.policies {
		if !slices.Contains(policyNames(), p) {
			return usageError{fmt.Errorf("--policy %q: there are %s", p, strings.Join(policyNames(), ", "))}
		}
	}
	report := simulationReport{SchemaVersion: "v1", Load: o.load}
	for _, machine := range o.machines {
		m, err := machines.ByName(machine)
		if err != nil {
			return usageError{err}
		}
		for _, name := range o.mixes {
			mix, err := simulate.MixByName(name)
			if err != nil {
				return usageError{err}
			}
			fmt.Fprintf(s.err, "%s, mix %s %v, %d nodes, %d seeds\n", m.Name, mix.Name, mix.Sizes, o.nodes, o.seeds)
			results, err := o.combination(m, mix)
			if err != nil {
				return err
			}
			report.Results = append(report.Results, results...)
		}
	}
	if o.output == "json" {
		return printJSON(s.out, report)
	}
	return printSimulation(s.out, report.Results)
}

// combination runs every policy on one machine and mix, with every seed.
func (o *simulation) combination(m machines.Machine, mix simulate.Mix) ([]simulate.Result, error) {
	var out []simulate.Result
	for i, name := range policyNames() {
		if !slices.Contains(o.policies, name) {
			continue
		}
		for seed := range o.seeds {
			r, err := simulate.Run(simulate.Config{Machine: m, Nodes: o.nodes, Mix: mix, Seed: uint64(seed + 1), Load: o.load,
				Arrivals: o.arrivals, Now: time.Now}, simulate.Policies()[i])
			if err != nil {
				return nil, err
			}
			out = append(out, r)
		}
	}
	return out, nil
}

// printSimulation prints the mean over seeds for each machine, mix and policy.
func printSimulation(out io.Writer, results []simulate.Result) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "MACHINE\tMIX\tPOLICY\tPLACED\tL3 SPLIT\tAVOIDABLE\tNUMA SPLIT\tAVOIDABLE\tFREE L3 KEPT\tOF IDLE\tMOVES\tP50\tP99")
	for len(results) > 0 {
		first := results[0]
		n := slices.IndexFunc(results, func(r simulate.Result) bool {
			return r.Machine != first.Machine || r.Mix != first.Mix || r.Policy != first.Policy
		})
		if n < 0 {
			n = len(results)
		}
		mean := func(field func(simulate.Result) float64) float64 {
			sum := 0.0
			for _, r := range results[:n] {
				sum += field(r)
			}
			return sum / float64(n)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%.0f\t%.2f %%\t%.2f %%\t%.2f %%\t%.2f %%\t%.1f %%\t%.1f %%\t%.0f\t%.0f µs\t%.0f µs\n", first.Machine, first.Mix, first.Policy,
			mean(func(r simulate.Result) float64 { return float64(r.Placed) }),
			mean(func(r simulate.Result) float64 { return r.L3SplitPercent }),
			mean(func(r simulate.Result) float64 { return r.L3SplitAvoidablePercent }),
			mean(func(r simulate.Result) float64 { return r.NUMASplitPercent }),
			mean(func(r simulate.Result) float64 { return r.NUMASplitAvoidablePercent }),
			mean(func(r simulate.Result) float64 { return r.FreeL3Percent }),
			mean(func(r simulate.Result) float64 { return r.FreeL3IdlePercent }),
			mean(func(r simulate.Result) float64 { return float64(r.Moves) }),
			mean(func(r simulate.Result) float64 { return r.LatencyP50Micros }),
			mean(func(r simulate.Result) float64 { return r.LatencyP99Micros }))
		results = results[n:]
	}
	return w.Flush()
}

func printJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
