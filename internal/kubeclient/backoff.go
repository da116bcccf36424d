package kubeclient

import (
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// WatchBackoff is how long a reflector waits before it asks again after a watch or a list has failed: 0.2 to 0.3 s, then twice that,
// and so on to some 3 s. client-go's own grows to between 30 and 60 s and shrinks only after two minutes without a failure: after
// a few cut connections, whoever decides by what a watch shows would not learn for a minute what happens. A manager has few
// watches, so that asking often costs a server that comes back little.
func WatchBackoff() *wait.Backoff {
	return &wait.Backoff{Duration: 200 * time.Millisecond, Cap: 2 * time.Second, Steps: 10, Factor: 2, Jitter: 0.5}
}
