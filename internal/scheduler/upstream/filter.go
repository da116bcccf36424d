package upstream

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corev1listers "k8s.io/client-go/listers/core/v1"
	storagev1listers "k8s.io/client-go/listers/storage/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultbinder"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	plfeature "k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/interpodaffinity"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/podtopologyspread"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/queuesort"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumerestrictions"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumezone"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	"k8s.io/utils/clock"

	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/podset/plan"
	"lockstep.dev/lockstep/internal/scheduler/place"
)

// Config configures a Filter. Client, Informers and Cluster are required.
type Config struct {
	Client    kubernetes.Interface
	Informers *informer.Set
	Cluster   *cluster.Cluster
	// Writer writes which volume, or which node, was chosen for a claim. Only ChooseVolumes needs it.
	Writer apiwriter.Writer
	// Clock defaults to the real clock.
	Clock clock.PassiveClock
	Log   *slog.Logger
}

// Filter implements place.RareFilter with the kube-scheduler's plugins. It belongs to the
// scheduler's goroutine.
type Filter struct {
	ctx     context.Context
	cluster *cluster.Cluster
	log     *slog.Logger
	factory informers.SharedInformerFactory
	frame   framework.Framework
	nodes   *nodes
	active  bool // nodes are up to date in this cycle

	claims  corev1listers.PersistentVolumeClaimLister
	volumes corev1listers.PersistentVolumeLister
	classes storagev1listers.StorageClassLister
	writer  apiwriter.Writer
	choices choices

	devices *devices
	// The plugins that hold volumes and devices for placed pods.
	volumePlugin, devicePlugin fwk.ReservePlugin

	states   map[*place.Class]*state
	added    []added
	serial   int
	concerns map[*place.Class]bool
}

var _ place.RareFilter = (*Filter)(nil)

// state is the framework's state for one class, updated with every pod placed since.
type state struct {
	pod     *corev1.Pod // what the plugins see: podOf
	cycle   fwk.CycleState
	only    map[string]bool // the nodes to which PreFilter limits the class, nil for all
	refused string          // PreFilter's reason to refuse all nodes, or empty
}

// added is a pod placed in this cycle.
type added struct {
	class *place.Class
	node  string
	pod   fwk.PodInfo
	// state is set if the pod has claims of its own, and planned are those whose devices were found.
	state   *state
	planned []types.UID
}

// New returns a Filter that is valid until ctx is done. It reads nothing from the API server before
// Start.
func New(ctx context.Context, cfg Config) (*Filter, error) {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	cfg.Clock = cmp.Or[clock.PassiveClock](cfg.Clock, clock.RealClock{})
	metrics.InitMetrics()
	factory := informers.NewSharedInformerFactory(cfg.Client, 0)
	f := &Filter{
		ctx: klog.NewContext(ctx, klog.Logger{}), cluster: cfg.Cluster, log: cfg.Log, nodes: newNodes(cfg.Cluster),
		states: map[*place.Class]*state{}, concerns: map[*place.Class]bool{},
		factory: factory, claims: factory.Core().V1().PersistentVolumeClaims().Lister(),
		volumes: factory.Core().V1().PersistentVolumes().Lister(), classes: factory.Storage().V1().StorageClasses().Lister(),
		writer: cfg.Writer, choices: choices{clock: cfg.Clock, made: map[types.UID]choice{}},
	}
	err := f.watchVolumes()
	if err != nil {
		return nil, err
	}
	fts := plfeature.NewSchedulerFeaturesFromGates(feature.DefaultFeatureGate)
	fts.EnableDynamicResourceAllocation = true
	// Extended resources that a device class stands for are counted as the nodes advertise them. Devices
	// that need conditions before their pods are bound are not used.
	fts.EnableDRAExtendedResource, fts.EnableDRADeviceBindingConditions = false, false
	if f.devices, err = f.newDevices(cfg.Client, fts); err != nil {
		return nil, err
	}
	f.frame, err = frameworkruntime.NewFramework(f.ctx, f.registry(fts), profile(),
		frameworkruntime.WithClientSet(cfg.Client),
		frameworkruntime.WithInformerFactory(shared{factory, cfg.Informers}),
		frameworkruntime.WithSnapshotSharedLister(f.nodes),
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(factory.Storage().V1().CSINodes().Lister())),
		frameworkruntime.WithSharedDRAManager(f.devices),
		frameworkruntime.WithLogger(klog.Logger{}),
	)
	if err != nil {
		return nil, fmt.Errorf("the kube-scheduler's plugins: %w", err)
	}
	return f, nil
}

// Start starts informers for claims, volumes, storage classes and the other objects that the
// plugins read. They run until ctx is done.
func (f *Filter) Start(ctx context.Context) { f.factory.Start(ctx.Done()) }

// WaitForSync waits until the informers that Start started have synced. It returns an error if ctx
// is done first.
func (f *Filter) WaitForSync(ctx context.Context) error {
	for kind, ok := range f.factory.WaitForCacheSync(ctx.Done()) {
		if !ok {
			return fmt.Errorf("the kube-scheduler's plugins: reading %v: %w", kind, context.Cause(ctx))
		}
	}
	return f.devices.start(ctx)
}

// plugins lists the plugins whose answers are used, with the kube-scheduler's weights for their
// scores.
var plugins = []config.Plugin{
	{Name: interpodaffinity.Name, Weight: 2},
	{Name: podtopologyspread.Name, Weight: 2},
	{Name: volumerestrictions.Name},
	{Name: nodevolumelimits.CSIName},
	{Name: volumezone.Name},
	{Name: volumebinding.Name, Weight: 1},
	{Name: dynamicresources.Name},
}

func (f *Filter) registry(fts plfeature.Features) frameworkruntime.Registry {
	return frameworkruntime.Registry{
		interpodaffinity.Name:    frameworkruntime.FactoryAdapter(fts, interpodaffinity.New),
		podtopologyspread.Name:   frameworkruntime.FactoryAdapter(fts, podtopologyspread.New),
		volumebinding.Name:       keep(&f.volumePlugin, frameworkruntime.FactoryAdapter(fts, volumebinding.New)),
		dynamicresources.Name:    keep(&f.devicePlugin, frameworkruntime.FactoryAdapter(fts, dynamicresources.New)),
		volumerestrictions.Name:  frameworkruntime.FactoryAdapter(fts, volumerestrictions.New),
		volumezone.Name:          frameworkruntime.FactoryAdapter(fts, volumezone.New),
		nodevolumelimits.CSIName: frameworkruntime.FactoryAdapter(fts, nodevolumelimits.NewCSI),
		// The framework requires a queue sort plugin and a bind plugin.
		queuesort.Name:     queuesort.New,
		defaultbinder.Name: defaultbinder.New,
	}
}

// keep returns a factory that also stores the plugin that it makes.
func keep(into *fwk.ReservePlugin, factory frameworkruntime.PluginFactory) frameworkruntime.PluginFactory {
	return func(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		p, err := factory(ctx, args, handle)
		*into, _ = p.(fwk.ReservePlugin)
		return p, err
	}
}

func profile() *config.KubeSchedulerProfile {
	set := func(names ...string) config.PluginSet {
		var s config.PluginSet
		for _, p := range plugins {
			for _, name := range names {
				if p.Name == name {
					s.Enabled = append(s.Enabled, p)
				}
			}
		}
		return s
	}
	all := set(interpodaffinity.Name, podtopologyspread.Name, volumerestrictions.Name, nodevolumelimits.CSIName,
		volumezone.Name, volumebinding.Name, dynamicresources.Name)
	score := set(interpodaffinity.Name, podtopologyspread.Name)
	return &config.KubeSchedulerProfile{
		SchedulerName: "lockstep",
		Plugins: &config.Plugins{
			QueueSort: config.PluginSet{Enabled: []config.Plugin{{Name: queuesort.Name}}},
			Bind:      config.PluginSet{Enabled: []config.Plugin{{Name: defaultbinder.Name}}},
			PreFilter: all, Filter: all, PreScore: score, Score: score,
		},
		PluginConfig: []config.PluginConfig{
			{Name: interpodaffinity.Name, Args: &config.InterPodAffinityArgs{HardPodAffinityWeight: 1}},
			{Name: podtopologyspread.Name, Args: &config.PodTopologySpreadArgs{DefaultingType: config.ListDefaulting}},
			{Name: dynamicresources.Name, Args: &config.DynamicResourcesArgs{FilterTimeout: &metav1.Duration{Duration: devicesOfNode}}},
			{Name: volumebinding.Name, Args: &config.VolumeBindingArgs{BindTimeoutSeconds: 600}},
		},
	}
}

// Refresh brings the filter up to date with the nodes of a cycle. It is the Refresh function of the
// scheduler's Config.
func (f *Filter) Refresh(s *place.Snapshot, rare bool) {
	f.active = rare || f.cluster.AntiAffinityPods() > 0
	for i := range f.added {
		f.free(&f.added[len(f.added)-1-i])
	}
	f.added = f.added[:0]
	f.devices.claims.dropUnless(f.choices.has)
	f.devices.spent = 0
	clear(f.states)
	clear(f.concerns)
	if f.active {
		f.nodes.refresh(s)
	}
}

// Concerns implements place.RareFilter.
func (f *Filter) Concerns(class *place.Class) bool {
	if !f.active {
		return false
	}
	known, ok := f.concerns[class]
	if !ok {
		known = f.keptAway(class.Template)
		f.concerns[class] = known
	}
	return known
}

// keptAway reports whether the required anti-affinity of a pod on a node may match pod p.
func (f *Filter) keptAway(p *corev1.Pod) bool {
	for _, n := range f.nodes.keepAway() {
		for _, other := range n.GetPodsWithRequiredAntiAffinity() {
			for _, term := range other.GetRequiredAntiAffinityTerms() {
				if (term.Namespaces.Has(p.Namespace) || !nothing(term.NamespaceSelector)) &&
					term.Selector.Matches(labels.Set(p.Labels)) {
					return true
				}
			}
		}
	}
	return false
}

func nothing(s labels.Selector) bool {
	return s == nil || s.String() == labels.Nothing().String() && !s.Empty()
}

// Filter implements place.RareFilter.
func (f *Filter) Filter(class *place.Class, candidates []*place.Node, refused []string) {
	st := f.state(class)
	search := f.devices.search(st.pod)
	defer search.end()
	for i, n := range candidates {
		switch info := f.nodes.byName[n.Name]; {
		case search.over():
			refused[i] = search.why
		case st.refused != "":
			refused[i] = st.refused
		case info == nil:
			refused[i] = "node(s) were not known yet"
		case st.only != nil && !st.only[n.Name]:
			refused[i] = "node(s) couldn't use the pod's volumes"
		default:
			if s := f.frame.RunFilterPlugins(f.ctx, st.cycle, st.pod, info); !s.IsSuccess() {
				refused[i] = reason(s)
			} else {
				search.found++
			}
		}
	}
}

// podOf returns the pod that stands for a class. That is the class's template, or the pod itself if
// it has claims of its own: its name and UID say which they are.
func (f *Filter) podOf(class *place.Class) *corev1.Pod {
	if plan.OwnClaims(class.Template) {
		return f.individual(class.Template)
	}
	return class.Template
}

// state returns the state of a class, computing it if necessary.
func (f *Filter) state(class *place.Class) *state {
	if st := f.states[class]; st != nil {
		return st
	}
	st := &state{cycle: framework.NewCycleState()}
	st.pod = f.podOf(class)
	f.states[class] = st
	if st.refused = f.withClaims(st.pod); st.refused != "" {
		return st
	}
	result, status, _ := f.frame.RunPreFilterPlugins(f.ctx, st.cycle, st.pod)
	switch {
	case !status.IsSuccess():
		st.refused = reason(status)
	case result != nil && !result.AllNodes():
		st.only = map[string]bool{}
		for name := range result.NodeNames {
			st.only[name] = true
		}
	}
	return st
}

// reason returns the plugin's reason.
func reason(s *fwk.Status) string {
	why := strings.Join(s.Reasons(), ", ")
	if why == "" {
		return "refused by " + s.Plugin()
	}
	return why
}

// Scores implements place.RareFilter: only preferences among pods, and spread that is not required, are
// scored.
func (f *Filter) Scores(class *place.Class) bool {
	spec := &class.Template.Spec
	if a := spec.Affinity; a != nil {
		if a.PodAffinity != nil && len(a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution) > 0 ||
			a.PodAntiAffinity != nil && len(a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution) > 0 {
			return true
		}
	}
	for i := range spec.TopologySpreadConstraints {
		if spec.TopologySpreadConstraints[i].WhenUnsatisfiable == corev1.ScheduleAnyway {
			return true
		}
	}
	return f.nodes.attract()
}

// Score implements place.RareFilter.
func (f *Filter) Score(class *place.Class, candidates []*place.Node, scores []int64) {
	st := f.state(class)
	infos := make([]fwk.NodeInfo, len(candidates))
	for i, n := range candidates {
		infos[i] = f.nodes.byName[n.Name]
	}
	if s := f.frame.RunPreScorePlugins(f.ctx, st.cycle, st.pod, infos); !s.IsSuccess() {
		f.log.Warn("nodes could not be scored", "error", s.AsError())
		return
	}
	totals, s := f.frame.RunScorePlugins(f.ctx, st.cycle, st.pod, infos)
	if !s.IsSuccess() {
		f.log.Warn("nodes could not be scored", "error", s.AsError())
		return
	}
	for i := range totals {
		scores[i] += totals[i].TotalScore
	}
}

// Add implements place.RareFilter.
func (f *Filter) Add(class *place.Class, node *place.Node) {
	if !f.active {
		return
	}
	info := f.nodes.byName[node.Name]
	if info == nil {
		return
	}
	f.serial++
	p := *f.podOf(class)
	if p.UID == "" || !plan.OwnClaims(&p) {
		p.Name, p.UID = fmt.Sprintf("placed-%d", f.serial), types.UID(fmt.Sprintf("placed/%d", f.serial))
	}
	p.Spec.NodeName = node.Name
	pod, err := framework.NewPodInfo(&p)
	if err != nil {
		return // the pod's affinity does not parse, so no other pod can refer to it
	}
	info.AddPodInfo(pod)
	f.nodes.changed()
	a := added{class: class, node: node.Name, pod: pod}
	if a.state = f.states[class]; a.state != nil && plan.OwnClaims(class.Template) {
		a.planned = f.hold(a.state, node.Name)
	} else {
		a.state = nil
	}
	f.added = append(f.added, a)
	keepsAway := len(pod.GetRequiredAntiAffinityTerms()) > 0
	if keepsAway {
		clear(f.concerns)
	}
	for c, st := range f.states {
		if plan.OwnClaims(c.Template) {
			delete(f.states, c) // fewer volumes and devices are free
		} else if keepsAway && st.cycle.GetSkipFilterPlugins().Has(interpodaffinity.Name) || st.refused != "" {
			delete(f.states, c) // a plugin that was skipped may refuse nodes now
		} else if s := f.frame.RunPreFilterExtensionAddPod(f.ctx, st.cycle, st.pod, pod, info); !s.IsSuccess() {
			delete(f.states, c)
		}
	}
}

// Remove implements place.RareFilter.
func (f *Filter) Remove(class *place.Class, node *place.Node) {
	if !f.active {
		return
	}
	for i := len(f.added) - 1; i >= 0; i-- {
		a := f.added[i]
		if a.class != class || a.node != node.Name {
			continue
		}
		f.added = append(f.added[:i], f.added[i+1:]...)
		f.free(&a)
		info := f.nodes.byName[a.node]
		if err := info.RemovePod(klog.Logger{}, a.pod.GetPod()); err != nil {
			f.log.Error("a pod that was placed is not on its node", "node", a.node, "error", err)
		}
		f.nodes.changed()
		for c, st := range f.states {
			if plan.OwnClaims(c.Template) {
				delete(f.states, c)
			} else if s := f.frame.RunPreFilterExtensionRemovePod(f.ctx, st.cycle, st.pod, a.pod, info); st.refused != "" ||
				!s.IsSuccess() {
				delete(f.states, c)
			}
		}
		return
	}
}
