package pods

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/workflow/engine"
)

// MainContainer is the container that runs the template's command.
const MainContainer = "main"

// builder is a pod under construction.
type builder struct {
	workflow *wf.Workflow
	spec     *wf.WorkflowSpec
	t        *wf.Template
	create   engine.CreatePod
	options  Options
	pod      *corev1.Pod
	// mains are the main container or the members of a container set, inits and sidecars the other
	// containers.
	mains    []corev1.Container
	inits    []corev1.Container
	sidecars []corev1.Container
	// files are the files that the kubelet makes from annotations, in the order of their use.
	files []corev1.DownwardAPIVolumeFile
	moves moves
	// staged is true if lockstep-exec has to be copied into the shared volume.
	staged bool
}

// Build returns the pod of a node, ready to be created. An error is caused by the workflow: the
// node cannot run.
func Build(w *wf.Workflow, create engine.CreatePod, options Options) (*corev1.Pod, error) {
	b := &builder{workflow: w, spec: create.Spec, t: create.Template, create: create, options: options}
	if b.spec == nil {
		b.spec = &w.Spec
	}
	b.options.Image = cmp.Or(options.Image, DefaultImage)
	b.metadata()
	for _, step := range []func() error{b.settings, b.containers, b.artifacts, b.mirror, b.wrap, b.carry, b.assemble, b.patch, b.volumes} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return b.pod, nil
}

// Queue returns the queue of a workflow's pods, or "" for the default queue.
func Queue(w *wf.Workflow) string {
	return cmp.Or(w.Annotations[wf.KeyQueue], w.Labels[wf.KeyQueue])
}

func (b *builder) metadata() {
	labels, annotations := map[string]string{}, map[string]string{}
	if queue := Queue(b.workflow); queue != "" {
		annotations[scheduling.QueueNameAnnotation] = queue
	}
	if m := b.spec.PodMetadata; m != nil {
		maps.Copy(labels, m.Labels)
		maps.Copy(annotations, m.Annotations)
	}
	maps.Copy(labels, b.t.Metadata.Labels)
	maps.Copy(annotations, b.t.Metadata.Annotations)
	for _, own := range []map[string]string{annotations, labels} { // the template's own queue
		if queue := own[wf.KeyQueue]; queue != "" {
			annotations[scheduling.QueueNameAnnotation] = queue
		}
	}
	labels[wf.LabelWorkflow], labels[wf.LabelCompleted] = b.workflow.Name, "false"
	if b.create.OnExit {
		labels[wf.LabelOnExit] = "true"
	}
	if id := b.options.InstanceID; id != "" {
		labels[wf.LabelInstanceID] = id
	}
	annotations[wf.AnnotationNodeID], annotations[wf.AnnotationNodeName] = b.create.NodeID, b.create.NodeName
	annotations[annotationDefaultContainer] = MainContainer
	if set := b.t.ContainerSet; set != nil {
		var names []string
		for i := range set.Containers {
			names = append(names, set.Containers[i].Name)
		}
		annotations[wf.AnnotationMembers] = strings.Join(names, ",")
	}
	b.pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: b.create.PodName, Namespace: b.workflow.Namespace, Labels: labels, Annotations: annotations,
		OwnerReferences: []metav1.OwnerReference{*OwnerReference(b.workflow)},
	}}
}

// OwnerReference returns the reference of an object to the workflow that controls it.
func OwnerReference(w *wf.Workflow) *metav1.OwnerReference {
	return metav1.NewControllerRef(w, wf.GroupVersion.WithKind("Workflow"))
}

const annotationDefaultContainer = "kubectl.kubernetes.io/default-container"

// settings copies fields of template and workflow into the pod spec; the template's take
// precedence.
func (b *builder) settings() error {
	t, s := b.t, b.spec
	p := &b.pod.Spec
	*p = corev1.PodSpec{
		RestartPolicy:                corev1.RestartPolicyNever,
		NodeSelector:                 s.NodeSelector,
		Affinity:                     cmp.Or(t.Affinity, s.Affinity),
		Tolerations:                  slices.Concat(s.Tolerations, t.Tolerations),
		SchedulerName:                cmp.Or(t.SchedulerName, s.SchedulerName, b.options.SchedulerName),
		PriorityClassName:            cmp.Or(t.PriorityClassName, s.PodPriorityClassName),
		ServiceAccountName:           cmp.Or(t.ServiceAccountName, s.ServiceAccountName),
		AutomountServiceAccountToken: cmp.Or(t.AutomountServiceAccountToken, s.AutomountServiceAccountToken),
		SecurityContext:              cmp.Or(t.SecurityContext, s.SecurityContext),
		HostAliases:                  s.HostAliases,
		ImagePullSecrets:             s.ImagePullSecrets,
		HostNetwork:                  ptr.Deref(s.HostNetwork, false),
		DNSConfig:                    s.DNSConfig,
		Resources:                    cmp.Or(t.PodResources, s.PodResources),
		ResourceClaims:               slices.Concat(s.ResourceClaims, t.ResourceClaims),
	}
	p.DNSPolicy = ptr.Deref(s.DNSPolicy, "")
	if len(t.HostAliases) > 0 {
		p.HostAliases = t.HostAliases
	}
	if len(t.NodeSelector) > 0 {
		p.NodeSelector = maps.Clone(s.NodeSelector)
		if p.NodeSelector == nil {
			p.NodeSelector = map[string]string{}
		}
		maps.Copy(p.NodeSelector, t.NodeSelector)
	}
	if len(b.create.AvoidHosts) > 0 {
		p.Affinity = avoiding(p.Affinity, b.create.AvoidHosts)
	}
	if d := t.ActiveDeadlineSeconds; d != nil {
		seconds, err := wholeNumber(*d)
		if err != nil || seconds <= 0 {
			return fmt.Errorf("activeDeadlineSeconds: '%s' is not a positive number of seconds", d.String())
		}
		p.ActiveDeadlineSeconds = &seconds
	}
	return nil
}

func wholeNumber(v intstr.IntOrString) (int64, error) {
	if v.Type == intstr.Int {
		return int64(v.IntVal), nil
	}
	return strconv.ParseInt(v.StrVal, 10, 64)
}

// avoiding returns the affinity with the hosts of failed attempts excluded.
func avoiding(affinity *corev1.Affinity, hosts []string) *corev1.Affinity {
	affinity = affinity.DeepCopy()
	if affinity == nil {
		affinity = &corev1.Affinity{}
	}
	if affinity.NodeAffinity == nil {
		affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	required := &affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if *required == nil || len((*required).NodeSelectorTerms) == 0 {
		*required = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{}}}
	}
	// terms are alternatives, so each has to exclude the hosts
	for i := range (*required).NodeSelectorTerms {
		term := &(*required).NodeSelectorTerms[i]
		term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{
			Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpNotIn, Values: hosts,
		})
	}
	return affinity
}

// assemble adds the containers to the pod.
func (b *builder) assemble() error {
	p := &b.pod.Spec
	p.InitContainers = append(p.InitContainers, b.inits...)
	p.InitContainers = append(p.InitContainers, b.sidecars...)
	p.Containers = b.mains
	return nil
}
