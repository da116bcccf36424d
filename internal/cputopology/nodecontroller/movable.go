package nodecontroller

import (
	"encoding/json"
	"math"

	"k8s.io/apimachinery/pkg/types"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/request"
	"lockstep.dev/lockstep/internal/scheduler/pin"
)

// noAgent is the value of cluster.Machine.Moved if no agent counts moves.
const noAgent = math.MaxInt64

// movable is a pod that may be given other CPUs.
type movable struct {
	pod      cluster.PodCPUs
	asked    *request.Pod
	request  *allocate.Request
	language request.Language
}

// movable returns the pod's request if the pod may be moved, else nil.
func (c *Controller) movable(m *cluster.Machine, policy request.NodePolicy, pod cluster.PodCPUs) *movable {
	if pod.Object != nil && pod.Object.Annotations[topologyv1alpha1.MoveAnnotation] == "false" {
		return nil
	}
	if movable, err := c.resizable(m, policy, pod); err == nil {
		return movable
	}
	return nil
}

// requests returns the function by which the planner looks up the requests of pods.
func requests(pods map[string]*movable) func(string) *allocate.Request {
	return func(key string) *allocate.Request {
		if m := pods[key]; m != nil {
			return m.request
		}
		return nil
	}
}

// requestedBy returns the function by which the planner looks up what pods request for shared CPUs.
func requestedBy(on cluster.NodeCPUs) func(string) int64 {
	return func(key string) int64 {
		if pod := on.Pods[key]; pod.Object != nil {
			return pod.Result.SharedMilli(pod.Object)
		}
		return 0
	}
}

// to returns the move of the pod to other CPUs of a node; serial is the number of the move.
func (m *movable) to(n *allocate.Node, a *allocate.Allocation, serial int64) (pin.Move, error) {
	result := n.Result(a)
	result.Move = serial
	for name, c := range result.Containers {
		if from := m.pod.Result.Containers[name].CPUs; !from.Equal(c.CPUs) {
			c.From = &from
			result.Containers[name] = c
		}
	}
	return moveTo(m.pod, result, m.language, n.Layout().Topology(), n.Widened(a))
}

// back returns the move that reverses a pod's move.
func back(pod cluster.PodCPUs, serial int64, topo *cputopology.Topology) (pin.Move, error) {
	language := request.Lockstep
	if asked, err := request.Parse(pod.Object); err == nil && asked != nil {
		language = asked.Language
	}
	move, err := moveTo(pod, pod.Result.Returned(serial), language, topo, nil)
	move.Back = true
	return move, err
}

// moveTo returns the move of a pod to the CPUs of a result; wide has those of its burst containers.
func moveTo(pod cluster.PodCPUs, result request.Result, language request.Language, topo *cputopology.Topology,
	wide map[string]cpuset.Set) (pin.Move, error) {
	result.Version = 1
	annotations, err := result.Annotations(language, topo, wide)
	if err != nil {
		return pin.Move{}, err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return pin.Move{}, err
	}
	return pin.Move{
		Pod: types.NamespacedName{Namespace: pod.Object.Namespace, Name: pod.Object.Name}, UID: pod.Object.UID,
		Version: pod.Object.ResourceVersion,
		Before:  pod.Annotation, After: &cluster.CPUs{Annotation: annotations[topologyv1alpha1.ResultAnnotation], Result: result},
		Patch: patch,
	}, nil
}
