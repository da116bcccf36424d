package cpus

import (
	"fmt"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
)

// Mode is the way in which the pods of a run request CPUs.
type Mode string

// The modes, in the order in which they are measured.
const (
	Unpinned Mode = "unpinned"
	Pinned   Mode = "pinned"
	// KubeletStatic gives pods the CPUs that a kubelet's static policy would choose, after a model
	// of it.
	KubeletStatic Mode = "kubelet-static-like"
	StaticBurst   Mode = "static-burst"
)

var modes = []Mode{Unpinned, Pinned, KubeletStatic, StaticBurst}

// annotations returns the annotations of a pod in the mode.
func (m Mode) annotations() map[string]string {
	switch m {
	case Pinned:
		return map[string]string{topologyv1alpha1.RequestAnnotation: "true"}
	case StaticBurst:
		return map[string]string{topologyv1alpha1.ACKSchedulerAnnotation: "true", topologyv1alpha1.ACKPolicyAnnotation: "static-burst"}
	}
	return nil
}

// Plan is the load for a machine.
type Plan struct {
	// Small is true if the machine cannot show a difference; Why is the reason.
	Small bool   `json:"small"`
	Why   string `json:"why,omitempty"`
	// Server and Pi are the numbers of CPUs of the web server and of each computation; PiPods is
	// the number of computations.
	Server int `json:"server"`
	Pi     int `json:"pi"`
	PiPods int `json:"piPods"`
	// Together is true if all loads run at once. Otherwise the computation begins after the
	// server's client has ended.
	Together bool `json:"together"`
	// Programs run after the server and the computations.
	Programs []Program `json:"programs"`
}

// cpusMin is the least number of CPUs for several programs with several CPUs each.
const cpusMin = 8

// planFor chooses the sizes for a machine: one L3 domain or a part of it for the server, as many
// CPUs for each computation, and a third of the machine for the client and everything else.
func planFor(c topologyv1alpha1.Counts) Plan {
	plan := sizesFor(c)
	plan.Programs = programsFor(c, plan)
	return plan
}

func sizesFor(c topologyv1alpha1.Counts) Plan {
	switch {
	case c.CPUs < cpusMin:
		return Plan{Small: true, Why: fmt.Sprintf("it has %d CPUs", c.CPUs), Server: 1, Pi: 1, PiPods: 1}
	case c.L3 < 2:
		return Plan{Small: true, Why: fmt.Sprintf("its %d CPUs share one L3 cache", c.CPUs), Server: 2, Pi: 2, PiPods: 1}
	}
	each := max(2, min(int(c.CPUs/c.L3), int(c.CPUs)/4))
	return Plan{Server: each, Pi: each, PiPods: max(1, int(c.CPUs)*2/3/each-1), Together: true}
}
