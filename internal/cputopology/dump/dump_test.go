package dump

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/machines"
)

// FuzzParse feeds arbitrary dumps. The result must be consistent: every pod with CPUs has a node,
// and its CPUs exist.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`kind: List
items:
- apiVersion: topology.lockstep.dev/v1alpha1
  kind: NodeTopology
  metadata: {name: n1}
  spec: {cores: [["0-3", "4-7"]], sockets: [{id: 0, cpus: "0-7"}], numa: [{id: 0, cpus: "0-7", memory: 1024, distances: [10]}], l3: [{bytes: 1, domains: ["0-7"]}]}
  status: {reserved: "7", kubeletPins: [{pod: u, container: c, cpus: "3"}]}
- {apiVersion: v1, kind: Node, metadata: {name: m}}
- apiVersion: v1
  kind: Pod
  metadata:
    name: p
    namespace: default
    uid: u-1
    annotations:
      cpu.lockstep.dev/request: "true"
      cpu.lockstep.dev/result: '{"v":1,"node":"n1","topology":"","containers":{"c":{"cpus":"0-1","share":1}}}'
  spec: {nodeName: n1, containers: [{name: c, resources: {limits: {cpu: "2"}}}]}
`))
	f.Add([]byte(`{"kind":"List","items":[{"apiVersion":"v1","kind":"Node","metadata":{"name":"m"}},{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","uid":"u","annotations":{"cpuset-scheduler":"true","cpu-policy":"static-burst","cpu.lockstep.dev/result":"{\"v\":1,\"node\":\"m\",\"containers\":{\"c\":{\"cpus\":\"0-1\",\"share\":2,\"burst\":true}}}"}},"spec":{"nodeName":"m","containers":[{"name":"c","resources":{"limits":{"cpu":"2"}}}]}}]}`))
	assumed, err := allocate.NewLayout(machines.Offlined.MustTopology(), cpuset.Set{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data, assumed)
		if err != nil {
			return
		}
		for _, n := range c.Nodes {
			online := n.Layout.Topology().Online()
			containers, shared := n.State.Effective()
			if shared.IsEmpty() || !shared.SubsetOf(online) {
				t.Fatalf("node %s: the shared pool is %q", n.Name, shared)
			}
			for pod, cs := range containers {
				for name, c := range cs {
					if c.Set.IsEmpty() || !c.Set.SubsetOf(online) {
						t.Fatalf("node %s: pod %s container %s runs on %q", n.Name, pod, name, c.Set)
					}
				}
			}
		}
		for _, p := range c.Pods {
			if p.CPUs < 1 || p.Request == nil {
				t.Fatalf("%+v", p)
			}
		}
	})
}

// TestProblemsNamePods checks that problems name pods by namespace and name, not by UID.
func TestProblemsNamePods(t *testing.T) {
	pod := func(name, uid, node, cpus string) string {
		return `
- apiVersion: v1
  kind: Pod
  metadata:
    name: ` + name + `
    namespace: default
    uid: ` + uid + `
    annotations:
      cpu.lockstep.dev/request: "true"
      cpu.lockstep.dev/result: '{"v":1,"node":"` + node + `","topology":"","containers":{"c":{"cpus":"` + cpus + `","share":1}}}'
  spec: {nodeName: ` + node + `, containers: [{name: c, resources: {limits: {cpu: "2"}}}]}`
	}
	c, err := Parse([]byte(`kind: List
items:
- apiVersion: topology.lockstep.dev/v1alpha1
  kind: NodeTopology
  metadata: {name: n1}
  spec: {cores: [["0-3", "4-7"]], sockets: [{id: 0, cpus: "0-7"}], numa: [{id: 0, cpus: "0-7", memory: 1024, distances: [10]}], l3: [{bytes: 1, domains: ["0-7"]}]}
- {apiVersion: v1, kind: Node, metadata: {name: m1}}`+
		pod("unknown", "u-1", "m1", "0-1")+pod("first", "u-2", "n1", "0-1")+pod("second", "u-3", "n1", "0-1")+"\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"node n1: pod default/second: allocate: pod default/second container c: CPU 0 of node n1 is taken",
		"pod default/unknown: the topology of its node m1 is not known",
	}
	if diff := cmp.Diff(want, c.Problems); diff != "" {
		t.Error(diff)
	}
}
