package informer

import (
	"k8s.io/apimachinery/pkg/types"

	busv1alpha1 "lockstep.dev/lockstep/api/bus/v1alpha1"
)

// CommandTarget is the target of a Command: a queue, or a job in the Command's namespace.
type CommandTarget struct {
	Queue bool
	types.NamespacedName
}

// TargetOf returns the target of a Command, whose type follows from the action. If the Command has
// no target, the name is empty.
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
