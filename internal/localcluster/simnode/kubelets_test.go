package simnode

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

func TestMain(m *testing.M) { localtest.Main(m, localtest.WithControllerManager()) }

// TestPodsRunOnSimulatedNodesOnly checks that pods of a simulated node run for their duration and
// are removed when they are deleted, and that pods of other nodes stay as they are.
func TestPodsRunOnSimulatedNodesOnly(t *testing.T) {
	client := kubernetes.NewForConfigOrDie(localtest.Shared(t).RESTConfig())
	namespace := localtest.NamespaceForPods(t, client)
	ctx, stop := context.WithCancel(t.Context())
	kubelets, err := newKubelets(client, "simulated="+namespace, 4, clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- kubelets.run(ctx) }()
	pod := func(name, node, duration string) {
		t.Helper()
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
			NodeName: node, RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "none"}},
		}}
		if duration != "" {
			p.Annotations = map[string]string{AnnotationDuration: duration}
		}
		if _, err := client.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	phase := func(name string, want corev1.PodPhase) {
		t.Helper()
		localtest.Eventually(t, name+" is "+string(want), func() error {
			p, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
			if err == nil && p.Status.Phase != want {
				err = fmt.Errorf("it is %s", p.Status.Phase)
			}
			return err
		})
	}
	pod("before-its-node", namespace, "")
	for name, labels := range map[string]map[string]string{namespace: {"simulated": namespace}, namespace + "-other": nil} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		if _, err := client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	pod("other", namespace+"-other", "1ms")
	pod("short", namespace, "100ms")
	phase("short", corev1.PodSucceeded)
	phase("before-its-node", corev1.PodRunning)
	phase("other", corev1.PodPending)
	if err := client.CoreV1().Pods(namespace).Delete(ctx, "before-its-node", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	localtest.Eventually(t, "the deleted pod is gone", func() error {
		list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) != 2 {
			err = fmt.Errorf("%d pods are there", len(list.Items))
		}
		return err
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
