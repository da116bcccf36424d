package upstream

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
)

// TestAServerWithoutDynamicResourceAllocation says why pods with claims wait.
func TestAServerWithoutDynamicResourceAllocation(t *testing.T) {
	f := &Filter{devices: &devices{}}
	p := &corev1.Pod{}
	if why := f.withClaims(p); why != "" {
		t.Errorf("a pod without claims waits: %s", why)
	}
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("one")}}
	if why := f.withClaims(p); why != "the API server does not have resource.k8s.io/v1, which resource claims need" {
		t.Errorf("a pod with a claim: %q", why)
	}
	if waiting := f.waitingDevices(p); waiting != nil {
		t.Errorf("it waits for %v", waiting)
	}
}

// TestSlowSearchesRest checks that a search which takes too long ends, that its namespace rests after
// it, and that other namespaces and pods without claims do not.
func TestSlowSearchesRest(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1_000_000, 0))
	d := &devices{clock: clock}
	pod := func(namespace string) *corev1.Pod {
		p := &corev1.Pod{}
		p.Namespace = namespace
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("one")}}
		return p
	}
	slow := d.search(pod("slow"))
	if slow.over() {
		t.Fatal("the search is over before it began")
	}
	clock.Step(devicesOfPod)
	if !slow.over() {
		t.Error("the search goes on")
	}
	slow.end()
	plain := pod("slow")
	plain.Spec.ResourceClaims = nil
	if !d.search(pod("slow")).over() || d.search(pod("other")).over() || d.search(plain).over() {
		t.Error("not only the pods with claims in this namespace rest")
	}
	clock.Step(devicesRest * devicesOfPod)
	if d.search(pod("slow")).over() || len(d.rest) > 0 {
		t.Errorf("the namespace rests for ever: %v", d.rest)
	}
	found := d.search(pod("slow"))
	found.found++
	clock.Step(devicesOfPod)
	found.over()
	found.end()
	if d.search(pod("slow")).over() {
		t.Error("a namespace rests after a search that found nodes")
	}
	d.spent = devicesOfCycle
	if !d.search(pod("other")).over() {
		t.Error("a search begins although the cycle's time is over")
	}
}
