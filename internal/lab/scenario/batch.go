// Package scenario describes the load of a measurement: which jobs, how many pods, and the spec of
// a pod. It is pure.
package scenario

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// The scenarios of batch jobs: jobs of equal size, all created at once.
const (
	// Batch has the shapes that the user names.
	Batch = "batch"
	// BatchShapes has the same number of pods in ten shapes, from many small jobs to one large one.
	BatchShapes = "batch-shapes"
	// BatchWorkers has one shape under fixed numbers of writes in flight and the adaptive one.
	BatchWorkers = "batch-workers"
	// Admission has one shape, whose pods are admitted in several ways.
	Admission = "admission"
	// Contention has one shape, for a system that creates pods and binds them and one that does both
	// at once.
	Contention = "contention"
	// Mixed has many small jobs behind one large one.
	Mixed = "mixed"
	// Queues has tenants with queues of different weights, who all want more than there is.
	Queues = "queues"
	// Rate sends jobs at a rate that grows until the system cannot keep up.
	Rate = "rate"
	// Queued has many one-pod jobs, all submitted at once.
	Queued = "queued"
	// ClientLimits has one shape, under client limits of stock Kubernetes from its old defaults up.
	ClientLimits = "client-limits"
	// ForeignPods has pods that others create: Deployments, and plain pods.
	ForeignPods = "foreign-pods"
	// Enqueue has more jobs than the nodes hold, whose pods end.
	Enqueue = "enqueue"
)

// Admissions are the ways of admission of Admission.
var Admissions = []string{"none", "cel", "webhook:0s:10s", "webhook:20ms:10s", "webhook:20ms:30s"}

// Limits are the client limits of ClientLimits, as QPS/burst.
var Limits = []string{"20/30", "50/100", "100/200", "500/1000", "unlimited"}

// Foreign are the kinds of ForeignPods that are measured by default, and ForeignOthers those that are
// measured on request.
var (
	Foreign       = []string{"deployments", "pods"}
	ForeignOthers = []string{"gangs", "affinity"}
)

// Workers are the numbers of writes in flight of BatchWorkers; 0 is adaptive.
var Workers = []int{0, 1, 5, 10, 25, 50, 100, 150, 200, 400, 600}

// Shapes returns the shapes of BatchShapes. At scale 1 they have 10,000 pods.
func Shapes(scale float64) (out []Shape) {
	for _, s := range []Shape{{10000, 1}, {5000, 2}, {2000, 5}, {1000, 10}, {500, 20}, {200, 50}, {100, 100}, {50, 200}, {20, 500}, {1, 10000}} {
		out = append(out, s.Scaled(scale))
	}
	return out
}

// Scaled returns a shape with scale times the pods: as many jobs more or less, or, of a single job,
// as many pods.
func (s Shape) Scaled(scale float64) Shape {
	if s.Jobs == 1 {
		return Shape{1, max(1, int(float64(s.PodsPerJob)*scale+0.5))}
	}
	return Shape{max(1, int(float64(s.Jobs)*scale+0.5)), s.PodsPerJob}
}

// Bounds of a shape: what one control plane on one machine can be expected to hold.
const (
	maxJobs = 100_000
	maxPods = 200_000
)

// Shape is a number of jobs with a number of pods each.
type Shape struct {
	Jobs, PodsPerJob int
}

// Pods returns the number of pods of all jobs.
func (s Shape) Pods() int { return s.Jobs * s.PodsPerJob }

func (s Shape) String() string { return fmt.Sprintf("%dx%d", s.Jobs, s.PodsPerJob) }

// ParseShape parses JOBSxPODS, for example 500x20.
func ParseShape(text string) (Shape, error) {
	jobs, pods, ok := strings.Cut(strings.TrimSpace(text), "x")
	if !ok {
		return Shape{}, fmt.Errorf("shape %q: want JOBSxPODS, for example 500x20", text)
	}
	var s Shape
	var err error
	if s.Jobs, err = strconv.Atoi(jobs); err != nil || s.Jobs < 1 || s.Jobs > maxJobs {
		return Shape{}, fmt.Errorf("shape %q: the number of jobs must be between 1 and %d", text, maxJobs)
	}
	if s.PodsPerJob, err = strconv.Atoi(pods); err != nil || s.PodsPerJob < 1 || s.PodsPerJob > maxPods/s.Jobs {
		return Shape{}, fmt.Errorf("shape %q: the number of pods must be between 1 and %d in all", text, maxPods)
	}
	return s, nil
}

// ParseShapes parses a list of shapes.
func ParseShapes(texts []string) ([]Shape, error) {
	var out []Shape
	for _, text := range texts {
		s, err := ParseShape(text)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// JobName returns the name of the i-th job of a load, counted from 0. Names sort in the order of
// creation.
func JobName(i int) string { return fmt.Sprintf("bench-%05d", i) }

// PodSpec returns the pod spec of every job: one small container, without the fields that the API
// server defaults. 110 such pods do not fill a node of 16 cores, so a run is limited by writes and
// not by capacity.
func PodSpec() corev1.PodSpec {
	return corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		Containers: []corev1.Container{{
			Name:    "main",
			Image:   "registry.k8s.io/pause:3.10",
			Command: []string{"/pause"},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("100m"),
				corev1.ResourceMemory: resource.MustParse("128Mi"),
			}},
		}},
	}
}
