package informer

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"

	batchv1alpha1 "lockstep.dev/lockstep/api/batch/v1alpha1"
	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
)

// watchedPod returns a pod of one CPU and one port as the API server sends it.
func watchedPod(name, uid, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(uid)},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "main", Ports: []corev1.ContainerPort{{HostPort: 80, Protocol: corev1.ProtocolTCP}},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
		}}},
	}
}

func TestTrimKeepsWhatIsRead(t *testing.T) {
	trim := newTrimmer()
	one := func(i int, node string) *corev1.Pod {
		p := watchedPod(fmt.Sprint("p", i), fmt.Sprint("u", i), node)
		p.Annotations = map[string]string{schedulingv1beta1.GroupNameAnnotation: "g", "example.com/large": "x"}
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "j", UID: types.UID("j"), Controller: ptr.To(true)}}
		p.Spec.NodeSelector = map[string]string{"a": "b"}
		p.Spec.Containers[0].Image = "image"
		p.Spec.Volumes = []corev1.Volume{
			{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}},
			{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}},
		}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: "main", ContainerID: "x", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, Message: "long"}},
		}}
		trim.pod(p)
		return p
	}
	p, q, bound := one(1, ""), one(2, ""), one(3, "n")
	if len(p.Annotations) != 1 || p.Annotations[schedulingv1beta1.GroupNameAnnotation] != "g" {
		t.Errorf("annotations: %v", p.Annotations)
	}
	if p.Spec.Containers[0].Image != "" || p.Spec.Containers[0].Resources.Requests.Cpu().String() != "1" || len(p.Spec.Containers[0].Ports) != 1 {
		t.Errorf("containers: %+v", p.Spec.Containers)
	}
	if &p.Spec.Containers[0] != &q.Spec.Containers[0] {
		t.Error("equal containers are not shared")
	}
	if len(p.Spec.Volumes) != 1 || p.Spec.Volumes[0].Name != "data" {
		t.Errorf("volumes: %v", p.Spec.Volumes)
	}
	if p.Spec.NodeSelector == nil || bound.Spec.NodeSelector != nil {
		t.Error("a node selector is kept until the pod has a node")
	}
	if s := p.Status.ContainerStatuses; len(s) != 1 || s[0].State.Terminated.ExitCode != 3 || s[0].ContainerID != "" {
		t.Errorf("statuses: %+v", s)
	}
	for name, want := range map[string]string{"a pod": "", "a pod of a Job": "10.0.0.1"} {
		p := watchedPod("ip", "ip", "n")
		if want != "" {
			p.Labels = map[string]string{batchv1alpha1.JobNameKey: "j"}
		}
		p.Status.PodIP = "10.0.0.1"
		if trim.pod(p); p.Status.PodIP != want {
			t.Errorf("%s has the IP %q, want %q", name, p.Status.PodIP, want)
		}
	}
	again := p.DeepCopy()
	trim.pod(again)
	if again.Spec.String() != p.Spec.String() || again.Status.String() != p.Status.String() {
		t.Error("trimming twice changes something")
	}
}

// TestResizesAreKept checks that the cache has the resources of a pod that is being resized, by the
// kube-scheduler's rule: the largest of what the spec says, what the kubelet has allocated and what it
// has actuated; without the spec if the kubelet can never do it.
func TestResizesAreKept(t *testing.T) {
	amount := func(cpu string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
	for name, c := range map[string]struct {
		spec, allocated, actuated string
		infeasible                bool
		want                      string
		kept                      bool
	}{
		"nothing is resized":            {"2", "2", "2", false, "2", false},
		"it grows":                      {"6", "2", "2", false, "6", true},
		"it shrinks":                    {"2", "6", "6", false, "6", true},
		"the kubelet has agreed":        {"2", "2", "6", false, "6", true},
		"it shrank, in another writing": {"2", "2000m", "2.0", false, "2", false},
		"it can never grow so far":      {"600", "2", "2", true, "2", true},
	} {
		p := watchedPod("p", "u", "n")
		p.Spec.Containers[0].Resources.Requests = amount(c.spec)
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: p.Spec.Containers[0].Name, Ready: true, AllocatedResources: amount(c.allocated),
			Resources: &corev1.ResourceRequirements{Requests: amount(c.actuated)}}}
		if c.infeasible {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
				Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonInfeasible})
		}
		for range 2 { // trimming twice changes nothing
			newTrimmer().pod(p)
			got := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{UseStatusResources: true})
			if q := resource.MustParse(c.want); got.Cpu().Cmp(q) != 0 {
				t.Errorf("%s: counted with %s, want %s", name, got.Cpu(), c.want)
			}
			if kept := len(p.Status.ContainerStatuses) > 0; kept != c.kept {
				t.Errorf("%s: statuses %+v", name, p.Status.ContainerStatuses)
			}
		}
	}
}
