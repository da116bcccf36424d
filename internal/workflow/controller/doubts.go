package controller

import (
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/keyed"
	"lockstep.dev/lockstep/internal/workflow/engine"
)

// doubts are about pods that ran according to the status of a workflow that is taken up, and that the watch does not show. Either
// somebody deleted them, or the watch is behind; the server knows. There are no more than there are nodes that run.
type doubts = keyed.Loop[doubt, doubtful]

type doubt struct {
	key, pod types.NamespacedName
	uid      types.UID // of the workflow
	nodeID   string
}

// doubtful is what is known of a doubt: how long the server is not asked again, because it refused to say.
type doubtful struct{ keyed.Pause }

const (
	// doubtsAtOnce is how many questions are on their way at a time.
	doubtsAtOnce = 8
	// doubtRetry is how long after a question without an answer the server is asked again.
	doubtRetry = time.Second
)

func newDoubts(c *Controller) *doubts {
	return keyed.New[doubt, doubtful](keyed.Config[doubt]{Name: "workflow-doubts", Workers: doubtsAtOnce, Turn: c.ask, Clock: c.Clock})
}

// doubt has the server asked for the pod of a node. If there is one the watch will show it.
func (c *Controller) doubt(r *record, nodeID, pod string) {
	r.units[nodeID] = &unit{name: pod, nodeID: nodeID, state: there}
	c.doubts.Wake(doubt{r.key, types.NamespacedName{Namespace: r.key.Namespace, Name: pod}, r.uid, nodeID})
}

// ask settles a doubt, or has it asked again.
func (c *Controller) ask(x doubt) {
	d := c.doubts.Get(x)
	if c.loop.Get(x.key) == nil {
		c.doubts.Drop(x) // nobody wants to know any more
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
			d.Refused(now)
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
			return // the watch has shown it, or its node is done
		}
		if gone {
			r.events = append(r.events, engine.PodState{NodeID: x.nodeID, Gone: true})
			return
		}
		u.state, u.uid, u.version = created, p.UID, p.ResourceVersion
		r.unseen.Add(1)
	})
}
