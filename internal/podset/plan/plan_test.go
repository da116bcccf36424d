package plan

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestAPodOnItsHostsNetworkTakesItsPortsFromTheHost(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		HostNetwork: true,
		Containers:  []corev1.Container{{Name: "sshd", Ports: []corev1.ContainerPort{{ContainerPort: 2222, Protocol: corev1.ProtocolTCP}}}},
	}}
	ports := Of(pod, nil, "").Spec.Containers[0].Ports
	if len(ports) != 1 || ports[0].HostPort != 2222 {
		t.Errorf("ports %v", ports)
	}
	pod.Spec.HostNetwork = false
	if ports := Of(pod, nil, "").Spec.Containers[0].Ports; len(ports) != 0 {
		t.Errorf("a pod on its own network takes %v from its host", ports)
	}
	if p := pod.Spec.Containers[0].Ports[0]; p.HostPort != 0 {
		t.Error("the template was changed")
	}
}
