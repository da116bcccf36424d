package agent

import (
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cputopology/machines"
)

// TestContradictionsOfSysfsAreProblems: a node whose NUMA nodes overlap is used without them, and
// its NodeTopology says so.
func TestContradictionsOfSysfsAreProblems(t *testing.T) {
	m := machines.Intel104
	h := newHarness(t, m)
	files := fstest.MapFS{}
	for name, text := range m.Files() {
		files[name] = &fstest.MapFile{Data: []byte(text)}
	}
	files["sys/devices/system/node/node1/cpulist"] = &fstest.MapFile{Data: []byte("0-103")}
	h.cfg.Root = fs.FS(files)
	h.run()
	h.await("the node is usable and the problem reported", func(n *topologyv1alpha1.NodeTopology) bool {
		return len(n.Spec.NUMA) == 1 && len(n.Status.Problems) == 1 &&
			strings.Contains(n.Status.Problems[0].Message, "in more than one NUMA node; NUMA is ignored") && ready(n)
	})
}
