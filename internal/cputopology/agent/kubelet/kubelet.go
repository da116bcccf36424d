// Package kubelet reads the pins of a kubelet's static CPU manager from the manager's checkpoint.
package kubelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"lockstep.dev/lockstep/internal/cputopology/agent/desired"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// StateFile is the name of the checkpoint in the kubelet's root directory.
const StateFile = "cpu_manager_state"

// checkpointBytesMax bounds the checkpoint. A thousand pods take some hundred kilobytes.
const checkpointBytesMax = 8 << 20

// PolicyStatic is the name of the policy that pins containers.
const PolicyStatic = "static"

// checkpoint is the content of the file. Entries of kubelets before 1.18, which are not by
// container, and the checksum are not read: a checkpoint with a wrong checksum stops the kubelet
// from starting, but its pins are still in force.
type checkpoint struct {
	PolicyName string                           `json:"policyName"`
	Entries    map[string]map[string]cpuset.Set `json:"entries"`
	// PodEntries are the CPUs of whole pods (version 3), of which the containers' CPUs are parts.
	PodEntries map[string]podEntry `json:"podEntries"`
}

type podEntry struct {
	CPUSet cpuset.Set `json:"cpuSet"`
}

// Read reads a checkpoint. A missing file means that there is no static policy: the kubelet has not
// written it yet, or keeps none.
func Read(path string) (desired.Kubelet, error) {
	data, err := os.ReadFile(path) // the kubelet replaces the file as a whole
	if errors.Is(err, fs.ErrNotExist) {
		return desired.Kubelet{}, nil
	}
	if err != nil {
		return desired.Kubelet{}, err
	}
	s, err := Parse(data)
	if err != nil {
		return s, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// Parse parses the content of a checkpoint.
func Parse(data []byte) (desired.Kubelet, error) {
	if len(data) > checkpointBytesMax {
		return desired.Kubelet{}, fmt.Errorf("%d bytes, above the limit of %d", len(data), checkpointBytesMax)
	}
	var c checkpoint
	if err := json.Unmarshal(data, &c); err != nil {
		return desired.Kubelet{}, err
	}
	if c.PolicyName != PolicyStatic {
		return desired.Kubelet{}, nil
	}
	s := desired.Kubelet{Static: true, Pins: c.Entries}
	if s.Pins == nil {
		s.Pins = map[string]map[string]cpuset.Set{}
	}
	for uid, pod := range c.PodEntries {
		if s.Pins[uid] == nil {
			s.Pins[uid] = map[string]cpuset.Set{}
		}
		s.Pins[uid][desired.WholePod] = pod.CPUSet
	}
	return s, nil
}
