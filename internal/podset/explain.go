package podset

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/apiwriter"
)

// explainEvery is the shortest interval between two explanations of one set that differ. Reasons may
// alternate, and each change is a write for each pod.
const explainEvery = 10 * time.Second

// explanation is what the pods of a set that wait for nodes have been told.
type explanation struct {
	reason, message string
	since           time.Time
	// incomplete means that some of the pods may have another condition.
	incomplete bool
	// pods are those whose condition the watch does not show yet.
	pods map[types.UID]*podExplanation
}

// podExplanation is the last condition written to a pod.
type podExplanation struct {
	reason, message string
	underWay        bool
	refusedAt       string // resource version of the pod that could not be written
}

// Explain writes into the condition PodScheduled of the pods that wait for nodes why they do. left is the
// time after which the owner calls it again, or 0.
func (s *Set) Explain(reason, message string) (left time.Duration) {
	x := &s.explained
	now := s.cfg.Clock.Now()
	if x.reason != reason || x.message != message {
		if left = explainEvery - now.Sub(x.since); !x.since.IsZero() && left > 0 {
			return left
		}
		x.reason, x.message, x.since, x.incomplete = reason, message, now, true
	}
	if !x.incomplete {
		return 0
	}
	x.incomplete = false
	known := x.pods
	x.pods = map[types.UID]*podExplanation{}
	for r := range s.every() {
		slot := r.slot()
		if slot.uid == "" || slot.state != Unbound && slot.state != Queued {
			continue
		}
		p, found := s.cfg.Pods.Get(s.key.Namespace, r.name())
		if !found || p.UID != slot.uid {
			x.incomplete = true // the watch will show it
			continue
		}
		if len(p.Spec.SchedulingGates) > 0 {
			continue // the API server has set the condition
		}
		e := known[p.UID]
		next := Unschedulable(p, reason, message, metav1.NewTime(now))
		switch {
		case next == nil:
			continue
		case e == nil:
			e = &podExplanation{}
		case e.underWay, e.refusedAt == p.ResourceVersion:
			x.pods[p.UID], x.incomplete = e, true
			continue
		case e.refusedAt == "" && e.reason == reason && e.message == message:
			x.pods[p.UID] = e // written, and not shown yet
			continue
		}
		*e = podExplanation{reason: reason, message: message, underWay: true}
		x.pods[p.UID] = e
		s.writeExplanation(e, next)
	}
	return 0
}

func (s *Set) writeExplanation(e *podExplanation, p *corev1.Pod) {
	cfg, key, uid, version := s.cfg, s.key, s.uid, p.ResourceVersion
	m := apiwriter.Meta{Owner: s.owner, Reason: "pod-unschedulable"}
	cfg.Writer.Status(m, p, false, func(_ apiwriter.Object, err error) {
		if stopped(err) {
			return
		}
		cfg.Post(key, uid, func(*Set) Event {
			if e.underWay = false; err != nil {
				e.refusedAt = version // tried again when the pod has changed
			}
			return Event{}
		})
	})
}

// Unschedulable returns a copy of the pod with a PodScheduled condition that says why it waits, or nil if
// the condition already says so. The reason is Unschedulable if more nodes would help: by it autoscalers
// find pods that need nodes.
func Unschedulable(p *corev1.Pod, reason, message string, now metav1.Time) *corev1.Pod {
	want := corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: reason, Message: message, LastTransitionTime: now,
	}
	at := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled })
	if at >= 0 {
		old := p.Status.Conditions[at]
		if old.Status == want.Status && old.Reason == want.Reason && old.Message == want.Message {
			return nil
		}
		if old.Status == want.Status {
			want.LastTransitionTime = old.LastTransitionTime
		}
	}
	out := &corev1.Pod{ObjectMeta: p.ObjectMeta, Status: *p.Status.DeepCopy()}
	if at >= 0 {
		out.Status.Conditions[at] = want
	} else {
		out.Status.Conditions = append(out.Status.Conditions, want)
	}
	return out
}
