package cluster

import (
	"k8s.io/apimachinery/pkg/types"

	busv1alpha1 "lockstep.dev/lockstep/api/bus/v1alpha1"
)

// CommandTarget is what a Command is about: a queue, or a job of its own namespace.
type CommandTarget struct {
	Queue bool
	types.NamespacedName
}

// TargetOf is what a Command is about, which its action decides. Without a target its name is empty.
func TargetOf(c *busv1alpha1.Command) CommandTarget {
	t := CommandTarget{
		Queue:          c.Action == busv1alpha1.OpenQueueAction || c.Action == busv1alpha1.CloseQueueAction,
		NamespacedName: types.NamespacedName{Namespace: c.Namespace},
	}
	if t.Queue {
		t.Namespace = ""
	}
	if c.TargetObject != nil {
		t.Name = c.TargetObject.Name
	}
	return t
}

func (t CommandTarget) String() string {
	if t.Queue {
		return "queue " + t.Name
	}
	return "job " + t.NamespacedName.String()
}

func indexCommandByTarget(o any) ([]string, error) {
	return []string{TargetOf(o.(*busv1alpha1.Command)).String()}, nil
}
