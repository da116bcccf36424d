package nodecontroller

import (
	"encoding/json"
	"math"

	"k8s.io/apimachinery/pkg/types"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/request"
	"lockstep.dev/lockstep/internal/scheduler/pin"
)

// noAgent is the value of cluster.Machine.Moved if no agent counts moves.
const noAgent = math.MaxInt64

// movable is a pod that may be given other CPUs.
type movable struct {
	pod      cluster.PodCPUs
	request  *allocate.Request
	language request.Language
}

// movable returns the pod's request if the pod may be moved, else nil.
func (c *Controller) movable(m *cluster.Machine, pod cluster.PodCPUs) *movable {
	o := pod.Object
	if o == nil || o.DeletionTimestamp != nil || !c.cfg.Ours(o) || o.Annotations[topologyv1alpha1.MoveAnnotation] == "false" ||
		pod.Result.Node != o.Spec.NodeName || pod.Result.Topology != m.Layout.Topology().Hash() {
		return nil
	}
	asked, err := request.Parse(o)
	if err != nil || asked == nil {
		return nil
	}
	r, err := allocate.NewRequest(asked)
	if err != nil {
		return nil
	}
	return &movable{pod: pod, request: r, language: asked.Language}
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

// to returns the move of the pod to the CPUs of a result; serial is the number of the move.
func (m *movable) to(result request.Result, serial int64, topo *cputopology.Topology) (pin.Move, error) {
	result.Move = serial
	for name, c := range result.Containers {
		if from := m.pod.Result.Containers[name].CPUs; !from.Equal(c.CPUs) {
			c.From = &from
			result.Containers[name] = c
		}
	}
	return moveTo(m.pod, result, m.language, topo)
}

// back returns the move that reverses a pod's move.
func back(pod cluster.PodCPUs, serial int64, topo *cputopology.Topology) (pin.Move, error) {
	language := request.Lockstep
	if asked, err := request.Parse(pod.Object); err == nil && asked != nil {
		language = asked.Language
	}
	move, err := moveTo(pod, pod.Result.Returned(serial), language, topo)
	move.Back = true
	return move, err
}

func moveTo(pod cluster.PodCPUs, result request.Result, language request.Language, topo *cputopology.Topology) (pin.Move, error) {
	result.Version = 1
	annotations, err := result.Annotations(language, topo)
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
