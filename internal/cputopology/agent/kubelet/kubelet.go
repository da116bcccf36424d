// Package kubelet reads what a kubelet's static CPU manager has pinned by itself, from its checkpoint.
package kubelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"lockstep.dev/lockstep/internal/cputopology/agent/desire"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// StateFile is where kubelets keep the checkpoint, in their root directory.
const StateFile = "cpu_manager_state"

// checkpointBytesMax bounds the checkpoint: a thousand pods take some hundred kilobytes.
const checkpointBytesMax = 8 << 20

const policyStatic = "static"

// checkpoint is the file's content; entries of kubelets before 1.18, which are not by container, and the checksum are not read: a checkpoint whose
// checksum is wrong stops the kubelet from starting, and what it has pinned is still pinned.
type checkpoint struct {
	PolicyName string                           `json:"policyName"`
	Entries    map[string]map[string]cpuset.Set `json:"entries"`
	// PodEntries are CPUs of whole pods (version 3), of which the containers' are parts.
	PodEntries map[string]podEntry `json:"podEntries"`
}

type podEntry struct {
	CPUSet cpuset.Set `json:"cpuSet"`
}

// Read reads a checkpoint. No file is no static policy: the kubelet has not written it yet, or is told to keep none.
func Read(path string) (desire.Kubelet, error) {
	data, err := os.ReadFile(path) // the kubelet replaces the file as a whole
	if errors.Is(err, fs.ErrNotExist) {
		return desire.Kubelet{}, nil
	}
	if err != nil {
		return desire.Kubelet{}, err
	}
	s, err := Parse(data)
	if err != nil {
		return s, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// Parse reads a checkpoint's content.
func Parse(data []byte) (desire.Kubelet, error) {
	if len(data) > checkpointBytesMax {
		return desire.Kubelet{}, fmt.Errorf("%d bytes, above the limit of %d", len(data), checkpointBytesMax)
	}
	var c checkpoint
	if err := json.Unmarshal(data, &c); err != nil {
		return desire.Kubelet{}, err
	}
	if c.PolicyName != policyStatic {
		return desire.Kubelet{}, nil
	}
	s := desire.Kubelet{Static: true, Pins: c.Entries}
	if s.Pins == nil {
		s.Pins = map[string]map[string]cpuset.Set{}
	}
	for uid, pod := range c.PodEntries {
		if s.Pins[uid] == nil {
			s.Pins[uid] = map[string]cpuset.Set{}
		}
		s.Pins[uid][desire.WholePod] = pod.CPUSet
	}
	return s, nil
}
