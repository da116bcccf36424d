package localtest_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

func TestMain(m *testing.M) { localtest.Main(m) }

func TestSharedClusterTakesPods(t *testing.T) {
	c := localtest.Shared(t)
	client := kubernetes.NewForConfigOrDie(c.RESTConfig())
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "p-"},
		Spec:       corev1.PodSpec{NodeName: "somewhere", Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	if _, err := client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}
