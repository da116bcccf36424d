package informer

import (
	"reflect"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	argov1alpha1 "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	batchv1alpha1 "lockstep.dev/lockstep/api/batch/v1alpha1"
	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
)

// A cache of 10,000 pods is most of the manager's memory, so fields that are never read are dropped
// from every object before it is stored, and content that many pods share (a job's containers,
// tolerations and label values) is stored once.

// lastApplied is the annotation that repeats the whole object as kubectl applied it.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// trimMeta drops metadata that Lockstep does not read. It applies to every type.
func trimMeta(o metav1.Object) {
	o.SetManagedFields(nil)
	if a := o.GetAnnotations(); a != nil {
		delete(a, lastApplied)
		if len(a) == 0 {
			o.SetAnnotations(nil)
		}
	}
}

// trimNode drops fields that placement does not read; images alone are most of the size of a real
// node.
func trimNode(n *corev1.Node) {
	n.Annotations = nil
	n.Status.Images = nil
	n.Status.VolumesInUse = nil
	n.Status.Addresses = nil
	n.Status.NodeInfo = corev1.NodeSystemInfo{}
	n.Status.RuntimeHandlers = nil
	for i, c := range n.Status.Conditions {
		n.Status.Conditions[i] = corev1.NodeCondition{Type: c.Type, Status: c.Status}
	}
}

// trimTopology drops metadata that only people read. The status stays complete, because the manager
// writes parts of it.
func trimTopology(t *topologyv1alpha1.NodeTopology) {
	t.Annotations, t.Labels, t.OwnerReferences = nil, nil, nil
}

// trimmer trims pods and stores their common content once. Its memory is bounded: a full table is
// cleared, which only costs some sharing.
type trimmer struct {
	mu         sync.Mutex
	strings    map[string]string
	containers map[string][]corev1.Container
	tolerate   map[string][]corev1.Toleration
	specs      map[*corev1.Container]trimmedSpec
}

// trimmedSpec is a spec without its node name, and the trimmed spec.
type trimmedSpec struct{ from, kept corev1.PodSpec }

const (
	internedStringsMax = 1 << 16
	internedListsMax   = 1 << 12
	trimmedSpecsMax    = 1 << 8
)

func newTrimmer() *trimmer {
	return &trimmer{
		strings:    map[string]string{},
		containers: map[string][]corev1.Container{},
		tolerate:   map[string][]corev1.Toleration{},
		specs:      map[*corev1.Container]trimmedSpec{},
	}
}

// pod keeps identity, owner, the fields of the spec that a scheduler reads, and the fields of the
// status that counters and policies read.
func (t *trimmer) pod(p *corev1.Pod) {
	t.mu.Lock()
	defer t.mu.Unlock()
	steps := p.Labels[argov1alpha1.LabelWorkflow] != ""
	t.podMeta(&p.ObjectMeta)
	t.podSpec(&p.Spec)
	resize := resizeOf(p)
	defer resize.keep(&p.Status)
	if steps {
		t.stepStatus(&p.Status)
		return
	}
	start, ip := p.Status.StartTime, p.Status.PodIP
	t.podStatus(&p.Status, p.Spec.NodeName != "", p.Labels[topologyv1alpha1.AgentLabel] != "")
	if p.Annotations[schedulingv1beta1.CooldownTimeAnnotation] != "" {
		p.Status.StartTime = start // for some time after it the pod is not evicted
	}
	if p.Labels[batchv1alpha1.JobNameKey] != "" {
		p.Status.PodIP = ip // probes of JobFlows connect to it
	}
}

// resize is what the status of a pod says of a resize in place that is under way or was refused: what the
// kubelet has given the pod counts until it has what its spec says. It is nil for nearly all pods.
type resize struct {
	containers, inits []corev1.ContainerStatus
	allocated         corev1.ResourceList
	actuated          *corev1.ResourceRequirements
	conditions        []corev1.PodCondition
}

// resizeOf returns the resize of a pod, or nil if the kubelet reports what the spec says.
func resizeOf(p *corev1.Pod) *resize {
	s := &p.Status
	var r resize
	differs := false
	collect := func(containers []corev1.Container, statuses []corev1.ContainerStatus) (kept []corev1.ContainerStatus) {
		for i := range statuses {
			c := &statuses[i]
			if c.Resources == nil {
				continue
			}
			for k := range containers {
				if containers[k].Name == c.Name {
					spec := containers[k].Resources.Requests
					differs = differs || otherThan(spec, c.Resources.Requests) || otherThan(spec, c.AllocatedResources)
				}
			}
			kept = append(kept, corev1.ContainerStatus{Name: c.Name, AllocatedResources: c.AllocatedResources,
				Resources: &corev1.ResourceRequirements{Requests: c.Resources.Requests}})
		}
		return kept
	}
	r.containers, r.inits = collect(p.Spec.Containers, s.ContainerStatuses), collect(p.Spec.InitContainers, s.InitContainerStatuses)
	if p.Spec.Resources != nil && s.Resources != nil {
		r.allocated, r.actuated = s.AllocatedResources, &corev1.ResourceRequirements{Requests: s.Resources.Requests}
		differs = differs || otherThan(p.Spec.Resources.Requests, s.Resources.Requests) ||
			otherThan(p.Spec.Resources.Requests, s.AllocatedResources)
	}
	if !differs {
		return nil
	}
	for _, c := range s.Conditions {
		if c.Type == corev1.PodResizePending { // if it is infeasible, the spec does not count
			r.conditions = append(r.conditions, corev1.PodCondition{Type: c.Type, Status: c.Status, Reason: c.Reason})
		}
	}
	return &r
}

// otherThan reports whether a list has an amount that differs from the one in the spec.
func otherThan(spec, list corev1.ResourceList) bool {
	for name, amount := range list {
		if want, ok := spec[name]; !ok || want.Cmp(amount) != 0 {
			return true
		}
	}
	return false
}

// keep adds the resize to a trimmed status.
func (r *resize) keep(s *corev1.PodStatus) {
	if r == nil {
		return
	}
	s.AllocatedResources, s.Resources = r.allocated, r.actuated
	s.ContainerStatuses, s.InitContainerStatuses = withResources(s.ContainerStatuses, r.containers), withResources(s.InitContainerStatuses, r.inits)
	s.Conditions = append(s.Conditions, r.conditions...)
}

// withResources returns trimmed statuses with the resources of others.
func withResources(statuses, from []corev1.ContainerStatus) []corev1.ContainerStatus {
	for i := range from {
		at := slices.IndexFunc(statuses, func(c corev1.ContainerStatus) bool { return c.Name == from[i].Name })
		if at < 0 {
			statuses = append(statuses, from[i])
			continue
		}
		statuses[at].Resources, statuses[at].AllocatedResources = from[i].Resources, from[i].AllocatedResources
	}
	return statuses
}

// stepStatus keeps the fields of a workflow pod's status from which the status of its node is
// computed: how containers ended and their termination messages, what they wait for, and whether
// the pod is ready.
func (t *trimmer) stepStatus(s *corev1.PodStatus) {
	out := corev1.PodStatus{
		Phase: s.Phase, Reason: t.intern(s.Reason), Message: s.Message, PodIP: s.PodIP, StartTime: s.StartTime,
		NominatedNodeName: s.NominatedNodeName,
	}
	for _, c := range s.Conditions {
		switch c.Type {
		case corev1.DisruptionTarget, corev1.PodScheduled, corev1.PodReady:
			c.LastProbeTime, c.LastTransitionTime = metav1.Time{}, metav1.Time{}
			out.Conditions = append(out.Conditions, c)
		}
	}
	out.ContainerStatuses = t.stepContainers(s.ContainerStatuses)
	out.InitContainerStatuses = t.stepContainers(s.InitContainerStatuses)
	*s = out
}

func (t *trimmer) stepContainers(in []corev1.ContainerStatus) []corev1.ContainerStatus {
	var out []corev1.ContainerStatus
	for _, c := range in {
		out = append(out, corev1.ContainerStatus{Name: t.intern(c.Name), RestartCount: c.RestartCount, Ready: c.Ready, State: c.State})
	}
	return out
}

func (t *trimmer) podMeta(m *metav1.ObjectMeta) {
	m.Namespace = t.intern(m.Namespace)
	m.GenerateName = ""
	m.Annotations = t.internMap(m.Annotations, keepAnnotation)
	m.Labels = t.internMap(m.Labels, nil)
	for i := range m.OwnerReferences {
		o := &m.OwnerReferences[i]
		o.APIVersion, o.Kind, o.Name = t.intern(o.APIVersion), t.intern(o.Kind), t.intern(o.Name)
		o.UID = types.UID(t.intern(string(o.UID)))
	}
}

// keepAnnotation reports whether an annotation of a pod is read: those of the batch and scheduling
// APIs, those that request CPUs here or elsewhere, and Lockstep's own.
func keepAnnotation(key string) bool {
	if topologyv1alpha1.IsRequestAnnotation(key) || topologyv1alpha1.IsForeign(key) {
		return true
	}
	domain, _, ok := strings.Cut(key, "/")
	// Only the kubelet reads these scripts and texts.
	if strings.HasPrefix(key, argov1alpha1.AnnotationFile) {
		return false
	}
	return ok && (key == argov1alpha1.AnnotationNodeID || strings.HasSuffix(domain, "volcano.sh") || strings.HasSuffix(domain, "lockstep.dev") ||
		domain == "scheduling.k8s.io")
}

func (t *trimmer) podSpec(s *corev1.PodSpec) {
	node := s.NodeName
	s.NodeName = ""
	*s = t.specOf(*s)
	s.NodeName = t.intern(node)
	bound := node != ""
	if bound {
		// Placement constraints of a bound pod no longer matter, except affinities that affect
		// other pods.
		s.NodeSelector, s.Tolerations, s.TopologySpreadConstraints = nil, nil, nil
		if a := s.Affinity; a != nil && a.PodAffinity == nil && a.PodAntiAffinity == nil {
			s.Affinity = nil
		}
	}
}

// specOf returns the trimmed spec of a pod without its node name. Pods with one origin share their
// spec (kubeclient.TrimmedCore), and their trimmed spec is computed once.
func (t *trimmer) specOf(s corev1.PodSpec) corev1.PodSpec {
	var origin *corev1.Container
	if len(s.Containers) > 0 {
		origin = &s.Containers[0]
		// Shared content has the same pointers, which DeepEqual compares fast.
		if known, ok := t.specs[origin]; ok && reflect.DeepEqual(known.from, s) {
			return known.kept
		}
	}
	kept := corev1.PodSpec{
		SchedulerName:             t.intern(s.SchedulerName),
		PriorityClassName:         t.intern(s.PriorityClassName),
		Priority:                  s.Priority,
		RestartPolicy:             corev1.RestartPolicy(t.intern(string(s.RestartPolicy))),
		ActiveDeadlineSeconds:     s.ActiveDeadlineSeconds,
		PreemptionPolicy:          s.PreemptionPolicy,
		Containers:                t.internContainers(s.Containers),
		InitContainers:            t.internContainers(s.InitContainers),
		Resources:                 s.Resources,
		Overhead:                  s.Overhead,
		NodeSelector:              t.internMap(s.NodeSelector, nil),
		Affinity:                  s.Affinity,
		Tolerations:               t.internTolerations(s.Tolerations),
		TopologySpreadConstraints: s.TopologySpreadConstraints,
		SchedulingGates:           s.SchedulingGates,
		ResourceClaims:            s.ResourceClaims,
		SchedulingGroup:           s.SchedulingGroup,
		Volumes:                   schedulableVolumes(s.Volumes),
		HostNetwork:               s.HostNetwork,
	}
	if origin != nil {
		if len(t.specs) >= trimmedSpecsMax {
			clear(t.specs)
		}
		t.specs[origin] = trimmedSpec{s, kept}
	}
	return kept
}

// schedulableVolumes keeps the volumes that restrict where a pod can run: claims and disks, not
// files made on the node.
func schedulableVolumes(in []corev1.Volume) []corev1.Volume {
	var out []corev1.Volume
	for _, v := range in {
		s := v.VolumeSource
		if s.PersistentVolumeClaim != nil || s.Ephemeral != nil || s.CSI != nil || s.GCEPersistentDisk != nil ||
			s.AWSElasticBlockStore != nil || s.AzureDisk != nil || s.ISCSI != nil || s.RBD != nil || s.Cinder != nil {
			out = append(out, v)
		}
	}
	return out
}

func (t *trimmer) podStatus(s *corev1.PodStatus, bound, agent bool) {
	out := corev1.PodStatus{Phase: s.Phase, Reason: t.intern(s.Reason), Message: s.Message}
	for _, c := range s.Conditions {
		// PodScheduled says why a pod waits. DisruptionTarget distinguishes an eviction from a
		// failure. RequestRead is written once. The agent's pod being ready shows that a node has an agent. Tasks wait for pods
		// that run and are not ready yet.
		switch {
		case c.Type == corev1.DisruptionTarget || c.Type == topologyv1alpha1.RequestRead || !bound || agent && c.Type == corev1.PodReady:
			out.Conditions = append(out.Conditions, c)
		case c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse && s.Phase == corev1.PodRunning:
			out.Conditions = append(out.Conditions, corev1.PodCondition{Type: c.Type, Status: c.Status})
		}
	}
	out.NominatedNodeName = s.NominatedNodeName
	out.ContainerStatuses = t.containerStatuses(s.ContainerStatuses)
	out.InitContainerStatuses = t.containerStatuses(s.InitContainerStatuses)
	*s = out
}

// containerStatuses keeps restart counts and how containers ended. It returns nil if no container
// has either.
func (t *trimmer) containerStatuses(in []corev1.ContainerStatus) []corev1.ContainerStatus {
	telling := false
	for _, c := range in {
		telling = telling || c.RestartCount > 0 || c.State.Terminated != nil
	}
	if !telling {
		return nil
	}
	out := make([]corev1.ContainerStatus, len(in))
	for i, c := range in {
		out[i] = corev1.ContainerStatus{Name: t.intern(c.Name), RestartCount: c.RestartCount}
		if e := c.State.Terminated; e != nil {
			out[i].State.Terminated = &corev1.ContainerStateTerminated{
				ExitCode: e.ExitCode, Signal: e.Signal, Reason: t.intern(e.Reason),
			}
		}
	}
	return out
}

func (t *trimmer) intern(s string) string {
	if s == "" {
		return ""
	}
	if same, ok := t.strings[s]; ok {
		return same
	}
	if len(t.strings) >= internedStringsMax {
		clear(t.strings)
	}
	s = strings.Clone(s) // it may be a slice of a whole decoded response
	t.strings[s] = s
	return s
}

// internMap returns m with shared keys and values, without the keys that keep rejects; nil keep
// keeps all keys.
func (t *trimmer) internMap(m map[string]string, keep func(string) bool) map[string]string {
	n := 0
	for k := range m {
		if keep == nil || keep(k) {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	out := make(map[string]string, n)
	for k, v := range m {
		if keep == nil || keep(k) {
			out[t.intern(k)] = t.intern(v)
		}
	}
	return out
}

// internContainers keeps the name, resources, host ports and restart policy of containers. Lists
// with the same content become one list.
func (t *trimmer) internContainers(in []corev1.Container) []corev1.Container {
	if len(in) == 0 {
		return nil
	}
	out := make([]corev1.Container, len(in))
	size := 0
	for i, c := range in {
		out[i] = corev1.Container{Name: c.Name, Resources: c.Resources, RestartPolicy: c.RestartPolicy}
		for _, p := range c.Ports {
			if p.HostPort > 0 {
				out[i].Ports = append(out[i].Ports, p)
			}
		}
		size += out[i].Size()
	}
	key := make([]byte, 0, size+8*len(out))
	for i := range out {
		// The encoding is canonical for equal content: the generated marshaller sorts map keys.
		b, err := out[i].Marshal()
		if err != nil {
			return out // cannot be shared, which is harmless
		}
		key = append(append(key, b...), 0xff)
	}
	return internList(t.containers, key, out)
}

func (t *trimmer) internTolerations(in []corev1.Toleration) []corev1.Toleration {
	if len(in) == 0 {
		return nil
	}
	var key []byte
	for i := range in {
		b, err := in[i].Marshal()
		if err != nil {
			return in
		}
		key = append(append(key, b...), 0xff)
	}
	return internList(t.tolerate, key, in)
}

func internList[T any](table map[string][]T, key []byte, list []T) []T {
	if same, ok := table[string(key)]; ok {
		return same
	}
	if len(table) >= internedListsMax {
		clear(table)
	}
	table[string(key)] = list
	return list
}
