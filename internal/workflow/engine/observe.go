package engine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// mainContainer is the container whose exit decides how the template ends, unless the pod is a
// container set.
const mainContainer = "main"

// The exit codes of containers that the kubelet has ended.
const exitTerm, exitKill = 128 + 15, 128 + 9

// Observe returns the state of a pod. The caller adds the outputs, because their transport is a
// matter of the executor and the controller.
//
// The pod failed if a container of the template exits non-zero; it is in error if something before
// or around that container fails (the kubelet, a helper container, the node). Sidecars that end by
// a signal after main is done do not count as failures.
func Observe(pod *corev1.Pod) PodState {
	s := PodState{
		NodeID: pod.Annotations[wf.AnnotationNodeID], Phase: pod.Status.Phase, PodIP: pod.Status.PodIP,
		HostName:   pod.Spec.NodeName,
		Containers: map[string]ContainerState{},
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			s.Ready = c.Status == corev1.ConditionTrue
		}
	}
	for i := range pod.Status.ContainerStatuses {
		c := &pod.Status.ContainerStatuses[i]
		s.Containers[c.Name] = observeContainer(c)
		if t := c.State.Terminated; t != nil && c.Name == mainContainer {
			code := t.ExitCode
			s.ExitCode = &code
		}
		if w := c.State.Waiting; w != nil && s.Phase == corev1.PodPending && w.Message != "" {
			s.Message = fmt.Sprintf("%s: %s", w.Reason, w.Message)
		}
	}
	switch pod.Status.Phase {
	case corev1.PodFailed:
		s.Message, s.Error = failure(pod)
		if s.Message == "" && membersEnded(pod) {
			s.Phase = corev1.PodSucceeded // only sidecars and injected containers were killed
		}
	case corev1.PodPending:
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && s.Message == "" {
				s.Message = fmt.Sprintf("%s: %s", c.Reason, c.Message)
			}
		}
	}
	return s
}

// isMember reports whether a container is one of the template: main, or one of a container set.
func isMember(pod *corev1.Pod, container string) bool {
	if names, isSet := pod.Annotations[wf.AnnotationMembers]; isSet {
		return slices.Contains(strings.Split(names, ","), container)
	}
	return container == mainContainer
}

// membersEnded reports whether the containers of the template have ended.
func membersEnded(pod *corev1.Pod) bool {
	ended := false
	for i := range pod.Status.ContainerStatuses {
		if c := &pod.Status.ContainerStatuses[i]; isMember(pod, c.Name) {
			if c.State.Terminated == nil {
				return false
			}
			ended = true
		}
	}
	return ended
}

// LeftOver returns the names of the containers that keep a pod running although the containers of
// the template have ended: admission has injected them, or a podSpecPatch has added them. Sidecars
// that are init containers are not among them: the kubelet ends those.
func LeftOver(pod *corev1.Pod) (names []string) {
	if pod.Status.Phase != corev1.PodRunning || !membersEnded(pod) {
		return nil
	}
	for i := range pod.Status.ContainerStatuses {
		if c := &pod.Status.ContainerStatuses[i]; !isMember(pod, c.Name) && c.State.Terminated == nil {
			names = append(names, c.Name)
		}
	}
	return names
}

func observeContainer(c *corev1.ContainerStatus) ContainerState {
	switch t := c.State.Terminated; {
	case t != nil && t.ExitCode == 0:
		return ContainerState{Phase: wf.PhaseSucceeded}
	case t != nil:
		return ContainerState{wf.PhaseFailed, exitMessage(t)}
	case c.State.Running != nil:
		return ContainerState{Phase: wf.PhaseRunning}
	}
	return ContainerState{Phase: wf.PhasePending}
}

// failure returns why a pod failed. isError is true if the cluster, not the user's program, caused
// the failure.
func failure(pod *corev1.Pod) (message string, isError bool) {
	ending := pod.Annotations[wf.AnnotationEnding] != "" && membersEnded(pod) // the deadline is the manager's
	if pod.Status.Message != "" && !ending {
		// The cause is an eviction or a deadline: Failed as in Argo, so that the default policy
		// retries it.
		return pod.Status.Message, false
	}
	if pod.Status.Reason != "" && len(pod.Status.ContainerStatuses) == 0 {
		return pod.Status.Reason, true
	}
	hasMember := false
	for i := range pod.Status.ContainerStatuses {
		hasMember = hasMember || isMember(pod, pod.Status.ContainerStatuses[i].Name)
	}
	for i := range pod.Status.ContainerStatuses {
		c := &pod.Status.ContainerStatuses[i]
		t := c.State.Terminated
		if t == nil || t.ExitCode == 0 {
			continue
		}
		switch {
		case isMember(pod, c.Name), !hasMember:
			return fmt.Sprintf("%s: %s", c.Name, exitMessage(t)), false
		}
	}
	// Init containers come last: some of them are sidecars, which end by a signal when main is
	// done.
	for i := range pod.Status.InitContainerStatuses {
		c := &pod.Status.InitContainerStatuses[i]
		t := c.State.Terminated
		if t == nil || t.ExitCode == 0 || ending && (t.ExitCode == exitTerm || t.ExitCode == exitKill) {
			continue
		}
		return fmt.Sprintf("%s: %s", c.Name, exitMessage(t)), true
	}
	return "", false
}

func exitMessage(t *corev1.ContainerStateTerminated) string {
	message := fmt.Sprintf("%s (exit code %d)", cmp.Or(t.Reason, "Error"), t.ExitCode)
	if text := strings.TrimSpace(t.Message); text != "" && !strings.HasPrefix(text, "{") {
		message += ": " + shorten(text)
	}
	return message
}
