package upstream

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
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
