package cluster

import schedulingv1 "k8s.io/api/scheduling/v1"

// priorities holds the priority classes.
type priorities struct {
	value    map[string]int32
	fallback string // the class of pods that name none; empty if there is no such class
}

// UpsertPriorityClass stores the API server's state of a priority class.
func (c *Cluster) UpsertPriorityClass(object *schedulingv1.PriorityClass) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.priorities.value[object.Name] = object.Value
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
	delete(c.priorities.value, name)
	if c.priorities.fallback == name {
		c.priorities.fallback = ""
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
