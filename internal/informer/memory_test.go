package informer_test

import (
	"fmt"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/informer"
)

// BenchmarkPodMemory reports the memory of a cached pod.
func BenchmarkPodMemory(b *testing.B) {
	const n = 10000
	for range b.N {
		trim := informer.TrimPods()
		pods := make([]*corev1.Pod, n)
		c := cluster.New(cluster.Config{})
		for i := range 1000 {
			c.UpsertNode(&corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)},
				Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourcePods: resource.MustParse("110"),
				}},
			})
		}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range pods {
			p := informer.WatchedPod(fmt.Sprint("job-task-", i), fmt.Sprintf("00000000-0000-0000-0000-%012d", i), fmt.Sprint("n", i%1000))
			p.Labels = map[string]string{"volcano.sh/job-name": "job", "volcano.sh/task-spec": "task", "volcano.sh/task-index": fmt.Sprint(i)}
			p.Annotations = map[string]string{"volcano.sh/job-name": "job", "volcano.sh/task-spec": "task", "volcano.sh/task-index": fmt.Sprint(i)}
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "job", UID: "j", Controller: ptr.To(true)}}
			trim(p)
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
