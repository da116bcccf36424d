package informer

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	argov1alpha1 "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	batchv1alpha1 "lockstep.dev/lockstep/api/batch/v1alpha1"
	busv1alpha1 "lockstep.dev/lockstep/api/bus/v1alpha1"
	flowv1alpha1 "lockstep.dev/lockstep/api/flow/v1alpha1"
	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/api/scheme"
	hypernodev1alpha1 "lockstep.dev/lockstep/api/topology.volcano.sh/v1alpha1"
	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/panics"
)

// The indexes of Set.Pods, Set.Jobs, Set.JobFlows, Set.Queues, Set.Commands and Set.TaskResults.
const (
	// PodsByController indexes pods by the UID of their controller owner.
	PodsByController = "controller"
	// PodsByGroup indexes pods by "namespace/name" of the PodGroup in their annotation.
	PodsByGroup = "group"
	// PodsByKubeGroup indexes pods by "namespace/name" of the PodGroup in their spec.schedulingGroup.
	PodsByKubeGroup = "kube-group"
	// PodsByNode indexes pods by the name of their node.
	PodsByNode = "node"
	// JobsByController indexes jobs by the UID of their controller owner.
	JobsByController = "controller"
	// JobsByTemplate indexes jobs by "namespace/name" of the JobTemplate in their annotation.
	JobsByTemplate = "template"
	// JobFlowsByTemplate indexes JobFlows by "namespace/name" of their JobTemplates.
	JobFlowsByTemplate = "template"
	// QueuesByParent indexes queues by the name of their parent.
	QueuesByParent = "parent"
	// CommandsByTarget indexes Commands by their target, see CommandTarget.
	CommandsByTarget = "target"
	// ResultsByWorkflow indexes WorkflowTaskResults by "namespace/name" of their workflow.
	ResultsByWorkflow = "workflow"
	// PluginsByNamespace indexes the ConfigMaps of executor plugins by namespace.
	PluginsByNamespace = "plugin"
)

// Set watches every type that the scheduler and the controllers read. Each cache streams its
// first list and keeps only the fields that are used (see trim.go), so its objects must never be
// written back as they are. Informers of types that are not watched are nil.
type Set struct {
	Pods         *Informer[*corev1.Pod]
	Nodes        *Informer[*corev1.Node]
	Jobs         *Informer[*batchv1alpha1.Job]
	CronJobs     *Informer[*batchv1alpha1.CronJob]
	JobFlows     *Informer[*flowv1alpha1.JobFlow]
	JobTemplates *Informer[*flowv1alpha1.JobTemplate]
	PodGroups    *Informer[*schedulingv1beta1.PodGroup]
	// KubePodGroups holds Kubernetes' own PodGroups, which few API servers serve.
	KubePodGroups   *Informer[*schedulingv1alpha2.PodGroup]
	Queues          *Informer[*schedulingv1beta1.Queue]
	Commands        *Informer[*busv1alpha1.Command]
	PriorityClasses *Informer[*schedulingv1.PriorityClass]
	LimitRanges     *Informer[*corev1.LimitRange]
	NodeTopologies  *Informer[*topologyv1alpha1.NodeTopology]
	HyperNodes      *Informer[*hypernodev1alpha1.HyperNode]
	Budgets         *Informer[*policyv1.PodDisruptionBudget]

	// Workflows holds workflows; ended ones lack their templates and nodes: see workflows.go.
	Workflows                *Informer[*argov1alpha1.Workflow]
	WorkflowTemplates        *Informer[*argov1alpha1.WorkflowTemplate]
	ClusterWorkflowTemplates *Informer[*argov1alpha1.ClusterWorkflowTemplate]
	TaskResults              *Informer[*argov1alpha1.WorkflowTaskResult]
	// ConfigMaps holds the ConfigMaps of workflows (parameters, caches, executor plugins), selected
	// by label.
	ConfigMaps *Informer[*corev1.ConfigMap]
	// Namespaces holds what is read of namespaces: see namespaces.go.
	Namespaces *Informer[*corev1.Namespace]
	// Repositories holds the ConfigMaps of artifact repositories, selected by name.
	Repositories *Informer[*corev1.ConfigMap]

	unseen  unseenNamespaces
	running sync.WaitGroup

	specs specs
}

// NewSet prepares the watches of the cluster at cfg. Nothing is read before Start.
func NewSet(cfg *rest.Config) (*Set, error) {
	var failed error
	client := clients(cfg, &failed)
	core := client(corev1.SchemeGroupVersion)
	flow := client(flowv1alpha1.GroupVersion)
	sched := client(schedulingv1.SchemeGroupVersion)
	kubeGroups := client(schedulingv1alpha2.SchemeGroupVersion)
	batch := client(batchv1alpha1.GroupVersion)
	groups := client(schedulingv1beta1.GroupVersion)
	bus := client(busv1alpha1.GroupVersion)
	argo := client(argov1alpha1.GroupVersion)
	topology := client(topologyv1alpha1.GroupVersion)
	hypernode := client(hypernodev1alpha1.GroupVersion)
	policy := client(policyv1.SchemeGroupVersion)
	if failed != nil {
		return nil, failed
	}
	s := &Set{
		Pods: New(core, "pods", Options[*corev1.Pod]{Trim: newTrimmer().pod, Indexes: map[string]func(*corev1.Pod) []string{
			PodsByController: controllerOf[*corev1.Pod], PodsByGroup: groupOf, PodsByKubeGroup: kubeGroupOf, PodsByNode: nodeOf,
		}}),
		Nodes: New(core, "nodes", Options[*corev1.Node]{Trim: trimNode}),
		Jobs: New(batch, "jobs", Options[*batchv1alpha1.Job]{Indexes: map[string]func(*batchv1alpha1.Job) []string{
			JobsByController: controllerOf[*batchv1alpha1.Job], JobsByTemplate: templateOf,
		}}),
		CronJobs: New(batch, "cronjobs", Options[*batchv1alpha1.CronJob]{}),
		JobFlows: New(flow, "jobflows", Options[*flowv1alpha1.JobFlow]{Indexes: map[string]func(*flowv1alpha1.JobFlow) []string{
			JobFlowsByTemplate: templatesOf,
		}}),
		JobTemplates:  New(flow, "jobtemplates", Options[*flowv1alpha1.JobTemplate]{}),
		PodGroups:     New(groups, "podgroups", Options[*schedulingv1beta1.PodGroup]{}),
		KubePodGroups: New(kubeGroups, "podgroups", Options[*schedulingv1alpha2.PodGroup]{Optional: time.Minute}),
		Queues: New(groups, "queues", Options[*schedulingv1beta1.Queue]{Indexes: map[string]func(*schedulingv1beta1.Queue) []string{
			QueuesByParent: func(q *schedulingv1beta1.Queue) []string { return []string{q.Spec.Parent} },
		}}),
		Commands: New(bus, "commands", Options[*busv1alpha1.Command]{Indexes: map[string]func(*busv1alpha1.Command) []string{
			CommandsByTarget: func(c *busv1alpha1.Command) []string { return []string{TargetOf(c).String()} },
		}}),
		PriorityClasses: New(sched, "priorityclasses", Options[*schedulingv1.PriorityClass]{}),
		LimitRanges:     New(core, "limitranges", Options[*corev1.LimitRange]{}),
		NodeTopologies:  New(topology, "nodetopologies", Options[*topologyv1alpha1.NodeTopology]{Trim: trimTopology}),
		HyperNodes:      New(hypernode, "hypernodes", Options[*hypernodev1alpha1.HyperNode]{}),
		Budgets:         New(policy, "poddisruptionbudgets", Options[*policyv1.PodDisruptionBudget]{}),
	}
	s.addWorkflows(core, argo)
	return s, nil
}

// NewWorkflowSet prepares only the watches that workflows need. Its pods are those of
// workflows.
func NewWorkflowSet(cfg *rest.Config) (*Set, error) {
	var failed error
	client := clients(cfg, &failed)
	core, argo := client(corev1.SchemeGroupVersion), client(argov1alpha1.GroupVersion)
	if failed != nil {
		return nil, failed
	}
	s := &Set{
		Pods: New(core, "pods", Options[*corev1.Pod]{Labels: argov1alpha1.LabelWorkflow, Trim: newTrimmer().pod,
			Indexes: map[string]func(*corev1.Pod) []string{PodsByController: controllerOf[*corev1.Pod]}}),
	}
	s.addWorkflows(core, argo)
	return s, nil
}

func (s *Set) addWorkflows(core, argo rest.Interface) {
	s.Workflows = New(argo, "workflows", Options[*argov1alpha1.Workflow]{Trim: s.trimWorkflow})
	s.WorkflowTemplates = New(argo, "workflowtemplates", Options[*argov1alpha1.WorkflowTemplate]{})
	s.ClusterWorkflowTemplates = New(argo, "clusterworkflowtemplates", Options[*argov1alpha1.ClusterWorkflowTemplate]{})
	s.TaskResults = New(argo, "workflowtaskresults", Options[*argov1alpha1.WorkflowTaskResult]{
		Indexes: map[string]func(*argov1alpha1.WorkflowTaskResult) []string{ResultsByWorkflow: workflowOf}})
	s.ConfigMaps = New(core, "configmaps", Options[*corev1.ConfigMap]{Labels: argov1alpha1.LabelConfigMapType,
		Indexes: map[string]func(*corev1.ConfigMap) []string{PluginsByNamespace: pluginIn}})
	s.Namespaces = New(core, "namespaces", Options[*corev1.Namespace]{Trim: trimNamespace,
		Indexes: map[string]func(*corev1.Namespace) []string{namespacesLimited: limited}})
	s.Repositories = New(core, "configmaps", Options[*corev1.ConfigMap]{Fields: "metadata.name=" + argov1alpha1.RepositoriesConfigMap})
}

// clients returns a function that creates clients and keeps the first error.
func clients(cfg *rest.Config, failed *error) func(schema.GroupVersion) rest.Interface {
	return func(gv schema.GroupVersion) rest.Interface {
		var c rest.Interface
		var err error
		switch gv { // the groups with most of the events have connections of their own
		case corev1.SchemeGroupVersion:
			c, err = kubeclient.TrimmedCore(kubeclient.ForWatch(cfg), nil, scheme.Scheme)
		case argov1alpha1.GroupVersion:
			c, err = kubeclient.LeanCustom(kubeclient.ForWatch(cfg), nil, gv, scheme.Scheme, cutWorkflow)
		case batchv1alpha1.GroupVersion, schedulingv1beta1.GroupVersion:
			c, err = kubeclient.LeanCustom(kubeclient.ForWatch(cfg), nil, gv, scheme.Scheme, nil)
		default:
			c, err = kubeclient.LeanCustom(cfg, nil, gv, scheme.Scheme, nil)
		}
		if err != nil && *failed == nil {
			*failed = fmt.Errorf("watching %s: %w", gv, err)
		}
		return c
	}
}

// watched is an Informer of any type.
type watched interface {
	Run(context.Context)
	WaitForSync(context.Context) error
	onCutShort(func())
	OnMalformed(func(runtime.Object, *malformed.Error))
	Guard(*panics.Guard)
}

// all returns the informers that are not nil.
func (s *Set) all() []watched {
	all := []watched{
		s.Workflows, s.WorkflowTemplates, s.ClusterWorkflowTemplates, s.TaskResults, s.ConfigMaps, s.Repositories, s.Namespaces, s.Pods,
	}
	if s.Nodes != nil {
		all = append(all, s.Nodes, s.NodeTopologies, s.PriorityClasses, s.Queues, s.LimitRanges, s.PodGroups, s.KubePodGroups, s.Jobs, s.CronJobs, s.JobFlows, s.JobTemplates,
			s.Commands, s.Budgets, s.HyperNodes)
	}
	return all
}

// Start begins watching until ctx is done. Handlers should be registered before.
func (s *Set) Start(ctx context.Context) {
	for _, i := range s.all() {
		s.running.Go(func() { i.Run(ctx) })
	}
}

// OnCutShort registers f, which is called when the server has ended a watch early, as it does when
// it is busy. It must be called before Start. The watch of pods does not count: what it shows are
// mostly the manager's own writes, and no work waits for them.
func (s *Set) OnCutShort(f func()) {
	for _, i := range s.all() {
		if i != watched(s.Pods) {
			i.onCutShort(f)
		}
	}
}

// OnMalformed registers tell, which is called for every object of any kind that is malformed or was
// set apart.
func (s *Set) OnMalformed(tell func(runtime.Object, *malformed.Error)) {
	for _, i := range s.all() {
		i.OnMalformed(tell)
	}
}

// Guard recovers from panics of handlers. It must be called before Start.
func (s *Set) Guard(g *panics.Guard) {
	for _, i := range s.all() {
		i.Guard(g)
	}
}

// WaitForSync returns when every object that existed at the start has been passed to every handler,
// or with an error if ctx is done before.
func (s *Set) WaitForSync(ctx context.Context) error {
	for _, i := range s.all() {
		if err := i.WaitForSync(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Wait returns when the watches have ended after the context given to Start is done.
func (s *Set) Wait() { s.running.Wait() }

func controllerOf[T metav1.Object](o T) []string {
	if c := metav1.GetControllerOfNoCopy(o); c != nil {
		return []string{string(c.UID)}
	}
	return nil
}

func templateOf(j *batchv1alpha1.Job) []string {
	if name, ok := strings.CutPrefix(j.Annotations[flowv1alpha1.CreatedByJobTemplateKey], j.Namespace+"."); ok {
		return []string{keyOf(j.Namespace, name)}
	}
	return nil
}

func templatesOf(f *flowv1alpha1.JobFlow) []string {
	out := make([]string, len(f.Spec.Flows))
	for i := range f.Spec.Flows {
		out[i] = keyOf(f.Namespace, f.Spec.Flows[i].Name)
	}
	return out
}

func groupOf(p *corev1.Pod) []string {
	if g, ok := schedulingv1beta1.GroupOf(p); ok {
		return []string{g.String()}
	}
	return nil
}

func kubeGroupOf(p *corev1.Pod) []string {
	if g, ok := schedulingv1beta1.KubeGroupOf(p); ok {
		return []string{g.String()}
	}
	return nil
}

func nodeOf(p *corev1.Pod) []string {
	if n := p.Spec.NodeName; n != "" {
		return []string{n}
	}
	return nil
}

func workflowOf(r *argov1alpha1.WorkflowTaskResult) []string {
	if name := r.Labels[argov1alpha1.LabelWorkflow]; name != "" {
		return []string{r.Namespace + "/" + name}
	}
	return nil
}

// pluginIn returns the namespace of a ConfigMap that is an executor plugin.
func pluginIn(m *corev1.ConfigMap) []string {
	if m.Labels[argov1alpha1.LabelConfigMapType] != argov1alpha1.ConfigMapTypePlugin {
		return nil
	}
	return []string{m.Namespace}
}
