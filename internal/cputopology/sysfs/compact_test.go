package sysfs_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

var bySet = cmp.Comparer(func(a, b cpuset.Set) bool { return a.Equal(b) })

// checkRoundTrip checks that a topology survives Encode, JSON and Decode, and keeps its hash.
func checkRoundTrip(t *testing.T, topo *cputopology.Topology) {
	t.Helper()
	data, err := json.Marshal(topo.Encode())
	if err != nil {
		t.Fatal(err)
	}
	var c topologyv1alpha1.NodeTopologySpec
	if err := json.Unmarshal(data, &c); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	back, err := cputopology.Decode(c)
	if err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	if diff := cmp.Diff(topo.Parts, back.Parts, bySet); diff != "" {
		t.Fatalf("changed by its compact form:\n%s", diff)
	}
	if topo.Hash() != back.Hash() {
		t.Fatal("the hash changed")
	}
}

func compactSize(t *testing.T, topo *cputopology.Topology) int {
	data, err := json.Marshal(topo.Encode())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d CPUs: %d bytes", len(topo.CPUs), len(data))
	return len(data)
}

// FuzzDecode checks that arbitrary JSON is rejected or gives a topology that survives a round trip.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"cores":[["0-3","4-7"]],"sockets":[{"id":0,"cpus":"0-7"}],"numa":[{"id":0,"cpus":"0-7","memory":1,"distances":[10]}],"l3":[{"bytes":1,"domains":["0-7"]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var c topologyv1alpha1.NodeTopologySpec
		if json.Unmarshal(data, &c) != nil {
			return
		}
		if topo, err := cputopology.Decode(c); err == nil {
			checkRoundTrip(t, topo)
		}
	})
}
