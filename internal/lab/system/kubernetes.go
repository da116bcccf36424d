package system

import (
	"fmt"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/drive"
	"lockstep.dev/lockstep/internal/lab/observe"
	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/localcluster"
)

// kubernetes is stock Kubernetes: Jobs of batch/v1, kube-controller-manager and kube-scheduler.
type kubernetes struct{ options Options }

// DefaultJobSyncs is the default number of Jobs that kube-controller-manager syncs concurrently.
const DefaultJobSyncs = 5

// JobSyncs is the name in reports of the setting Options.JobSyncs.
const JobSyncs = "kube-controller-manager concurrent job syncs"

// ClientLimit is the name in reports of the setting Options.ClientLimit.
const ClientLimit = "client limit of kube-controller-manager and kube-scheduler"

func (k kubernetes) jobSyncs() string {
	if k.options.JobSyncs == 0 {
		return strconv.Itoa(DefaultJobSyncs)
	}
	return strconv.Itoa(k.options.JobSyncs)
}

func (kubernetes) Name() string { return "kubernetes" }

func (k kubernetes) Configure(c *localcluster.Config) {
	c.WithScheduler = true
	if c.ExtraArgs == nil {
		c.ExtraArgs = map[localcluster.Component][]string{}
	}
	c.ExtraArgs[localcluster.ControllerManager] = append(c.ExtraArgs[localcluster.ControllerManager], "--concurrent-job-syncs="+k.jobSyncs())
	for _, component := range []localcluster.Component{localcluster.ControllerManager, localcluster.Scheduler} {
		limits := []string{"--kube-api-qps=-1"}
		if l := k.options.ClientLimit; l != nil {
			limits = []string{fmt.Sprintf("--kube-api-qps=%d", l.QPS), fmt.Sprintf("--kube-api-burst=%d", l.Burst)}
		}
		c.ExtraArgs[component] = append(c.ExtraArgs[component], limits...)
	}
}

func (k kubernetes) Settings() map[string]string {
	return map[string]string{
		ClientLimit:              k.options.ClientLimit.String(),
		JobSyncs:                 k.jobSyncs(),
		"kube-scheduler profile": "default",
		"job completion mode":    "NonIndexed",
	}
}

const controllerManager = "kube-controller-manager"

func (k kubernetes) Clients() []Client {
	qps, burst := unlimited, unlimited
	if l := k.options.ClientLimit; l != nil {
		qps, burst = strconv.Itoa(l.QPS), strconv.Itoa(l.Burst)
	}
	return []Client{{Name: controllerManager, QPS: qps, Burst: burst}, {Name: "kube-scheduler", QPS: qps, Burst: burst}}
}

// Settle returns more than the second after which the Job controller acts on changes of pods.
func (kubernetes) Settle() time.Duration { return 3 * time.Second }

func (kubernetes) OfLoad(string) bool { return true }

func (kubernetes) Users() []string { return nil }

func (kubernetes) Installs() bool { return false }

func (kubernetes) Gangs() bool { return false }

func (kubernetes) Jobs() schema.GroupVersionResource {
	return batchv1.SchemeGroupVersion.WithResource("jobs")
}

func (kubernetes) NewList() runtime.Object { return &batchv1.JobList{} }

func (kubernetes) NewJob(j Job) (drive.Object, error) { return batchJob(j), nil }

func batchJob(j Job) *batchv1.Job {
	n := int32(j.Pods)
	return &batchv1.Job{
		TypeMeta:   metav1.TypeMeta{APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{Namespace: j.Namespace, Name: j.Name},
		Spec:       batchv1.JobSpec{Parallelism: &n, Completions: &n, Template: corev1.PodTemplateSpec{ObjectMeta: j.podMeta(), Spec: scenario.PodSpec()}},
	}
}

func (kubernetes) NewQueue(string, int) (drive.Object, schema.GroupVersionResource) {
	return nil, schema.GroupVersionResource{}
}

func (kubernetes) Min(int, bool) int { return 0 }

func (kubernetes) State(o drive.Object) analyse.JobState {
	j := o.(*batchv1.Job)
	s := analyse.JobState{Name: j.Name, Phase: "Active", Succeeded: int(j.Status.Succeeded), Failed: int(j.Status.Failed)}
	// Active includes pending pods; Ready counts only running ones.
	if j.Status.Ready != nil {
		s.Running = int(*j.Status.Ready)
	}
	for _, c := range j.Status.Conditions {
		if c.Status == "True" {
			s.Phase = string(c.Type)
			s.Explained = s.Explained || c.Message != ""
		}
	}
	return s
}

// Identify parses JOB-xxxxx, where xxxxx is random.
func (kubernetes) Identify(pod string) (string, int) {
	job, _, _ := cutLast(pod)
	return job, -1
}

func (kubernetes) Writers() map[string]bool {
	return map[string]bool{observe.ControllerManager: true, observe.Scheduler: true}
}

// floorManager names a manager that does not exist: kube-controller-manager ignores Jobs that have
// another manager.
const floorManager = "lockstep.dev/floor"

func (kubernetes) FloorJob(j Job) (drive.Object, error) {
	job, manager := batchJob(j), floorManager
	job.Spec.ManagedBy = &manager
	return job, nil
}

func (kubernetes) WithStatus(created, atRest drive.Object) drive.Object {
	j := created.(*batchv1.Job).DeepCopy()
	j.Status = *atRest.(*batchv1.Job).Status.DeepCopy()
	return j
}

// FloorConfig returns the administrator's configuration, which is exempt from flow control: no
// identity of stock Kubernetes may both create pods and bind them.
func (kubernetes) FloorConfig(c *localcluster.Cluster) *rest.Config { return c.RESTConfig() }

func (kubernetes) StopForFloor() []localcluster.Component {
	return []localcluster.Component{localcluster.Scheduler}
}
