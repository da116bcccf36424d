package scheduler

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/scheduler/place"
)

// volumesPatience is how long capacity is kept for a gang whose volumes are being bound; the
// kube-scheduler waits as long.
const volumesPatience = 10 * time.Minute

// Volumes binds claims that get a volume when a node is chosen for their first pod
// (WaitForFirstConsumer), and allocates and reserves resource claims. Its methods are called from the
// scheduler's goroutine and must not block. The claims that they return are texts for users; they are
// the same as long as the cause is.
type Volumes interface {
	// WaitingVolumes returns the claims of a pod for which something was chosen that is not bound yet.
	WaitingVolumes(pod *corev1.Pod) []string
	// ChooseVolumes has the volumes and devices of placed pods bound, which their nodes can use. It
	// returns the claims that are not bound yet. gang is the owner of the writes.
	ChooseVolumes(gang string, pods []*corev1.Pod, nodes []*corev1.Node) []string
	// ReleaseDevices frees the devices that are reserved for pods which cannot be placed now.
	ReleaseDevices(gang string, pods []*corev1.Pod)
}

// waitingVolumes returns the claims of a gang's pods that are being bound.
func (s *Scheduler) waitingVolumes(e *pendingGang) []string {
	if s.cfg.Volumes == nil || e.rare() == 0 {
		return nil
	}
	var waiting []string
	for i, c := range e.classes {
		if c.Rare && len(e.left[i]) > 0 {
			waiting = append(waiting, s.cfg.Volumes.WaitingVolumes(c.Template)...)
		}
	}
	return waiting
}

// chooseVolumes has volumes bound for the claims of the pods that are placed. A claim that several
// pods use gets a volume for the node of the first of them.
func (s *Scheduler) chooseVolumes(e *pendingGang, d place.Decision) []string {
	if s.cfg.Volumes == nil || e.rare() == 0 {
		return nil
	}
	var pods []*corev1.Pod
	var nodes []*corev1.Node
	for i, placed := range d.Placed {
		if c := e.classes[i]; c.Rare && len(placed) > 0 {
			pods, nodes = append(pods, c.Template), append(nodes, s.view.Node(placed[0]).Object)
		}
	}
	return s.cfg.Volumes.ChooseVolumes(e.gang.Key, pods, nodes)
}

// releaseDevices frees the devices of a gang that cannot be placed now.
func (s *Scheduler) releaseDevices(e *pendingGang) {
	if s.cfg.Volumes == nil || e.rare() == 0 {
		return
	}
	var pods []*corev1.Pod
	for i, c := range e.classes {
		if c.Rare && len(e.left[i]) > 0 {
			pods = append(pods, c.Template)
		}
	}
	s.cfg.Volumes.ReleaseDevices(e.gang.Key, pods)
}

// keepForVolumes keeps the capacity of a placement for a gang whose volumes are being bound.
func (s *Scheduler) keepForVolumes(e *pendingGang, d place.Decision) {
	key := e.gang.Key
	s.evictions.release(key)
	c := &claim{gang: key, queue: e.gang.Queue, volumesUntil: s.clock.Now().Add(volumesPatience)}
	for i, nodes := range d.Placed {
		for _, node := range nodes {
			c.room = append(c.room, cluster.Claim{Node: s.view.Node(node).Name, Class: e.classes[i]})
			c.sum = c.sum.Plus(e.classes[i].Request, 1)
		}
	}
	s.evictions.claims[key] = c
	s.pending.setClaimed(e, true)
}

// awaitVolumes blocks the shape queue of a gang whose claims wait, and keeps the capacity that is kept
// for the gang, if any is.
func (s *Scheduler) awaitVolumes(e *pendingGang, waiting []string) {
	slices.Sort(waiting)
	waiting = slices.Compact(waiting)
	s.metrics.attempts.WithLabelValues(resultVolumes).Inc()
	s.pending.block(e.queue, &blockReason{rare: true, reason: Reason{
		Code: WaitingForVolumes, Message: "waits for the volumes or devices of its claims: " + strings.Join(waiting, ", "), Partial: e.partial,
	}})
	if c := s.evictions.claims[e.gang.Key]; c != nil {
		s.evictions.restore(c)
	}
}
