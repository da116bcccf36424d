package kubeclient

import (
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// WatchBackoff returns the backoff of a reflector after a failed watch or list: 0.2 to 0.3 s,
// doubling up to about 3 s. client-go's default grows to between 30 and 60 s and is reset only
// after two minutes without a failure: after a few lost connections, code that depends on a watch
// would see no changes for a minute. A manager has few watches, so frequent retries cost a
// recovering server little.
func WatchBackoff() *wait.Backoff {
	return &wait.Backoff{Duration: 200 * time.Millisecond, Cap: 2 * time.Second, Steps: 10, Factor: 2, Jitter: 0.5}
}
