package flow

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	api "lockstep.dev/lockstep/api/flow/v1alpha1"
)

// jobNameMax bounds the names of Jobs: pods are called JOB-TASK-INDEX, in at most 63 characters.
const jobNameMax = 63 - len("-t-0")

// jobName returns the name of the Job of an entry.
func jobName(flow, entry string) string { return flow + "-" + entry }

// Validate returns the first error of a JobFlow's spec that needs no other object to be seen. The
// message begins with the path of the field.
func Validate(f *api.JobFlow) error {
	at := map[string]int{}
	for i := range f.Spec.Flows {
		entry := &f.Spec.Flows[i]
		path := fmt.Sprintf("spec.flows[%d]", i)
		if entry.Name == "" {
			return fmt.Errorf("%s.name: is required", path)
		}
		if first, twice := at[entry.Name]; twice {
			return fmt.Errorf("%s.name: %q is also the name of spec.flows[%d]", path, entry.Name, first)
		}
		at[entry.Name] = i
		if name := jobName(f.Name, entry.Name); len(name) > jobNameMax {
			return fmt.Errorf("%s.name: the Job would be called %s, which has more than %d characters", path, name, jobNameMax)
		}
	}
	for i := range f.Spec.Flows {
		d := f.Spec.Flows[i].DependsOn
		if d == nil {
			continue
		}
		path := fmt.Sprintf("spec.flows[%d].dependsOn", i)
		for j, target := range d.Targets {
			if _, found := at[target]; !found {
				return fmt.Errorf("%s.targets[%d]: there is no flow %q", path, j, target)
			}
		}
		if err := checkProbe(path, d); err != nil {
			return err
		}
	}
	if circle := circleIn(f.Spec.Flows, at); circle != nil {
		return fmt.Errorf("spec.flows[%d].dependsOn.targets: flows wait for each other: %s", at[circle[0]], strings.Join(circle, " waits for "))
	}
	return nil
}

// podPhases are the phases that a probe may name.
var podPhases = []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed, corev1.PodUnknown}

func checkProbe(path string, d *api.DependsOn) error {
	if d.Probe == nil {
		return nil
	}
	path += ".probe"
	if len(d.Targets) == 0 && len(d.Probe.HTTPGetList)+len(d.Probe.TCPSocketList)+len(d.Probe.TaskStatusList) > 0 {
		return fmt.Errorf("%s: there are no targets whose tasks could be probed", path)
	}
	for i, h := range d.Probe.HTTPGetList {
		at := fmt.Sprintf("%s.httpGetList[%d]", path, i)
		switch {
		case h.TaskName == "":
			return fmt.Errorf("%s.taskName: is required", at)
		case h.Port < 1 || h.Port > 65535:
			return fmt.Errorf("%s.port: must be from 1 to 65535", at)
		case h.Path != "" && !strings.HasPrefix(h.Path, "/"):
			return fmt.Errorf("%s.path: must begin with /", at)
		}
		if _, err := requestURL(h.Path, "127.0.0.1", h.Port); err != nil {
			return fmt.Errorf("%s.path: is no path of a URL", at)
		}
		if header := h.HTTPHeader; header != nil && (header.Name != "" || header.Value != "") {
			if problems := validation.IsHTTPHeaderName(header.Name); len(problems) > 0 {
				return fmt.Errorf("%s.httpHeader.name: %s", at, problems[0])
			}
			if strings.ContainsFunc(header.Value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
				return fmt.Errorf("%s.httpHeader.value: must not contain control characters", at)
			}
		}
	}
	for i, s := range d.Probe.TCPSocketList {
		at := fmt.Sprintf("%s.tcpSocketList[%d]", path, i)
		switch {
		case s.TaskName == "":
			return fmt.Errorf("%s.taskName: is required", at)
		case s.Port < 1 || s.Port > 65535:
			return fmt.Errorf("%s.port: must be from 1 to 65535", at)
		}
	}
	for i, s := range d.Probe.TaskStatusList {
		at := fmt.Sprintf("%s.taskStatusList[%d]", path, i)
		switch {
		case s.TaskName == "":
			return fmt.Errorf("%s.taskName: is required", at)
		case !slices.Contains(podPhases, s.Phase):
			return fmt.Errorf("%s.phase: %q is not known; there are Pending, Running, Succeeded, Failed, Unknown", at, s.Phase)
		}
	}
	return nil
}

// circleIn returns the names along a circle of dependencies, the first one again at the end, or nil.
func circleIn(flows []api.Flow, at map[string]int) []string {
	const (
		fresh = iota
		open
		closed
	)
	targets := func(i int) []string {
		if flows[i].DependsOn == nil {
			return nil
		}
		return flows[i].DependsOn.Targets
	}
	state := make([]int, len(flows))
	for start := range flows {
		if state[start] != fresh {
			continue
		}
		path, next := []int{start}, []int{0} // next[i] is the target of path[i] to follow next
		state[start] = open
		for len(path) > 0 {
			last := len(path) - 1
			i := path[last]
			if next[last] == len(targets(i)) {
				state[i] = closed
				path, next = path[:last], next[:last]
				continue
			}
			to := at[targets(i)[next[last]]]
			next[last]++
			switch state[to] {
			case open:
				var names []string
				for _, j := range path[slices.Index(path, to):] {
					names = append(names, flows[j].Name)
				}
				return append(names, flows[to].Name)
			case fresh:
				state[to] = open
				path, next = append(path, to), append(next, 0)
			}
		}
	}
	return nil
}
