package kubelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/reservation"
)

// ConfigFile is the name of the configuration in the kubelet's root directory.
const ConfigFile = "config.yaml"

// Config is the part of a kubelet's configuration that matters here.
type Config struct {
	ReservedSystemCPUs      string            `json:"reservedSystemCPUs"`
	KubeReserved            map[string]string `json:"kubeReserved"`
	SystemReserved          map[string]string `json:"systemReserved"`
	CPUManagerPolicy        string            `json:"cpuManagerPolicy"`
	CPUManagerPolicyOptions map[string]string `json:"cpuManagerPolicyOptions"`
	TopologyManagerPolicy   string            `json:"topologyManagerPolicy"`
	// CPUCFSQuota is false if the kubelet turns no limits into CFS quotas.
	CPUCFSQuota *bool `json:"cpuCFSQuota"`
}

// ReadConfig reads a kubelet's configuration. Without a file it is empty.
func ReadConfig(path string) (Config, error) {
	var config Config
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
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

// Reserve returns the CPUs that the kubelet keeps for the system. CPUs by number take the place of the
// numbers of CPUs that it keeps for itself and for the system.
func (c Config) Reserve() (reservation.Reserve, error) {
	named, err := cpuset.Parse(c.ReservedSystemCPUs)
	if err != nil {
		return reservation.Reserve{}, fmt.Errorf("reservedSystemCPUs: %w", err)
	}
	if !named.IsEmpty() {
		return reservation.Reserve{Named: named}, nil
	}
	milli := int64(0)
	for field, list := range map[string]map[string]string{"kubeReserved": c.KubeReserved, "systemReserved": c.SystemReserved} {
		if list["cpu"] == "" {
			continue
		}
		q, err := resource.ParseQuantity(list["cpu"])
		if err != nil {
			return reservation.Reserve{}, fmt.Errorf("%s.cpu: %w", field, err)
		}
		milli += q.MilliValue()
	}
	return reservation.Reserve{Count: int(math.Ceil(float64(milli) / 1000))}, nil
}

// Refusal returns why the kubelet may refuse pods whose CPUs others have chosen, or "": its topology
// manager and some options of its static policy refuse pods for which they find no CPUs that suit them.
func (c Config) Refusal() string {
	if p := c.TopologyManagerPolicy; p == "restricted" || p == "single-numa-node" {
		return "its topologyManagerPolicy is " + p
	}
	if slices.Contains([]string{"true", "1"}, c.CPUManagerPolicyOptions["full-pcpus-only"]) {
		return "its cpuManagerPolicyOptions have full-pcpus-only"
	}
	return ""
}

// nodeReservation is the value of Koordinator's annotation of nodes.
type nodeReservation struct {
	Resources    map[string]resource.Quantity `json:"resources"`
	ReservedCPUs string                       `json:"reservedCPUs"`
}

// ReserveOfNode parses the annotation by which Koordinator's users keep CPUs of a node for the system.
// As in Koordinator, CPUs by number take the place of their number.
func ReserveOfNode(value string) (reservation.Reserve, error) {
	if value == "" {
		return reservation.Reserve{}, nil
	}
	var r nodeReservation
	if err := json.Unmarshal([]byte(value), &r); err != nil {
		return reservation.Reserve{}, err
	}
	named, err := cpuset.Parse(r.ReservedCPUs)
	if err != nil {
		return reservation.Reserve{}, fmt.Errorf("reservedCPUs: %w", err)
	}
	if !named.IsEmpty() {
		return reservation.Reserve{Named: named}, nil
	}
	cpu := r.Resources["cpu"]
	return reservation.Reserve{Count: int(math.Ceil(float64(cpu.MilliValue()) / 1000))}, nil
}
