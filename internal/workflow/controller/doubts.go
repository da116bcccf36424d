package controller

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/workflow/engine"
)

// doubts are about pods that ran according to the status of a workflow that is taken up, and that the watch does not show. Either
// somebody deleted them, or the watch is behind; the server knows.
type doubts struct {
	more chan struct{}

	mu   sync.Mutex
	list []doubt // no more than there are nodes that run
}

type doubt struct {
	key, pod types.NamespacedName
	uid      types.UID // of the workflow
	nodeID   string
}

func (d *doubts) init() { d.more = make(chan struct{}, 1) }

// doubt has the server asked for the pod of a node. If there is one the watch will show it.
func (c *Controller) doubt(r *record, nodeID, pod string) {
	r.units[nodeID] = &unit{name: pod, nodeID: nodeID, state: there}
	d := &c.doubts
	d.mu.Lock()
	d.list = append(d.list, doubt{r.key, types.NamespacedName{Namespace: r.key.Namespace, Name: pod}, r.uid, nodeID})
	d.mu.Unlock()
	select {
	case d.more <- struct{}{}:
	default:
	}
}

// doubtRetry is how long after a failure the server is asked again.
const doubtRetry = time.Second

// run asks, one question after the other, until ctx is done.
func (d *doubts) run(ctx context.Context, c *Controller) {
	for {
		d.mu.Lock()
		list := d.list
		d.list = nil
		d.mu.Unlock()
		for _, x := range list {
			for !c.ask(ctx, x) {
				select {
				case <-ctx.Done():
					return
				case <-c.Clock.After(doubtRetry):
				}
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-d.more:
		}
	}
}

// ask settles a doubt, and says whether that succeeded.
func (c *Controller) ask(ctx context.Context, x doubt) bool {
	p, err := c.Client.CoreV1().Pods(x.pod.Namespace).Get(ctx, x.pod.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		if ctx.Err() == nil {
			c.Log.Warn("looking for a pod failed", "workflow", x.key, "pod", x.pod.Name, "error", err)
		}
		return false
	}
	owner := workflowOf(p)
	gone := err != nil || owner == nil || owner.UID != x.uid
	c.loop.Post(x.key, x.uid, func(r *record) {
		u := r.units[x.nodeID]
		if u == nil || u.name != x.pod.Name || u.uid != "" || u.state != there {
			return // the watch has shown it, or its node is done
		}
		if gone {
			r.events = append(r.events, engine.PodState{NodeID: x.nodeID, Gone: true})
			return
		}
		u.state, u.uid, u.version = created, p.UID, p.ResourceVersion
		r.unseen.Add(1)
	})
	return true
}
