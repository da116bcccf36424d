package cluster

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	argov1alpha1 "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	batchv1alpha1 "lockstep.dev/lockstep/api/batch/v1alpha1"
	busv1alpha1 "lockstep.dev/lockstep/api/bus/v1alpha1"
	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/api/scheme"
	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/panics"
)

// The indexes of Informers.Pods, Informers.Commands and Informers.TaskResults.
const (
	// PodsByController indexes pods by the UID of their controller owner.
	PodsByController = "controller"
	// PodsByGroup indexes pods by "namespace/name" of the PodGroup in their annotation.
	PodsByGroup = "group"
	// PodsByNode indexes pods by the name of their node.
	PodsByNode = "node"
	// CommandsByTarget indexes Commands by their target, see CommandTarget.
	CommandsByTarget = "target"
	// ResultsByWorkflow indexes WorkflowTaskResults by "namespace/name" of their workflow.
	ResultsByWorkflow = "workflow"
)

// Informers watches every type that the scheduler and the controllers read. Each cache streams its
// first list and keeps only the fields that are used (see trim.go), so its objects must never be
// written back as they are. Kinds that are not watched are nil.
type Informers struct {
	Pods            *Kind[*corev1.Pod]
	Nodes           *Kind[*corev1.Node]
	Jobs            *Kind[*batchv1alpha1.Job]
	PodGroups       *Kind[*schedulingv1beta1.PodGroup]
	Queues          *Kind[*schedulingv1beta1.Queue]
	Commands        *Kind[*busv1alpha1.Command]
	PriorityClasses *Kind[*schedulingv1.PriorityClass]
	LimitRanges     *Kind[*corev1.LimitRange]
	NodeTopologies  *Kind[*topologyv1alpha1.NodeTopology]

	// Workflows holds workflows; ended ones lack their templates and nodes: see workflows.go.
	Workflows                *Kind[*argov1alpha1.Workflow]
	WorkflowTemplates        *Kind[*argov1alpha1.WorkflowTemplate]
	ClusterWorkflowTemplates *Kind[*argov1alpha1.ClusterWorkflowTemplate]
	CronWorkflows            *Kind[*argov1alpha1.CronWorkflow]
	TaskResults              *Kind[*argov1alpha1.WorkflowTaskResult]
	// ConfigMaps holds the ConfigMaps of workflows (parameters and caches), selected by label.
	ConfigMaps *Kind[*corev1.ConfigMap]
	// Repositories holds the ConfigMaps of artifact repositories, selected by name.
	Repositories *Kind[*corev1.ConfigMap]

	running sync.WaitGroup

	specs specs
}

// NewInformers prepares the watches of the cluster at cfg. Nothing is read before Start.
func NewInformers(cfg *rest.Config) (*Informers, error) {
	var failed error
	client := clients(cfg, &failed)
	core := client(corev1.SchemeGroupVersion)
	sched := client(schedulingv1.SchemeGroupVersion)
	batch := client(batchv1alpha1.GroupVersion)
	groups := client(schedulingv1beta1.GroupVersion)
	bus := client(busv1alpha1.GroupVersion)
	argo := client(argov1alpha1.GroupVersion)
	topology := client(topologyv1alpha1.GroupVersion)
	if failed != nil {
		return nil, failed
	}
	t := newTrimmer()
	podIndexes := cache.Indexers{
		PodsByController: indexPodByController, PodsByGroup: indexPodByGroup, PodsByNode: indexPodByNode,
	}
	i := &Informers{
		Pods:            newKind(core, "pods", &corev1.Pod{}, t.pod, podIndexes),
		Nodes:           newKind(core, "nodes", &corev1.Node{}, trimNode, nil),
		Jobs:            newKind[*batchv1alpha1.Job](batch, "jobs", &batchv1alpha1.Job{}, nil, nil),
		PodGroups:       newKind[*schedulingv1beta1.PodGroup](groups, "podgroups", &schedulingv1beta1.PodGroup{}, nil, nil),
		Queues:          newKind[*schedulingv1beta1.Queue](groups, "queues", &schedulingv1beta1.Queue{}, nil, nil),
		Commands:        newKind[*busv1alpha1.Command](bus, "commands", &busv1alpha1.Command{}, nil, cache.Indexers{CommandsByTarget: indexCommandByTarget}),
		PriorityClasses: newKind[*schedulingv1.PriorityClass](sched, "priorityclasses", &schedulingv1.PriorityClass{}, nil, nil),
		LimitRanges:     newKind[*corev1.LimitRange](core, "limitranges", &corev1.LimitRange{}, nil, nil),
		NodeTopologies:  newKind(topology, "nodetopologies", &topologyv1alpha1.NodeTopology{}, trimTopology, nil),
	}
	i.addWorkflows(core, argo)
	return i, nil
}

// NewWorkflowInformers prepares only the watches that workflows need. Its pods are those of
// workflows.
func NewWorkflowInformers(cfg *rest.Config) (*Informers, error) {
	var failed error
	client := clients(cfg, &failed)
	core, argo := client(corev1.SchemeGroupVersion), client(argov1alpha1.GroupVersion)
	if failed != nil {
		return nil, failed
	}
	i := &Informers{
		Pods: newSelected(core, "pods", selection{labels: argov1alpha1.LabelWorkflow}, &corev1.Pod{}, newTrimmer().pod,
			cache.Indexers{PodsByController: indexPodByController}),
	}
	i.addWorkflows(core, argo)
	return i, nil
}

func (i *Informers) addWorkflows(core, argo rest.Interface) {
	i.Workflows = newKind(argo, "workflows", &argov1alpha1.Workflow{}, i.trimWorkflow, nil)
	i.WorkflowTemplates = newKind[*argov1alpha1.WorkflowTemplate](argo, "workflowtemplates", &argov1alpha1.WorkflowTemplate{}, nil, nil)
	i.ClusterWorkflowTemplates = newKind[*argov1alpha1.ClusterWorkflowTemplate](argo, "clusterworkflowtemplates",
		&argov1alpha1.ClusterWorkflowTemplate{}, nil, nil)
	i.CronWorkflows = newKind[*argov1alpha1.CronWorkflow](argo, "cronworkflows", &argov1alpha1.CronWorkflow{}, nil, nil)
	i.TaskResults = newKind[*argov1alpha1.WorkflowTaskResult](argo, "workflowtaskresults", &argov1alpha1.WorkflowTaskResult{}, nil,
		cache.Indexers{ResultsByWorkflow: indexResultByWorkflow})
	i.ConfigMaps = newSelected[*corev1.ConfigMap](core, "configmaps", selection{labels: argov1alpha1.LabelConfigMapType}, &corev1.ConfigMap{}, nil, nil)
	i.Repositories = newSelected[*corev1.ConfigMap](core, "configmaps", selection{fields: "metadata.name=" + argov1alpha1.RepositoriesConfigMap},
		&corev1.ConfigMap{}, nil, nil)
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

// watched is a Kind of any type.
type watched interface {
	Run(context.Context)
	WaitForSync(context.Context) error
	onCutShort(func())
	OnMalformed(func(runtime.Object, *malformed.Error))
	Guard(*panics.Guard)
}

// kinds returns all watches.
func (i *Informers) kinds() []watched {
	kinds := []watched{
		i.Workflows, i.WorkflowTemplates, i.ClusterWorkflowTemplates, i.CronWorkflows, i.TaskResults, i.ConfigMaps, i.Repositories, i.Pods,
	}
	if i.Nodes != nil {
		kinds = append(kinds, i.Nodes, i.NodeTopologies, i.PriorityClasses, i.Queues, i.LimitRanges, i.PodGroups, i.Jobs, i.Commands)
	}
	return kinds
}

// Start begins watching until ctx is done. Handlers should be registered before.
func (i *Informers) Start(ctx context.Context) {
	for _, k := range i.kinds() {
		i.running.Go(func() { k.Run(ctx) })
	}
}

// OnCutShort registers f, which is called when the server has ended a watch early, as it does when
// it is busy. It must be called before Start.
func (i *Informers) OnCutShort(f func()) {
	for _, k := range i.kinds() {
		k.onCutShort(f)
	}
}

// OnMalformed registers tell, which is called for every object of any kind that is malformed or was
// set apart.
func (i *Informers) OnMalformed(tell func(runtime.Object, *malformed.Error)) {
	for _, k := range i.kinds() {
		k.OnMalformed(tell)
	}
}

// Guard recovers from panics of handlers. It must be called before Start.
func (i *Informers) Guard(g *panics.Guard) {
	for _, k := range i.kinds() {
		k.Guard(g)
	}
}

// WaitForSync returns when every object that existed at the start has been passed to every handler,
// or with an error if ctx is done before.
func (i *Informers) WaitForSync(ctx context.Context) error {
	for _, k := range i.kinds() {
		if err := k.WaitForSync(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Wait returns when the watches have ended after the context given to Start is done.
func (i *Informers) Wait() { i.running.Wait() }

func indexPodByController(o any) ([]string, error) {
	if c := metav1.GetControllerOf(o.(*corev1.Pod)); c != nil {
		return []string{string(c.UID)}, nil
	}
	return nil, nil
}

func indexResultByWorkflow(o any) ([]string, error) {
	r := o.(*argov1alpha1.WorkflowTaskResult)
	if name := r.Labels[argov1alpha1.LabelWorkflow]; name != "" {
		return []string{r.Namespace + "/" + name}, nil
	}
	return nil, nil
}

func indexPodByGroup(o any) ([]string, error) {
	if g, ok := GroupOf(o.(*corev1.Pod)); ok {
		return []string{g.String()}, nil
	}
	return nil, nil
}

func indexPodByNode(o any) ([]string, error) {
	if n := o.(*corev1.Pod).Spec.NodeName; n != "" {
		return []string{n}, nil
	}
	return nil, nil
}

// GroupOf returns the PodGroup that the pod's annotation names, or false.
func GroupOf(pod *corev1.Pod) (types.NamespacedName, bool) {
	for _, key := range []string{schedulingv1beta1.GroupNameAnnotation, schedulingv1beta1.VolcanoGroupNameAnnotation} {
		if name := pod.Annotations[key]; name != "" {
			return types.NamespacedName{Namespace: pod.Namespace, Name: name}, true
		}
	}
	return types.NamespacedName{}, false
}

// QueueOf returns the queue that the pod's own annotations name, or an empty name.
func QueueOf(pod *corev1.Pod) string {
	if q := pod.Annotations[schedulingv1beta1.QueueNameAnnotation]; q != "" {
		return q
	}
	return pod.Annotations[batchv1alpha1.QueueNameKey]
}
