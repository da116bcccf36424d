package informer

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

func TestMain(m *testing.M) { localtest.Main(m) }

// TestSeenVersionIsThatOfTheCache checks that objects written up to the version that a cache has
// seen are in the cache. Otherwise existing objects would be treated as deleted.
func TestSeenVersionIsThatOfTheCache(t *testing.T) {
	client := kubernetes.NewForConfigOrDie(localtest.Shared(t).RESTConfig())
	namespace := localtest.Namespace(t, client)
	kind := New(client.CoreV1().RESTClient(), "configmaps", Options[*corev1.ConfigMap]{Namespace: namespace})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	told := make(chan string, 100)
	kind.Handle(Handler[*corev1.ConfigMap]{Added: func(m *corev1.ConfigMap) { told <- m.Name }})
	go kind.Run(ctx)
	if err := kind.WaitForSync(ctx); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		name := fmt.Sprintf("m%d", i)
		made, err := client.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		localtest.Eventually(t, "the watch brings "+name, func() error {
			if at := kind.SeenVersion(); Older(at, made.ResourceVersion) {
				return fmt.Errorf("it is at %s, not at %s", at, made.ResourceVersion)
			}
			return nil
		})
		if _, ok := kind.Get(namespace, name); !ok {
			t.Fatalf("%s was made at %s; %s has been seen, and it is not there", name, made.ResourceVersion, kind.SeenVersion())
		}
		for <-told != name { // the namespace has a ConfigMap of its own
		}
	}
}
