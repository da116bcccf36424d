package cpus

import (
	"fmt"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
)

// Mode is how the pods of a run ask for CPUs.
type Mode string

// The modes, in the order in which they take turns.
const (
	Unpinned    Mode = "unpinned"
	Pinned      Mode = "pinned"
	StaticBurst Mode = "static-burst"
)

var modes = []Mode{Unpinned, Pinned, StaticBurst}

// annotations are those of a pod in the mode.
func (m Mode) annotations() map[string]string {
	switch m {
	case Pinned:
		return map[string]string{topologyv1alpha1.RequestAnnotation: "true"}
	case StaticBurst:
		return map[string]string{topologyv1alpha1.ACKSchedulerAnnotation: "true", topologyv1alpha1.ACKPolicyAnnotation: "static-burst"}
	}
	return nil
}

// Plan is what runs on a machine.
type Plan struct {
	// Small says that the machine cannot show a difference, and Why.
	Small bool   `json:"small"`
	Why   string `json:"why,omitempty"`
	// Server and Pi are the CPUs of the web server and of each computation, of which there are PiPods.
	Server int `json:"server"`
	Pi     int `json:"pi"`
	PiPods int `json:"piPods"`
	// Together: all run at once. Otherwise the computation begins when the server's client has ended.
	Together bool `json:"together"`
}

// cpusMin is what a machine must have for several programs of several CPUs each.
const cpusMin = 8

// planFor chooses sizes for a machine: an L3 domain, or a part of it, for the server; as much for each computation; a third
// of the machine for the client and everything else.
func planFor(c topologyv1alpha1.Counts) Plan {
	switch {
	case c.CPUs < cpusMin:
		return Plan{Small: true, Why: fmt.Sprintf("it has %d CPUs", c.CPUs), Server: 1, Pi: 1, PiPods: 1}
	case c.L3 < 2:
		return Plan{Small: true, Why: fmt.Sprintf("its %d CPUs share one L3 cache", c.CPUs), Server: 2, Pi: 2, PiPods: 1}
	}
	each := max(2, min(int(c.CPUs/c.L3), int(c.CPUs)/4))
	return Plan{Server: each, Pi: each, PiPods: max(1, int(c.CPUs)*2/3/each-1), Together: true}
}
