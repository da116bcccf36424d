package system

import (
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	batchv1alpha1 "lockstep.dev/lockstep/api/batch/v1alpha1"
	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/install"
	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/drive"
	"lockstep.dev/lockstep/internal/lab/observe"
	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/localcluster"
)

// lockstep is Lockstep's manager with jobs of batch.volcano.sh.
type lockstep struct{ options Options }

func (lockstep) Name() string { return "lockstep" }

func (l lockstep) Configure(c *localcluster.Config) {
	c.ManagerCommand = []string{l.options.Manager, "manager"}
	c.Install = install.Apply
	if c.ExtraArgs == nil {
		c.ExtraArgs = map[localcluster.Component][]string{}
	}
	c.ExtraArgs[localcluster.Manager] = append(append(c.ExtraArgs[localcluster.Manager],
		"--writer-concurrency="+strconv.Itoa(l.options.WriterConcurrency)), l.options.ManagerArgs...)
}

// WritesInFlight is the name in reports of the setting Options.WriterConcurrency.
const WritesInFlight = "manager writes in flight"

func (l lockstep) Settings() map[string]string {
	writes := "adaptive"
	if n := l.options.WriterConcurrency; n > 0 {
		writes = strconv.Itoa(n)
	}
	return map[string]string{
		WritesInFlight: writes,
	}
}

func (lockstep) Clients() []Client {
	return []Client{{Name: "lockstep manager", QPS: unlimited, Burst: unlimited}}
}

// Settle returns more than the longest time for which the manager holds a status back.
func (lockstep) Settle() time.Duration { return 6 * time.Second }

func (lockstep) OfLoad(string) bool { return true }

func (lockstep) Users() []string { return nil }

func (lockstep) Installs() bool { return false }

func (lockstep) Gangs() bool { return true }

func (lockstep) Jobs() schema.GroupVersionResource {
	return batchv1alpha1.GroupVersion.WithResource("jobs")
}

func (lockstep) NewList() runtime.Object { return &batchv1alpha1.JobList{} }

const lockstepTask = "worker"

func (l lockstep) NewJob(j Job) (drive.Object, error) {
	minimum := int32(l.Min(j.Pods, j.Gang))
	return &batchv1alpha1.Job{
		TypeMeta:   metav1.TypeMeta{APIVersion: batchv1alpha1.GroupVersion.String(), Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{Namespace: j.Namespace, Name: j.Name},
		Spec: batchv1alpha1.JobSpec{
			MinAvailable: minimum,
			Queue:        j.Queue,
			Tasks: []batchv1alpha1.TaskSpec{{
				Name: lockstepTask, Replicas: int32(j.Pods), MinAvailable: &minimum,
				Template: corev1.PodTemplateSpec{ObjectMeta: j.podMeta(), Spec: scenario.PodSpec()},
			}},
		},
	}, nil
}

func (lockstep) NewQueue(name string, weight int) (drive.Object, schema.GroupVersionResource) {
	return &scheduling.Queue{
		TypeMeta:   metav1.TypeMeta{APIVersion: scheduling.GroupVersion.String(), Kind: "Queue"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       scheduling.QueueSpec{Weight: int32(weight)},
	}, scheduling.GroupVersion.WithResource("queues")
}

// Min returns pods for a gang, and otherwise 1, the smallest value that the API allows.
func (lockstep) Min(pods int, gang bool) int {
	if gang {
		return pods
	}
	return 1
}

func (lockstep) State(o drive.Object) analyse.JobState {
	j := o.(*batchv1alpha1.Job)
	s := analyse.JobState{
		Name: j.Name, Phase: string(j.Status.State.Phase),
		Running: int(j.Status.Running), Succeeded: int(j.Status.Succeeded), Failed: int(j.Status.Failed),
		Explained: j.Status.State.Message != "",
	}
	for _, c := range j.Status.Conditions {
		if c.Type != "" && c.Status == "False" && c.Message != "" {
			s.Explained = true
		}
	}
	return s
}

// Identify parses JOB-TASK-INDEX.
func (lockstep) Identify(pod string) (string, int) {
	rest, index, ok := cutLast(pod)
	if !ok {
		return "", -1
	}
	n, err := strconv.Atoi(index)
	if err != nil {
		return "", -1
	}
	return strings.TrimSuffix(rest, "-"+lockstepTask), n
}

func cutLast(name string) (before, after string, ok bool) {
	i := strings.LastIndexByte(name, '-')
	if i < 0 {
		return name, "", false
	}
	return name[:i], name[i+1:], true
}

func (lockstep) Writers() map[string]bool {
	return map[string]bool{observe.Manager: true, observe.ControllerManager: true}
}

func (l lockstep) FloorJob(j Job) (drive.Object, error) { return l.NewJob(j) }

func (lockstep) WithStatus(created, atRest drive.Object) drive.Object {
	j := created.(*batchv1alpha1.Job).DeepCopy()
	j.Status = *atRest.(*batchv1alpha1.Job).Status.DeepCopy()
	return j
}

func (lockstep) FloorConfig(c *localcluster.Cluster) *rest.Config { return c.ManagerRESTConfig() }

func (lockstep) StopForFloor() []localcluster.Component {
	return []localcluster.Component{localcluster.Manager}
}
