package controller

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// owner is the Application that something is done for, and the way back into its turns.
type owner struct {
	key  types.NamespacedName
	name string // for fairness among writes
	// post runs do in a later turn of the Application, unless its state has been dropped by then.
	// wakeAfter asks for another turn after a time.
	post      func(do func())
	wakeAfter func(after time.Duration)
}
