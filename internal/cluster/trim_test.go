package cluster

import (
	"fmt"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
)

func TestTrimKeepsWhatIsRead(t *testing.T) {
	trim := newTrimmer()
	one := func(i int, node string) *corev1.Pod {
		p := testPod(fmt.Sprint("p", i), fmt.Sprint("u", i), node, "1")
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
	again := p.DeepCopy()
	trim.pod(again)
	if again.Spec.String() != p.Spec.String() || again.Status.String() != p.Status.String() {
		t.Error("trimming twice changes something")
	}
}

// BenchmarkPodMemory reports the memory of a cached pod.
func BenchmarkPodMemory(b *testing.B) {
	const n = 10000
	for range b.N {
		trim := newTrimmer()
		pods := make([]*corev1.Pod, n)
		c := New(Config{})
		for i := range 1000 {
			c.UpsertNode(testNode(fmt.Sprint("n", i), "32"))
		}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range pods {
			p := testPod(fmt.Sprint("job-task-", i), fmt.Sprintf("00000000-0000-0000-0000-%012d", i), fmt.Sprint("n", i%1000), "1")
			p.Labels = map[string]string{"volcano.sh/job-name": "job", "volcano.sh/task-spec": "task", "volcano.sh/task-index": fmt.Sprint(i)}
			p.Annotations = map[string]string{"volcano.sh/job-name": "job", "volcano.sh/task-spec": "task", "volcano.sh/task-index": fmt.Sprint(i)}
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "job", UID: "j", Controller: ptr.To(true)}}
			trim.pod(p)
			pods[i] = p
			c.UpsertPod(p)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "B/pod")
		runtime.KeepAlive(pods)
		runtime.KeepAlive(c)
	}
}
