package localcluster_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// BenchmarkPods creates pods that are bound already, one per operation, waits until all run, and
// reports the costs.
func BenchmarkPods(b *testing.B) {
	c := localtest.Start(b, localtest.WithNodes(localcluster.Nodes{Count: 100, Pods: 1000}),
		localtest.WithConfig(func(c *localcluster.Config) { c.NotDurable = false }))
	config := c.RESTConfig()
	config.ContentType = "application/vnd.kubernetes.protobuf"
	client := kubernetes.NewForConfigOrDie(config)
	before := map[localcluster.Component]localcluster.Usage{}
	for _, name := range c.Components() {
		before[name], _ = c.Usage(name)
	}
	var lock sync.Mutex
	running, all := map[string]bool{}, make(chan struct{})
	factory := informers.NewSharedInformerFactory(client, 0)
	_, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(_, now any) {
		lock.Lock()
		defer lock.Unlock()
		if pod := now.(*corev1.Pod); pod.Status.Phase == corev1.PodRunning && !running[pod.Name] {
			if running[pod.Name] = true; len(running) == b.N {
				close(all)
			}
		}
	}})
	if err != nil {
		b.Fatal(err)
	}
	factory.Start(b.Context().Done())
	factory.WaitForCacheSync(b.Context().Done())
	b.ResetTimer()
	began := time.Now()
	group, ctx := errgroup.WithContext(b.Context())
	group.SetLimit(16)
	created := make(chan time.Duration, 1)
	go func() {
		for i := range b.N {
			group.Go(func() error { return createPod(ctx, client, i) })
		}
		if err := group.Wait(); err != nil {
			b.Error(err)
		}
		created <- time.Since(began)
	}()
	<-all
	b.ReportMetric(float64(b.N)/(<-created).Seconds(), "created/s")
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "running/s")
	for _, name := range c.Components() {
		after, err := c.Usage(name)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric((after.CPU-before[name].CPU).Seconds()*1e6/float64(b.N), string(name)+"-µs/pod")
	}
	writes := 0
	for _, e := range auditEvents(b, c.AuditLogPath(), "default") {
		if e.Verb != "create" {
			writes++
		}
	}
	b.ReportMetric(float64(writes)/float64(b.N), "kwok-writes/pod")
}

func createPod(ctx context.Context, client kubernetes.Interface, i int) error {
	pod := simulatedPod(fmt.Sprintf("bench-%d", i), corev1.RestartPolicyNever, nil)
	pod.Spec.NodeName = localcluster.NodeName(i % 100)
	_, err := client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
	return err
}
