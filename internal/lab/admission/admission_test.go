package admission

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Admission{
		"none": {Kind: None}, "cel": {Kind: CEL}, "webhook": {Kind: Webhook, Timeout: 10 * time.Second},
		"webhook:20ms:30s": {Kind: Webhook, Work: 20 * time.Millisecond, Timeout: 30 * time.Second},
	} {
		got, err := Parse(text)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
		if again, err := Parse(got.Argument()); err != nil || again != got {
			t.Errorf("%s: its argument %s gives %+v, %v", text, got.Argument(), again, err)
		}
	}
	for _, text := range []string{"", "x", "cel:1s", "webhook:", "webhook:1", "webhook:-1s:1s", "webhook:1s", "webhook:1s:31s", "webhook:1s:1500ms"} {
		if _, err := Parse(text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

// TestPodsAreAdmitted checks the rules and the webhook on an API server: good pods pass, others are
// refused with the reason, and a webhook that takes too long is an error of the server.
func TestPodsAreAdmitted(t *testing.T) {
	for _, a := range []Admission{{Kind: CEL}, {Kind: Webhook, Timeout: 10 * time.Second}, {Kind: Webhook, Work: 3 * time.Second, Timeout: time.Second}} {
		t.Run(a.Argument(), func(t *testing.T) {
			cluster := localtest.Start(t, localtest.WithControllerManager())
			client, err := kubeclient.Clientset(cluster.RESTConfig())
			if err != nil {
				t.Fatal(err)
			}
			namespace := localtest.NamespaceForPods(t, client)
			if a.Kind == CEL {
				if err := Apply(t.Context(), cluster.RESTConfig()); err != nil {
					t.Fatal(err)
				}
			} else {
				serve(t, cluster, a)
			}
			refused := func(want string, change func(*corev1.PodSpec)) {
				t.Helper()
				// The server reads configurations some time after they exist.
				localtest.Eventually(t, "the refusal", func() error {
					if _, err := create(t, client, namespace, change); err == nil || !strings.Contains(err.Error(), want) {
						return fmt.Errorf("%v, want %q", err, want)
					}
					return nil
				})
			}
			if a.Work > 0 {
				refused("deadline exceeded", func(*corev1.PodSpec) {})
				return
			}
			refused("a container requests no cpu", func(s *corev1.PodSpec) { s.Containers[0].Resources = corev1.ResourceRequirements{} })
			refused("an image has the tag latest", func(s *corev1.PodSpec) { s.Containers[0].Image = "a:latest" })
			refused("the pod uses the host's network", func(s *corev1.PodSpec) { s.HostNetwork = true })
			pod, err := create(t, client, namespace, func(*corev1.PodSpec) {})
			if err != nil {
				t.Fatal(err)
			}
			if mutated := pod.Annotations[annotation] == "true"; mutated != (a.Kind == Webhook) {
				t.Errorf("annotations: %v", pod.Annotations)
			}
		})
	}
}

func create(t *testing.T, client kubernetes.Interface, namespace string, change func(*corev1.PodSpec)) (*corev1.Pod, error) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "p-"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "a:1",
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1m")}}}}}}
	change(&pod.Spec)
	return client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
}

// serve runs the webhook until the test ends.
func serve(t *testing.T, cluster *localcluster.Cluster, a Admission) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, log := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, cluster.RESTConfig(), "127.0.0.1:0", a, log); log.Close() }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	line := make([]byte, 100)
	n, err := ready.Read(line)
	if err != nil || string(bytes.TrimSpace(line[:n])) != Ready {
		t.Fatalf("%q, %v", line[:n], err)
	}
}
