package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"

	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/clusters"
	applications "lockstep.dev/lockstep/internal/application/controller"
	"lockstep.dev/lockstep/internal/batch"
	"lockstep.dev/lockstep/internal/batch/cronjob"
	"lockstep.dev/lockstep/internal/batch/flow"
	"lockstep.dev/lockstep/internal/batch/jobgroup"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/cputopology/nodecontroller"
	"lockstep.dev/lockstep/internal/cputopology/podcontroller"
	"lockstep.dev/lockstep/internal/egress"
	"lockstep.dev/lockstep/internal/hypernode"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/malformed/report"
	"lockstep.dev/lockstep/internal/panics"
	"lockstep.dev/lockstep/internal/podgroup"
	"lockstep.dev/lockstep/internal/sandbox"
	"lockstep.dev/lockstep/internal/scheduler"
	"lockstep.dev/lockstep/internal/scheduler/place"
	"lockstep.dev/lockstep/internal/scheduler/upstream"
	"lockstep.dev/lockstep/internal/scheduler/usage"
	"lockstep.dev/lockstep/internal/scheduler/zones"
	"lockstep.dev/lockstep/internal/workflow/archive"
	"lockstep.dev/lockstep/internal/workflow/artifactgc"
	"lockstep.dev/lockstep/internal/workflow/controller"
	"lockstep.dev/lockstep/internal/workflow/cron"
	"lockstep.dev/lockstep/internal/workflow/entrypoint"
	"lockstep.dev/lockstep/internal/workflow/pods"
	"lockstep.dev/lockstep/internal/workflow/settings"
)

// Config configures a Manager. Only REST is required.
type Config struct {
	// REST is the cluster to manage.
	REST *rest.Config
	// SchedulerNames are the schedulerNames whose pods the manager schedules. Default: lockstep and
	// volcano.
	SchedulerNames []string
	// NodeScore is least (the default), which spreads pods over the emptiest nodes, or most, which
	// fills nodes before it uses the next.
	NodeScore string
	// Scores and ScoredResources configure how nodes are scored; their zero values are the
	// kube-scheduler's.
	Scores          place.Weights
	ScoredResources []place.ResourceWeight
	// Eviction says whether pods leave for gangs that do not fit; by default they do.
	Eviction scheduler.EvictionMode
	// NoPreemption and NoReclaim switch off evictions by priority, and by what queues deserve.
	NoPreemption, NoReclaim bool
	// PreemptAcross has gangs also evict gangs of lower priority in other queues.
	PreemptAcross bool
	// ReclaimByWeight has queues that state nothing deserve what their weights give them, and claim it back.
	ReclaimByWeight bool
	// OverdueAfter is how long the first gang of a queue waits before capacity is kept for it; 0 means
	// that only gangs that say so themselves get capacity.
	OverdueAfter time.Duration
	// UsageHalfLife, if it is not 0, has queues take turns by what they have used. It is the time after
	// which usage counts half as much.
	UsageHalfLife time.Duration
	// Zones are the revocable zones; nil means that labels of nodes say nothing of zones.
	Zones *zones.Config
	// Usage says what is done with the measured use of nodes, and where it is read; nil means that it is
	// not read.
	Usage *usage.Config
	// JobPodGroups keeps a PodGroup for each Job, for clients that list them.
	JobPodGroups bool
	// PodsOfWaitingJobs is about how many pods of Jobs exist while the Jobs wait for room, for
	// autoscalers; 0 means that the pods of a Job are created when it has nodes for them.
	PodsOfWaitingJobs int
	// NetworkLabels are labels of nodes that divide the nodes that no HyperNode contains into domains of
	// the network, the lowest tier first.
	NetworkLabels []string
	// WriterConcurrency is a fixed number of requests in flight; 0 adapts the number to the server.
	WriterConcurrency int
	// MetricsAddress serves /metrics and, with Profiling, /debug/pprof; HealthAddress serves
	// /healthz and /readyz. Both may be the same. An empty address serves nothing.
	MetricsAddress, HealthAddress string
	Profiling                     bool
	// LeaderElect elects a leader among the managers of a cluster by a lease in LeaseNamespace
	// (default lockstep-system).
	LeaderElect    bool
	LeaseNamespace string
	// ActAsManager lets applications act with the manager's rights instead of those of their
	// authors: whoever may write an application can have anything created that the manager may
	// create.
	ActAsManager bool
	// ApplicationRevisionLimit is the number of revisions that are kept of each application besides
	// the one in use, if none of its policies says otherwise. Nil means the default.
	ApplicationRevisionLimit *int
	// AuthorsInterval is the interval between checks that the API server still records authors.
	// Default 30 s.
	AuthorsInterval time.Duration
	// QueueInterval is the interval at which what queues hold is written to their statuses, and RetryInterval
	// that at which gangs that wait are tried again although nothing has changed; 0 means the defaults, 15 s
	// and 30 s.
	QueueInterval, RetryInterval time.Duration
	// ReportAfter is how long pods of PodGroups wait before a status says so (podgroup.Config); 0 means the
	// default, 1 s.
	ReportAfter time.Duration
	// AllowRequestsTo lists the addresses, networks and host names that applications may send
	// requests to and fetch charts from, and that JobFlows may probe, although they are not public:
	// see egress.Config.
	AllowRequestsTo []string
	// Gateway is the cluster gateway, for managed clusters that are reached through one.
	Gateway clusters.Gateway
	// WorkflowNodesBytes is the maximum size of the JSON of a workflow's nodes before it is
	// compressed, in bytes; 0 means the default.
	WorkflowNodesBytes int
	// AlwaysMoveNodes moves the nodes of all workflows to the database of the configuration, if it says
	// so of large ones.
	AlwaysMoveNodes bool
	// WorkflowEvents says of which changes of workflows users get events.
	WorkflowEvents controller.Events
	// WorkflowConfigMap is the ConfigMap, NAMESPACE/NAME, with the configuration that clusters of
	// Argo Workflows have. Without a namespace it is that of LeaseNamespace. Default
	// settings.ConfigMap.
	WorkflowConfigMap string
	// Executor holds the options of workflow pods, mainly how they get the executor, which is not
	// in their images. Its SchedulerName is overwritten.
	Executor pods.Options
	// Archive names the database for finished workflows: see archive.Open; empty means none.
	// ArchiveTTL is how long they are kept; zero means forever. ArchiveLabels selects the workflows
	// to archive.
	Archive       string
	ArchiveTTL    time.Duration
	ArchiveLabels string
	archived      labels.Selector // ArchiveLabels, parsed
	// Repack limits the moves of pods to other CPUs of their nodes that nobody requested.
	Repack nodecontroller.Policy
	// StopTimeout is how long a stopping manager may finish its writes. Default 5 s.
	StopTimeout time.Duration
	Log         *slog.Logger
}

func (c *Config) complete() error {
	if c.REST == nil {
		return errors.New("manager: no cluster")
	}
	if len(c.SchedulerNames) == 0 {
		c.SchedulerNames = []string{scheduling.SchedulerLockstep, scheduling.SchedulerVolcano}
	}
	switch c.NodeScore {
	case "", "least", "most":
	default:
		return fmt.Errorf("manager: node score %q; want least or most", c.NodeScore)
	}
	if err := c.Eviction.Validate(); err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	if c.OverdueAfter < 0 {
		return fmt.Errorf("manager: gangs are overdue after %v; the least is 0", c.OverdueAfter)
	}
	if c.UsageHalfLife < 0 {
		return fmt.Errorf("manager: a half-life of usage of %v; the least is 0", c.UsageHalfLife)
	}
	if c.PodsOfWaitingJobs < 0 {
		return fmt.Errorf("manager: %d pods of waiting jobs; the least is 0", c.PodsOfWaitingJobs)
	}
	var err error
	if c.archived, err = labels.Parse(c.ArchiveLabels); err != nil {
		return fmt.Errorf("manager: labels of the workflows to archive: %w", err)
	}
	c.Executor.SchedulerName = c.SchedulerNames[0]
	c.LeaseNamespace = cmp.Or(c.LeaseNamespace, "lockstep-system")
	c.AuthorsInterval = cmp.Or(max(c.AuthorsInterval, 0), 30*time.Second)
	c.WorkflowConfigMap = cmp.Or(c.WorkflowConfigMap, settings.ConfigMap)
	if !strings.Contains(c.WorkflowConfigMap, "/") {
		c.WorkflowConfigMap = c.LeaseNamespace + "/" + c.WorkflowConfigMap
	}
	if namespace, name, _ := strings.Cut(c.WorkflowConfigMap, "/"); len(validation.IsDNS1123Label(namespace)) > 0 ||
		len(validation.IsDNS1123Subdomain(name)) > 0 {
		return fmt.Errorf("manager: the ConfigMap of workflows is %q; want NAMESPACE/NAME", c.WorkflowConfigMap)
	}
	c.StopTimeout = cmp.Or(max(c.StopTimeout, 0), 5*time.Second)
	c.Log = cmp.Or(c.Log, slog.Default())
	return nil
}

func (c *Config) strategy() place.Strategy {
	if c.NodeScore == "most" {
		return place.MostAllocated
	}
	return place.LeastAllocated
}

// Manager is the control plane in one process. It runs once.
type Manager struct {
	cfg      Config
	log      *slog.Logger
	registry *prometheus.Registry
	requests *egress.Guard
	images   *entrypoint.Finder
	// ready is true while the manager leads and has read the cluster. A standby is healthy but not
	// ready.
	ready atomic.Bool
	// evaluators runs programs of users in child processes.
	evaluators *sandbox.Pool
	guard      *panics.Guard
	authors    *authors // nil: applications act as the manager
	settings   *settingsKeeper
	archiving  archiveTargets
	nodes      *nodeDatabase
	// identity names this process among the managers of the cluster, in its leases and in the
	// User-Agent of its requests.
	identity string
}

// New checks the configuration and prepares a Manager. It does not contact the cluster.
func New(cfg Config) (*Manager, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	requests, err := egress.New(egress.Config{Allow: cfg.AllowRequestsTo})
	if err != nil {
		return nil, err
	}
	m := &Manager{cfg: cfg, log: cfg.Log, registry: prometheus.NewRegistry(), requests: requests, identity: newIdentity()}
	m.nodes = &nodeDatabase{m: m}
	m.cfg.REST = rest.CopyConfig(cfg.REST)
	m.cfg.REST.UserAgent = cmp.Or(cfg.REST.UserAgent, rest.DefaultKubernetesUserAgent()) + " " + m.identity
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if m.images, err = entrypoint.New(entrypoint.Config{Requests: requests}); err != nil {
		return nil, fmt.Errorf("manager: %w", err)
	}
	if m.evaluators, err = sandbox.New(sandbox.Config{Log: m.log, Metrics: m.registry}); err != nil {
		return nil, fmt.Errorf("manager: %w", err)
	}
	if m.settings, err = newSettingsKeeper(m.cfg.REST, m.cfg.WorkflowConfigMap, m.log); err != nil {
		return nil, fmt.Errorf("manager: %w", err)
	}
	if m.guard, err = panics.New(m.log, m.registry); err != nil {
		return nil, fmt.Errorf("manager: %w", err)
	}
	return m, nil
}

// Run manages the cluster until ctx is done, or until this manager may no longer lead, which is an
// error. When Run returns, the writes passed to the writer have been made, unless StopTimeout ended
// them, and the lease is free.
func (m *Manager) Run(ctx context.Context) error {
	if err := m.run(ctx); err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	return nil
}

func (m *Manager) run(ctx context.Context) error {
	stopServing, err := m.serve()
	if err != nil {
		return err
	}
	defer stopServing()
	defer m.evaluators.Close()
	defer m.nodes.close(nil)
	if m.cfg.ActAsManager {
		m.log.Warn("applications act with the manager's rights: whoever may write one may have anything made that the " +
			"manager may make")
	} else if m.authors, err = m.newAuthors(ctx); err != nil {
		return err
	}

	writer, err := apiwriter.New(apiwriter.Config{
		REST: m.cfg.REST, Scheme: scheme.Scheme, Fixed: m.cfg.WriterConcurrency, StopTimeout: m.cfg.StopTimeout,
		Registry: m.registry, Logger: m.log,
	})
	if err != nil {
		return err
	}
	// The writer outlives all controllers, so that their last writes are made.
	writing, stopWriting := context.WithCancel(context.WithoutCancel(ctx))
	var end sync.WaitGroup
	end.Go(func() {
		if err := writer.Run(writing); err != nil {
			m.log.Error("the writer ended", "error", err)
		}
	})
	defer end.Wait()
	defer stopWriting()

	// Workflows and crons need their configuration before they begin.
	following, stopFollowing := context.WithCancel(ctx)
	var followed sync.WaitGroup
	followed.Go(func() { m.settings.run(following) })
	defer followed.Wait()
	defer stopFollowing()
	if m.settings.wait(ctx) != nil {
		return nil // asked to stop
	}
	if !m.cfg.LeaderElect {
		return m.lead(ctx, writer, nil)
	}
	return m.leadInTurn(ctx, writer)
}

// lead does the leader's work until ctx is done. by is nil if this is the only manager.
func (m *Manager) lead(ctx context.Context, writer *apiwriter.W, by *leadership) error {
	parts, err := m.assemble(ctx, writer, by)
	if err != nil {
		return err
	}
	//  1. Read the whole cluster.
	started := time.Now()
	parts.informers.Start(ctx)
	parts.rare.Start(ctx)
	defer parts.informers.Wait()
	if err := errors.Join(parts.informers.WaitForSync(ctx), parts.rare.WaitForSync(ctx)); err != nil {
		if ctx.Err() != nil {
			return nil // asked to stop before it was ready
		}
		return err
	}
	//  2. Continue unfinished work.
	parts.jobs.Resume()
	parts.workflows.Resume()
	//  3. Place, write and report until the end.
	var running sync.WaitGroup
	for _, run := range parts.run {
		running.Go(func() { run(ctx) })
	}
	m.log.Info("managing", "server", m.cfg.REST.Host, "read", time.Since(started).Round(time.Millisecond))
	m.ready.Store(true)
	<-ctx.Done()
	m.ready.Store(false)
	running.Wait()
	if cause := context.Cause(ctx); errors.Is(cause, errLostLease) {
		return cause // another manager writes now
	}
	//  4. Finish the writes in progress.
	flushing, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.cfg.StopTimeout)
	defer cancel()
	if err := writer.Flush(flushing); err != nil {
		m.log.Warn("stopped before everything was written; the next manager takes it up", "error", err)
	}
	return nil
}

// components holds the parts that lead runs.
type components struct {
	informers *informer.Set
	rare      *upstream.Filter
	jobs      *batch.Controller
	workflows *controller.Controller
	run       []func(context.Context)
}

// assemble creates the parts and connects them.
func (m *Manager) assemble(ctx context.Context, w *apiwriter.W, by *leadership) (*components, error) {
	writer, shards := by.writer(w), by.members()
	informers, err := informer.NewSet(m.cfg.REST)
	if err != nil {
		return nil, err
	}
	informers.OnCutShort(w.WatchEnded)
	informers.Pods.Handle(informer.Handler[*corev1.Pod]{Added: w.Seen, Updated: func(old, pod *corev1.Pod) {
		if old.UID != pod.UID {
			w.Seen(pod)
		}
	}})
	told, err := report.New(report.Config{REST: m.cfg.REST, Scheme: scheme.Scheme, Writer: writer, Log: m.log})
	if err != nil {
		return nil, err
	}
	informers.OnMalformed(told.Tell)
	informers.Guard(m.guard)
	model := cluster.New(cluster.Config{Dims: place.NewDims(), Ours: m.ours, NetworkLabels: m.cfg.NetworkLabels})
	model.Feed(informers)
	client, err := kubeclient.Clientset(m.cfg.REST)
	if err != nil {
		return nil, err
	}
	rare, err := upstream.New(ctx, upstream.Config{
		Client: client, Informers: informers, Cluster: model, Writer: writer, Log: m.log,
	})
	if err != nil {
		return nil, err
	}
	var topologies *nodecontroller.Controller // set before the scheduler runs
	sched, err := scheduler.New(scheduler.Config{
		CPUsShort: func() { topologies.CPUsShort() },
		Cluster:   model, Refresh: rare.Refresh, Volumes: rare,
		Place: place.Options{
			Strategy: m.cfg.strategy(), Weights: m.cfg.Scores, Resources: m.cfg.ScoredResources, Rare: rare,
		},
		Evictions: scheduler.Evictions{
			Mode: m.cfg.Eviction, NoPreemption: m.cfg.NoPreemption, NoReclaim: m.cfg.NoReclaim,
			PreemptAcross: m.cfg.PreemptAcross, ReclaimByWeight: m.cfg.ReclaimByWeight, Budgets: informers.Budgets.List,
		},
		PodsAhead:    m.cfg.PodsOfWaitingJobs,
		RetryEvery:   m.cfg.RetryInterval,
		OverdueAfter: m.cfg.OverdueAfter, UsageHalfLife: m.cfg.UsageHalfLife, Zones: m.cfg.Zones, Usage: m.cfg.Usage,
		CPUsRepacked: m.cfg.Repack.MovesPerHour > 0 && !m.cfg.Repack.StayInNUMA,
		Guard:        m.guard, Metrics: m.registry, Log: m.log,
	})
	if err != nil {
		return nil, err
	}
	owners, err := newPodOwners(m.cfg.REST)
	if err != nil {
		return nil, err
	}
	groups, err := podgroup.New(podgroup.Config{
		Informers: informers, Cluster: model, Scheduler: sched, Writer: writer, SchedulerNames: m.cfg.SchedulerNames,
		Owners: owners, ReportAfter: m.cfg.ReportAfter, Guard: m.guard, Log: m.log,
	})
	if err != nil {
		return nil, err
	}
	jobs, err := batch.New(batch.Config{
		Informers: informers, Scheduler: sched, Model: model, Writer: writer, SchedulerNames: m.cfg.SchedulerNames,
		PodsAhead: m.cfg.PodsOfWaitingJobs > 0,
		Keep:      flow.Unrecorded(informers), Guard: m.guard, Log: m.log,
	})
	if err != nil {
		return nil, err
	}
	sched.SetEvictors(jobs, groups)
	queues, err := batch.NewQueues(batch.QueuesConfig{Informers: informers, Use: queueUse{model, sched}, Writer: writer,
		Interval: m.cfg.QueueInterval, Guard: m.guard, Log: m.log})
	if err != nil {
		return nil, err
	}
	hyperNodes, err := hypernode.New(hypernode.Config{Informers: informers, Model: model, Writer: writer, Guard: m.guard, Log: m.log})
	if err != nil {
		return nil, err
	}
	cronJobs, err := cronjob.New(cronjob.Config{Informers: informers, Writer: writer, Guard: m.guard, Log: m.log})
	if err != nil {
		return nil, err
	}
	flows, err := flow.New(flow.Config{Informers: informers, Writer: writer, Requests: m.requests, Guard: m.guard, Log: m.log})
	if err != nil {
		return nil, err
	}
	var jobGroups func(context.Context)
	if m.cfg.JobPodGroups {
		c, err := jobgroup.New(jobgroup.Config{
			Informers: informers, Writer: writer, SchedulerNames: m.cfg.SchedulerNames, Guard: m.guard, Log: m.log,
		})
		if err != nil {
			return nil, err
		}
		jobGroups = c.Run
	}
	commands, err := batch.NewCommands(informers, jobs, queues, writer, m.log)
	if err != nil {
		return nil, err
	}
	topologies, err = nodecontroller.New(nodecontroller.Config{
		REST: m.cfg.REST, Informers: informers, Model: model, Mover: sched, Writer: writer, Ours: m.ours, Policy: m.cfg.Repack,
		Guard: m.guard, Metrics: m.registry, Log: m.log,
	})
	if err != nil {
		return nil, err
	}
	pinned, err := podcontroller.New(podcontroller.Config{
		Informers: informers, Writer: writer, SchedulerNames: m.cfg.SchedulerNames, Guard: m.guard, Log: m.log,
	})
	if err != nil {
		return nil, err
	}
	reading, err := m.readUsage(informers, client.Discovery().RESTClient(), sched)
	if err != nil {
		return nil, err
	}
	run := []func(context.Context){
		reading,
		told.Run, topologies.Run, pinned.Run,
		sched.Run, jobs.Run, groups.Run, queues.Run, commands.Run, cronJobs.Run, flows.Run, hyperNodes.Run,
		func(ctx context.Context) { model.RunExpiry(ctx, informers) },
	}
	if jobGroups != nil {
		run = append(run, jobGroups)
	}
	if err := m.checkArchive(ctx); err != nil {
		return nil, err
	}
	keeper, err := archive.NewKeeper(archive.KeeperConfig{
		Target: m.archiveTarget, REST: m.cfg.REST, Informers: informers, Writer: writer, Log: m.log,
		ReadNodes: m.nodes.Read,
	})
	if err != nil {
		return nil, err
	}
	run = append(run, keeper.Run, m.settings.following(keeper.Changed))
	workflows, err := controller.New(controller.Config{
		Informers: informers, Placer: sched, Model: model, Writer: by.workflows(w, informers), Client: client, Leads: true,
		Keep: keeper.Wants, Evaluators: m.evaluators,
		Owns: shards.owns(true), SchedulerNames: m.cfg.SchedulerNames, NodesBytesMax: m.cfg.WorkflowNodesBytes,
		Pods:      m.cfg.Executor,
		Events:    m.cfg.WorkflowEvents,
		Settings:  m.settings.Current,
		Images:    m.images,
		OpenLocks: m.openLocks,
		Nodes:     m.nodes, AlwaysMoveNodes: m.cfg.AlwaysMoveNodes,
		Malformed: told.Tell, Guard: m.guard, Metrics: m.registry, Log: m.log,
	})
	if err != nil {
		return nil, err
	}
	shards.works(workflows)
	run = append(run, m.settings.following(workflows.Configured), m.settings.telling(writer))
	collector, err := artifactgc.New(artifactgc.Config{
		REST: m.cfg.REST, Informers: informers, Writer: writer, Pods: m.cfg.Executor, Settings: m.settings.Current,
		ReadNodes: m.nodes.Read, Guard: m.guard, Log: m.log,
	})
	if err != nil {
		return nil, err
	}
	if shards == nil {
		crons, err := cron.New(cron.Config{
			REST: m.cfg.REST, Writer: writer, Evaluators: m.evaluators, Settings: m.settings.Current, Guard: m.guard,
			Malformed: told.Tell, Log: m.log,
		})
		if err != nil {
			return nil, err
		}
		run = append(run, crons.Run, m.settings.following(crons.Resync))
	}
	apps, err := m.applications(w, shards, m.registry, told.Tell)
	if err != nil {
		return nil, err
	}
	return &components{
		informers: informers, rare: rare, jobs: jobs, workflows: workflows,
		run: append(run, workflows.Run, collector.Run, m.runApplications(apps)),
	}, nil
}

// applications returns the controller of this manager's share of the applications.
func (m *Manager) applications(writer *apiwriter.W, shards *shards, registry prometheus.Registerer,
	tell func(runtime.Object, *malformed.Error)) (*applications.Controller, error) {
	apps, err := applications.New(applications.Config{
		REST: m.cfg.REST, Writer: shards.writer(writer), Fence: shards.fence(), Owns: shards.ownsKey(),
		ActAsManager: m.cfg.ActAsManager, RevisionLimit: m.cfg.ApplicationRevisionLimit,
		Gateway: m.cfg.Gateway, Log: m.log, Requests: m.requests,
		Metrics:  registry,
		Recorded: m.recorded, Malformed: tell, Evaluators: m.evaluators,
		Guard: m.guard,
	})
	if err != nil {
		return nil, err
	}
	shards.deploys(apps)
	return apps, nil
}

// recorded returns the reason why applications are off (authors.recorded), or nil.
func (m *Manager) recorded() error {
	if m.authors == nil {
		return nil
	}
	return m.authors.recorded()
}

// runApplications returns a function that runs the controller of applications, and that turns
// applications off and on when the result of recorded changes.
func (m *Manager) runApplications(apps *applications.Controller) func(context.Context) {
	return func(ctx context.Context) {
		var looking sync.WaitGroup
		if m.authors != nil {
			looking.Go(func() { m.authors.run(ctx, m, apps.Rebalance) })
		}
		apps.Run(ctx)
		looking.Wait()
	}
}

// ours reports whether this manager schedules a pod.
func (m *Manager) ours(p *corev1.Pod) bool {
	return slices.Contains(m.cfg.SchedulerNames, p.Spec.SchedulerName)
}

// queueUse reads the use of queues from the model, and what they have used from the scheduler.
type queueUse struct {
	model *cluster.Cluster
	sched *scheduler.Scheduler
}

func (q queueUse) Past() map[string]scheduler.QueueUsage { return q.sched.Usage() }

func (q queueUse) Use() map[string]corev1.ResourceList {
	out := map[string]corev1.ResourceList{}
	for _, queue := range q.model.Queues() {
		list := q.model.Dims().List(queue.Used)
		if queue.Object != nil && queue.Jobs > 0 {
			if _, limited, _ := scheduling.JobsMax(queue.Object); limited {
				list[scheduling.JobsResource] = scheduling.Jobs(queue.Jobs)
			}
		}
		if len(list) > 0 {
			out[queue.Name] = list
		}
	}
	return out
}
