package controller

import (
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/workflow/engine"
)

// doubts asks the API server about pods that, by the status of a workflow being taken up, were
// running but are missing from the watch cache. Either somebody deleted the pod, or the watch is
// behind. The number of doubts is bounded by the number of running nodes.
type doubts = controlloop.Loop[doubt, doubtful]

type doubt struct {
	key, pod types.NamespacedName
	// uid is the workflow's.
	uid    types.UID
	nodeID string
}

// doubtful is the backoff of one doubt after the server refused to answer.
type doubtful struct{ controlloop.Backoff }

const (
	// doubtsAtOnce is the number of concurrent requests.
	doubtsAtOnce = 8
	// doubtRetry is the delay before a request that got no answer is repeated.
	doubtRetry = time.Second
)

func newDoubts(c *Controller) *doubts {
	return controlloop.New[doubt, doubtful](controlloop.Config[doubt]{Name: "workflow-doubts", Workers: doubtsAtOnce, Turn: c.ask, Clock: c.Clock})
}

// doubt queues a request to the server for the pod of a node. If the pod exists, the unit waits for
// the watch to show it.
func (c *Controller) doubt(r *record, nodeID, pod string) {
	r.units[nodeID] = &unit{name: pod, nodeID: nodeID, state: there}
	c.doubts.Wake(doubt{r.key, types.NamespacedName{Namespace: r.key.Namespace, Name: pod}, r.uid, nodeID})
}

// ask resolves a doubt by reading the pod from the server, or schedules another attempt. A pod that
// does not exist or belongs to another owner is reported to the engine as gone.
func (c *Controller) ask(x doubt) {
	d := c.doubts.Get(x)
	if c.loop.Get(x.key) == nil {
		c.doubts.Drop(x) // the manager no longer has a record of the workflow
		return
	}
	if d == nil {
		d = &doubtful{}
		c.doubts.Put(x, d)
	}
	if left := d.Left(c.Clock.Now()); left > 0 {
		c.doubts.WakeAfter(x, left)
		return
	}
	p, err := c.Client.CoreV1().Pods(x.pod.Namespace).Get(c.requests, x.pod.Name, metav1.GetOptions{})
	if err != nil && c.requests.Err() != nil {
		return
	}
	if err != nil && !apierrors.IsNotFound(err) {
		wait := doubtRetry
		if refused := apierrors.APIStatus(nil); errors.As(err, &refused) {
			now := c.Clock.Now()
			d.Failed(now)
			wait = d.Left(now)
		}
		c.Log.Warn("looking for a pod failed", "workflow", x.key, "pod", x.pod.Name, "error", err, "again", wait)
		c.doubts.WakeAfter(x, wait)
		return
	}
	c.doubts.Drop(x)
	owner := workflowOf(p)
	gone := err != nil || owner == nil || owner.UID != x.uid
	c.loop.Post(x.key, x.uid, func(r *record) {
		u := r.units[x.nodeID]
		if u == nil || u.name != x.pod.Name || u.uid != "" || u.state != there {
			return // the watch has shown the pod, or the node has ended
		}
		if gone {
			r.events = append(r.events, engine.PodState{NodeID: x.nodeID, Gone: true})
			return
		}
		u.state, u.uid, u.version = created, p.UID, p.ResourceVersion
		r.unseen.Add(1)
	})
}
