package sysfs_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/machines"
	"lockstep.dev/lockstep/internal/cputopology/sysfs"
)

func TestEveryMachineIsReadAsDescribed(t *testing.T) {
	type counts struct{ cpus, cores, sockets, numa, l3, threads int }
	want := map[string]counts{
		"intel104":             {104, 52, 2, 2, 2, 2},
		"intel104-snc2":        {104, 52, 2, 4, 2, 2},
		"amd256-nps1":          {256, 128, 2, 2, 32, 2},
		"amd256-nps4":          {256, 128, 2, 8, 32, 2},
		"amd256-l3x16":         {256, 128, 2, 2, 16, 2},
		"intel104-alternating": {104, 52, 2, 2, 2, 2},
		"hybrid24":             {24, 16, 1, 1, 1, 2},
		"offline32":            {27, 16, 2, 2, 4, 2},
		"sparse48":             {48, 48, 4, 8, 8, 1},
		"cxl32":                {32, 16, 2, 4, 2, 2},
		"vm8":                  {8, 8, 1, 1, 0, 1},
		"flat32":               {32, 16, 2, 1, 2, 2},
		"smt4x64":              {64, 16, 2, 2, 8, 4},
	}
	for _, m := range machines.All() {
		topo, err := m.Topology()
		if err != nil {
			t.Errorf("%s: %v", m.Name, err)
			continue
		}
		got := counts{len(topo.CPUs), len(topo.Cores), len(topo.Sockets), len(topo.NUMA), len(topo.L3), topo.ThreadsPerCore()}
		if got != want[m.Name] {
			t.Errorf("%s: read as %+v, want %+v", m.Name, got, want[m.Name])
		}
	}
}

func TestPlacesOfSingleCPUs(t *testing.T) {
	nps4 := machines.AMD256NPS4.MustTopology()
	if got := nps4.NUMA[0].CPUs.String(); got != "0-15,128-143" {
		t.Errorf("NPS4 node 0 holds %s", got)
	}
	if got := nps4.L3[1].CPUs.String(); got != "4-7,132-135" {
		t.Errorf("second L3 holds %s", got)
	}
	if d := nps4.NUMA[0].Distances; d[0] != 10 || d[1] != 12 || d[4] != 32 {
		t.Errorf("distances of node 0: %v", d)
	}
	sparse := machines.Sparse.MustTopology()
	if got := sparse.NUMA[7].ID; got != 73 {
		t.Errorf("last NUMA node is %d, want 73", got)
	}
	hybrid := machines.Hybrid.MustTopology()
	if got := hybrid.Efficient.String(); got != "16-23" {
		t.Errorf("efficient CPUs %q", got)
	}
	odd := machines.Offlined.MustTopology()
	if odd.Offline.String() != "3,16-18,31" || odd.Isolated.String() != "8-9,24-25" {
		t.Errorf("offline %q isolated %q", odd.Offline, odd.Isolated)
	}
	memory := machines.MemoryOnly.MustTopology()
	if n := memory.NUMA[2]; n.ID != 4 || !n.CPUs.IsEmpty() || n.MemoryBytes == 0 {
		t.Errorf("memory-only node read as %+v", n)
	}
}

// TestAgainstLscpu compares with lscpu, which reads the same trees by its own code: CPU, core,
// socket, NUMA node and L3 of every CPU must partition in the same way.
func TestAgainstLscpu(t *testing.T) {
	lscpu, err := exec.LookPath("lscpu")
	if err != nil {
		t.Skip("lscpu is not installed")
	}
	for _, m := range []machines.Machine{machines.Intel104, machines.Intel104SNC, machines.AMD256NPS1, machines.AMD256NPS4,
		machines.Alternate, machines.Hybrid, machines.Sparse, machines.Offlined, machines.SMT4} {
		t.Run(m.Name, func(t *testing.T) {
			dir := memoryDir(t)
			if err := m.Write(dir); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command(lscpu, "-s", dir, "-p=CPU,CORE,SOCKET,NODE,CACHE").Output()
			if err != nil {
				t.Fatalf("lscpu: %v", err)
			}
			topo, _, err := sysfs.Read(os.DirFS(dir))
			if err != nil {
				t.Fatal(err)
			}
			byID := map[string]cputopology.CPU{}
			for _, c := range topo.CPUs {
				byID[fmt.Sprint(c.ID)] = c
			}
			pairs := map[string]string{} // lscpu's group -> ours, and the reverse
			match := func(level string, theirs string, ours int) {
				a, b := level+"<"+theirs, fmt.Sprintf("%s>%d", level, ours)
				if p, ok := pairs[a]; ok && p != b {
					t.Fatalf("%s: lscpu joins what we split (%s)", level, a)
				}
				if p, ok := pairs[b]; ok && p != a {
					t.Fatalf("%s: we join what lscpu splits (%s)", level, a)
				}
				pairs[a], pairs[b] = b, a
			}
			n := 0
			for line := range strings.Lines(string(out)) {
				if strings.HasPrefix(line, "#") {
					continue
				}
				f := strings.Split(strings.TrimSpace(line), ",")
				c, ok := byID[f[0]]
				if !ok {
					t.Fatalf("lscpu lists CPU %s, we do not", f[0])
				}
				n++
				match("core", f[1], c.Core)
				match("socket", f[2], c.Socket)
				match("numa", f[3], topo.NUMA[c.NUMA].ID)
				match("l3", f[len(f)-1], c.L3) // one field for each cache level, the largest last
			}
			if n != len(topo.CPUs) {
				t.Fatalf("lscpu lists %d CPUs, we %d", n, len(topo.CPUs))
			}
		})
	}
}

// memoryDir returns a temporary directory in memory if possible: a tree has ten thousand files,
// which take seconds on some disks.
func memoryDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "lockstep-sysfs-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestThisMachine(t *testing.T) {
	if _, err := os.Stat("/sys/devices/system/cpu/online"); err != nil {
		t.Skip("no sysfs here")
	}
	topo, _, err := sysfs.Read(os.DirFS("/"))
	if err != nil {
		t.Fatal(err)
	}
	online, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil || topo.Online().String() != strings.TrimSpace(string(online)) {
		t.Fatalf("read %s, the kernel says %s (%v)", topo.Online(), online, err)
	}
}

func tree() fstest.MapFS {
	files := fstest.MapFS{}
	for name, text := range machines.Offlined.Files() {
		files[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return files
}

func TestTreesWithoutOnlineCPUsAreRefused(t *testing.T) {
	online := "sys/devices/system/cpu/online"
	for name, c := range map[string]struct{ file, content, want string }{
		"an empty root":                   {"", "", "online: file does not exist"},
		"no CPU online":                   {online, "", "no CPU is online"},
		"garbage in online":               {online, "zero", "cpu/online: CPU list"},
		"a CPU number beyond any machine": {online, "0-4000000000", "above the limit"},
		"a file without end":              {online, strings.Repeat("0,", 1<<16), "longer than"},
	} {
		t.Run(name, func(t *testing.T) {
			files := tree()
			if c.file == "" {
				files = fstest.MapFS{}
			} else {
				files[c.file] = &fstest.MapFile{Data: []byte(c.content)}
			}
			if _, _, err := sysfs.Read(files); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

// TestContradictionsLeaveOutALevel reads a machine of 27 CPUs in 16 cores, 2 sockets, 2 NUMA nodes
// and 4 L3 domains, one of whose files makes no sense. Only what the file describes may be missing.
func TestContradictionsLeaveOutALevel(t *testing.T) {
	type counts struct{ cores, sockets, numa, l3 int }
	whole := counts{16, 2, 2, 4}
	cpu, node := "sys/devices/system/cpu/", "sys/devices/system/node/"
	for name, c := range map[string]struct {
		file, content, warning string
		want                   counts
	}{
		"siblings without the CPU":      {cpu + "cpu1/topology/core_cpus_list", "2", "without the CPU itself", counts{27, 2, 2, 4}},
		"siblings that disagree":        {cpu + "cpu20/topology/core_cpus_list", "20", "lists", counts{27, 2, 2, 4}},
		"siblings that are no list":     {cpu + "cpu20/topology/core_cpus_list", "x", "every CPU counts as a core", counts{27, 2, 2, 4}},
		"a socket that is no number":    {cpu + "cpu1/topology/physical_package_id", "one", "not a number; all CPUs count as one socket", counts{16, 1, 2, 4}},
		"a core across sockets":         {cpu + "cpu20/topology/physical_package_id", "1", "some of the threads of core", counts{16, 1, 2, 4}},
		"a core across dies":            {cpu + "cpu20/topology/die_id", "1", "each socket counts as one die", whole},
		"overlapping L3":                {cpu + "cpu4/cache/index3/shared_cpu_list", "4-8", "no L3 cache is known", counts{16, 2, 2, 0}},
		"a core across L3":              {cpu + "cpu0/cache/index3/shared_cpu_list", "0", "no L3 cache is known", counts{16, 2, 2, 0}},
		"a cache size without sense":    {cpu + "cpu4/cache/index3/size", "-1K", "the size of the cache is not known", whole},
		"a NUMA node without directory": {node + "online", "0-1,7", "node7/cpulist: missing; NUMA is ignored", counts{16, 2, 1, 4}},
		"a CPU in two NUMA nodes":       {node + "node1/cpulist", "0-15,24-31", "CPUs 0-2,4-7 are in more than one NUMA node; NUMA is ignored", counts{16, 2, 1, 4}},
		"a CPU in no NUMA node":         {node + "node1/cpulist", "9-15,25-31", "CPUs 8,24 are in no NUMA node; NUMA is ignored", counts{16, 2, 1, 4}},
		"a core across NUMA nodes":      {node + "node0/cpulist", "0-7,16-23,24", "some of the threads of core", counts{16, 2, 1, 4}},
		"node list without sense":       {node + "online", "all", "NUMA is ignored", counts{16, 2, 1, 4}},
		"too few distances":             {node + "node1/distance", "10", "1 distances for 2 online nodes; the distances", whole},
		"a distance without sense":      {node + "node1/distance", "10 x", "not a number from 0 to 255; the distances", whole},
		"memory without a figure":       {node + "node1/meminfo", "Node 1 MemTotal: kB", "not a size; the memory of the NUMA node", whole},
		"a capacity without sense":      {cpu + "cpu0/cpu_capacity", "big", "all cores count as one kind", whole},
		"a core of two kinds":           {"sys/devices/cpu_atom/cpus", "4", "all cores count as one kind", whole},
	} {
		t.Run(name, func(t *testing.T) {
			files := tree()
			files[c.file] = &fstest.MapFile{Data: []byte(c.content)}
			topo, warnings, err := sysfs.Read(files)
			if err != nil {
				t.Fatal(err)
			}
			if len(warnings) != 1 || !strings.Contains(warnings[0], c.warning) {
				t.Errorf("warnings %q, want one with %q", warnings, c.warning)
			}
			if got := (counts{len(topo.Cores), len(topo.Sockets), len(topo.NUMA), len(topo.L3)}); got != c.want {
				t.Errorf("read as %+v, want %+v", got, c.want)
			}
			if topo.Online().Len() != 27 || !topo.Efficient.IsEmpty() {
				t.Errorf("%d CPUs, efficient %q", topo.Online().Len(), topo.Efficient)
			}
			checkRoundTrip(t, topo)
		})
	}
}

// TestIgnoredNUMAPromisesNoMemory: nobody knows which memory is near to which CPU, so none may be
// promised as local.
func TestIgnoredNUMAPromisesNoMemory(t *testing.T) {
	files := tree()
	files["sys/devices/system/node/node1/cpulist"] = &fstest.MapFile{Data: []byte("0-15,24-31")}
	topo, _, err := sysfs.Read(files)
	if err != nil || topo.NUMA[0].MemoryBytes != 0 || !topo.NUMA[0].CPUs.Equal(topo.Online()) {
		t.Fatalf("NUMA %+v, error %v", topo.NUMA, err)
	}
}

// unreadable is a file system in which reading one file fails, as on a failing disk.
type unreadable struct {
	fstest.MapFS
	name string
}

func (u unreadable) Open(name string) (fs.File, error) {
	if name == u.name {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return u.MapFS.Open(name)
}

// TestFailedReadsAreErrors: a file that cannot be read says nothing about the machine, and must not
// change its topology.
func TestFailedReadsAreErrors(t *testing.T) {
	for _, name := range []string{"sys/devices/system/cpu/cpu1/topology/core_cpus_list",
		"sys/devices/system/cpu/cpu1/cache/index3/shared_cpu_list", "sys/devices/system/node/node1/cpulist",
		"sys/devices/system/node/online", "sys/devices/system/node/node1/meminfo", "sys/devices/cpu_atom/cpus"} {
		if _, _, err := sysfs.Read(unreadable{tree(), name}); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// TestMissingListsFollowFromOtherFiles: the topology without a file is the same as with it.
func TestMissingListsFollowFromOtherFiles(t *testing.T) {
	want, _, err := sysfs.Read(tree())
	if err != nil {
		t.Fatal(err)
	}
	for name, drop := range map[string]func(file string) bool{
		"no node/online":                 func(f string) bool { return f == "sys/devices/system/node/online" },
		"no cpu/online":                  func(f string) bool { return f == "sys/devices/system/cpu/online" },
		"masks in place of thread lists": func(f string) bool { return strings.Contains(f, "core_cpus") || strings.HasSuffix(f, "siblings_list") },
		"masks in place of cache lists":  func(f string) bool { return strings.HasSuffix(f, "shared_cpu_list") },
		"masks in place of node lists":   func(f string) bool { return strings.HasSuffix(f, "cpulist") },
	} {
		t.Run(name, func(t *testing.T) {
			files := tree()
			maps.DeleteFunc(files, func(f string, _ *fstest.MapFile) bool { return drop(f) })
			got, warnings, err := sysfs.Read(files)
			if err != nil || len(warnings) > 0 {
				t.Fatal(err, warnings)
			}
			if diff := cmp.Diff(want.Parts, got.Parts, bySet); diff != "" {
				t.Fatal(diff)
			}
		})
	}
}

// TestAnEmptyCacheMapIsNoCache: some kernels list caches that no CPU shares.
func TestAnEmptyCacheMapIsNoCache(t *testing.T) {
	files := tree()
	for f := range files {
		if strings.HasSuffix(f, "index3/shared_cpu_list") {
			files[f] = &fstest.MapFile{Data: []byte("\n")}
		}
	}
	topo, warnings, err := sysfs.Read(files)
	if err != nil || len(warnings) > 0 || len(topo.L3) != 0 {
		t.Fatalf("L3 %v, warnings %q, error %v", topo.L3, warnings, err)
	}
}

// TestKindsOfCores reads machines with one kind of core or two, told in the ways of kernels. The
// machine of 10 and 10 cores has single fast cores, as chips do: by a plain comparison with the
// fastest, 19 of its 20 cores would be efficient.
func TestKindsOfCores(t *testing.T) {
	plain := func(cores, threads int) fstest.MapFS {
		files := fstest.MapFS{}
		m := machines.Machine{Name: "kinds", Sockets: 1, NUMAPerSocket: 1, CoresPerSocket: cores, Threads: threads,
			CoresPerL3: cores, L3Bytes: 16 << 20, MemoryBytesPerNUMA: 1 << 30, Numbering: machines.Siblings}
		for name, text := range m.Files() {
			files[name] = &fstest.MapFile{Data: []byte(text)}
		}
		return files
	}
	capacities := func(files fstest.MapFS, of ...int) fstest.MapFS {
		for cpu, capacity := range of {
			files[fmt.Sprintf("sys/devices/system/cpu/cpu%d/cpu_capacity", cpu)] = &fstest.MapFile{Data: fmt.Append(nil, capacity)}
		}
		return files
	}
	with := func(files fstest.MapFS, name, text string) fstest.MapFS {
		files[name] = &fstest.MapFile{Data: []byte(text)}
		return files
	}
	for name, c := range map[string]struct {
		files fstest.MapFS
		want  string
	}{
		"10 and 10, in four clusters": {capacities(plain(20, 1), 718, 718, 718, 718, 718, 997, 997, 997, 997, 997,
			731, 731, 731, 731, 731, 1017, 1017, 1017, 1017, 1024), "0-4,10-14"},
		"favoured cores of one kind": {capacities(plain(8, 1), 1024, 1009, 983, 983, 983, 960, 960, 930), ""},
		"three kinds":                {capacities(plain(8, 1), 250, 250, 250, 250, 765, 765, 765, 1024), "0-6"},
		"equal capacities":           {capacities(plain(4, 1), 1024, 1024, 1024, 1024), ""},
		"not all capacities known":   {capacities(plain(4, 1), 1024, 512), ""},
		"two threads, two kinds":     {capacities(plain(4, 2), 1024, 1024, 1024, 1024, 600, 600, 600, 600), "4-7"},
		"the efficient cores' PMU":   {with(plain(8, 1), "sys/devices/cpu_atom/cpus", "4-7"), "4-7"},
		"PMUs of three kinds": {with(with(plain(8, 1), "sys/devices/cpu_atom/cpus", "4-5"), "sys/devices/cpu_lowpower/cpus",
			"6-7"), "4-7"},
		"the performance cores' PMU alone": {with(plain(8, 1), "sys/devices/cpu_core/cpus", "0-3"), "4-7"},
		"efficient cores only":             {with(plain(4, 1), "sys/devices/cpu_atom/cpus", "0-3"), ""},
		"CPU types": {with(with(plain(8, 1), "sys/devices/system/cpu/types/intel_atom_0/cpulist", "4-7"),
			"sys/devices/system/cpu/types/intel_core_0/cpulist", "0-3"), "4-7"},
	} {
		t.Run(name, func(t *testing.T) {
			topo, warnings, err := sysfs.Read(c.files)
			if err != nil || len(warnings) > 0 {
				t.Fatal(err, warnings)
			}
			if got := topo.Efficient.String(); got != c.want {
				t.Errorf("efficient CPUs %q, want %q", got, c.want)
			}
		})
	}
}

func TestSparseTreesAreTolerated(t *testing.T) {
	for name, drop := range map[string]string{
		"no NUMA directory":    "/node/",
		"no caches":            "/cache/",
		"no sibling lists":     "_list",
		"no dies":              "die_",
		"no topology at all":   "/topology/",
		"no present, isolated": "system/cpu/present",
		"no meminfo":           "meminfo",
		"no distances":         "distance",
	} {
		t.Run(name, func(t *testing.T) {
			files := tree()
			for f := range files {
				if strings.Contains(f, drop) && !strings.HasSuffix(f, "shared_cpu_list") {
					delete(files, f)
				}
			}
			if _, _, err := sysfs.Read(files); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestCompactRoundTrip(t *testing.T) {
	for _, m := range machines.All() {
		topo := m.MustTopology()
		checkRoundTrip(t, topo)
		if size := compactSize(t, topo); len(topo.CPUs) <= 256 && size > 4096 {
			t.Errorf("%s: the compact form takes %d bytes, want at most 4096", m.Name, size)
		}
	}
}

// FuzzRead replaces one file of a machine's tree, and removes another, both chosen by the fuzzer.
// Read must return an error or a topology that survives a round trip through its compact form.
func FuzzRead(f *testing.F) {
	small := machines.Machine{Name: "small", Sockets: 2, NUMAPerSocket: 1, CoresPerSocket: 2, Threads: 2, CoresPerL3: 1,
		L3Bytes: 1 << 20, MemoryBytesPerNUMA: 1 << 30, Offline: "3", MemoryNUMA: []int{5}}
	base := small.Files()
	var names []string
	for name := range base {
		names = append(names, name)
	}
	slices.Sort(names)
	f.Add(uint16(0), "0-3", uint16(1), "0")
	f.Add(uint16(10), "0-7:1/2", uint16(30), "99999")
	f.Fuzz(func(t *testing.T, i uint16, content string, j uint16, other string) {
		files := fstest.MapFS{}
		for name, text := range base {
			files[name] = &fstest.MapFile{Data: []byte(text)}
		}
		files[names[int(i)%len(names)]] = &fstest.MapFile{Data: []byte(content)}
		if other == "" {
			delete(files, names[int(j)%len(names)])
		} else {
			files[names[int(j)%len(names)]] = &fstest.MapFile{Data: []byte(other)}
		}
		topo, _, err := sysfs.Read(fs.FS(files))
		if err != nil {
			return
		}
		checkRoundTrip(t, topo)
	})
}
