package localcluster_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

func TestMain(m *testing.M) {
	localtest.Main(m, localtest.WithNodes(localcluster.Nodes{Count: 2}))
}

// eventually waits until ok returns true. It fails the test after a minute.
func eventually(t *testing.T, what string, ok func(context.Context) (bool, error)) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, ok); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func simulatedPod(name string, policy corev1.RestartPolicy, annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations, Labels: map[string]string{"test": "simnode"}},
		Spec: corev1.PodSpec{
			NodeName:      localcluster.NodeName(0),
			RestartPolicy: policy,
			Containers:    []corev1.Container{{Name: "main", Image: "none"}},
		},
	}
}

func TestSimulatedPodsLiveAsTheirAnnotationsSay(t *testing.T) {
	c := localtest.Shared(t)
	pods := kubernetes.NewForConfigOrDie(c.RESTConfig()).CoreV1().Pods("default")
	for _, tt := range []struct {
		name        string
		policy      corev1.RestartPolicy
		annotations map[string]string
		phase       corev1.PodPhase
		code        int32
		message     string
		restarts    int32
	}{
		{name: "runs", policy: corev1.RestartPolicyNever, phase: corev1.PodRunning},
		{name: "succeeds", policy: corev1.RestartPolicyNever, annotations: map[string]string{"lockstep.dev/sim-duration": "10ms"}, phase: corev1.PodSucceeded},
		{name: "fails", policy: corev1.RestartPolicyNever, annotations: map[string]string{"lockstep.dev/sim-duration": "10ms", "lockstep.dev/sim-exit-code": "7", "lockstep.dev/sim-message": "out of luck"},
			phase: corev1.PodFailed, code: 7, message: "out of luck"},
		{name: "succeeds-on-failure", policy: corev1.RestartPolicyOnFailure, annotations: map[string]string{"lockstep.dev/sim-duration": "10ms"}, phase: corev1.PodSucceeded},
		{name: "restarts-on-failure", policy: corev1.RestartPolicyOnFailure, annotations: map[string]string{"lockstep.dev/sim-duration": "10ms", "lockstep.dev/sim-exit-code": "1"}, phase: corev1.PodRunning, code: 1, restarts: 2},
		{name: "restarts-always", policy: corev1.RestartPolicyAlways, annotations: map[string]string{"lockstep.dev/sim-duration": "10ms"}, phase: corev1.PodRunning, restarts: 2},
		{name: "bad-duration", policy: corev1.RestartPolicyNever, annotations: map[string]string{"lockstep.dev/sim-duration": "soon"}, phase: corev1.PodFailed, code: 128,
			message: `annotation lockstep.dev/sim-duration: time: invalid duration "soon"`},
		{name: "bad-code", policy: corev1.RestartPolicyNever, annotations: map[string]string{"lockstep.dev/sim-duration": "1ms", "lockstep.dev/sim-exit-code": "256"}, phase: corev1.PodFailed, code: 128,
			message: `annotation lockstep.dev/sim-exit-code: "256" is not an exit code from 0 to 255`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := pods.Create(t.Context(), simulatedPod(tt.name, tt.policy, tt.annotations), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			var pod *corev1.Pod
			eventually(t, tt.name, func(ctx context.Context) (bool, error) {
				var err error
				if pod, err = pods.Get(ctx, tt.name, metav1.GetOptions{}); err != nil {
					return false, err
				}
				return pod.Status.Phase == tt.phase && pod.Status.ContainerStatuses[0].RestartCount >= tt.restarts, nil
			})
			s := pod.Status.ContainerStatuses[0]
			exit := s.State.Terminated
			if tt.restarts > 0 {
				exit = s.LastTerminationState.Terminated
			}
			if tt.phase == corev1.PodRunning && s.State.Running == nil {
				t.Errorf("a running pod's container is %+v", s.State)
			}
			if tt.phase != corev1.PodRunning || tt.restarts > 0 {
				if exit == nil {
					t.Fatalf("no exit in %+v", s)
				}
				if exit.ExitCode != tt.code || exit.Message != tt.message {
					t.Errorf("exit code %d, message %q; want %d, %q", exit.ExitCode, exit.Message, tt.code, tt.message)
				}
			}
			if err := pods.Delete(t.Context(), tt.name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			gone(t, pods.Get, tt.name)
		})
	}
}

func gone(t *testing.T, get func(context.Context, string, metav1.GetOptions) (*corev1.Pod, error), name string) {
	t.Helper()
	eventually(t, name+" is gone", func(ctx context.Context) (bool, error) {
		_, err := get(ctx, name, metav1.GetOptions{})
		return err != nil, nil
	})
}

func TestOnlySimulatedNodesAreSimulated(t *testing.T) {
	c := localtest.Shared(t)
	client := kubernetes.NewForConfigOrDie(c.RESTConfig())
	real := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "real"}}
	if _, err := client.CoreV1().Nodes().Create(t.Context(), real, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	late := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "late", Labels: map[string]string{localcluster.NodeTypeLabel: localcluster.NodeTypeSimulated}}}
	if _, err := client.CoreV1().Nodes().Create(t.Context(), late, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"real", "late"} {
		pod := simulatedPod("on-"+name, corev1.RestartPolicyNever, nil)
		pod.Spec.NodeName = name
		if _, err := client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "a node created later is simulated", func(ctx context.Context) (bool, error) {
		pod, err := client.CoreV1().Pods("default").Get(ctx, "on-late", metav1.GetOptions{})
		return err == nil && pod.Status.Phase == corev1.PodRunning, err
	})
	pod, err := client.CoreV1().Pods("default").Get(t.Context(), "on-real", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node, err := client.CoreV1().Nodes().Get(t.Context(), "real", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if pod.Status.Phase != corev1.PodPending || len(node.Status.Conditions) != 0 {
		t.Errorf("the real node was touched: pod %s, conditions %v", pod.Status.Phase, node.Status.Conditions)
	}
}

func TestBulkDeletionLeavesNothing(t *testing.T) {
	c := localtest.Shared(t)
	pods := kubernetes.NewForConfigOrDie(c.RESTConfig()).CoreV1().Pods("default")
	for i := range 50 {
		pod := simulatedPod(fmt.Sprintf("bulk-%d", i), corev1.RestartPolicyNever, nil)
		pod.Labels["test"] = "bulk"
		if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	selector := metav1.ListOptions{LabelSelector: "test=bulk"}
	if err := pods.DeleteCollection(t.Context(), metav1.DeleteOptions{}, selector); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all pods are gone", func(ctx context.Context) (bool, error) {
		list, err := pods.List(ctx, selector)
		return err == nil && len(list.Items) == 0, err
	})
}
