// Package system says what a measurement puts under test: how its jobs look, which processes it needs, which writers are
// its own, and how to read the outcome from its objects.
package system

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/drive"
	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/localcluster"
)

// System is one thing to measure.
type System interface {
	// Name is what the user calls it.
	Name() string
	// Configure adds what the system needs to a control plane, before it starts.
	Configure(*localcluster.Config)
	// Settings are the limits and options that it runs with, for the report.
	Settings() map[string]string
	// Gangs says whether the system can hold pods back until a whole gang fits.
	Gangs() bool
	// Jobs is the resource of its jobs.
	Jobs() schema.GroupVersionResource
	// NewList makes an empty list of its jobs, and a function that takes the objects out of it.
	NewList() (list runtime.Object, items func() []drive.Object)
	// NewJob makes the job that a user submits.
	NewJob(namespace, name string, pods int, gang bool) drive.Object
	// Min is how many pods of such a job must hold nodes together, or none.
	Min(pods int, gang bool) int
	// State reads a job's own account of itself.
	State(drive.Object) analyse.JobState
	// Identify tells a pod's job and its index, which is -1 in systems whose pods have none, from its name.
	Identify(pod string) (job string, index int)
	// Writers are the actors whose writes are the system's.
	Writers() map[string]bool
	// FloorJob makes of a job at rest the one that the floor's client creates: the same, in another namespace, and such
	// that nobody acts on it.
	FloorJob(atRest drive.Object, namespace string) drive.Object
	// WithStatus returns a copy of created with the status of atRest, as the floor's client writes it.
	WithStatus(created, atRest drive.Object) drive.Object
	// FloorConfig is how the floor's client reaches the API server to write what the system writes: as the system, so that the
	// server's flow control treats both alike.
	FloorConfig(*localcluster.Cluster) *rest.Config
	// StopForFloor lists the components that have to be stopped, so that nobody but the floor's client acts.
	StopForFloor() []localcluster.Component
}

// Names lists the systems there are.
func Names() []string { return []string{"lockstep", "kubernetes"} }

// Options are the settings of systems.
type Options struct {
	// Manager is the path of lockstep, ManagerArgs are more flags for its manager, and WriterConcurrency is the manager's fixed
	// number of writes in flight, 0 for adaptive.
	Manager           string
	ManagerArgs       []string
	WriterConcurrency int
	// JobSyncs is how many Jobs stock Kubernetes syncs at once, 0 for its default.
	JobSyncs int
}

// New returns the system of that name.
func New(name string, o Options) (System, error) {
	switch name {
	case "lockstep":
		return lockstep{o}, nil
	case "kubernetes":
		return kubernetes{o}, nil
	}
	return nil, fmt.Errorf("unknown system %q; there are: %s", name, strings.Join(Names(), ", "))
}

// RequestOf is what a pod takes of its node: the sum of its containers' requests.
func RequestOf(spec *corev1.PodSpec) analyse.Resources {
	r := analyse.Resources{Pods: 1}
	for i := range spec.Containers {
		requests := spec.Containers[i].Resources.Requests
		r.MilliCPU += requests.Cpu().MilliValue()
		r.MemoryBytes += requests.Memory().Value()
	}
	return r
}

func template(scheduler string) corev1.PodTemplateSpec {
	t := corev1.PodTemplateSpec{Spec: scenario.PodSpec()}
	t.Spec.SchedulerName = scheduler
	return t
}
