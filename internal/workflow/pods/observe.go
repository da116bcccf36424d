package pods

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/engine"
	"lockstep.dev/lockstep/internal/workflow/execapi"
)

// Observe returns the state of a node's pod, outputs included. result is the node's
// WorkflowTaskResult, or nil if there is none or the watch has not shown it yet.
func Observe(pod *corev1.Pod, result *wf.WorkflowTaskResult) engine.PodState {
	s := engine.Observe(pod)
	var out wf.Outputs
	some := false
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			t := list[i].State.Terminated
			if t == nil {
				continue
			}
			report, found := execapi.DecodeReport(t.Message)
			if !found {
				continue
			}
			some = true
			read(&s, &out, list[i].Name, &report)
			if report.Elsewhere && (result == nil || result.Outputs == nil) {
				s.Awaited = true
			}
		}
	}
	blame(&s, pod)
	if result != nil {
		s.Progress = cmp.Or(s.Progress, result.Progress) // the report at the pod's end is newer
	}
	if result != nil && result.Outputs != nil {
		merge(&out, result.Outputs)
		some = true
	}
	if some {
		s.Outputs = &out
	}
	return s
}

// read adds the report of one container to s and out.
func read(s *engine.PodState, out *wf.Outputs, container string, r *execapi.Report) {
	if r.Result != nil {
		out.Result = r.Result
	}
	for _, name := range slices.Sorted(maps.Keys(r.Parameters)) {
		out.Parameters = append(out.Parameters, wf.Parameter{Name: name, Value: wf.Any(r.Parameters[name])})
	}
	for _, saved := range r.Artifacts {
		a := wf.Artifact{Name: saved.Name}
		if err := json.Unmarshal(saved.Location, &a.ArtifactLocation); err == nil {
			out.Artifacts = append(out.Artifacts, a)
		}
	}
	if r.Plain {
		s.ExitCode = nil
	}
	s.Progress = cmp.Or(r.Progress, s.Progress)
	switch c := s.Containers[container]; {
	case r.Omitted != "":
		c.Phase, c.Message = wf.PhaseOmitted, "omitted: container "+r.Omitted+" failed"
		s.Containers[container] = c
	case r.Failed:
		// An executor that fails is an error of the platform, whatever the command did.
		s.Phase, s.Error, s.Message = corev1.PodFailed, true, container+": "+r.Message
		if container == MainContainer || container == WaitContainer {
			s.Message = r.Message
		}
		if r.Exit != nil {
			s.ExitCode = ptr.To(int32(*r.Exit))
		}
		if _, found := s.Containers[container]; found {
			s.Containers[container] = engine.ContainerState{Phase: wf.PhaseError, Message: r.Message}
		}
	case r.Plain && s.Phase != corev1.PodRunning:
		s.Message = r.Message
	case r.Message != "" && s.Phase == corev1.PodFailed && container == MainContainer:
		s.Message = cmp.Or(s.Message, "Error") + ": " + r.Message
	}
}

// blame sets the message to that of the failed container if other containers of its set were
// omitted because of it.
func blame(s *engine.PodState, pod *corev1.Pod) {
	omitted, failed := false, ""
	for i := range pod.Status.ContainerStatuses {
		name := pod.Status.ContainerStatuses[i].Name
		switch s.Containers[name].Phase {
		case wf.PhaseOmitted:
			omitted = true
		case wf.PhaseFailed:
			failed = cmp.Or(failed, name)
		}
	}
	if omitted && failed != "" && s.Phase == corev1.PodFailed && !s.Error {
		s.Message = failed + ": " + s.Containers[failed].Message
	}
}

// merge adds the outputs of a WorkflowTaskResult to out.
func merge(out, more *wf.Outputs) {
	if more.Result != nil {
		out.Result = more.Result
	}
	if more.ExitCode != nil {
		if _, err := strconv.Atoi(*more.ExitCode); err == nil {
			out.ExitCode = more.ExitCode
		}
	}
	out.Parameters = append(out.Parameters, more.Parameters...)
	out.Artifacts = append(out.Artifacts, more.Artifacts...)
}
