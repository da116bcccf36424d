package topology

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/uuid"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cli/names"
	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/repack"
	"lockstep.dev/lockstep/internal/submit"
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
	Cost  int          `json:"cost"`  // CPUs moved; CPUs moved to another NUMA node count twice
}

type repackMove struct {
	Pod  string `json:"pod"`
	From string `json:"from"`
	To   string `json:"to"`
}

func newRepack(s command.Streams) *cobra.Command {
	var (
		budget    repack.Budget
		output    string
		dryRun    command.DryRun
		all, wait bool
		timeout   time.Duration
	)
	cmd := &cobra.Command{
		Use:   "repack NODE...|--all",
		Short: "Move pinned pods within their nodes so that whole L3 domains become free",
		Long: `Move pinned pods within their nodes so that whole L3 domains, or whole NUMA nodes, become free for large pods. Nobody is
evicted: a move gives a running pod other CPUs of its node, and no pod fares worse. Pods stay that say so by the annotation
` + topologyv1alpha1.MoveAnnotation + `: "false".

With --dry-run it prints what would be moved now, of the whole cluster without nodes, and writes nothing.

Without, it asks the manager to do so, by the field repack of the nodes' NodeTopologies: with --all of those where there is
something to win. The manager plans again, with what is there then, and moves pods while the nodes' agents follow. What has
come of it is in status.repack; with --wait it is waited for and printed. The right to ask is the verb repack on
nodetopologies.topology.lockstep.dev.

Exit codes: 0 done, or asked for; 1 a repack has failed; 2 wrong usage; 3 the --timeout ran out.`,
		Example: `  lockstep topology repack --dry-run
  lockstep topology repack node-7 --stay-in-numa --moves 4 --wait
  lockstep topology repack --all --wait`,
	}
	source := addClusterSource(cmd, s)
	f := cmd.Flags()
	dryRun.Add(cmd, "print what would be moved, and ask for nothing", command.DryRunClient)
	f.BoolVar(&all, "all", false, "all nodes where there is something to win")
	f.BoolVar(&wait, "wait", false, "wait until all has been done")
	f.DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait")
	f.IntVar(&budget.MovesMax, "moves", 0, "pods moved on each node at most; 0 for no limit")
	f.Float64Var(&budget.CostMax, "cost", repack.CostMaxDefault,
		"CPUs moved at most for each CPU freed; those moved to another NUMA node count twice")
	f.BoolVar(&budget.StayInNUMA, "stay-in-numa", false, "no moves to other NUMA nodes")
	command.WordFlag(cmd, &output, "output", "o", "json or yaml; name, where something is asked for", "json", "yaml",
		"name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case output == "name" && dryRun.Client():
			return command.Usagef("--output=name is for what is asked for: with --dry-run, give json or yaml")
		case budget.MovesMax < 0 || budget.CostMax <= 0:
			return command.Usagef("--moves must be at least 0, --cost above 0")
		case all && len(args) > 0:
			return command.Usagef("name nodes or give --all, not both")
		case !dryRun.Client() && !all && len(args) == 0:
			return command.Usagef("name nodes, or give --all, or --dry-run to see what would be moved")
		case !dryRun.Client() && source.dump != "":
			return command.Usagef("a dump cannot be repacked: give --dry-run")
		}
		if dryRun.Client() || all {
			plan, nodes, err := planRepack(s, source, args, budget)
			if err != nil {
				return err
			}
			if dryRun.Client() {
				if printed, err := command.Print(s.Out, output, plan); printed {
					return err
				}
			}
			if dryRun.Client() || len(plan.Nodes) == 0 {
				return printRepack(s, plan, nodes)
			}
			for _, n := range plan.Nodes {
				args = append(args, n.Node)
			}
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
		defer cancel()
		ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
		defer stop()
		return askRepack(ctx, s, source, args, budget, wait, output)
	}
	return names.Take(cmd, names.Node, names.Offline)
}

// planRepack plans a repack of the named nodes, or of all nodes if names is empty. It also returns
// the number of nodes.
func planRepack(s command.Streams, source *clusterSource, names []string,
	budget repack.Budget) (repackPlan, int, error) {
	plan := repackPlan{SchemaVersion: "v1", Nodes: []repackNode{}}
	c, err := source.read()
	if err != nil {
		return plan, 0, err
	}
	warn(s, c)
	requests := map[string]*allocate.Request{}
	for _, p := range c.Pods {
		if p.Object.DeletionTimestamp == nil && p.Object.Annotations[topologyv1alpha1.MoveAnnotation] != "false" {
			requests[p.Key] = p.Request
		}
	}
	pods := c.Names()
	nodes := c.Nodes
	if len(names) > 0 {
		nodes = nil
		for _, name := range names {
			n := c.Node(name)
			if n == nil {
				return plan, 0, fmt.Errorf("the topology of node %q is not known; known are %s", name, nodeNames(c))
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
			out.Moves = append(out.Moves, repackMove{pods[m.Pod], m.From.CPUs().String(), m.To.CPUs().String()})
		}
		plan.Nodes = append(plan.Nodes, out)
	}
	return plan, len(nodes), nil
}

// repackOutcome is the JSON form of the outcome of repack requests.
type repackOutcome struct {
	SchemaVersion string           `json:"schemaVersion"`
	Nodes         []repackedOfNode `json:"nodes"`
}

type repackedOfNode struct {
	Node string `json:"node"`
	// Repack is the status in the NodeTopology. Without --wait it holds only the request's ID.
	Repack topologyv1alpha1.RepackStatus `json:"repack"`
}

// askRepack requests repacks of nodes and, if wait is true, waits for them.
func askRepack(ctx context.Context, s command.Streams, source *clusterSource, nodes []string, budget repack.Budget,
	wait bool, output string) error {
	cfg, err := source.kube.ToRESTConfig()
	if err != nil {
		return err
	}
	client, err := submit.NewTopologies(cfg)
	if err != nil {
		return err
	}
	ask := topologyv1alpha1.RepackRequest{
		ID: string(uuid.NewUUID()), MovesMax: int32(min(budget.MovesMax, math.MaxInt32)), CostMaxPercent: int32(min(100*budget.CostMax, 100000)), StayInNUMA: budget.StayInNUMA,
	}
	for _, node := range nodes {
		if err := client.Repack(ctx, node, ask); err != nil {
			return err
		}
		fmt.Fprintf(s.Err, "nodetopology/%s: repack asked for\n", node)
	}
	out := repackOutcome{SchemaVersion: "v1"}
	failed := 0
	for _, node := range nodes {
		r := topologyv1alpha1.RepackStatus{ID: ask.ID}
		if wait {
			ended, err := client.Repacked(ctx, node, ask.ID)
			if err != nil {
				return fmt.Errorf("waiting for the repack of node %s: %w", node, err)
			}
			r = *ended
		}
		if r.Phase == topologyv1alpha1.RepackFailed {
			failed++
		}
		out.Nodes = append(out.Nodes, repackedOfNode{node, r})
	}
	if err := printRepacked(s, out, wait, output); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d repacks have failed", failed, len(nodes))
	}
	return nil
}

func printRepacked(s command.Streams, out repackOutcome, wait bool, output string) error {
	if printed, err := command.Print(s.Out, output, out); printed {
		return err
	}
	if output == "name" {
		for _, n := range out.Nodes {
			fmt.Fprintf(s.Out, "nodetopology.topology.lockstep.dev/%s\n", n.Node)
		}
		return nil
	}
	if !wait {
		return nil
	}
	w := command.Columns(s.Out)
	fmt.Fprintln(w, "NODE\tPHASE\tMOVES\tFREED\tMESSAGE")
	for _, n := range out.Nodes {
		freed := make([]string, len(n.Repack.Freed))
		for i, l := range n.Repack.Freed {
			freed[i] = string(l)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n", n.Node, n.Repack.Phase, n.Repack.Moves,
			cmp.Or(strings.Join(freed, " and "), "-"), n.Repack.Message)
	}
	return w.Flush()
}

func printRepack(s command.Streams, plan repackPlan, nodes int) error {
	if len(plan.Nodes) == 0 {
		fmt.Fprintf(s.Err, "no move on %d nodes frees an L3 domain at that cost\n", nodes)
		return nil
	}
	w := command.Columns(s.Out)
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
	fmt.Fprintf(s.Err, "%d moves on %d nodes free %d L3 domains\n", moves, len(plan.Nodes), freed)
	return nil
}
