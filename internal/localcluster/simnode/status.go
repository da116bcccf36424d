package simnode

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/kwok/pkg/utils/gotpl"
)

// hostIP is the address of every simulated node.
const hostIP = "127.0.0.1"

// templateFunctions returns the functions of the stages' templates: each converts an object into
// its next status, as JSON.
func templateFunctions(now func() time.Time) gotpl.FuncMap {
	return gotpl.FuncMap{
		"NodeReady": typed(func(n *corev1.Node) any { return nodeReady(n, metav1.NewTime(now())) }),
	}
}

// typed adapts f to templates, which see objects as decoded JSON.
func typed[T any](f func(*T) any) func(any) (string, error) {
	return func(object any) (string, error) {
		data, err := json.Marshal(object)
		if err != nil {
			return "", err
		}
		var t T
		if err := json.Unmarshal(data, &t); err != nil {
			return "", err
		}
		status, err := json.Marshal(f(&t))
		return string(status), err
	}
}

// podRunning returns the status of a pod whose containers have all started at now.
func podRunning(pod *corev1.Pod, now metav1.Time) *corev1.PodStatus {
	ip := podIP(pod)
	status := &corev1.PodStatus{
		Phase:     corev1.PodRunning,
		StartTime: &now,
		HostIP:    hostIP,
		HostIPs:   []corev1.HostIP{{IP: hostIP}},
		PodIP:     ip,
		PodIPs:    []corev1.PodIP{{IP: ip}},
		Conditions: []corev1.PodCondition{
			podCondition(corev1.PodInitialized, true, "", now),
			podCondition(corev1.ContainersReady, true, "", now),
			podCondition(corev1.PodReady, true, "", now),
		},
	}
	for _, gate := range pod.Spec.ReadinessGates {
		status.Conditions = append(status.Conditions, podCondition(gate.ConditionType, true, "", now))
	}
	for _, c := range pod.Spec.InitContainers {
		if ptr.Deref(c.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways {
			status.InitContainerStatuses = append(status.InitContainerStatuses, running(c, 0, now))
			continue
		}
		done := corev1.ContainerStatus{Name: c.Name, Image: c.Image, ImageID: c.Image, Ready: true}
		done.State.Terminated = &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: now, FinishedAt: now}
		status.InitContainerStatuses = append(status.InitContainerStatuses, done)
	}
	for _, c := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, running(c, 0, now))
	}
	return status
}

func running(c corev1.Container, restarts int32, now metav1.Time) corev1.ContainerStatus {
	s := corev1.ContainerStatus{Name: c.Name, Image: c.Image, ImageID: c.Image, Ready: true, Started: ptr.To(true), RestartCount: restarts}
	s.State.Running = &corev1.ContainerStateRunning{StartedAt: now}
	return s
}

func podCondition(kind corev1.PodConditionType, ok bool, reason string, now metav1.Time) corev1.PodCondition {
	status := corev1.ConditionFalse
	if ok {
		status = corev1.ConditionTrue
	}
	return corev1.PodCondition{Type: kind, Status: status, Reason: reason, LastTransitionTime: now}
}

// podFinished returns the status of a pod whose containers have exited at now. The containers are
// restarted if the restart policy says so; otherwise the pod has succeeded or failed.
func podFinished(pod *corev1.Pod, now metav1.Time) *corev1.PodStatus {
	code, message := outcome(pod.Annotations)
	again := pod.Spec.RestartPolicy == corev1.RestartPolicyAlways ||
		pod.Spec.RestartPolicy == corev1.RestartPolicyOnFailure && code != 0

	status := &corev1.PodStatus{}
	for i, c := range pod.Spec.Containers {
		exit := terminated(pod, i, code, message, now)
		if again {
			s := running(c, restartCount(pod, i)+1, now)
			s.LastTerminationState.Terminated = exit
			status.ContainerStatuses = append(status.ContainerStatuses, s)
			continue
		}
		s := corev1.ContainerStatus{Name: c.Name, Image: c.Image, ImageID: c.Image, Started: ptr.To(false), RestartCount: restartCount(pod, i)}
		s.State.Terminated = exit
		status.ContainerStatuses = append(status.ContainerStatuses, s)
	}
	if again {
		// startTime stays and the containers' startedAt is new: apart from the counts the pod is
		// unchanged.
		status.Phase = corev1.PodRunning
		return status
	}
	status.Phase = corev1.PodSucceeded
	reason := "PodCompleted"
	if code != 0 {
		status.Phase, reason = corev1.PodFailed, "PodFailed"
	}
	status.Conditions = []corev1.PodCondition{
		podCondition(corev1.ContainersReady, false, reason, now),
		podCondition(corev1.PodReady, false, reason, now),
	}
	return status
}

// outcome returns how a pod's containers end. An invalid annotation is a failure with a message
// about it.
func outcome(annotations map[string]string) (code int32, message string) {
	message = annotations[AnnotationMessage]
	if s := annotations[AnnotationDuration]; s != "" {
		if _, err := time.ParseDuration(s); err != nil {
			return 128, fmt.Sprintf("annotation %s: %v", AnnotationDuration, err)
		}
	}
	if s := annotations[AnnotationExitCode]; s != "" {
		n, err := strconv.ParseUint(s, 10, 8)
		if err != nil {
			return 128, fmt.Sprintf("annotation %s: %q is not an exit code from 0 to 255", AnnotationExitCode, s)
		}
		return int32(n), message
	}
	return 0, message
}

func terminated(pod *corev1.Pod, i int, code int32, message string, now metav1.Time) *corev1.ContainerStateTerminated {
	t := &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Completed", Message: message, StartedAt: now, FinishedAt: now}
	if code != 0 {
		t.Reason = "Error"
	}
	if i < len(pod.Status.ContainerStatuses) {
		if r := pod.Status.ContainerStatuses[i].State.Running; r != nil {
			t.StartedAt = r.StartedAt
		}
	}
	return t
}

func restartCount(pod *corev1.Pod, i int) int32 {
	if i < len(pod.Status.ContainerStatuses) {
		return pod.Status.ContainerStatuses[i].RestartCount
	}
	return 0
}

// nodeReady returns the status of a healthy node at now. Transition times are kept where nothing
// changed.
func nodeReady(node *corev1.Node, now metav1.Time) *corev1.NodeStatus {
	status := &corev1.NodeStatus{Phase: corev1.NodeRunning}
	want := map[corev1.NodeConditionType]corev1.ConditionStatus{
		corev1.NodeReady:          corev1.ConditionTrue,
		corev1.NodeMemoryPressure: corev1.ConditionFalse,
		corev1.NodeDiskPressure:   corev1.ConditionFalse,
		corev1.NodePIDPressure:    corev1.ConditionFalse,
	}
	for kind, value := range want {
		c := corev1.NodeCondition{Type: kind, Status: value, Reason: "Simulated", LastHeartbeatTime: now, LastTransitionTime: now}
		for _, old := range node.Status.Conditions {
			if old.Type == kind && old.Status == value {
				c.LastTransitionTime = old.LastTransitionTime
			}
		}
		status.Conditions = append(status.Conditions, c)
	}
	if len(node.Status.Allocatable) == 0 {
		status.Allocatable = node.Status.Capacity
	}
	if len(node.Status.Capacity) == 0 {
		status.Capacity = corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse("32"),
			corev1.ResourceMemory: resource.MustParse("256Gi"),
			corev1.ResourcePods:   resource.MustParse("110"),
		}
		status.Allocatable = status.Capacity
	}
	return status
}
