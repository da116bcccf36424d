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

// podLookups reads from the API server the pods that were running by the status of a workflow being
// loaded but are missing from the watch cache. Either another client deleted the pod, or the watch
// is behind. The number of lookups is bounded by the number of running nodes. Each has a backoff for
// the time after the server refused to answer.
type podLookups = controlloop.Loop[podLookup, controlloop.Backoff]

type podLookup struct {
	key, pod types.NamespacedName
	// uid is the UID of the workflow.
	uid    types.UID
	nodeID string
}

const (
	// lookupsAtOnce is the number of concurrent requests.
	lookupsAtOnce = 8
	// lookupRetry is the delay before a request that got no answer is repeated.
	lookupRetry = time.Second
)

func newPodLookups(c *Controller) *podLookups {
	return controlloop.New[podLookup, controlloop.Backoff](controlloop.Config[podLookup]{Name: "workflow-doubts", Workers: lookupsAtOnce, Turn: c.lookUp, Clock: c.Clock})
}

// lookUpPod queues a lookup of the pod of a node. If the pod exists, its slot waits for the watch
// to show it.
func (c *Controller) lookUpPod(r *record, nodeID, pod string) {
	r.pods.SetUnknown(r.addPod(nodeID, pod, nil).ref())
	c.lookups.Wake(podLookup{r.key, types.NamespacedName{Namespace: r.key.Namespace, Name: pod}, r.uid, nodeID})
}

// lookUp reads the pod of a lookup from the server, or schedules another attempt if the server does
// not answer. It reports a pod that does not exist or has another owner to the engine as gone.
func (c *Controller) lookUp(x podLookup) {
	d := c.lookups.Get(x)
	if c.loop.Get(x.key) == nil {
		c.lookups.Drop(x) // the manager no longer has a record of the workflow
		return
	}
	if d == nil {
		d = &controlloop.Backoff{}
		c.lookups.Put(x, d)
	}
	if left := d.Left(c.Clock.Now()); left > 0 {
		c.lookups.WakeAfter(x, left)
		return
	}
	p, err := c.Client.CoreV1().Pods(x.pod.Namespace).Get(c.requests, x.pod.Name, metav1.GetOptions{})
	if err != nil && c.requests.Err() != nil {
		return
	}
	if err != nil && !apierrors.IsNotFound(err) {
		wait := lookupRetry
		if refused := apierrors.APIStatus(nil); errors.As(err, &refused) {
			now := c.Clock.Now()
			d.Failed(now)
			wait = d.Left(now)
		}
		c.Log.Warn("looking for a pod failed", "workflow", x.key, "pod", x.pod.Name, "error", err, "again", wait)
		c.lookups.WakeAfter(x, wait)
		return
	}
	c.lookups.Drop(x)
	owner := workflowOf(p)
	gone := err != nil || owner == nil || owner.UID != x.uid
	c.loop.Post(x.key, x.uid, func(r *record) {
		np := r.nodePods[x.nodeID]
		if np == nil || np.name != x.pod.Name || np.uid() != "" {
			return // the watch has shown the pod, or the node has ended
		}
		if gone {
			r.events = append(r.events, engine.PodState{NodeID: x.nodeID, Gone: true})
			return
		}
		r.pods.SetCreated(np.ref(), p)
	})
}
