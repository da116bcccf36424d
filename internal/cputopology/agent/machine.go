package agent

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"time"

	"sigs.k8s.io/yaml"

	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/sysfs"
)

// machine is the state read from sysfs. A complete read takes thousands of files, so it is done
// when the set of online CPUs changes, and every machineInterval.
type machine struct {
	root     fs.FS
	reserved cpuset.Set

	topology *cputopology.Topology
	layout   *allocate.Layout
	online   []byte
	next     time.Time
}

const (
	onlineFile = "sys/devices/system/cpu/online"
	// machineInterval is the interval between complete reads: memory may be added while a machine
	// runs.
	machineInterval = 10 * time.Minute
)

// refresh reads what may have changed, and reports whether anything has.
func (m *machine) refresh(now time.Time) (bool, error) {
	online, err := fs.ReadFile(m.root, onlineFile)
	if err != nil {
		return false, err
	}
	if m.topology != nil && bytes.Equal(online, m.online) && now.Before(m.next) {
		return false, nil
	}
	topology, err := sysfs.Read(m.root)
	if err != nil {
		return false, err
	}
	m.online, m.next = online, now.Add(machineInterval)
	if m.topology != nil && m.topology.Hash() == topology.Hash() {
		return false, nil
	}
	layout, err := allocate.NewLayout(topology, m.reserved)
	if err != nil {
		return false, err
	}
	m.topology, m.layout = topology, layout
	return true, nil
}

// kubeletConfig is the part of a kubelet's configuration that matters here.
type kubeletConfig struct {
	ReservedSystemCPUs string `json:"reservedSystemCPUs"`
	// CPUCFSQuota is false if the kubelet turns no limits into CFS quotas.
	CPUCFSQuota *bool `json:"cpuCFSQuota"`
}

// readKubeletConfig reads a kubelet's configuration. Without a file it is empty.
func readKubeletConfig(path string) (kubeletConfig, error) {
	var config kubeletConfig
	data, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return config, nil
	}
	if err != nil {
		return config, err
	}
	if err := yaml.Unmarshal(data, &config); err != nil {
		return config, fmt.Errorf("%s: %w", path, err)
	}
	return config, nil
}

// ReservedByKubelet returns the CPUs that a kubelet's configuration reserves for the system.
// Without a file no CPUs are reserved.
func ReservedByKubelet(path string) (cpuset.Set, error) {
	config, err := readKubeletConfig(path)
	if err != nil {
		return cpuset.Set{}, err
	}
	set, err := cpuset.Parse(config.ReservedSystemCPUs)
	if err != nil {
		return set, fmt.Errorf("%s: reservedSystemCPUs: %w", path, err)
	}
	return set, nil
}
