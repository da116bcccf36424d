package cluster

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
)

// priorities holds the priority classes.
type priorities struct {
	value    map[string]int32
	fallback string          // the class of pods that name none; empty if there is no such class
	never    map[string]bool // classes with preemptionPolicy: Never
}

// UpsertPriorityClass stores the API server's state of a priority class.
func (c *Cluster) UpsertPriorityClass(object *schedulingv1.PriorityClass) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.reprioritize()
	c.priorities.value[object.Name] = object.Value
	if object.PreemptionPolicy != nil && *object.PreemptionPolicy == corev1.PreemptNever {
		c.priorities.never[object.Name] = true
	} else {
		delete(c.priorities.never, object.Name)
	}
	switch {
	case object.GlobalDefault:
		c.priorities.fallback = object.Name
	case c.priorities.fallback == object.Name:
		c.priorities.fallback = ""
	}
}

// DeletePriorityClass removes a priority class.
func (c *Cluster) DeletePriorityClass(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.reprioritize()
	delete(c.priorities.value, name)
	delete(c.priorities.never, name)
	if c.priorities.fallback == name {
		c.priorities.fallback = ""
	}
}

// reprioritize notes that the priorities of pods may have changed, on any node. Classes hardly ever change.
func (c *Cluster) reprioritize() {
	for _, n := range c.nodes {
		c.occupy(n)
		for p := range n.pods {
			p.known = nil
		}
	}
}

// Priority returns the value of a priority class. The empty name stands for the default class, or 0
// if there is none. Priority returns false if the class does not exist.
func (c *Cluster) Priority(class string) (int32, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if class == "" {
		return c.priorities.value[c.priorities.fallback], true
	}
	v, ok := c.priorities.value[class]
	return v, ok
}

// NeverPreempts reports whether pods of a priority class evict no others (preemptionPolicy: Never).
// The empty name stands for the default class.
func (c *Cluster) NeverPreempts(class string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.priorities.never[cmp.Or(class, c.priorities.fallback)]
}
