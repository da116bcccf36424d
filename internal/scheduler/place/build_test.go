package place

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// list builds a ResourceList from name, quantity pairs.
func list(pairs ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		l[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return l
}

// pod builds a template with one container that requests the given resources.
func pod(pairs ...string) *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "main", Resources: corev1.ResourceRequirements{Requests: list(pairs...)},
	}}}}
}

// cluster is a snapshot under construction.
type cluster struct {
	*Snapshot
}

func newCluster() cluster { return cluster{NewSnapshot(NewDims())} }

// node adds a node with room for 110 pods and the given allocatable resources.
func (c cluster) node(name string, pairs ...string) *corev1.Node {
	return c.object(&corev1.Node{}, name, pairs...)
}

func (c cluster) object(o *corev1.Node, name string, pairs ...string) *corev1.Node {
	o.Name = name
	o.Status.Allocatable = list(append([]string{"pods", "110"}, pairs...)...)
	c.set(o)
	return o
}

// set adds or updates a node that has no pods.
func (c cluster) set(o *corev1.Node) {
	c.Set(Node{
		Name: o.Name, Labels: o.Labels, Taints: o.Spec.Taints, Unschedulable: o.Spec.Unschedulable,
		Allocatable: c.Dims().Vector(o.Status.Allocatable), Object: o,
	})
}

// uniform adds n equal nodes.
func (c cluster) uniform(n int, pairs ...string) cluster {
	for i := range n {
		c.node(fmt.Sprintf("node-%d", i), pairs...)
	}
	return c
}

func (c cluster) class(p *corev1.Pod) *Class {
	class, err := NewClass(c.Dims(), p)
	if err != nil {
		panic(err)
	}
	return class
}

// gang builds a gang of one demand whose pods are all required.
func (c cluster) gang(n int, p *corev1.Pod) Gang {
	return Gang{Demands: []Demand{{Class: c.class(p), Count: n, Min: n}}}
}

// names returns the names of the nodes of a demand's placement.
func (c cluster) names(placed []int32) []string {
	var names []string
	for _, i := range placed {
		names = append(names, c.Node(i).Name)
	}
	return names
}
