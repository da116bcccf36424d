package local

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/clientcmd"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cputopology/machines"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/realnodes"
	"lockstep.dev/lockstep/internal/localcluster/supervise"
)

// NewUp returns the command 'up'.
func NewUp(s command.Streams) *cobra.Command {
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
		Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			spec.NotDurable = !durable
			if spec.Nodes.Topology != "" { // the topology gives the nodes' size
				for flag, value := range map[string]*string{"node-cpu": &spec.Nodes.CPU,
					"node-memory": &spec.Nodes.Memory} {
					if !cmd.Flags().Changed(flag) {
						*value = ""
					}
				}
				if err := spec.Nodes.Complete(); err != nil {
					return command.Usage(err)
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
	f.StringVar(&spec.Name, "name", defaultCluster,
		"name of the cluster; clusters of different names live side by side")
	f.IntVar(&spec.Nodes.Count, "nodes", 10, "number of simulated nodes")
	f.StringVar(&spec.Nodes.CPU, "node-cpu", "32", "CPUs of each simulated node")
	f.StringVar(&spec.Nodes.Memory, "node-memory", "256Gi", "memory of each simulated node")
	f.IntVar(&spec.Nodes.Pods, "node-pods", 110, "number of pods that each simulated node takes")
	f.StringVar(&spec.Nodes.Topology, "node-topology", "",
		"processors of each simulated node, to choose pods' CPUs on: "+strings.Join(machines.Names(), ", "))
	f.IntVar(&spec.RealNodes, "real-nodes", 0,
		"number of nodes that run containers; needs root, containerd, runc and CNI plugins")
	f.BoolVar(&spec.WithAgent, "with-agent", false,
		"run Lockstep's agent on each real node, which gives pods the CPUs chosen for them")
	f.BoolVar(&spec.WithoutManager, "without-manager", false, "leave Lockstep's manager out, to run one yourself")
	f.BoolVar(&spec.WithScheduler, "with-kube-scheduler", false,
		"add the stock kube-scheduler, for pods that name no other; without it the manager places them, too")
	f.BoolVar(&durable, "durable", true,
		"have etcd write through to the disk; false is faster than any cluster that keeps its promises")
	f.BoolVar(&spec.Restart, "restart", true, "start a component again that died")
	f.StringVar(&spec.Kubeconfig, "kubeconfig", "", "also write the kubeconfig to this file")
	f.BoolVar(&merge, "merge-kubeconfig", false, "also add a context lockstep-NAME to your own kubeconfig")
	command.CompleteWords(cmd, "node-topology", machines.Names()...)
	f.DurationVar(&timeout, "timeout", 2*time.Minute, "give up when it is not ready by then")
	return cmd
}

// checkUp checks the flags, so that errors name them, and sets the paths of programs in spec.
func checkUp(spec *supervise.Spec) (err error) {
	if err := supervise.ValidName(spec.Name); err != nil {
		return command.Usagef("--name %w", err)
	}
	for flag, bound := range map[string]struct{ value, min, max int }{
		"--nodes":      {spec.Nodes.Count, 0, localcluster.MaxNodes},
		"--node-pods":  {spec.Nodes.Pods, 1, localcluster.MaxPodsPerNode},
		"--real-nodes": {spec.RealNodes, 0, realnodes.NodesMax},
	} {
		if bound.value < bound.min || bound.value > bound.max {
			return command.Usagef("%s %d: not between %d and %d", flag, bound.value, bound.min, bound.max)
		}
	}
	for flag, value := range map[string]string{"--node-cpu": spec.Nodes.CPU, "--node-memory": spec.Nodes.Memory} {
		q, err := resource.ParseQuantity(value)
		if err != nil {
			return command.Usagef("%s %q: %w", flag, value, err)
		}
		if q.Sign() <= 0 {
			return command.Usagef("%s %q: not positive", flag, value)
		}
	}
	if spec.WithAgent && spec.RealNodes == 0 {
		return command.Usagef("--with-agent needs --real-nodes")
	}
	if spec.RealNodes > 0 {
		if _, err := realnodes.Check(); err != nil {
			return fmt.Errorf("--real-nodes: %w", err)
		}
	}
	if spec.Kubeconfig != "" {
		if spec.Kubeconfig, err = filepath.Abs(spec.Kubeconfig); err != nil {
			return command.Usagef("--kubeconfig: %w", err)
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

func up(s command.Streams, spec supervise.Spec, timeout time.Duration) error {
	ctx, force, release := twoInterrupts(s.Err)
	defer release()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	began := time.Now()
	show := newProgress(s.Err, began)
	state, err := supervise.Up(ctx, force, spec, show.event)
	show.end()
	if err != nil {
		return err
	}
	if state.RealNodes > 0 {
		if err := localcluster.LoadExecutor(ctx, state.Dir); err != nil {
			fmt.Fprintf(s.Err, "Workflows that need their executor will not run: %v\n", err)
		}
	}
	fmt.Fprintf(s.Out, "Cluster %q is ready after %.1f s: %s, etcd %s.\n", spec.Name, time.Since(began).Seconds(),
		describeNodes(state.Nodes, state.RealNodes), describeEtcd(state.Durable))
	kubeconfig := state.Kubeconfig
	if spec.Kubeconfig != "" {
		kubeconfig = spec.Kubeconfig
	}
	if spec.MergeInto != "" {
		fmt.Fprintf(s.Out, "Context %s is in %s.\n", localcluster.ContextName(spec.Name), spec.MergeInto)
	}
	suffix := ""
	if spec.Name != defaultCluster {
		suffix = " --name " + spec.Name
	}
	fmt.Fprintf(s.Out, "\n  export KUBECONFIG=%s\n  lockstep status%s\n  lockstep down%s\n", kubeconfig, suffix, suffix)
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
