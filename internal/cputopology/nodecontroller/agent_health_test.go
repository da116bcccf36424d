package nodecontroller

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
)

// moment is the input at some time, and the expected verdict.
type moment struct {
	at    time.Duration
	pod   *corev1.Pod
	lease *coordinationv1.Lease
	alive bool
}

func agentPod(node string, ready bool) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: corev1.PodSpec{NodeName: node}}
	c := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse}
	if ready {
		c.Status = corev1.ConditionTrue
	}
	p.Status.Conditions = []corev1.PodCondition{c}
	return p
}

// renewed returns a lease that was renewed at some second of its holder's clock, which differs from
// the test's.
func renewed(second int64) *coordinationv1.Lease {
	at, duration := metav1.NewMicroTime(time.Unix(1e9+second, 0)), int32(40)
	return &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: &at, LeaseDurationSeconds: &duration}}
}

func TestAgentsAreJudged(t *testing.T) {
	const s = time.Second
	byPod, byLease := &topologyv1alpha1.Liveness{Pod: "ns/p"}, &topologyv1alpha1.Liveness{Lease: "ns/l"}
	for name, c := range map[string]struct {
		by      *topologyv1alpha1.Liveness
		wasGone bool
		moments []moment
	}{
		"who does not say how it is seen, is there":           {nil, false, []moment{{0, nil, nil, true}}},
		"a pod that is ready":                                 {byPod, false, []moment{{0, agentPod("n", true), nil, true}}},
		"a pod that is replaced":                              {byPod, false, []moment{{0, nil, nil, true}, {9 * s, agentPod("n", false), nil, true}, {15 * s, agentPod("n", true), nil, true}, {30 * s, nil, nil, true}}},
		"a pod that is not ready for long":                    {byPod, false, []moment{{0, agentPod("n", false), nil, true}, {20 * s, agentPod("n", false), nil, false}, {25 * s, agentPod("n", true), nil, true}}},
		"a pod of another node":                               {byPod, false, []moment{{0, agentPod("m", true), nil, true}, {20 * s, agentPod("m", true), nil, false}}},
		"an agent that was gone stays so without a grace":     {byPod, true, []moment{{0, nil, nil, false}, {s, agentPod("n", true), nil, true}}},
		"a lease that is renewed":                             {byLease, false, []moment{{0, nil, renewed(0), true}, {39 * s, nil, renewed(0), true}, {39 * s, nil, renewed(15), true}, {78 * s, nil, renewed(15), true}}},
		"a lease that is not":                                 {byLease, false, []moment{{0, nil, renewed(0), true}, {40 * s, nil, renewed(0), false}, {50 * s, nil, renewed(50), true}}},
		"no lease yet":                                        {byLease, false, []moment{{0, nil, nil, true}, {45 * s, nil, nil, false}, {46 * s, nil, renewed(0), true}}},
		"a manager that starts again believes its forerunner": {byLease, true, []moment{{0, nil, renewed(0), false}, {15 * s, nil, renewed(15), true}}},
	} {
		t.Run(name, func(t *testing.T) {
			var w agentMonitor
			o := &topologyv1alpha1.NodeTopology{}
			o.Status.Liveness = c.by
			if c.wasGone {
				o.Status.Conditions = []metav1.Condition{{Type: topologyv1alpha1.AgentAlive, Status: metav1.ConditionFalse}}
			}
			start := time.Unix(0, 0)
			for _, m := range c.moments {
				v := w.judge(o, agentSigns{node: "n", pod: m.pod, lease: m.lease}, start.Add(m.at))
				if v.alive != m.alive {
					t.Fatalf("after %v it is taken to be there: %v (%s)", m.at, v.alive, v.message)
				}
				if v.alive && c.by != nil && (m.pod == nil || !podReady(m.pod) || m.pod.Spec.NodeName != "n") && v.next.IsZero() {
					t.Errorf("after %v nobody looks again", m.at)
				}
				before := o.Status.Conditions
				o.Status.Conditions = v.conditions(o, start.Add(m.at))
				if len(before) == 0 && v.alive && len(o.Status.Conditions) > 0 {
					t.Error("something is written about an agent that was never gone")
				}
			}
		})
	}
}
