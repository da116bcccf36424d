package draw

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/machines"
)

func TestWhoSitsWhere(t *testing.T) {
	v := View{Topology: machines.Offlined.MustTopology(), Reserved: cpuset.Of(0), Notes: []string{"ns/lost: its CPUs were chosen on node x"}, Holders: []Holder{
		{Name: "ns/a", CPUs: cpuset.MustParse("1-2,4"), L3: 2, NUMA: 1},
		{Name: "a-namespace/with-a-long-name-0", CPUs: cpuset.MustParse("5,21"), Kept: cpuset.MustParse("6,22"), L3: 1, NUMA: 1},
		{Name: "ns/b", CPUs: cpuset.MustParse("12-13"), Shared: true, L3: 1, NUMA: 1},
	}}
	var out bytes.Buffer
	if err := errors.Join(Machine(&out, v), Holders(&out, v)); err != nil {
		t.Fatal(err)
	}
	want := `27 CPUs, 16 cores of 1 to 2 threads, 2 sockets, 2 NUMA nodes, 4 L3 domains
socket 0  CPUs 0-2,4-7,19-23
  NUMA node 0  32 GiB  distances 10 32
    L3 #0 16 MiB [0][1][2][19] ns/a:2 idle:1
    L3 #1 16 MiB [4 20][5 21][6 22][7 23] ns/a:1 a-namespace/with-a-long-name-0:2
                 idle:3
socket 1  CPUs 8-15,24-30
  NUMA node 1  32 GiB  distances 32 10
    L3 #2 16 MiB [8* 24*][9* 25*][10 26][11 27] idle:4
    L3 #3 16 MiB [12 28][13 29][14 30][15] ns/b:2 idle:5
offline CPUs 3,16-18,31
isolated (*) CPUs 8-9,24-25
reserved CPUs 0
7 CPUs held by 3 pods, 13 idle

POD                             CPUS  L3  NUMA  SET
ns/a                            3     2   1     1-2,4
a-namespace/with-a-long-name-0  2     1   1     5,21 (and keeps 6,22 free)
ns/b                            2     1   1     12-13 (shared)
! ns/lost: its CPUs were chosen on node x
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestMachine(t *testing.T) {
	for name, c := range map[string]struct {
		machine machines.Machine
		want    string
	}{
		"offline and isolated CPUs": {machines.Offlined, `27 CPUs, 16 cores of 1 to 2 threads, 2 sockets, 2 NUMA nodes, 4 L3 domains
socket 0  CPUs 0-2,4-7,19-23
  NUMA node 0  32 GiB  distances 10 32
    L3 #0 16 MiB [0][1][2][19]
    L3 #1 16 MiB [4 20][5 21][6 22][7 23]
socket 1  CPUs 8-15,24-30
  NUMA node 1  32 GiB  distances 32 10
    L3 #2 16 MiB [8* 24*][9* 25*][10 26][11 27]
    L3 #3 16 MiB [12 28][13 29][14 30][15]
offline CPUs 3,16-18,31
isolated (*) CPUs 8-9,24-25
`},
		"two kinds of cores": {machines.Hybrid, `24 CPUs, 16 cores of 1 to 2 threads, 1 socket, 1 NUMA node, 1 L3 domain
socket 0  CPUs 0-23
  NUMA node 0  64 GiB  distances 10
    L3 #0 30 MiB [0 1][2 3][4 5][6 7][8 9][10 11][12 13][14 15][16e][17e][18e]
                 [19e][20e][21e][22e][23e]
efficient (e) CPUs 16-23
`},
		"no L3": {machines.NoL3, `8 CPUs, 8 cores of 1 thread, 1 socket, 1 NUMA node, 0 L3 domains
socket 0  CPUs 0-7
  NUMA node 0  0 B  distances 10
    no L3 [0][1][2][3][4][5][6][7]
`},
	} {
		var out bytes.Buffer
		if err := Machine(&out, View{Topology: c.machine.MustTopology()}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, out.String()); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}
