package pods

import (
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
	topology "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/podset/plan"
)

// passThrough lists the annotations that pods inherit from their job.
var passThrough = []string{
	scheduling.PreemptableAnnotation, scheduling.CooldownTimeAnnotation, scheduling.RevocableZoneAnnotation,
	scheduling.JDBMinAvailableAnnotation, scheduling.JDBMaxUnavailableAnnotation,
}

// JobKind is the kind of the owner that controls the pods.
var JobKind = batch.GroupVersion.WithKind("Job")

// Set makes the pods of one job. Only Task.Rest modifies it; all other methods are safe for
// concurrent use.
type Set struct {
	tasks   []Task
	objects []Object
	ignored []string
}

// Task makes the pods of one task.
type Task struct {
	Name          string
	Replicas, Min int32

	base     *corev1.Pod // nil after Rest
	prefix   string      // of pod names
	envIndex bool
	hostname bool
	// each are the functions of plugins that modify the pod with an index. They copy shared parts
	// before they change them.
	each []func(p *corev1.Pod, index int)
}

// Options are the inputs of the pods besides the job.
type Options struct {
	// Version counts the job's runs, Retries its restarts.
	Version, Retries int32
	// Queue is the queue that the job is in.
	Queue string
}

// PodsMax is the maximum number of pods of a job. Each pod costs memory before it exists, so a job
// of two billion pods would keep the manager from serving all others. Kubernetes is built for
// clusters of at most this many pods.
const PodsMax = 150_000

// New compiles a job. It fails if the job has more than PodsMax pods, if a plugin's arguments
// cannot be parsed, or if a plugin's objects would exceed the storage limit. In that case the Set
// still has the job's tasks, with at most PodsMax replicas in all, so that existing pods can be
// counted; no pod may be made from it.
func New(job *batch.Job, o Options) (*Set, error) {
	s := &Set{tasks: make([]Task, len(job.Spec.Tasks))}
	total := int64(0)
	for i := range job.Spec.Tasks {
		s.tasks[i] = newTask(job, i, o)
		t := &s.tasks[i]
		t.Replicas = min(t.Replicas, int32(max(0, PodsMax-total)))
		t.Min = min(t.Min, t.Replicas)
		total += int64(job.Spec.Tasks[i].Replicas)
	}
	s.addTaskTopology(job)
	s.addClaims(job)
	var err error
	if total > PodsMax {
		err = fmt.Errorf("spec.tasks: %d replicas together; a job has at most %d pods", total, PodsMax)
	} else {
		err = s.addPlugins(job)
	}
	return s, err
}

func (s *Set) addPlugins(job *batch.Job) error {
	plugins := job.Plugins()
	if args, ok := plugins[batch.EnvPlugin]; ok {
		if err := s.parse(batch.EnvPlugin, args, func(*flag.FlagSet) {}); err != nil {
			return err
		}
		for i := range s.tasks {
			s.tasks[i].envIndex = true
		}
	}
	// The frameworks come after svc and ssh, through which their pods find each other.
	for _, p := range [...]struct {
		name string
		add  func(*batch.Job, batch.PluginArguments) error
	}{
		{batch.SvcPlugin, s.addService}, {batch.SSHPlugin, s.addSSH},
		{batch.PyTorchPlugin, s.addPyTorch}, {batch.TensorFlowPlugin, s.addTensorFlow}, {batch.MPIPlugin, s.addMPI},
		{batch.RayPlugin, s.addRay}, {batch.HCCLRankPlugin, s.addHCCLRank},
	} {
		if args, ok := plugins[p.name]; ok {
			if err := p.add(job, args); err != nil {
				return err
			}
		}
	}
	return nil
}

// Tasks returns the job's tasks, in the order of its spec.
func (s *Set) Tasks() []Task { return s.tasks }

// Objects returns the objects that must exist before the pods do.
func (s *Set) Objects() []Object { return s.objects }

// PodName returns the name of the task's pod with this index.
func (t *Task) PodName(index int) string { return t.prefix + strconv.Itoa(index) }

// Plan returns the pod that represents all pods of the task in placement: requests and priority are
// as they will be at the API server, given the LimitRanges of the job's namespace.
func (t *Task) Plan(ranges []*corev1.LimitRange) *corev1.Pod {
	return plan.Of(t.base, ranges, batch.JobNameKey)
}

// Rest releases the memory of the pod template. After Rest the task can make no more pods; a new
// Set can.
func (t *Task) Rest() { t.base, t.each = nil, nil }

// Resting reports whether Rest was called.
func (t *Task) Resting() bool { return t.base == nil }

// Pod returns the pod with this index, with the annotations that placement adds. The pod is bound
// to node unless node is empty.
func (t *Task) Pod(index int, node string, placed map[string]string) *corev1.Pod {
	i := strconv.Itoa(index)
	p := *t.base
	p.Name = t.prefix + i
	p.Labels = put(t.base.Labels, batch.TaskIndexKey, i)
	p.Annotations = put(t.base.Annotations, batch.TaskIndexKey, i)
	maps.Copy(p.Annotations, placed)
	p.Spec.NodeName = node
	if t.hostname && p.Spec.Hostname == "" {
		p.Spec.Hostname = p.Name
	}
	if t.envIndex {
		vars := [...]corev1.EnvVar{{Name: batch.LegacyTaskIndexEnv, Value: i}, {Name: batch.TaskIndexEnv, Value: i}}
		addEnv(&p.Spec, vars[:])
	}
	for _, change := range t.each {
		change(&p, index)
	}
	return &p
}

// Unbound reports whether the task's pods must exist before they can be placed: because they have
// scheduling gates, or claims of their own.
func (t *Task) Unbound() bool {
	return len(t.base.Spec.SchedulingGates) > 0 || plan.OwnClaims(t.base)
}

func newTask(job *batch.Job, i int, o Options) Task {
	spec := &job.Spec.Tasks[i]
	t := Task{Name: job.TaskName(i), Replicas: spec.Replicas, Min: min(spec.Min(), spec.Replicas)}
	t.prefix = job.Name + "-" + t.Name + "-"
	queue := o.Queue

	labels := put(spec.Template.Labels,
		batch.TaskSpecKey, t.Name, batch.JobNameKey, job.Name, batch.JobNamespaceKey, job.Namespace, batch.QueueNameKey, queue)
	notes := put(spec.Template.Annotations,
		batch.TaskSpecKey, t.Name, batch.JobNameKey, job.Name, batch.QueueNameKey, queue,
		batch.JobVersionKey, strconv.Itoa(int(o.Version)), batch.JobRetryCountKey, strconv.Itoa(int(o.Retries)),
		batch.PodTemplateKey, job.Name+"-"+t.Name, scheduling.GroupNameAnnotation, job.Name+"-"+string(job.UID))
	if spec.TopologyPolicy != "" {
		notes[batch.NumaTopologyPolicyKey] = string(spec.TopologyPolicy)
	}
	for _, key := range passThrough {
		if v, ok := job.Annotations[key]; ok {
			notes[key] = v
		}
	}
	for _, key := range topology.ResultAnnotations() {
		delete(notes, key) // placement assigns CPUs, not a template
	}
	t.base = &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: job.Namespace, Labels: labels, Annotations: notes, Finalizers: spec.Template.Finalizers,
			OwnerReferences: ownerOf(job),
		},
		Spec: spec.Template.Spec,
	}
	s := &t.base.Spec
	s.NodeName = "" // placement decides where the pod goes
	s.SchedulerName = job.SchedulerName(i)
	s.PriorityClassName = job.PriorityClassName(i)
	s.DNSPolicy = spec.DNSPolicy()
	mountVolumes(s, job)
	if parts := spec.PartitionPolicy; parts != nil && parts.PartitionSize > 0 {
		t.each = append(t.each, func(p *corev1.Pod, index int) {
			p.Labels[batch.PartitionIDKey] = strconv.Itoa(index / int(parts.PartitionSize))
		})
	}
	return t
}

func ownerOf(job *batch.Job) []metav1.OwnerReference {
	return []metav1.OwnerReference{*metav1.NewControllerRef(job, JobKind)}
}

// mountVolumes mounts the job's claims into every container.
func mountVolumes(s *corev1.PodSpec, job *batch.Job) {
	var mounts []corev1.VolumeMount
	for i := range job.Spec.Volumes {
		v := &job.Spec.Volumes[i]
		name := "job-volume-" + strconv.Itoa(i)
		s.Volumes = append(slices.Clip(s.Volumes), corev1.Volume{
			Name: name,
			VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claimName(job, i)},
			},
		})
		mounts = append(mounts, corev1.VolumeMount{Name: name, MountPath: v.MountPath})
	}
	mount(s, mounts)
}

// claimName returns the name of the claim for the job's volume i. The name of a claim that is
// created for the job contains a hash of the job's UID, so that a later job of the same name does
// not get its data.
func claimName(job *batch.Job, i int) string {
	if name := job.Spec.Volumes[i].VolumeClaimName; name != "" {
		return name
	}
	sum := sha256.Sum256([]byte(string(job.UID) + "/" + strconv.Itoa(i)))
	return job.Name + "-pvc-" + hex.EncodeToString(sum[:6])
}

// addClaims adds the claims that are created for the job.
func (s *Set) addClaims(job *batch.Job) {
	for i := range job.Spec.Volumes {
		v := &job.Spec.Volumes[i]
		if v.VolumeClaimName != "" || v.VolumeClaim == nil {
			continue
		}
		name := claimName(job, i)
		s.objects = append(s.objects, Object{claimKey(name), &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: job.Namespace, Name: name, OwnerReferences: ownerOf(job)},
			Spec:       *v.VolumeClaim.DeepCopy(),
		}})
	}
}

// mount adds mounts to every container. It copies the containers, so that those of the template
// stay unchanged.
func mount(s *corev1.PodSpec, mounts []corev1.VolumeMount) {
	if len(mounts) == 0 {
		return
	}
	add := func(c *corev1.Container) { c.VolumeMounts = append(slices.Clip(c.VolumeMounts), mounts...) }
	s.Containers, s.InitContainers = mapContainers(s.Containers, add), mapContainers(s.InitContainers, add)
}

// addEnv adds variables to every container, like mount.
func addEnv(s *corev1.PodSpec, vars []corev1.EnvVar) {
	s.Containers, s.InitContainers = withEnv(s.Containers, vars), withEnv(s.InitContainers, vars)
}

func withEnv(in []corev1.Container, vars []corev1.EnvVar) []corev1.Container {
	return mapContainers(in, func(c *corev1.Container) { c.Env = append(slices.Clip(c.Env), vars...) })
}

// mapContainers copies the container structs and applies change to the copies.
func mapContainers(in []corev1.Container, change func(*corev1.Container)) []corev1.Container {
	out := slices.Clone(in)
	for i := range out {
		change(&out[i])
	}
	return out
}

// put returns a copy of m with the given key-value pairs added.
func put(m map[string]string, pairs ...string) map[string]string {
	out := make(map[string]string, len(m)+len(pairs)/2)
	maps.Copy(out, m)
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i]] = pairs[i+1]
	}
	return out
}
