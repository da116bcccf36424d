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

// Batch is the name of the scenario of batch jobs: jobs of equal size, all created at once.
const Batch = "batch"

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
