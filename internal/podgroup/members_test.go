package podgroup

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	batchv1alpha1 "lockstep.dev/lockstep/api/batch/v1alpha1"
	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
)

func member(name, task, node string, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID(name), Annotations: map[string]string{batchv1alpha1.TaskSpecKey: task},
		},
		Spec:   corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: phase},
	}
}

// TestAskBringsAGroupToItsMinimum checks ask with random members. A request that is placed brings
// the group to its minimum, per task and in all; a request is made whenever enough pods exist; and
// it never contains a pod that has a node.
func TestAskBringsAGroupToItsMinimum(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		var pods []*corev1.Pod
		for i := range rapid.IntRange(0, 12).Draw(r, "pods") {
			p := member(fmt.Sprint("p", i), rapid.SampledFrom([]string{"a", "b"}).Draw(r, "task"), "", corev1.PodPending)
			switch rapid.IntRange(0, 4).Draw(r, "state") {
			case 0:
				p.Spec.NodeName = "n"
				p.Status.Phase = rapid.SampledFrom([]corev1.PodPhase{corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed}).Draw(r, "phase")
			case 1:
				p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}}
			}
			p.Spec.Hostname = rapid.SampledFrom([]string{"", "other template"}).Draw(r, "template")
			pods = append(pods, p)
		}
		minMember := rapid.IntRange(0, 8).Draw(r, "minMember")
		minTask := map[string]int32{"a": int32(rapid.IntRange(0, 4).Draw(r, "minA"))}
		m := countMembers(pods, func(*corev1.Pod) bool { return false })
		all := newTemplates()
		req := ask(minMember, minTask, nil, m, all.of)

		candidates, candidatesA := len(m.waiting), 0
		for _, p := range m.waiting {
			if taskOf(p) == "a" {
				candidatesA++
			}
		}
		enough := m.total+candidates >= minMember && m.holding["a"]+candidatesA >= int(minTask["a"])
		if (req.missing == "") != enough {
			r.Fatalf("enough pods: %v, but %q", enough, req.missing)
		}
		if !enough {
			return
		}
		units, minA := 0, 0
		for _, d := range req.demands {
			units += len(d.Units)
			if d.Min > len(d.Units) {
				r.Fatalf("demand for %d of %d", d.Min, len(d.Units))
			}
			minA += d.Min
			for _, u := range d.Units {
				if !slices.ContainsFunc(m.waiting, func(p *corev1.Pod) bool { return p.Name == u.Name }) {
					r.Fatalf("%s does not wait", u)
				}
			}
		}
		if units != candidates || m.total+req.minMember < minMember || m.holding["a"]+minA < int(minTask["a"]) || req.minMember > units {
			r.Fatalf("asks for %+v; members %+v", req, m)
		}
	})
}

// TestAskReportsTheSameTask checks that, of several tasks without pods, the same one is reported each
// time. Another message would be another status write, which wakes the group again.
func TestAskReportsTheSameTask(t *testing.T) {
	m := countMembers(nil, func(*corev1.Pod) bool { return false })
	templates := newTemplates()
	first := ask(0, map[string]int32{"a": 1, "b": 1, "c": 1}, nil, m, templates.of)
	for range 100 {
		if again := ask(0, map[string]int32{"a": 1, "b": 1, "c": 1}, nil, m, templates.of); again.missing != first.missing {
			t.Fatalf("%q, then %q", first.missing, again.missing)
		}
	}
}

func TestPhases(t *testing.T) {
	node, none := "n", ""
	for sentence, tc := range map[string]struct {
		pods []*corev1.Pod
		w    *waitReason
		want schedulingv1beta1.PodGroupPhase
	}{
		"nothing yet":            {nil, nil, schedulingv1beta1.PodGroupInqueue},
		"refused by its queue":   {[]*corev1.Pod{member("p", "", none, "")}, &waitReason{reason: "QueueClosed", byQueue: true}, schedulingv1beta1.PodGroupPending},
		"no room":                {[]*corev1.Pod{member("p", "", none, "")}, &waitReason{reason: "NotEnoughResources"}, schedulingv1beta1.PodGroupInqueue},
		"its minimum has nodes":  {[]*corev1.Pod{member("p", "", node, ""), member("q", "", node, "")}, nil, schedulingv1beta1.PodGroupRunning},
		"fell below its minimum": {[]*corev1.Pod{member("p", "", node, ""), member("q", "", none, "")}, nil, schedulingv1beta1.PodGroupUnknown},
		"one has succeeded":      {[]*corev1.Pod{member("p", "", node, ""), member("q", "", node, corev1.PodSucceeded)}, nil, schedulingv1beta1.PodGroupRunning},
		"all have ended":         {[]*corev1.Pod{member("p", "", node, corev1.PodFailed), member("q", "", node, corev1.PodSucceeded)}, nil, schedulingv1beta1.PodGroupCompleted},
	} {
		t.Run(sentence, func(t *testing.T) {
			pg := &schedulingv1beta1.PodGroup{Spec: schedulingv1beta1.PodGroupSpec{MinMember: 2}}
			m := countMembers(tc.pods, func(*corev1.Pod) bool { return false })
			pg.Status = statusOf(pg, m, tc.w, false, metav1.Now())
			if pg.Status.Phase != tc.want {
				t.Errorf("phase %s, want %s", pg.Status.Phase, tc.want)
			}
			if again := statusOf(pg, m, tc.w, false, metav1.Now()); !sameStatus(&again, &pg.Status) {
				t.Errorf("a second look says something else: %+v, then %+v", pg.Status, again)
			}
		})
	}
}

// TestStatusesSettle checks which changes of a status are written at once.
func TestStatusesSettle(t *testing.T) {
	type status = schedulingv1beta1.PodGroupStatus
	begun := status{Phase: schedulingv1beta1.PodGroupRunning, Running: 1}
	for name, tc := range map[string]struct {
		old, next status
		m         members
		ours      bool
		want      bool
	}{
		"more pods will run":                          {begun, status{Phase: begun.Phase, Running: 2}, members{bound: 3, running: 2}, false, true},
		"all pods run":                                {begun, status{Phase: begun.Phase, Running: 3}, members{bound: 3, running: 3}, false, false},
		"a group of somebody begins":                  {status{}, begun, members{bound: 3, running: 1}, false, false},
		"a group that was made for an owner begins":   {status{}, begun, members{bound: 3, running: 1}, true, true},
		"such a group, of which pods are being bound": {status{}, begun, members{bound: 1, running: 1, binding: 2}, true, true},
		"all pods of such a group run":                {status{}, begun, members{bound: 1, running: 1}, true, false},
		"such a group, which has said why it waits":   {status{Phase: schedulingv1beta1.PodGroupInqueue}, begun, members{bound: 3, running: 1}, true, false},
		"a phase changes":                             {begun, status{Phase: schedulingv1beta1.PodGroupUnknown, Running: 1}, members{bound: 2, running: 1}, false, false},
		"such a group waits":                          {status{}, status{Phase: schedulingv1beta1.PodGroupPending}, members{bound: 1}, true, false},
		"a condition changes while pods begin to run": {begun, status{Phase: begun.Phase, Running: 2, Conditions: []schedulingv1beta1.PodGroupCondition{{Type: "x"}}}, members{bound: 3, running: 2}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := settles(&tc.old, &tc.next, tc.m, tc.ours); got != tc.want {
				t.Errorf("settles: %t, want %t", got, tc.want)
			}
		})
	}
}

// TestHowLongAStatusSettles lets pods of a group start one after the other.
func TestHowLongAStatusSettles(t *testing.T) {
	start := time.Now()
	var s settling
	for _, x := range []struct {
		after   time.Duration
		running int
		want    time.Duration
	}{
		{0, 1, 5 * time.Second},
		{4 * time.Second, 1, time.Second},
		{4 * time.Second, 2, 5 * time.Second},
		{8 * time.Second, 3, 5 * time.Second},
		{13 * time.Second, 3, 0},
		{26 * time.Second, 4, 4 * time.Second},
		{29 * time.Second, 5, time.Second},
		{30 * time.Second, 6, 0},
	} {
		if got := s.left(start.Add(x.after), members{bound: 20, running: x.running}); got != x.want {
			t.Errorf("after %v, when %d pods run: %v, want %v", x.after, x.running, got, x.want)
		}
	}
}
