package controller

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestResourcesDuration(t *testing.T) {
	began := time.Unix(1_900_000_000, 0)
	p := &corev1.Pod{
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceEphemeralStorage: resource.MustParse("20Gi"),
			corev1.ResourceStorage: resource.MustParse("5Gi"), "example.com/gpu": resource.MustParse("3"), "example.com/huge": resource.MustParse("9E"),
		}}}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{StartedAt: metav1.NewTime(began), FinishedAt: metav1.NewTime(began.Add(100 * time.Second))},
		}}}},
	}
	want := map[corev1.ResourceName]int64{
		corev1.ResourceCPU: 200, corev1.ResourceMemory: 100, corev1.ResourceEphemeralStorage: 200, corev1.ResourceStorage: 50,
		"example.com/gpu": 300, "example.com/huge": resourceSecondsMax,
	}
	if diff := cmp.Diff(want, resourcesDuration(p)); diff != "" {
		t.Error(diff)
	}
}
