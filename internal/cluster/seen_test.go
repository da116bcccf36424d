package cluster

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

func TestMain(m *testing.M) { localtest.Main(m) }

// TestSeenVersionIsThatOfTheCache has the cache stand still while the watch goes on: what the watch has brought and the cache
// does not show is not seen, or else objects that exist would be taken for ones that are gone.
func TestSeenVersionIsThatOfTheCache(t *testing.T) {
	client := kubernetes.NewForConfigOrDie(localtest.Shared(t).RESTConfig())
	namespace := localtest.Namespace(t, client)
	held, release := make(chan struct{}), make(chan struct{})
	kind := newSelected(client.CoreV1().RESTClient(), "configmaps", selection{namespace: namespace}, &corev1.ConfigMap{}, nil,
		cache.Indexers{"held": func(o any) ([]string, error) {
			if o.(*corev1.ConfigMap).Name == "holds" {
				close(held)
				<-release
			}
			return nil, nil
		}})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go kind.Run(ctx)
	localtest.Eventually(t, 20*time.Second, "the watch runs", func() error {
		if !kind.Synced() {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	create := func(name string) string {
		made, err := client.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return made.ResourceVersion
	}
	holds := create("holds")
	<-held
	later := create("later")
	localtest.Eventually(t, 20*time.Second, "the watch has brought the later one", func() error {
		if at := kind.informer.LastSyncResourceVersion(); Older(at, later) {
			return fmt.Errorf("it is at %s, not yet at %s", at, later)
		}
		return nil
	})
	seen := make(chan string, 1)
	go func() { seen <- kind.SeenVersion() }()
	for range 5 { // time enough for an answer that does not ask the cache
		if _, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, "later", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case at := <-seen:
		if !Older(at, holds) {
			t.Errorf("seen %s while the cache has not taken in %s", at, holds)
		}
	default: // it waits for the cache
	}
	close(release)
	localtest.Eventually(t, 20*time.Second, "the cache catches up", func() error {
		if at := kind.SeenVersion(); Older(at, later) {
			return fmt.Errorf("it is at %s, not yet at %s", at, later)
		}
		if _, ok := kind.Get(namespace, "later"); !ok {
			return fmt.Errorf("seen, but not there")
		}
		return nil
	})
}
