package records

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Owner identifies the Application that a write or another task belongs to, and posts to its turns.
type Owner struct {
	Key  types.NamespacedName
	Name string // for fairness among writes
	// Post runs do in a later turn of the Application, unless its state has been dropped by then.
	// WakeAfter enqueues the Application after a time.
	Post      func(do func())
	WakeAfter func(after time.Duration)
}
