// Package machines describes machines by a few numbers and generates the sysfs trees that the
// kernels of such machines show. The trees are for tests and simulations; sysfs.Read and lscpu
// --sysroot read the same topologies back from them.
package machines

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing/fstest"

	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/sysfs"
)

// Numbering is the way in which a machine numbers its CPUs.
type Numbering int

// Numberings used by firmware.
const (
	// Block numbers the first threads of all cores, socket by socket, and then the second threads.
	Block Numbering = iota
	// Siblings numbers the threads of a core consecutively.
	Siblings
	// Alternating is Block with even numbers on socket 0 and odd numbers on socket 1 (with more
	// sockets: modulo).
	Alternating
)

// Machine is a regular machine with optional irregularities.
type Machine struct {
	Name                        string
	Sockets, NUMAPerSocket      int // NUMAPerSocket 0: one NUMA node for the whole machine
	CoresPerSocket, Threads     int
	CoresPerL3                  int // 0: no L3 is shown; L3 domains do not cross sockets
	L3Bytes, MemoryBytesPerNUMA int64
	Numbering                   Numbering
	// EfficientCores are added to each socket, with one thread each. They are numbered after all
	// other CPUs and share the socket's last L3.
	EfficientCores int
	// NUMAIDs are the ids of the NUMA nodes with CPUs if they are not 0, 1, 2...
	NUMAIDs []int
	// MemoryNUMA are ids of additional NUMA nodes without CPUs.
	MemoryNUMA        []int
	Offline, Isolated string // CPU lists
	NoNUMA, NoDie     bool   // omit these files
}

// Machines of published studies, and irregular machines.
var (
	Intel104 = Machine{Name: "intel104", Sockets: 2, NUMAPerSocket: 1, CoresPerSocket: 26, Threads: 2, CoresPerL3: 26,
		L3Bytes: 36608 << 10, MemoryBytesPerNUMA: 192 << 30}
	Intel104SNC = Machine{Name: "intel104-snc2", Sockets: 2, NUMAPerSocket: 2, CoresPerSocket: 26, Threads: 2,
		CoresPerL3: 26, L3Bytes: 36608 << 10, MemoryBytesPerNUMA: 96 << 30}
	AMD256NPS1 = Machine{Name: "amd256-nps1", Sockets: 2, NUMAPerSocket: 1, CoresPerSocket: 64, Threads: 2, CoresPerL3: 4,
		L3Bytes: 16 << 20, MemoryBytesPerNUMA: 512 << 30}
	AMD256NPS4 = Machine{Name: "amd256-nps4", Sockets: 2, NUMAPerSocket: 4, CoresPerSocket: 64, Threads: 2, CoresPerL3: 4,
		L3Bytes: 16 << 20, MemoryBytesPerNUMA: 128 << 30}
	AMD256Milan = Machine{Name: "amd256-l3x16", Sockets: 2, NUMAPerSocket: 1, CoresPerSocket: 64, Threads: 2,
		CoresPerL3: 8, L3Bytes: 32 << 20, MemoryBytesPerNUMA: 512 << 30}
	Alternate = Machine{Name: "intel104-alternating", Sockets: 2, NUMAPerSocket: 1, CoresPerSocket: 26, Threads: 2,
		CoresPerL3: 26, L3Bytes: 36608 << 10, MemoryBytesPerNUMA: 192 << 30, Numbering: Alternating}
	Hybrid = Machine{Name: "hybrid24", Sockets: 1, NUMAPerSocket: 1, CoresPerSocket: 8, Threads: 2, CoresPerL3: 8,
		L3Bytes: 30 << 20, MemoryBytesPerNUMA: 64 << 30, EfficientCores: 8, Numbering: Siblings}
	Offlined = Machine{Name: "offline32", Sockets: 2, NUMAPerSocket: 1, CoresPerSocket: 8, Threads: 2, CoresPerL3: 4,
		L3Bytes: 16 << 20, MemoryBytesPerNUMA: 32 << 30, Offline: "3,16-18,31", Isolated: "8-9,24-25"}
	Sparse = Machine{Name: "sparse48", Sockets: 4, NUMAPerSocket: 2, CoresPerSocket: 12, Threads: 1, CoresPerL3: 6,
		L3Bytes: 6 << 20, MemoryBytesPerNUMA: 16 << 30, NUMAIDs: []int{0, 1, 2, 33, 34, 45, 72, 73}}
	MemoryOnly = Machine{Name: "cxl32", Sockets: 2, NUMAPerSocket: 1, CoresPerSocket: 8, Threads: 2, CoresPerL3: 8,
		L3Bytes: 32 << 20, MemoryBytesPerNUMA: 64 << 30, MemoryNUMA: []int{4, 9}}
	NoL3 = Machine{Name: "vm8", Sockets: 1, NUMAPerSocket: 1, CoresPerSocket: 8, Threads: 1,
		MemoryBytesPerNUMA: 16 << 30, NoNUMA: true, NoDie: true}
	FlatNUMA = Machine{Name: "flat32", Sockets: 2, CoresPerSocket: 8, Threads: 2, CoresPerL3: 8, L3Bytes: 16 << 20,
		MemoryBytesPerNUMA: 64 << 30}
	SMT4 = Machine{Name: "smt4x64", Sockets: 2, NUMAPerSocket: 1, CoresPerSocket: 8, Threads: 4, CoresPerL3: 2,
		L3Bytes: 10 << 20, MemoryBytesPerNUMA: 128 << 30, Numbering: Siblings}
)

// All returns all machines above.
func All() []Machine {
	return []Machine{Intel104, Intel104SNC, AMD256NPS1, AMD256NPS4, AMD256Milan, Alternate, Hybrid, Offlined, Sparse,
		MemoryOnly, NoL3, FlatNUMA, SMT4}
}

// Names returns the names of All.
func Names() []string {
	var names []string
	for _, m := range All() {
		names = append(names, m.Name)
	}
	return names
}

// ByName returns the machine of All with this name.
func ByName(name string) (Machine, error) {
	for _, m := range All() {
		if m.Name == name {
			return m, nil
		}
	}
	return Machine{}, fmt.Errorf("no machine %q; there are: %s", name, strings.Join(Names(), ", "))
}

// Topology returns the machine's topology as sysfs.Read reads it.
func (m Machine) Topology() (*cputopology.Topology, error) {
	t, warnings, err := sysfs.Read(m.FS())
	if err == nil && len(warnings) > 0 {
		err = fmt.Errorf("machine %s: %s", m.Name, strings.Join(warnings, "; "))
	}
	return t, err
}

// MustTopology is like Topology, for the machines of this package, which are known to be
// consistent.
func (m Machine) MustTopology() *cputopology.Topology {
	t, err := m.Topology()
	if err != nil {
		panic(fmt.Sprintf("machine %s: %v", m.Name, err))
	}
	return t
}

// cpu is one CPU of the machine, online or not.
type cpu struct{ id, socket, numa, core, l3 int }

func (m Machine) cpus() []cpu {
	numaPerSocket := max(m.NUMAPerSocket, 1)
	cores := m.Sockets * m.CoresPerSocket
	var out []cpu
	for s := range m.Sockets {
		for c := range m.CoresPerSocket {
			at := cpu{socket: s, core: s*m.CoresPerSocket + c, numa: s*numaPerSocket + c*numaPerSocket/m.CoresPerSocket, l3: -1}
			if m.NUMAPerSocket == 0 {
				at.numa = 0
			}
			if m.CoresPerL3 > 0 {
				at.l3 = s<<16 + c/m.CoresPerL3
			}
			for t := range m.Threads {
				switch m.Numbering {
				case Siblings:
					at.id = at.core*m.Threads + t
				case Alternating:
					at.id = t*cores + c*m.Sockets + s
				default:
					at.id = t*cores + at.core
				}
				out = append(out, at)
			}
		}
	}
	for s := range m.Sockets {
		for e := range m.EfficientCores {
			at := cpu{id: len(out), socket: s, core: cores + s*m.EfficientCores + e, l3: -1}
			if m.NUMAPerSocket > 0 {
				at.numa = (s+1)*numaPerSocket - 1
			}
			if m.CoresPerL3 > 0 {
				at.l3 = s<<16 + (m.CoresPerSocket-1)/m.CoresPerL3
			}
			out = append(out, at)
		}
	}
	slices.SortFunc(out, func(a, b cpu) int { return a.id - b.id })
	return out
}

// FS returns the machine's sysfs tree.
func (m Machine) FS() fs.FS {
	files := fstest.MapFS{}
	for name, text := range m.Files() {
		files[name] = &fstest.MapFile{Data: []byte(text), Mode: 0o444}
	}
	return files
}

// Write writes the tree below dir, for programs that read a directory (lscpu --sysroot dir).
func (m Machine) Write(dir string) error {
	made := map[string]bool{} // a tree has thousands of files in hundreds of directories
	for name, text := range m.Files() {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if parent := filepath.Dir(file); !made[parent] {
			if err := os.MkdirAll(parent, 0o755); err != nil {
				return err
			}
			made[parent] = true
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Files returns the tree as path -> content, in the kernel's format.
func (m Machine) Files() map[string]string {
	all := m.cpus()
	offline := cpuset.MustParse(m.Offline)
	files := map[string]string{}
	online := cpus(all, func(c cpu) bool { return !offline.Contains(c.id) })
	sys := "sys/devices/system/cpu"
	span := fmt.Sprintf("0-%d\n", len(all)-1)
	files[sys+"/possible"], files[sys+"/present"] = span, span
	files[sys+"/online"] = online.String() + "\n"
	files[sys+"/offline"] = m.Offline + "\n"
	files[sys+"/isolated"] = m.Isolated + "\n"
	files[sys+"/kernel_max"] = "8191\n"
	var cpuinfo strings.Builder // lscpu needs this file; sysfs.Read does not
	for id := range online.All() {
		fmt.Fprintf(&cpuinfo, "processor\t: %d\nvendor_id\t: Lockstep\nmodel name\t: %s\n\n", id, m.Name)
	}
	files["proc/cpuinfo"] = cpuinfo.String()
	for _, c := range all {
		dir := sys + "/cpu" + strconv.Itoa(c.id)
		if c.id != 0 {
			files[dir+"/online"] = fmt.Sprintf("%d\n", one(online.Contains(c.id)))
		}
		if !online.Contains(c.id) {
			continue // an offline CPU loses its topology and cache directories
		}
		m.cpuFiles(files, dir, c, all, online)
	}
	if m.EfficientCores > 0 {
		efficient := cpus(all, func(c cpu) bool { return c.core >= m.Sockets*m.CoresPerSocket })
		files["sys/devices/cpu_atom/cpus"] = efficient.String() + "\n"
		files["sys/devices/cpu_core/cpus"] = online.Minus(efficient).String() + "\n"
	}
	if !m.NoNUMA {
		m.numaFiles(files, all, online)
	}
	return files
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

func cpus(all []cpu, in func(cpu) bool) cpuset.Set {
	var b cpuset.Builder
	for _, c := range all {
		if in(c) {
			b.Add(c.id)
		}
	}
	return b.Set()
}

func (m Machine) cpuFiles(files map[string]string, dir string, c cpu, all []cpu, online cpuset.Set) {
	set := func(name string, s cpuset.Set) {
		s = s.Intersect(online)
		files[path.Join(dir, name+"_list")] = s.String() + "\n"
		files[path.Join(dir, name)] = mask(s) + "\n"
	}
	topology := func(name, value string) { files[path.Join(dir, "topology", name)] = value + "\n" }
	topology("physical_package_id", strconv.Itoa(c.socket))
	// core_id restarts in every socket and has gaps, as on real machines.
	core := c.core % m.CoresPerSocket
	topology("core_id", strconv.Itoa(core+core/8*8))
	threads := cpus(all, func(o cpu) bool { return o.core == c.core })
	pack := cpus(all, func(o cpu) bool { return o.socket == c.socket })
	set("topology/thread_siblings", threads)
	set("topology/core_cpus", threads)
	set("topology/core_siblings", pack)
	set("topology/package_cpus", pack)
	if !m.NoDie {
		topology("die_id", "0")
		set("topology/die_cpus", pack)
	}
	index := 0
	cache := func(level int, kind, size string, id int, shared cpuset.Set) {
		at := fmt.Sprintf("cache/index%d", index)
		index++
		files[path.Join(dir, at, "level")] = fmt.Sprintf("%d\n", level)
		files[path.Join(dir, at, "type")] = kind + "\n"
		files[path.Join(dir, at, "size")] = size + "\n"
		files[path.Join(dir, at, "id")] = fmt.Sprintf("%d\n", id)
		shared = shared.Intersect(online)
		files[path.Join(dir, at, "shared_cpu_list")] = shared.String() + "\n"
		files[path.Join(dir, at, "shared_cpu_map")] = mask(shared) + "\n"
	}
	cache(1, "Data", "32K", c.core, threads)
	cache(1, "Instruction", "32K", c.core, threads)
	cache(2, "Unified", "1024K", c.core, threads)
	if c.l3 >= 0 {
		cache(3, "Unified", fmt.Sprintf("%dK", m.L3Bytes>>10), c.l3, cpus(all, func(o cpu) bool { return o.l3 == c.l3 }))
	}
}

func (m Machine) numaFiles(files map[string]string, all []cpu, online cpuset.Set) {
	sys := "sys/devices/system/node"
	type node struct {
		id, socket int
		cpus       cpuset.Set
	}
	var nodes []node
	for n := range max(m.NUMAPerSocket*m.Sockets, 1) {
		id := n
		if m.NUMAIDs != nil {
			id = m.NUMAIDs[n]
		}
		nodes = append(nodes, node{id, n / max(m.NUMAPerSocket, 1), cpus(all, func(c cpu) bool { return c.numa == n })})
	}
	for _, id := range m.MemoryNUMA {
		nodes = append(nodes, node{id: id, socket: -1})
	}
	slices.SortFunc(nodes, func(a, b node) int { return a.id - b.id })
	var ids, withCPU cpuset.Builder
	for _, n := range nodes {
		ids.Add(n.id)
		if !n.cpus.IsEmpty() {
			withCPU.Add(n.id)
		}
		dir := fmt.Sprintf("%s/node%d", sys, n.id)
		here := n.cpus.Intersect(online)
		files[dir+"/cpulist"] = here.String() + "\n"
		files[dir+"/cpumap"] = mask(here) + "\n"
		files[dir+"/meminfo"] = fmt.Sprintf("Node %d MemTotal:       %d kB\nNode %d MemFree:        %d kB\n", n.id,
			m.MemoryBytesPerNUMA>>10, n.id, m.MemoryBytesPerNUMA>>11)
		var distances []string
		for _, o := range nodes {
			d := 32
			switch {
			case o.id == n.id:
				d = 10
			case o.socket == n.socket && o.socket >= 0:
				d = 12
			}
			distances = append(distances, strconv.Itoa(d))
		}
		files[dir+"/distance"] = strings.Join(distances, " ") + "\n"
	}
	every := ids.Set().String() + "\n"
	for _, name := range []string{"online", "possible", "has_memory", "has_normal_memory"} {
		files[sys+"/"+name] = every
	}
	files[sys+"/has_cpu"] = withCPU.Set().String() + "\n"
}

// mask formats a set as the kernel's comma-separated 32-bit words, highest first.
func mask(s cpuset.Set) string {
	var words []uint32
	for id := range s.All() {
		for len(words) <= id/32 {
			words = append(words, 0)
		}
		words[id/32] |= 1 << (id % 32)
	}
	if len(words) == 0 {
		return "00000000"
	}
	var parts []string
	for _, w := range slices.Backward(words) {
		parts = append(parts, fmt.Sprintf("%08x", w))
	}
	return strings.Join(parts, ",")
}
