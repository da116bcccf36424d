package records

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Owner is the Application that something is done for, and the way back into its turns.
type Owner struct {
	Key  types.NamespacedName
	Name string // for fairness among writes
	// Post runs do in a later turn of the Application, unless its state has been dropped by then.
	// wakeAfter asks for another turn after a time.
	Post      func(do func())
	WakeAfter func(after time.Duration)
}
