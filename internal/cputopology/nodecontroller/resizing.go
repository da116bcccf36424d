package nodecontroller

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/request"
	"lockstep.dev/lockstep/internal/cputopology/reservation"
	"lockstep.dev/lockstep/internal/cputopology/sharing"
	"lockstep.dev/lockstep/internal/scheduler/pin"
)

// resize gives pods that were resized in place as many CPUs as they request now, by moves. A pod that
// shrinks keeps some of its CPUs; one that grows gets the nearest, and an event if there are too few. It
// reports whether moves have begun.
func (c *Controller) resize(n *node, t *topologyv1alpha1.NodeTopology, on cluster.NodeCPUs, underWay bool, now time.Time) bool {
	gone := func(name, _ string) bool { _, there := on.Pods[name]; return !there }
	maps.DeleteFunc(n.unresized, gone)
	maps.DeleteFunc(n.fitting, gone)
	if n.fittingPolicy != on.Policy {
		clear(n.fitting)
		n.fittingPolicy = on.Policy
	}
	if underWay || n.rewriting || hindrance(t, on) != "" {
		return false
	}
	var state reservation.State
	var moves []pin.Move
	for _, name := range slices.Sorted(maps.Keys(on.Pods)) {
		if o := on.Pods[name].Object; o == nil || n.fitting[name] == string(o.UID)+o.ResourceVersion {
			continue
		}
		m, err := c.resizable(on.Machine, on.Policy, on.Pods[name])
		if err != nil {
			c.notResized(n, on.Pods[name].Object, name, err)
			continue
		}
		if m == nil || !m.resized() || n.stuck[m.pod.Object.UID] {
			delete(n.unresized, name)
			if m != nil {
				n.fitting[name] = string(m.pod.Object.UID) + m.pod.Object.ResourceVersion
			}
			continue
		}
		if state.Node == nil {
			if state = replay(n.name, on); len(state.Problems) > 0 {
				return false
			}
		}
		to, err := m.plan(state.Node, name, requestedBy(on))
		if err != nil {
			c.notResized(n, m.pod.Object, name, err)
			continue
		}
		delete(n.unresized, name)
		move, err := m.to(state.Node, to, nextMove(on))
		if err != nil {
			c.log.Error("a pod cannot be resized", "node", n.name, "pod", name, "error", err)
			continue
		}
		state.Node.Release(name)
		if err := state.Node.Restore(to); err != nil {
			return false
		}
		if moves = append(moves, move); len(moves) == waveMax {
			break
		}
	}
	c.rewrite(n, moves, func(n *node, errs []error) {
		for i, err := range errs {
			if err == nil {
				c.metrics.moves.WithLabelValues("resized").Inc()
				c.log.Info("a pod was resized", "node", n.name, "pod", moves[i].Pod.String(), "cpus", moves[i].After.Annotation)
			}
		}
		if errors.Join(errs...) != nil {
			clear(n.fitting) // what was assumed is not so
			c.loop.WakeAfter(n.name, movePoll)
		}
	})
	return len(moves) > 0
}

// notResized says, once for each reason, that a pod keeps the CPUs that it has.
func (c *Controller) notResized(n *node, pod *corev1.Pod, name string, err error) {
	if n.unresized[name] == err.Error() {
		return
	}
	n.unresized[name] = err.Error()
	c.cfg.Writer.Event(pod, corev1.EventTypeWarning, "CPUsNotResized",
		fmt.Sprintf("the pod was resized and keeps the CPUs that it has: %v", err))
}

// replay returns the state of a node's CPUs.
func replay(name string, on cluster.NodeCPUs) reservation.State {
	pods := make([]reservation.Pod, 0, len(on.Pods))
	for key, pod := range on.Pods {
		p := reservation.Pod{Key: key, Result: pod.Result.Settled(on.Machine.Moved)}
		if pod.Object != nil {
			p.Created = pod.Object.CreationTimestamp.Time
		}
		pods = append(pods, p)
	}
	return reservation.Replay(name, on.Machine.Layout, on.Machine.Pins, pods)
}

// resized reports whether the pod has other numbers of CPUs than it requests.
func (m *movable) resized() bool {
	given := m.pod.Result.Containers
	want := map[string]int{}
	all := 0
	for _, container := range m.asked.Containers {
		if !container.Init {
			want[container.Name] = container.CPUs
			all += container.CPUs
		}
	}
	for name, has := range given {
		if has.Init {
			continue
		}
		count, asked := want[name]
		if m.asked.PodWide && asked {
			count = all
		}
		if has.CPUs.Len() != count {
			return true
		}
	}
	return false
}

// plan chooses the CPUs of a resized pod, as near to those that it has as possible.
func (m *movable) plan(n *allocate.Node, key string, requested func(string) int64) (*allocate.Allocation, error) {
	var al allocate.Allocator
	old := n.Pod(key)
	if old == nil {
		return nil, fmt.Errorf("it holds no CPUs of the node")
	}
	own := old.CPUs()
	after := n.Clone()
	after.Release(key)
	near := func(domains []cpuset.Set) cpuset.Set {
		var out cpuset.Set
		for _, d := range domains {
			if d.Overlaps(own) {
				out = out.Union(d)
			}
		}
		return out
	}
	numas := make([]cpuset.Set, 0, len(n.Layout().Topology().NUMA))
	for _, numa := range n.Layout().Topology().NUMA {
		numas = append(numas, numa.CPUs)
	}
	for _, set := range []cpuset.Set{own, near(n.Layout().L3Domains()), near(numas)} {
		if a, err := al.PlanWithin(after, key, m.request, set); err == nil {
			return a, nil
		}
	}
	if !old.Shared().IsEmpty() {
		return sharing.NewState(after, requested).Plan(&al, after, key, m.request, requested(key))
	}
	return al.Plan(after, key, m.request)
}

// resizable returns the pod's request if its CPUs may follow it, else nil. The error says why a request
// is wrong, as it may be after a resize.
func (c *Controller) resizable(m *cluster.Machine, policy request.NodePolicy, pod cluster.PodCPUs) (*movable, error) {
	o := pod.Object
	if o == nil || o.DeletionTimestamp != nil || !c.cfg.Ours(o) || pod.Result.Node != o.Spec.NodeName ||
		pod.Result.Topology != m.Layout.Topology().Hash() {
		return nil, nil
	}
	asked, err := request.Parse(o)
	if err != nil || asked == nil {
		return nil, err
	}
	if asked, _ = asked.On(policy); asked == nil {
		return nil, nil // the node's labels have changed since
	}
	r, err := allocate.NewRequest(asked)
	if err != nil {
		return nil, err
	}
	return &movable{pod: pod, asked: asked, request: r, language: asked.Language}, nil
}
