package daemon

import (
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	applications "lockstep.dev/lockstep/internal/application/controller"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cputopology/repack"
	"lockstep.dev/lockstep/internal/egress"
	"lockstep.dev/lockstep/internal/gcpace"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/manager"
	"lockstep.dev/lockstep/internal/procs"
	"lockstep.dev/lockstep/internal/scheduler"
	"lockstep.dev/lockstep/internal/scheduler/config"
	"lockstep.dev/lockstep/internal/scheduler/place"
	"lockstep.dev/lockstep/internal/workflow/pods"
	"lockstep.dev/lockstep/internal/workflow/settings"
)

// managerPace is the pace of the manager's garbage collector. It spends CPU time, of which the
// manager uses a tenth of a core at full load, to save memory: nearly all of the heap is long-lived
// caches. $GOGC overrides it.
var managerPace = gcpace.Pace{Percent: 33, Slack: 28 << 20}

// NewManager returns the command 'manager'.
func NewManager(s command.Streams) *cobra.Command {
	var (
		kubeconfig, kubecontext string
		verbose                 bool
		entrypoints             string
		schedulerConfig         string
		events                  []string
		cfg                     manager.Config
	)
	cmd := &cobra.Command{
		Use:     "manager",
		Short:   "Run the control plane: scheduler and controllers",
		Example: "  lockstep manager --kubeconfig ~/.kube/config\n  lockstep manager --metrics-bind-address :8080 --archive /var/lib/lockstep/archive.db",
		Long: `Run the control plane: scheduler and controllers.

The cluster is found by kubectl's rules: --kubeconfig, $KUBECONFIG, ~/.kube/config, or the service account of the pod.
A manager serves /metrics, /healthz and /readyz; it is ready while it leads and has read the whole cluster.

Applications act with the rights of whoever wrote them. Where the API server can't record that, before Kubernetes 1.36, or
the policies that do it are missing or changed, applications are off and say so; jobs and workflows are not concerned.`,
		Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cfg.WriterConcurrency < 0 {
				return command.Usagef("--writer-concurrency %d: must not be negative", cfg.WriterConcurrency)
			}
			if limit := *cfg.ApplicationRevisionLimit; limit < 0 {
				return command.Usagef("--application-revision-limit %d: must not be negative", limit)
			}
			if err := cfg.Eviction.Validate(); err != nil {
				return command.Usagef("--%v", err)
			}
			cfg.Log = logTo(s.Err, verbose)
			if schedulerConfig != "" {
				if err := configureScheduler(cmd.Flags(), schedulerConfig, &cfg); err != nil {
					return command.Usagef("--scheduler-config %s: %w", schedulerConfig, err)
				}
			}
			if cfg.NodeScore != "least" && cfg.NodeScore != "most" {
				return command.Usagef("--node-score %q: want least or most", cfg.NodeScore)
			}
			if cfg.Repack.MovesPerHour < 0 || cfg.Repack.CostMax <= 0 {
				return command.Usagef("--repack-moves-per-hour must not be negative, --repack-cost above 0")
			}
			switch cfg.Executor.ImagePullPolicy {
			case "", corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
			default:
				return command.Usagef("--executor-pull-policy %q: want Always, IfNotPresent or Never",
					cfg.Executor.ImagePullPolicy)
			}
			for _, of := range events {
				switch of {
				case "workflows":
					cfg.WorkflowEvents.Workflows = true
				case "nodes":
					cfg.WorkflowEvents.Nodes = true
				default:
					return command.Usagef("--workflow-events %q: want workflows, nodes", of)
				}
			}
			if entrypoints != "" {
				data, err := os.ReadFile(entrypoints)
				if err == nil {
					cfg.Executor.Entrypoints, err = pods.ParseEntrypoints(data)
				}
				if err != nil {
					return command.Usagef("--executor-entrypoints %s: %w", entrypoints, err)
				}
			}
			if os.Getenv("GOGC") == "" {
				defer managerPace.Start()()
			}
			var err error
			if cfg.REST, err = kubeclient.Load(kubeconfig, kubecontext); err != nil {
				return err
			}
			if _, err := egress.New(egress.Config{Allow: cfg.AllowRequestsTo}); err != nil {
				return command.Usage(err)
			}
			// The variable of Argo's controller and server, which share the database.
			cfg.AlwaysMoveNodes = os.Getenv("ALWAYS_OFFLOAD_NODE_STATUS") == "true"
			m, err := manager.New(cfg)
			if err != nil {
				return err
			}
			// Not before manager.New: the evaluators are as many as Go's default of GOMAXPROCS.
			if os.Getenv("GOMAXPROCS") == "" {
				defer procs.Start()()
			}
			ctx, stop := command.Interruptible(cmd, 0)
			defer stop()
			return m.Run(ctx)
		},
	}
	f := cmd.Flags()
	f.StringVar(&kubeconfig, "kubeconfig", "", "file with the cluster's address and credentials")
	f.StringVar(&kubecontext, "context", "", "context of the kubeconfig (default its current one)")
	f.BoolVar(&cfg.LeaderElect, "leader-elect", true, "take turns with other managers of the cluster")
	f.StringVar(&cfg.LeaseNamespace, "leader-elect-namespace", "lockstep-system", "namespace of the lease")
	f.StringVar(&cfg.MetricsAddress, "metrics-bind-address", "127.0.0.1:8080", "address of /metrics; empty: not served")
	f.StringVar(&cfg.HealthAddress, "health-probe-bind-address", "127.0.0.1:8081",
		"address of /healthz and /readyz, which may be that of the metrics; empty: not served")
	f.BoolVar(&cfg.Profiling, "pprof", false, "serve /debug/pprof beside the metrics")
	f.IntVar(&cfg.WriterConcurrency, "writer-concurrency", 0, "requests in flight to the API server; 0 adapts to it")
	f.StringSliceVar(&cfg.SchedulerNames, "scheduler-name", []string{"lockstep", "volcano"},
		"schedulerNames to answer to")
	f.StringVar(&schedulerConfig, "scheduler-config", "",
		"file with a scheduler configuration in Volcano's format, or a ConfigMap that has one ('lockstep migrate check' says what becomes of its parts); other flags come before it")
	f.StringVar((*string)(&cfg.Eviction), "eviction", string(scheduler.EvictionOn),
		"whether pods leave for gangs of higher priority and for queues that have less than they deserve: on, dry-run (only say which would) or off")
	f.BoolVar(&cfg.PreemptAcross, "preempt-across-queues", false,
		"also evict for gangs of higher priority what other queues have above what they deserve")
	f.DurationVar(&cfg.OverdueAfter, "overdue-after", 30*time.Minute,
		"how long the first gang of a queue waits before what becomes free is kept for it; 0: only for gangs with the annotation volcano.sh/sla-waiting-time")
	f.DurationVar(&cfg.UsageHalfLife, "usage-half-life", 0,
		"have queues take turns by what they have used and not by what they hold alone: how long until usage counts half, such as 168h; 0: do not")
	f.BoolVar(&cfg.JobPodGroups, "job-podgroups", false,
		"keep a PodGroup for each Job, for clients that list them: one more create, and a status for each phase")
	f.IntVar(&cfg.PodsOfWaitingJobs, "pods-of-waiting-jobs", 0,
		"create the pods of Jobs that wait for room before there are nodes for them, so that autoscalers add some, as long as fewer pods than this wait so; 0: create pods with their nodes")
	f.StringSliceVar(&cfg.NetworkLabels, "network-labels", nil,
		"labels of nodes that say where a node is in the network, the smallest part first (rack, row, hall): tiers 1, 2, 3 of nodes that no HyperNode contains")
	f.StringVar(&cfg.NodeScore, "node-score", "least", "nodes to prefer: least or most allocated")
	f.IntVar(&cfg.Repack.MovesPerHour, "repack-moves-per-hour", 20,
		"pinned pods of each node that may be moved in an hour, without being asked for, so that whole L3 domains become free; 0: none")
	f.Float64Var(&cfg.Repack.CostMax, "repack-cost", repack.CostMaxDefault,
		"CPUs moved by that at most for each CPU freed; those moved to another NUMA node count twice")
	f.DurationVar(&cfg.Repack.Quiet, "repack-quiet", 30*time.Second,
		"how long the pinned pods of a node must not have changed before that")
	f.DurationVar(&cfg.Repack.Patience, "repack-patience", time.Minute,
		"how long a node's agent may take for a move before it is taken back")
	f.BoolVar(&cfg.Repack.StayInNUMA, "repack-stay-in-numa", false, "make no such moves to other NUMA nodes")
	command.ApplicationFlags(cmd, &cfg.AllowRequestsTo, &cfg.ActAsManager)
	cfg.ApplicationRevisionLimit = f.Int("application-revision-limit", applications.RevisionLimitDefault,
		"revisions to keep of each application besides the one in use; the policy garbage-collect may say otherwise")
	f.StringVar(&cfg.Gateway.URL, "cluster-gateway-url", "",
		"address of the cluster gateway, for managed clusters behind one (default: this API server)")
	f.StringVar(&cfg.Gateway.CAFile, "cluster-gateway-ca-file", "",
		"file with the certificates that the cluster gateway's is checked with")
	f.StringVar(&cfg.Archive, "archive", "",
		"keep finished workflows in a database: a path of SQLite, postgres://..., the tables of Argo's archive "+
			"(argo+postgres://..., argo+mysql://...), or @FILE whose first line is one of these")
	f.StringVar(&cfg.WorkflowConfigMap, "workflow-configmap", "",
		"ConfigMap with the configuration of Argo's workflow controller, NAMESPACE/NAME; changes count at once (default lockstep-system/"+settings.ConfigMap+")")
	f.IntVar(&cfg.WorkflowNodesBytes, "workflow-nodes-bytes", 128<<10,
		"compress the nodes in a workflow's status when their JSON is larger")
	f.StringSliceVar(&events, "workflow-events", nil,
		"report by events, besides failures: workflows (Running, Succeeded), nodes (Running and each end); each event is a write")
	f.StringVar(&cfg.Executor.Image, "executor-image", pods.DefaultImage,
		"image with lockstep-exec, for pods of workflows that need it")
	f.StringVar((*string)(&cfg.Executor.ImagePullPolicy), "executor-pull-policy", "",
		"when that image is pulled: Always, IfNotPresent or Never (default the cluster's)")
	f.BoolVar(&cfg.Executor.ImageVolumes, "executor-image-volumes", false,
		"mount that image as a volume instead of copying from it: all nodes must be able to")
	f.StringVar(&entrypoints, "executor-entrypoints", "",
		"file with what images run, for steps that name no command and are wrapped: IMAGE: {entrypoint: [...], cmd: [...]}")
	f.DurationVar(&cfg.ArchiveTTL, "archive-ttl", 0, "how long the archive keeps workflows; 0 is for ever")
	f.StringVar(&cfg.ArchiveLabels, "archive-selector", "", "labels of the workflows to archive; empty is all")
	f.BoolVarP(&verbose, "verbose", "v", false, "log more")
	return cmd
}

// configureScheduler sets what a scheduler configuration says, unless flags say something else, and
// logs the parts of it that have no effect.
func configureScheduler(flags *pflag.FlagSet, file string, cfg *manager.Config) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	settings, findings, err := config.Parse(data)
	if err != nil {
		return err
	}
	cfg.NoPreemption, cfg.NoReclaim = settings.NoPreemption, settings.NoReclaim
	cfg.ReclaimByWeight = settings.ReclaimByWeight
	if !flags.Changed("preempt-across-queues") {
		cfg.PreemptAcross = settings.PreemptAcross
	}
	cfg.Zones, cfg.Usage = settings.Zones, settings.Usage
	cfg.Scores, cfg.ScoredResources = settings.Place.Weights, settings.Place.Resources
	if settings.Place.Strategy == place.MostAllocated && !flags.Changed("node-score") {
		cfg.NodeScore = "most"
	}
	if settings.OverdueAfter > 0 && !flags.Changed("overdue-after") {
		cfg.OverdueAfter = settings.OverdueAfter
	}
	if settings.UsageHalfLife > 0 && !flags.Changed("usage-half-life") {
		cfg.UsageHalfLife = settings.UsageHalfLife
	}
	for _, f := range findings {
		if f.Verdict == config.Missing || f.Verdict == config.Differs {
			cfg.Log.Warn("scheduler configuration", "part", f.Name, "line", f.Line, string(f.Verdict), f.Text)
		}
	}
	return nil
}
