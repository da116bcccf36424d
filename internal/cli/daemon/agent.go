package daemon

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cputopology/agent"
	"lockstep.dev/lockstep/internal/cputopology/agent/nri"
	"lockstep.dev/lockstep/internal/cputopology/agent/systemd"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// NewAgent returns the command 'agent'. version is the version of this program.
func NewAgent(s command.Streams, version string) *cobra.Command {
	var (
		kubeconfig, kubecontext, root, reserved string
		release, offline, verbose               bool
		cfg                                     = agent.Config{Version: version}
	)
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run a node's agent: report its CPU topology, give containers the CPUs chosen for them",
		Long: `Run a node's agent, as root on the node.

It writes the NodeTopology of the node, so that the scheduler can choose CPUs, and gives each container of the node's pods
the CPUs that were chosen for it, by writing to its cgroup. Containers for which none were chosen share what is not held
exclusively. Nothing is kept on disk: a new agent finds everything in the API and in the cgroups. What is applied stays
when an agent ends, unless --release-on-exit is given.

The cluster is found by kubectl's rules: --kubeconfig, $KUBECONFIG, ~/.kube/config, or the service account of the pod. The
credentials must be a token bound to a pod of the node, or the user lockstep-agent:NODE in the group lockstep:agents.

With --release it gives back everything that agents have done on the node, and ends. Add --offline where there is no
API server any more.`,
		Example: `  lockstep agent --node-name worker-1 --kubeconfig agent.kubeconfig
  lockstep agent --node-name worker-1 --release`,
		Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cfg.Node == "" {
				return command.Usagef("--node-name or $NODE_NAME is needed")
			}
			if offline && !release {
				return command.Usagef("--offline is for --release only")
			}
			if cmd.Flags().Changed("reserved-cpus") {
				set, err := cpuset.Parse(reserved)
				if err != nil {
					return command.Usagef("--reserved-cpus: %w", err)
				}
				cfg.Reserved = &set
			}
			if cfg.Interval <= 0 {
				return command.Usagef("--interval %s: not positive", cfg.Interval)
			}
			cfg.Log = logTo(s.Err, verbose)
			cfg.Root = os.DirFS(filepath.Clean(root))
			if !offline {
				var err error
				if cfg.REST, err = kubeclient.Load(kubeconfig, kubecontext); err != nil {
					return err
				}
			}
			a, err := agent.New(cfg)
			if err != nil {
				return err
			}
			ctx, stop := command.Interruptible(cmd, 0)
			defer stop()
			if release {
				return a.Release(ctx)
			}
			return a.Run(ctx)
		},
	}
	f := cmd.Flags()
	f.StringVar(&kubeconfig, "kubeconfig", "", "file with the cluster's address and credentials")
	f.StringVar(&kubecontext, "context", "", "context of the kubeconfig (default its current one)")
	f.StringVar(&cfg.Node, "node-name", os.Getenv("NODE_NAME"), "name of this node (default $NODE_NAME)")
	f.StringVar(&cfg.Pod, "pod", podOfEnvironment(),
		"namespace/name of the pod that this runs in, whose readiness says that it is there\n(default $POD_NAMESPACE/$POD_NAME); empty: it renews a lease")
	f.StringVar(&cfg.LeaseNamespace, "lease-namespace", "lockstep-system", "namespace of that lease")
	f.StringVar(&root, "root", "/", "directory that holds the machine's sys/devices")
	f.StringVar(&cfg.CgroupMount, "cgroup-mount", "/sys/fs/cgroup", "where the cgroup file system is")
	f.StringVar(&cfg.CgroupRoot, "cgroup-root", "/", "the kubelet's --cgroup-root, as a path below that")
	f.StringVar(&cfg.KubeletDir, "kubelet-dir", "/var/lib/kubelet",
		"the kubelet's directory, for its CPU manager's state and its config.yaml")
	f.StringVar(&reserved, "reserved-cpus", "",
		"CPUs for the system, which are not given out (default: those that the kubelet's config.yaml reserves by\nreservedSystemCPUs, else as many as kubeReserved and systemReserved say)")
	f.IntVar(&cfg.ReservedPercent, "reserved-percent", 0,
		"share of the machine's CPUs that is kept for everything without CPUs of its own, where fewer are reserved")
	f.BoolVar(&cfg.TakeOver, "take-over-kubelet", false,
		"give pods that the kubelet's static CPU manager has pinned the CPUs of their annotations, if it does not refuse pods by itself")
	f.StringVar(&cfg.NRISocket, "nri-socket", nri.DefaultSocket,
		"where the container runtime's Node Resource Interface listens, if it does; empty: not asked")
	f.StringVar(&cfg.SystemdSocket, "systemd-socket", systemd.DefaultSocket,
		"where systemd listens, which is told the CPU sets of its units where the kubelet uses its cgroup driver\n(cgroups of version 2); empty: not told")
	f.BoolVar(&cfg.Observe, "observe", false, "report, and write to no cgroup")
	f.BoolVar(&release, "release", false, "give back what agents have done on this node, and end")
	f.BoolVar(&offline, "offline", false, "with --release: do without an API server")
	f.BoolVar(&cfg.ReleaseOnExit, "release-on-exit", false, "give everything back when the agent ends")
	f.DurationVar(&cfg.Interval, "interval", agent.DefaultInterval,
		"time between two looks at all CPU sets, where nothing calls for one sooner")
	f.StringVar(&cfg.MetricsAddress, "metrics-bind-address", "127.0.0.1:8082", "address of /metrics; empty: not served")
	f.StringVar(&cfg.HealthAddress, "health-probe-bind-address", "127.0.0.1:8082",
		"address of /healthz and /readyz, which may be that of the metrics; empty: not served")
	f.BoolVarP(&verbose, "verbose", "v", false, "log more")
	return cmd
}

// podOfEnvironment returns the pod's NAMESPACE/NAME, which the manifest puts into the environment,
// or "".
func podOfEnvironment() string {
	namespace, name := os.Getenv("POD_NAMESPACE"), os.Getenv("POD_NAME")
	if namespace == "" || name == "" {
		return ""
	}
	return namespace + "/" + name
}
