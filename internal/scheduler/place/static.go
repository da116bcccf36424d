package place

import corev1 "k8s.io/api/core/v1"

// Reasons why a node refuses a pod, in the kube-scheduler's words, which users and tools know. A
// node short of a resource counts for RefusedInsufficient followed by the resource's name.
const (
	RefusedUnschedulable = "node(s) were unschedulable"
	RefusedName          = "node(s) didn't match the requested node name"
	RefusedTaint         = "node(s) had untolerated taint(s)"
	RefusedAffinity      = "node(s) didn't match Pod's node affinity/selector"
	RefusedZone          = "node(s) were in a revocable zone that the pod does not allow"
	RefusedClosed        = "node(s) were in a revocable zone outside of its hours"
	RefusedOverused      = "node(s) were used above the threshold"
	RefusedPorts         = "node(s) didn't have free ports for the requested pod ports"
	RefusedPods          = "Too many pods"
	RefusedInsufficient  = "Insufficient "
	// RefusedUnsupported counts nodes when a class is Rare and there is no RareFilter.
	RefusedUnsupported = "node(s) could not be checked for pod affinity, topology spread or volumes"
)

// refusal identifies the first filter that refuses a node, among the filters that depend only on
// the node's object.
type refusal uint8

const (
	passes refusal = iota
	vacant         // no node has this index
	unschedulable
	otherName
	untoleratedTaint
	noAffinity
	otherZone
	closed
	overused
)

var refusedText = [...]string{
	unschedulable:    RefusedUnschedulable,
	otherName:        RefusedName,
	untoleratedTaint: RefusedTaint,
	noAffinity:       RefusedAffinity,
	otherZone:        RefusedZone,
	closed:           RefusedClosed,
	overused:         RefusedOverused,
}

// static holds the answers of the filters and scores that depend only on the node's object, for all
// classes with the same staticKey. Like index, it follows the snapshot's changes.
//
// Scores are normalised among the nodes that pass these filters. The kube-scheduler also excludes
// the nodes that are full at the moment; the difference only rescales a preference when all the
// nodes that match it best are full.
type static struct {
	s       *Snapshot
	class   *Class
	weights Weights
	users   int
	epoch   int // changes whenever the scores of unchanged nodes may differ
	cursor  int64

	refused               []refusal
	score                 []int64 // weighted and normalised
	affinity, taints      []int64 // raw scores
	affinityMax, taintMax int64
	counted               counted
}

func (st *static) follow() {
	end := st.s.changeEnd()
	if st.epoch == 0 || st.cursor < st.s.changeBase || len(st.refused) != len(st.s.nodes) ||
		end-st.cursor > int64(len(st.refused))+8 {
		st.rebuild()
		return
	}
	examined := false
	for _, c := range st.s.changes[st.cursor-st.s.changeBase:] {
		if c.static {
			st.examine(c.node)
			examined = true
		}
	}
	st.cursor = end
	if !examined {
		return
	}
	if st.affinityMax != st.largest(st.affinity) || st.taintMax != st.largest(st.taints) {
		st.rebuild()
	}
}

func (st *static) rebuild() {
	n := len(st.s.nodes)
	st.refused = make([]refusal, n)
	st.score, st.affinity, st.taints = make([]int64, n), make([]int64, n), make([]int64, n)
	for i := range n {
		st.examine(int32(i))
	}
	st.affinityMax, st.taintMax = st.largest(st.affinity), st.largest(st.taints)
	for i := range n {
		if st.refused[i] == passes {
			st.normalise(int32(i))
		}
	}
	st.epoch++
	st.cursor = st.s.changeEnd()
}

// examine runs the filters on one node, in the kube-scheduler's order, and computes its scores.
func (st *static) examine(i int32) {
	n, c := &st.s.nodes[i], st.class
	st.affinity[i], st.taints[i], st.score[i] = 0, 0, 0
	st.refused[i] = st.filter(n)
	if st.refused[i] != passes {
		return
	}
	if c.Preferred != nil {
		st.affinity[i] = c.Preferred.Score(n.Object)
	}
	for k := range n.Taints {
		if t := &n.Taints[k]; t.Effect == corev1.TaintEffectPreferNoSchedule && !c.tolerates(t) {
			st.taints[i]++
		}
	}
	st.normalise(i)
}

func (st *static) filter(n *Node) refusal {
	c := st.class
	switch {
	case n.Name == "":
		return vacant
	case n.Unschedulable &&
		!c.tolerates(&corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}):
		return unschedulable
	case c.Template.Spec.NodeName != "" && c.Template.Spec.NodeName != n.Name:
		return otherName
	}
	for k := range n.Taints {
		t := &n.Taints[k]
		if (t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute) && !c.tolerates(t) {
			return untoleratedTaint
		}
	}
	if c.selective {
		// A term that does not parse matches nothing, as in the kube-scheduler.
		if ok, _ := c.Required.Match(n.Object); !ok {
			return noAffinity
		}
	}
	return st.standing(&n.Standing)
}

// standing runs the filters that do not depend on the node's object.
func (st *static) standing(s *Standing) refusal {
	switch {
	case s.Zone != "" && !st.class.allows(s.Zone):
		return otherZone
	case s.Closed:
		return closed
	case s.Overused:
		return overused
	}
	return passes
}

// normalise scales the raw scores of a node to 0..100 and adds them up with their weights. The node
// that matches most preferred terms is best, and so is the node with the fewest untolerated taints.
func (st *static) normalise(i int32) {
	affinity, taints := int64(0), int64(scoreMax)
	if st.affinityMax > 0 {
		affinity = scoreMax * st.affinity[i] / st.affinityMax
	}
	if st.taintMax > 0 {
		taints = scoreMax - scoreMax*st.taints[i]/st.taintMax
	}
	st.score[i] = st.weights.NodeAffinity*affinity + st.weights.Taints*taints + st.s.nodes[i].Standing.points()
}

// points returns what the node's standing adds to its score.
func (s *Standing) points() int64 {
	if s.Zone != "" {
		return s.Score + scoreMax
	}
	return s.Score
}

func (st *static) largest(scores []int64) int64 {
	var most int64
	for _, score := range scores {
		most = max(most, score)
	}
	return most
}
