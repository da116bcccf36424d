// Command lockstep-kube is the multi-call binary of the local control plane: the real etcd,
// Kubernetes components and KWOK, compiled from their Go modules. `lockstep up` starts each
// component as a process of its own; nothing else uses this binary. It and
// internal/scheduler/upstream are the only importers of k8s.io/kubernetes, so that every other
// program and test compiles and links in seconds.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // metrics of the components' clients
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/realnodes/machine"
	"lockstep.dev/lockstep/internal/localcluster/simnode"
)

func main() {
	if len(os.Args) < 2 {
		usage()
	}
	part := os.Args[1]
	args := append([]string{part}, os.Args[2:]...)
	os.Args = args
	var cmd *cobra.Command
	switch part {
	case "etcd":
		etcdmain.Main(args)
		return
	case "kube-apiserver":
		cmd = newAPIServerCommand()
	case "kube-controller-manager":
		cmd = controllermanager.NewControllerManagerCommand()
	case "kube-scheduler":
		cmd = scheduler.NewSchedulerCommand()
	case "kwok":
		cmd = newKwokCommand()
	case "kubelet":
		cmd = kubelet.NewKubeletCommand(context.Background()) // handles signals itself
	case "kube-proxy":
		cmd = proxy.NewProxyCommand()
	case "real-nodes":
		cmd = newRealNodesCommand()
	default:
		usage()
	}
	os.Exit(cli.Run(cmd))
}

// newKwokCommand returns the command that simulates nodes. KWOK's own command cannot live in this
// process: it defines a --version flag, and so do the Kubernetes components.
func newKwokCommand() *cobra.Command {
	var kubeconfig string
	opts := simnode.Options{}
	cmd := &cobra.Command{
		Use:   "kwok",
		Short: "Simulate the nodes labelled " + localcluster.NodeTypeLabel + "=" + localcluster.NodeTypeSimulated,
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
			if err != nil {
				return err
			}
			return simnode.Run(server.SetupSignalContext(), config, opts)
		},
	}
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "path of the kubeconfig")
	cmd.Flags().StringVar(&opts.NodeSelector, "node-selector", localcluster.NodeTypeLabel+"="+localcluster.NodeTypeSimulated, "label selector of the nodes to simulate")
	cmd.Flags().IntVar(&opts.HealthPort, "health-port", 0, "loopback port of /healthz and /readyz")
	cmd.Flags().UintVar(&opts.LeaseSeconds, "lease-seconds", 0, "lifetime of each node's lease; 0: none")
	cmd.Flags().UintVar(&opts.Parallelism, "parallelism", simnode.DefaultParallelism, "pods written at once")
	return cmd
}

// newRealNodesCommand returns the command that runs nodes with containers.
func newRealNodesCommand() *cobra.Command {
	var role, dir string
	var number int
	cmd := &cobra.Command{
		Use:   "real-nodes",
		Short: "Run the real nodes that a directory describes",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return machine.Run(server.SetupSignalContext(), role, dir, number)
		},
	}
	cmd.Flags().StringVar(&role, "role", machine.RoleHost, "which of the processes to be")
	cmd.Flags().StringVar(&dir, "dir", "", "directory of the real nodes")
	cmd.Flags().IntVar(&number, "number", 0, "number of the node, for the role "+machine.RoleNode)
	return cmd
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: lockstep-kube etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kubelet|kube-proxy|kwok|real-nodes [flags]")
	os.Exit(2)
}
