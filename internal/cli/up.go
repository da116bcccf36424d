package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/clientcmd"

	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/realnodes"
	"lockstep.dev/lockstep/internal/localcluster/supervise"
)

func newUp(s streams) *cobra.Command {
	spec := supervise.Spec{Restart: true}
	var durable, merge bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a local control plane with simulated nodes",
		Long: `Start a control plane on this machine: the real etcd, kube-apiserver and kube-controller-manager, simulated nodes, and
Lockstep's manager. Nothing needs to be installed. It runs in the background until 'lockstep down'.

Pods on simulated nodes run nothing. They become Running, and end when their annotations say so:

  lockstep.dev/sim-duration: 30s     run for that long; without it until deleted
  lockstep.dev/sim-exit-code: "1"    then exit with that code, default 0
  lockstep.dev/sim-message: text     and that termination message

With --real-nodes there are also nodes that run containers, as namespaces of this machine. Simulated nodes then have the
taint lockstep.dev/node-type=simulated:NoSchedule, so that pods come to them only if they tolerate it. 'lockstep image
load' gives the real nodes images.

Exit codes: 0 it is ready; 1 it did not start, and nothing of it is left; 2 wrong usage; 3 the --timeout ran out; 130
interrupted.`,
		Example: `  lockstep up --nodes 100
  lockstep up --name big --nodes 1000 --node-cpu 64 --node-memory 512Gi --kubeconfig big.kubeconfig`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			spec.NotDurable = !durable
			if spec.Nodes.Topology != "" { // the topology gives the nodes' size
				for flag, value := range map[string]*string{"node-cpu": &spec.Nodes.CPU, "node-memory": &spec.Nodes.Memory} {
					if !cmd.Flags().Changed(flag) {
						*value = ""
					}
				}
				if err := spec.Nodes.Complete(); err != nil {
					return usageError{err}
				}
			}
			if err := checkUp(&spec); err != nil {
				return err
			}
			if merge {
				spec.MergeInto = clientcmd.NewDefaultClientConfigLoadingRules().GetDefaultFilename()
			}
			return up(s, spec, timeout)
		},
	}
	f := cmd.Flags()
	f.StringVar(&spec.Name, "name", defaultCluster, "name of the cluster; clusters of different names live side by side")
	f.IntVar(&spec.Nodes.Count, "nodes", 10, "number of simulated nodes")
	f.StringVar(&spec.Nodes.CPU, "node-cpu", "32", "CPUs of each simulated node")
	f.StringVar(&spec.Nodes.Memory, "node-memory", "256Gi", "memory of each simulated node")
	f.IntVar(&spec.Nodes.Pods, "node-pods", 110, "number of pods that each simulated node takes")
	f.StringVar(&spec.Nodes.Topology, "node-topology", "", "processors of each simulated node, to choose pods' CPUs on: "+strings.Join(machineNames(), ", "))
	f.IntVar(&spec.RealNodes, "real-nodes", 0, "number of nodes that run containers; needs root, containerd, runc and CNI plugins")
	f.BoolVar(&spec.WithAgent, "with-agent", false, "run Lockstep's agent on each real node, which gives pods the CPUs chosen for them")
	f.BoolVar(&spec.WithoutManager, "without-manager", false, "leave Lockstep's manager out, to run one yourself")
	f.BoolVar(&spec.WithScheduler, "with-kube-scheduler", false, "add the stock kube-scheduler, for pods that name no other; without it the manager places them, too")
	f.BoolVar(&durable, "durable", true, "have etcd write through to the disk; false is faster than any cluster that keeps its promises")
	f.BoolVar(&spec.Restart, "restart", true, "start a component again that died")
	f.StringVar(&spec.Kubeconfig, "kubeconfig", "", "also write the kubeconfig to this file")
	f.BoolVar(&merge, "merge-kubeconfig", false, "also add a context lockstep-NAME to your own kubeconfig")
	must(cmd.RegisterFlagCompletionFunc("node-topology", cobra.FixedCompletions(machineNames(), cobra.ShellCompDirectiveNoFileComp)))
	f.DurationVar(&timeout, "timeout", 2*time.Minute, "give up when it is not ready by then")
	return cmd
}

// defaultCluster is the default name of a local cluster.
const defaultCluster = "default"

// checkUp refuses wrong flags, with their names, before anything is started.
func checkUp(spec *supervise.Spec) (err error) {
	if err := supervise.ValidName(spec.Name); err != nil {
		return usageError{fmt.Errorf("--name %w", err)}
	}
	for flag, bound := range map[string]struct{ value, min, max int }{
		"--nodes":      {spec.Nodes.Count, 0, localcluster.MaxNodes},
		"--node-pods":  {spec.Nodes.Pods, 1, localcluster.MaxPodsPerNode},
		"--real-nodes": {spec.RealNodes, 0, realnodes.NodesMax},
	} {
		if bound.value < bound.min || bound.value > bound.max {
			return usageError{fmt.Errorf("%s %d: not between %d and %d", flag, bound.value, bound.min, bound.max)}
		}
	}
	for flag, value := range map[string]string{"--node-cpu": spec.Nodes.CPU, "--node-memory": spec.Nodes.Memory} {
		q, err := resource.ParseQuantity(value)
		if err != nil {
			return usageError{fmt.Errorf("%s %q: %w", flag, value, err)}
		}
		if q.Sign() <= 0 {
			return usageError{fmt.Errorf("%s %q: not positive", flag, value)}
		}
	}
	if spec.WithAgent && spec.RealNodes == 0 {
		return usageError{fmt.Errorf("--with-agent needs --real-nodes")}
	}
	if spec.RealNodes > 0 {
		if _, err := realnodes.Check(); err != nil {
			return fmt.Errorf("--real-nodes: %w", err)
		}
	}
	if spec.Kubeconfig != "" {
		if spec.Kubeconfig, err = filepath.Abs(spec.Kubeconfig); err != nil {
			return usageError{fmt.Errorf("--kubeconfig: %w", err)}
		}
	}
	if spec.KubeBinary, err = localcluster.FindKube(); err != nil {
		return err
	}
	if spec.KubeBinary, err = filepath.Abs(spec.KubeBinary); err != nil {
		return err
	}
	spec.Executable, err = os.Executable()
	return err
}

func up(s streams, spec supervise.Spec, timeout time.Duration) error {
	ctx, force, release := twoInterrupts(s.err)
	defer release()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	began := time.Now()
	show := newProgress(s.err, began)
	state, err := supervise.Up(ctx, force, spec, show.event)
	show.end()
	if err != nil {
		return err
	}
	if state.RealNodes > 0 {
		if err := localcluster.LoadExecutor(ctx, state.Dir); err != nil {
			fmt.Fprintf(s.err, "Workflows that need their executor will not run: %v\n", err)
		}
	}
	fmt.Fprintf(s.out, "Cluster %q is ready after %.1f s: %s, etcd %s.\n", spec.Name, time.Since(began).Seconds(), describeNodes(state.Nodes, state.RealNodes), describeEtcd(state.Durable))
	kubeconfig := state.Kubeconfig
	if spec.Kubeconfig != "" {
		kubeconfig = spec.Kubeconfig
	}
	if spec.MergeInto != "" {
		fmt.Fprintf(s.out, "Context %s is in %s.\n", localcluster.ContextName(spec.Name), spec.MergeInto)
	}
	suffix := ""
	if spec.Name != defaultCluster {
		suffix = " --name " + spec.Name
	}
	fmt.Fprintf(s.out, "\n  export KUBECONFIG=%s\n  lockstep status%s\n  lockstep down%s\n", kubeconfig, suffix, suffix)
	return nil
}

func describeNodes(n localcluster.Nodes, real int) string {
	switch real {
	case 0:
		return describeSimulated(n)
	case 1:
		return "1 real node, " + describeSimulated(n)
	}
	return fmt.Sprintf("%d real nodes, %s", real, describeSimulated(n))
}

func describeSimulated(n localcluster.Nodes) string {
	cpu := n.CPU + " CPU"
	if n.Topology != "" {
		cpu += " (" + n.Topology + ")"
	}
	switch n.Count {
	case 0:
		return "no simulated nodes"
	case 1:
		return fmt.Sprintf("1 simulated node of %s, %s, %d pods", cpu, n.Memory, n.Pods)
	}
	return fmt.Sprintf("%d simulated nodes of %s, %s, %d pods", n.Count, cpu, n.Memory, n.Pods)
}

func describeEtcd(durable bool) string {
	if durable {
		return "durable"
	}
	return "NOT durable (no fsync)"
}

// twoInterrupts returns a context that the first Ctrl-C ends and a context that the second ends.
func twoInterrupts(errOut io.Writer) (first, second context.Context, release func()) {
	first, cancelFirst := context.WithCancel(context.Background())
	second, cancelSecond := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		for _, cancel := range []func(){
			func() {
				fmt.Fprintln(errOut, "\nInterrupted: stopping what was started. Interrupt again to kill it.")
				cancelFirst()
			},
			cancelSecond,
		} {
			select {
			case <-signals:
				cancel()
			case <-done:
				return
			}
		}
	}()
	return first, second, func() {
		signal.Stop(signals)
		close(done)
		cancelFirst()
		cancelSecond()
	}
}

// progress prints a cluster's start: on a terminal one line that changes, elsewhere a line for each
// event.
type progress struct {
	out     io.Writer
	began   time.Time
	waiting []localcluster.Component
	events  chan localcluster.Event
	done    chan struct{}
}

func newProgress(out io.Writer, began time.Time) *progress {
	p := &progress{out: out, began: began, events: make(chan localcluster.Event, 64), done: make(chan struct{})}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" {
		go p.animate()
	} else {
		go p.list()
	}
	return p
}

func (p *progress) event(e localcluster.Event) { p.events <- e }

// end closes the progress and returns when all events are printed.
func (p *progress) end() {
	close(p.events)
	<-p.done
}

func (p *progress) list() {
	defer close(p.done)
	for e := range p.events {
		p.print(e)
	}
}

func (p *progress) print(e localcluster.Event) {
	at := fmt.Sprintf("%5.1f s  ", time.Since(p.began).Seconds())
	switch {
	case e.Component == "":
	case e.Kind == localcluster.EventProgress:
		fmt.Fprintf(p.out, "%s%s: %s\n", at, e.Component, e.Message)
	case e.Kind == localcluster.EventReady:
		fmt.Fprintf(p.out, "%s%s is ready\n", at, e.Component)
	case e.Kind == localcluster.EventDied:
		fmt.Fprintf(p.out, "%s%s died: %s; its log ends:\n%s\n", at, e.Component, e.Message, indent(e.LogTail))
	}
}

func indent(s string) string { return "    " + strings.ReplaceAll(s, "\n", "\n    ") }

func (p *progress) animate() {
	defer close(p.done)
	const clear, frames = "\r\033[K", `|/-\`
	dim, plain := "\033[2m", "\033[0m"
	if os.Getenv("NO_COLOR") != "" {
		dim, plain = "", ""
	}
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for frame := 0; ; frame++ {
		select {
		case e, ok := <-p.events:
			fmt.Fprint(p.out, clear)
			if !ok {
				return
			}
			p.print(e)
			p.note(e)
		case <-ticker.C:
		}
		fmt.Fprintf(p.out, "%s%5.1f s  %c %swaiting for %s%s", clear, time.Since(p.began).Seconds(), frames[frame%len(frames)], dim, p.names(), plain)
	}
}

// note updates the list of components that are still starting.
func (p *progress) note(e localcluster.Event) {
	if e.Component == "" {
		return
	}
	var rest []localcluster.Component
	for _, c := range p.waiting {
		if c != e.Component {
			rest = append(rest, c)
		}
	}
	if e.Kind == localcluster.EventStarting {
		rest = append(rest, e.Component)
	}
	p.waiting = rest
}

func (p *progress) names() string {
	if len(p.waiting) == 0 {
		return "the rest"
	}
	var names []string
	for _, c := range p.waiting {
		names = append(names, string(c))
	}
	return strings.Join(names, ", ")
}

// newSupervisor returns the hidden command that `up` runs in the background. Users never call it.
func newSupervisor() *cobra.Command {
	return &cobra.Command{
		Use:    supervise.Command + " NAME",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return supervise.Run(args[0])
		},
	}
}

// clusterError adds advice to the error of a name for which there is no cluster.
func clusterError(name string, err error) error {
	if !errors.Is(err, supervise.ErrNoCluster) {
		return err
	}
	names, listErr := supervise.Names()
	if listErr != nil || len(names) == 0 {
		return fmt.Errorf("no local cluster %q; 'lockstep up' starts one", name)
	}
	return fmt.Errorf("no local cluster %q; there is: %s", name, strings.Join(names, ", "))
}
