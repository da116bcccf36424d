// Package topology holds the verbs of CPU topology, which are below 'lockstep topology'.
package topology

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/resource"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cli/names"
	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/draw"
	"lockstep.dev/lockstep/internal/cputopology/dump"
	"lockstep.dev/lockstep/internal/cputopology/machines"
	"lockstep.dev/lockstep/internal/cputopology/sysfs"
)

// New returns the command 'topology'.
func New(s command.Streams) *cobra.Command {
	return command.Group(&cobra.Command{
		Use:   "topology",
		Short: "CPU topology: show machines and who sits where, simulate placement policies, plan moves",
	}, newShow(s), newSimulate(s), newRepack(s))
}

// clusterSource is the source from which a verb reads a cluster's machines and pinned pods: a dump
// or the cluster itself.
type clusterSource struct {
	dump    string
	machine string // topology assumed for nodes without a NodeTopology
	kube    *genericclioptions.ConfigFlags
	in      io.Reader
}

func addClusterSource(cmd *cobra.Command, s command.Streams) *clusterSource {
	c := &clusterSource{kube: command.KubeFlags(cmd), in: s.In}
	cmd.Flags().StringVar(&c.dump, "from-dump", "",
		"read the cluster from a file (- for standard input) that holds the output of:\nkubectl get nodetopologies,nodes,pods -A -o json")
	cmd.Flags().StringVar(&c.machine, "assume", "",
		"the model assumed of nodes that have no NodeTopology: "+strings.Join(machines.Names(), ", "))
	command.CompleteWords(cmd, "assume", machines.Names()...)
	return c
}

func (c *clusterSource) read() (*dump.Cluster, error) {
	var assumed *allocate.Layout
	if c.machine != "" {
		m, err := machines.ByName(c.machine)
		if err != nil {
			return nil, command.Usage(err)
		}
		topo, err := m.Topology()
		if err != nil {
			return nil, err
		}
		if assumed, err = allocate.NewLayout(topo, cpuset.Set{}); err != nil {
			return nil, err
		}
	}
	data, err := c.bytes()
	if err != nil {
		return nil, err
	}
	return dump.Parse(data, assumed)
}

func (c *clusterSource) bytes() ([]byte, error) {
	switch c.dump {
	case "-":
		return io.ReadAll(c.in)
	case "":
	default:
		return os.ReadFile(c.dump)
	}
	if _, _, err := command.Connection(c.kube); err != nil {
		return nil, err
	}
	result := resource.NewBuilder(c.kube).Unstructured().AllNamespaces(true).RequestChunksOf(500).
		ResourceTypeOrNameArgs(true, "nodetopologies.topology.lockstep.dev,nodes,pods").ContinueOnError().Latest().Flatten().Do()
	infos, err := result.Infos()
	if err != nil {
		return nil, err
	}
	list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "List"}}
	for _, info := range infos {
		list.Items = append(list.Items, *info.Object.(*unstructured.Unstructured))
	}
	return json.Marshal(list)
}

// warn prints which parts of the cluster could not be read.
func warn(s command.Streams, c *dump.Cluster) {
	for _, p := range c.Problems {
		fmt.Fprintf(s.Err, "warning: %s\n", p)
	}
}

func newShow(s command.Streams) *cobra.Command {
	var root, machine, output, page string
	cmd := &cobra.Command{
		Use:   "show [NODE]",
		Short: "Draw a machine: sockets, NUMA nodes, L3 domains, cores, and who sits where",
		Long: `Draw a node of the cluster with the pods that hold its CPUs, or of a dump of one (--from-dump). Without a node: this machine,
a machine whose sysfs was copied to a directory (--sysfs), or one of the built-in models (--machine):
` + strings.Join(machines.Names(), ", "),
		Example: `  lockstep topology show node-7
  lockstep topology show node-7 --html node-7.html
  lockstep topology show --machine amd256-nps4 -o json`,
		Args: command.AtMostOneArg("NODE"),
	}
	source := addClusterSource(cmd, s)
	cmd.Flags().StringVar(&root, "sysfs", "/", "directory that holds sys/devices/system")
	cmd.Flags().StringVar(&machine, "machine", "", "a built-in model instead of a sysfs tree")
	command.WordFlag(cmd, &output, "output", "o", "json: the compact form that the API carries; html: a page", "json",
		"html")
	cmd.Flags().StringVar(&page, "html", "", "write the drawing to this file, as one page that needs nothing else")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if len(args) == 0 && source.dump != "" {
			return command.Usagef("say which node of the dump to show")
		}
		v, err := chosenView(s, source, args, root, machine)
		if err != nil {
			return err
		}
		if page != "" {
			if err := writeFile(page, func(w io.Writer) error { return draw.Page(w, v) }); err != nil {
				return err
			}
			fmt.Fprintf(s.Err, "written to %s\n", page)
			return nil
		}
		switch output {
		case "json":
			return command.PrintJSON(s.Out, v.Topology.Encode())
		case "html":
			return draw.Page(s.Out, v)
		}
		if err := draw.Machine(s.Out, v); err != nil || len(args) == 0 {
			return err
		}
		return draw.Holders(s.Out, v)
	}
	return names.Take(cmd, names.Node, names.Offline)
}

// chosenView returns the view of the node named in args. Without a name it returns the machine that
// the flags choose.
func chosenView(s command.Streams, source *clusterSource, args []string, root, machine string) (draw.View, error) {
	if len(args) == 0 {
		topo, err := chosenTopology(s, root, machine)
		title := "this machine"
		switch {
		case machine != "":
			title = machine
		case root != "/":
			title = root
		}
		return draw.View{Title: title, Topology: topo}, err
	}
	c, err := source.read()
	if err != nil {
		return draw.View{}, err
	}
	n := c.Node(args[0])
	if n == nil {
		return draw.View{}, fmt.Errorf("the topology of node %q is not known; known are %s", args[0], nodeNames(c))
	}
	v := draw.Of(n.State.Node, c.Names())
	for _, p := range n.Problems {
		v.Notes = append(v.Notes, p.Key+": "+p.Message)
	}
	if source.machine != "" {
		warn(s, c)
	}
	return v, nil
}

// nodeNames returns at most ten names of nodes and the number of the others, for an error message.
func nodeNames(c *dump.Cluster) string {
	var names []string
	for _, n := range c.Nodes[:min(len(c.Nodes), 10)] {
		names = append(names, n.Name)
	}
	if more := len(c.Nodes) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

func writeFile(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// chosenTopology returns the topology of a model, or of the machine whose sysfs is below root.
func chosenTopology(s command.Streams, root, machine string) (*cputopology.Topology, error) {
	if machine == "" {
		topo, warnings, err := sysfs.Read(os.DirFS(root))
		for _, w := range warnings {
			fmt.Fprintf(s.Err, "warning: %s\n", w)
		}
		return topo, err
	}
	m, err := machines.ByName(machine)
	if err != nil {
		return nil, command.Usage(err)
	}
	return m.Topology()
}
