// Package system describes the systems under test: their jobs, the processes that they need, the
// actors that write for them, and how to read results from their objects.
package system

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/drive"
	"lockstep.dev/lockstep/internal/lab/systemfile"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/simnode"
)

// System is one system to measure.
type System interface {
	// Name returns the name for users.
	Name() string
	// Configure adds the system's components and flags to the configuration of a control plane.
	Configure(*localcluster.Config)
	// Settings returns the limits and options that the system runs with, for the report.
	Settings() map[string]string
	// Gangs reports whether the system can hold back pods until a whole gang fits.
	Gangs() bool
	// Jobs returns the resource of the system's jobs.
	Jobs() schema.GroupVersionResource
	// NewList returns an empty list of jobs.
	NewList() runtime.Object
	// NewJob returns the job that a user submits.
	NewJob(Job) (drive.Object, error)
	// Min returns the minimum of such a job as a gang: either no pod has a node, or at least that
	// many have one.
	Min(pods int, gang bool) int
	// NewQueue returns a queue with a weight, to create before the load, and its resource; nil if the
	// system has no queues.
	NewQueue(name string, weight int) (drive.Object, schema.GroupVersionResource)
	// State returns the content of a job's status.
	State(drive.Object) analyse.JobState
	// Identify returns the job and index of a pod from its name. The index is -1 in systems without
	// indexes.
	Identify(pod string) (job string, index int)
	// OfLoad reports whether a pod is one of the pods that a job asks for, from its name. Others,
	// such as a launcher, are not measured.
	OfLoad(pod string) bool
	// Settle returns the longest time after which the system writes a status.
	Settle() time.Duration
	// Clients returns the client limits of the system's programs, for the report.
	Clients() []Client
	// Writers returns the actors whose writes count as the system's, and Users returns the users of
	// the API server that are observe.System.
	Writers() map[string]bool
	Users() []string
	// Installs reports whether Configure installs the system, besides starting programs of Lockstep
	// and Kubernetes.
	Installs() bool
	// FloorJob returns the job that the floor's client creates, made so that no controller acts on
	// it.
	FloorJob(Job) (drive.Object, error)
	// WithStatus returns a copy of created with the status of atRest, as the floor's client writes
	// it; nil if there is no status to write.
	WithStatus(created, atRest drive.Object) drive.Object
	// FloorConfig returns the client configuration for the writes of the floor that replace the
	// system's. It has the system's identity, so that the server applies the same flow control.
	FloorConfig(*localcluster.Cluster) *rest.Config
	// StopForFloor returns the components to stop so that only the floor's client acts.
	StopForFloor() []localcluster.Component
}

// Job is a job to make.
type Job struct {
	Namespace, Name string
	// Index counts the jobs of a load from 0.
	Index, Pods int
	Gang        bool
	// Queue is the queue of the job; empty is the system's default.
	Queue string
	// PodTime is how long each pod runs on a simulated node; 0 is for ever.
	PodTime time.Duration
}

// podMeta returns the metadata of a job's pods.
func (j Job) podMeta() metav1.ObjectMeta {
	if j.PodTime == 0 {
		return metav1.ObjectMeta{}
	}
	return metav1.ObjectMeta{Annotations: map[string]string{simnode.AnnotationDuration: j.PodTime.String()}}
}

// Client is the client limit of a program.
type Client = systemfile.Client

// unlimited is the limit of a client that leaves the pace to the server.
const unlimited = "unlimited"

// Names returns the names of the built-in systems.
func Names() []string { return []string{"lockstep", "kubernetes"} }

// Options are the settings of systems.
type Options struct {
	// Manager is the path of lockstep, ManagerArgs are additional flags for its manager, and
	// WriterConcurrency is the manager's fixed number of writes in flight, 0 for adaptive.
	Manager           string
	ManagerArgs       []string
	WriterConcurrency int
	// Parameters are values of the parameters of a file's system.
	Parameters map[string]string
	// JobSyncs is how many Jobs stock Kubernetes syncs concurrently, 0 for its default.
	JobSyncs int
	// ClientLimit limits the clients of stock Kubernetes; nil is no limit.
	ClientLimit *Limit
	// Foreign makes the load of pods that others create: Deployments or Pods; empty is the system's
	// own jobs.
	Foreign string
}

// Limit is a client limit.
type Limit struct{ QPS, Burst int }

// String returns QPS/burst.
func (l *Limit) String() string {
	if l == nil {
		return unlimited
	}
	return fmt.Sprintf("%d/%d", l.QPS, l.Burst)
}

// ParseLimit parses QPS/burst, such as 20/30, or unlimited.
func ParseLimit(text string) (*Limit, error) {
	if text == unlimited {
		return nil, nil
	}
	qps, burst, ok := strings.Cut(text, "/")
	l := &Limit{}
	var err1, err2 error
	l.QPS, err1 = strconv.Atoi(qps)
	l.Burst, err2 = strconv.Atoi(burst)
	if !ok || err1 != nil || err2 != nil || l.QPS < 1 || l.Burst < 1 {
		return nil, fmt.Errorf("client limit %q: want QPS/BURST, such as 20/30, or %s", text, unlimited)
	}
	return l, nil
}

// New returns the system with the given name, or of the file with the given path.
func New(name string, o Options) (System, error) {
	switch name {
	case "lockstep":
		return own(lockstep{o}, o, scheduling.SchedulerLockstep), nil
	case "kubernetes":
		return own(kubernetes{o}, o, corev1.DefaultSchedulerName), nil
	}
	if IsFile(name) {
		return load(name, o.Parameters)
	}
	return nil, fmt.Errorf("unknown system %q; there are: %s, and files such as ./system.yaml", name, strings.Join(Names(), ", "))
}

// RequestOf returns a pod's request on its node: the sum of its containers' requests.
func RequestOf(spec *corev1.PodSpec) analyse.Resources {
	r := analyse.Resources{Pods: 1}
	for i := range spec.Containers {
		requests := spec.Containers[i].Resources.Requests
		r.MilliCPU += requests.Cpu().MilliValue()
		r.MemoryBytes += requests.Memory().Value()
	}
	return r
}
