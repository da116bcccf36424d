package cli

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/repack"
)

// repackPlan is the JSON form of `topology repack`.
type repackPlan struct {
	SchemaVersion string       `json:"schemaVersion"`
	Nodes         []repackNode `json:"nodes"`
}

type repackNode struct {
	Node  string       `json:"node"`
	Freed []string     `json:"freed"` // CPUs of each L3 domain
	Moves []repackMove `json:"moves"` // in order
	Cost  int          `json:"cost"`  // CPUs moved, twice those moved to another NUMA node
}

type repackMove struct {
	Pod  string `json:"pod"`
	From string `json:"from"`
	To   string `json:"to"`
}

func newTopologyRepack(s streams) *cobra.Command {
	var (
		budget repack.Budget
		output string
		dryRun bool
	)
	cmd := &cobra.Command{
		Use:   "repack [NODE...] --dry-run",
		Short: "Plan moves of pinned pods within their nodes that free whole L3 domains",
		Long: `Plan moves of pinned pods within their nodes that free whole L3 domains, or whole NUMA nodes, for large pods. Nobody is
evicted: a move gives a running pod other CPUs of its node, and no pod fares worse. A plan's moves are made in its order.

Planning is all it does so far: --dry-run has to be given. Carrying a plan out while the scheduler gives out CPUs is the
scheduler's own business.`,
		Example: `  lockstep topology repack --dry-run
  lockstep topology repack node-7 --dry-run --stay-in-numa --moves 4`,
	}
	source := addClusterSource(cmd, s)
	f := cmd.Flags()
	f.BoolVar(&dryRun, "dry-run", false, "print the plan")
	f.IntVar(&budget.MovesMax, "moves", 0, "pods moved on each node at most; 0 for no limit")
	f.Float64Var(&budget.CostMax, "cost", repack.CostMaxDefault, "CPUs moved at most for each CPU freed; those moved to another NUMA node count twice")
	f.BoolVar(&budget.StayInNUMA, "stay-in-numa", false, "no moves to other NUMA nodes")
	f.StringVarP(&output, "output", "o", "", "json")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		switch {
		case !dryRun:
			return usageError{errors.New("only plans are made so far: give --dry-run")}
		case output != "" && output != "json":
			return usageError{fmt.Errorf("--output %q: not json", output)}
		case budget.MovesMax < 0 || budget.CostMax <= 0:
			return usageError{errors.New("--moves must be at least 0, --cost above 0")}
		}
		c, err := source.read()
		if err != nil {
			return err
		}
		warn(s, c)
		requests := map[string]*allocate.Request{}
		for _, p := range c.Pods {
			if p.Object.DeletionTimestamp == nil {
				requests[p.Key] = p.Request
			}
		}
		names := c.Names()
		plan := repackPlan{SchemaVersion: "v1", Nodes: []repackNode{}}
		nodes := c.Nodes
		if len(args) > 0 {
			nodes = nil
			for _, name := range args {
				n := c.Node(name)
				if n == nil {
					return fmt.Errorf("the topology of node %q is not known; known are %s", name, nodeNames(c))
				}
				nodes = append(nodes, *n)
			}
		}
		for _, n := range nodes {
			p := repack.Within(n.State.Node, func(key string) *allocate.Request { return requests[key] }, budget)
			if len(p.Moves) == 0 {
				continue
			}
			out := repackNode{Node: n.Name, Cost: p.Cost}
			for _, d := range p.Freed {
				out.Freed = append(out.Freed, d.String())
			}
			for _, m := range p.Moves {
				out.Moves = append(out.Moves, repackMove{names[m.Pod], m.From.CPUs().String(), m.To.CPUs().String()})
			}
			plan.Nodes = append(plan.Nodes, out)
		}
		if output == "json" {
			return printJSON(s.out, plan)
		}
		return printRepack(s, plan, len(nodes))
	}
	return cmd
}

func printRepack(s streams, plan repackPlan, nodes int) error {
	if len(plan.Nodes) == 0 {
		fmt.Fprintf(s.err, "no move on %d nodes frees an L3 domain at that cost\n", nodes)
		return nil
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tSTEP\tPOD\tFROM\tTO")
	freed, moves := 0, 0
	for _, n := range plan.Nodes {
		for i, m := range n.Moves {
			fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", n.Node, i+1, m.Pod, m.From, m.To)
		}
		freed += len(n.Freed)
		moves += len(n.Moves)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(s.err, "%d moves on %d nodes free %d L3 domains\n", moves, len(plan.Nodes), freed)
	return nil
}
