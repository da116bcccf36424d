package realnodes

import (
	"net"
	"strings"
	"testing"
)

func TestNodesHaveAddressesOfTheirOwn(t *testing.T) {
	spec := NewSpec("c", "/somewhere", NodesMax, Host{})
	_, all, err := net.ParseCIDR(ClusterCIDR)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for _, n := range spec.Nodes() {
		_, pods, err := net.ParseCIDR(n.PodCIDR())
		if err != nil {
			t.Fatal(err)
		}
		if !all.Contains(pods.IP) || !all.Contains(n.IP()) || pods.Contains(n.IP()) || pods.Contains(net.ParseIP(Gateway)) {
			t.Errorf("%s: address %s, pods %s", n.Name(), n.IP(), n.PodCIDR())
		}
		for _, key := range []string{n.IP().String(), n.PodCIDR(), n.Cgroup(), n.Path(), n.Name()} {
			if other := seen[key]; other != "" {
				t.Errorf("%s and %s share %s", n.Name(), other, key)
			}
			seen[key] = n.Name()
		}
	}
}

func TestCgroupsOfEqualNamesDiffer(t *testing.T) {
	a, b := CgroupOf("default", "/one/default/real"), CgroupOf("default", "/two/default/real")
	if a == b || !strings.HasPrefix(a, "/lockstep-default-") || strings.Count(a, "/") != 1 {
		t.Errorf("%s and %s", a, b)
	}
}

func TestTooLongASocketPathIsRefused(t *testing.T) {
	err := NewSpec("c", t.TempDir()+"/"+strings.Repeat("x", socketPathMax), 1, Host{}).Write()
	if err == nil || !strings.Contains(err.Error(), "shorter") {
		t.Errorf("error %v", err)
	}
}

func TestMissingNamesEachPackageOnce(t *testing.T) {
	m := &Missing{}
	m.add("containerd", "containerd is not installed")
	m.add("containerd", "ctr is not installed")
	m.add("", "it needs root")
	want := `this machine cannot run real nodes:
  - containerd is not installed
  - ctr is not installed
  - it needs root
On Debian and Ubuntu: apt-get install --no-install-recommends containerd`
	if m.Error() != want {
		t.Errorf("%s", m)
	}
}
