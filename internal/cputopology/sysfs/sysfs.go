// Package sysfs reads a machine's processor topology from a sysfs tree: of the running kernel, of a
// container's view of the host, or of a dump. The root contains "sys/devices/system/cpu";
// os.DirFS("/") is the running machine.
//
// Files that the kernel omits on some machines may be missing (NUMA directory, die, cache, siblings
// files). Contradictory files are rejected with an error that names the file. The hardware threads
// of a core are read from the core's sibling list, not from core_id, which is neither dense nor
// unique across sockets.
package sysfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// Paths below the root.
const (
	cpuDir  = "sys/devices/system/cpu"
	nodeDir = "sys/devices/system/node"
	atomCPU = "sys/devices/cpu_atom/cpus" // the efficient cores of an Intel hybrid machine
)

// fileBytesMax bounds the part of a file that is read. sysfs files are at most one page; list files
// of large machines are a few pages.
const fileBytesMax = 1 << 16

// cacheIndexMax bounds the search for cache/indexN directories; machines have at most five.
const cacheIndexMax = 16

// Read reads the topology below root. Errors name the file that is missing or invalid.
func Read(root fs.FS) (*cputopology.Topology, error) {
	r := reader{root}
	online, err := r.cpuList(path.Join(cpuDir, "online"))
	if err != nil {
		return nil, err
	}
	if online.IsEmpty() {
		return nil, fmt.Errorf("%s/online: no CPU is online", cpuDir)
	}
	if n := online.Len(); n > cputopology.MaxCPUs {
		return nil, fmt.Errorf("%s/online: %d CPUs, above the limit of %d", cpuDir, n, cputopology.MaxCPUs)
	}
	var p cputopology.Parts
	if p.Offline, p.Isolated, err = r.offlineAndIsolated(online); err != nil {
		return nil, err
	}
	if err := r.cpus(online, &p); err != nil {
		return nil, err
	}
	if p.NUMA, err = r.numa(online); err != nil {
		return nil, err
	}
	if p.Efficient, err = r.efficient(online); err != nil {
		return nil, err
	}
	return cputopology.New(p)
}

type reader struct{ root fs.FS }

// text returns the content of a file without surrounding white space.
func (r reader) text(name string) (string, error) {
	f, err := r.root.Open(name)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, cause(err))
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, fileBytesMax+1))
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, cause(err))
	}
	if len(data) > fileBytesMax {
		return "", fmt.Errorf("%s: longer than %d bytes", name, fileBytesMax)
	}
	return strings.TrimSpace(string(data)), nil
}

// cause removes the path that fs errors repeat.
func cause(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

func (r reader) cpuList(name string) (cpuset.Set, error) {
	text, err := r.text(name)
	if err != nil {
		return cpuset.Set{}, err
	}
	s, err := cpuset.Parse(text)
	if err != nil {
		return s, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

// optionalList is like cpuList but returns the empty set if the file does not exist.
func (r reader) optionalList(name string) (cpuset.Set, error) {
	s, err := r.cpuList(name)
	if errors.Is(err, fs.ErrNotExist) {
		return cpuset.Set{}, nil
	}
	return s, err
}

// optionalInt reads a number. ok is false if the file does not exist or the kernel reports
// "unknown" (-1).
func (r reader) optionalInt(name string) (n int, ok bool, err error) {
	text, err := r.text(name)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	n, err = strconv.Atoi(text)
	if err != nil {
		return 0, false, fmt.Errorf("%s: not a number", name)
	}
	return n, n >= 0, nil
}

func (r reader) offlineAndIsolated(online cpuset.Set) (offline, isolated cpuset.Set, err error) {
	present, err := r.optionalList(path.Join(cpuDir, "present"))
	if err != nil {
		return
	}
	// "offline" lists every possible CPU that is not online, including CPUs that were never plugged
	// in. Only present CPUs count.
	offline = present.Minus(online)
	isolated, err = r.optionalList(path.Join(cpuDir, "isolated"))
	return offline, isolated.Intersect(online), err
}

// groups collects disjoint sets of CPUs that sysfs lists once per member.
type groups struct {
	what string
	of   map[int]int // CPU -> index in sets
	sets []cpuset.Set
	from []string // file that each set was first read from
}

// add records the group that file lists for cpu. Every member must list the same group.
func (g *groups) add(cpu int, set cpuset.Set, file string) error {
	if !set.Contains(cpu) {
		return fmt.Errorf("%s: %s of CPU %d lists %q, without the CPU itself", file, g.what, cpu, set)
	}
	if i, seen := g.of[cpu]; seen {
		if !g.sets[i].Equal(set) {
			return fmt.Errorf("%s: lists %q where %s lists %q", file, set, g.from[i], g.sets[i])
		}
		return nil
	}
	for id := range set.All() {
		if i, seen := g.of[id]; seen {
			return fmt.Errorf("%s: lists %q, which overlaps %q of %s", file, set, g.sets[i], g.from[i])
		}
	}
	for id := range set.All() {
		g.of[id] = len(g.sets)
	}
	g.sets, g.from = append(g.sets, set), append(g.from, file)
	return nil
}

func newGroups(what string) *groups { return &groups{what: what, of: map[int]int{}} }

// cpus reads the cpuN directories: cores, sockets, dies and L3 domains.
func (r reader) cpus(online cpuset.Set, p *cputopology.Parts) error {
	type dieKey struct{ socket, die int }
	sockets, dies := map[int]*cpuset.Builder{}, map[dieKey]*cpuset.Builder{}
	cores, caches := newGroups("the core"), newGroups("the L3")
	l3Bytes := map[int]int64{} // index in caches.sets -> size
	for id := range online.All() {
		dir := path.Join(cpuDir, "cpu"+strconv.Itoa(id))
		socket, _, err := r.optionalInt(path.Join(dir, "topology/physical_package_id"))
		if err != nil {
			return err
		}
		// -1 means that the kernel does not know; the CPUs then form one socket.
		socket = max(socket, 0)
		add(sockets, socket, id)
		die, ok, err := r.optionalInt(path.Join(dir, "topology/die_id"))
		if err != nil {
			return err
		}
		if ok {
			add(dies, dieKey{socket, die}, id)
		}
		threads, file, err := r.threads(dir, id)
		if err != nil {
			return err
		}
		if err := cores.add(id, threads.Intersect(online), file); err != nil {
			return err
		}
		if err := r.l3(dir, id, online, caches, l3Bytes); err != nil {
			return err
		}
	}
	p.Cores = cores.sets
	for id, b := range sockets {
		p.Sockets = append(p.Sockets, cputopology.Socket{ID: id, CPUs: b.Set()})
	}
	for _, b := range dies {
		p.Dies = append(p.Dies, b.Set())
	}
	for i, s := range caches.sets {
		p.L3 = append(p.L3, cputopology.L3{CPUs: s, Bytes: l3Bytes[i]})
	}
	return nil
}

func add[K comparable](m map[K]*cpuset.Builder, key K, cpu int) {
	if m[key] == nil {
		m[key] = &cpuset.Builder{}
	}
	m[key].Add(cpu)
}

// threads returns the hardware threads of a CPU's core and the file that lists them. Without a
// siblings file the CPU is a core by itself.
func (r reader) threads(dir string, cpu int) (cpuset.Set, string, error) {
	for _, name := range []string{"topology/core_cpus_list", "topology/thread_siblings_list"} {
		file := path.Join(dir, name)
		s, err := r.cpuList(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		return s, file, err
	}
	return cpuset.Of(cpu), dir, nil
}

// l3 adds the CPU's level-3 cache, if it has one.
func (r reader) l3(dir string, cpu int, online cpuset.Set, caches *groups, bytes map[int]int64) error {
	for i := range cacheIndexMax {
		index := path.Join(dir, "cache/index"+strconv.Itoa(i))
		level, ok, err := r.optionalInt(path.Join(index, "level"))
		if err != nil {
			return err
		}
		if !ok {
			return nil
		}
		if level != 3 {
			continue
		}
		file := path.Join(index, "shared_cpu_list")
		shared, err := r.cpuList(file)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		size, err := r.cacheBytes(path.Join(index, "size"))
		if err != nil {
			return err
		}
		if err := caches.add(cpu, shared.Intersect(online), file); err != nil {
			return err
		}
		bytes[caches.of[cpu]] = size
		return nil
	}
	return nil
}

// cacheBytes reads a cache size such as "36608K". It returns 0 if the file does not exist.
func (r reader) cacheBytes(name string) (int64, error) {
	text, err := r.text(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && text == "" {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	digits, unit := text, int64(1)
	for suffix, u := range map[string]int64{"K": 1 << 10, "M": 1 << 20, "G": 1 << 30} {
		if s, ok := strings.CutSuffix(text, suffix); ok {
			digits, unit = s, u
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > 1<<40/unit {
		return 0, fmt.Errorf("%s: not a cache size", name)
	}
	return n * unit, nil
}

// numa reads the NUMA nodes. Without a node directory (a kernel without NUMA) all CPUs are in node
// 0.
func (r reader) numa(online cpuset.Set) ([]cputopology.NUMANode, error) {
	file := path.Join(nodeDir, "online")
	ids, err := r.cpuList(file) // node lists have the format of CPU lists
	if errors.Is(err, fs.ErrNotExist) {
		return []cputopology.NUMANode{{CPUs: online, Distances: []int{10}}}, nil
	}
	if err != nil {
		return nil, err
	}
	if n := ids.Len(); n == 0 || n > cputopology.MaxNUMANodes {
		return nil, fmt.Errorf("%s: %d NUMA nodes, want 1 to %d", file, n, cputopology.MaxNUMANodes)
	}
	var nodes []cputopology.NUMANode
	for id := range ids.All() {
		dir := path.Join(nodeDir, "node"+strconv.Itoa(id))
		n := cputopology.NUMANode{ID: id}
		cpus, err := r.cpuList(path.Join(dir, "cpulist"))
		if err != nil {
			return nil, err
		}
		n.CPUs = cpus.Intersect(online)
		if n.Distances, err = r.distances(path.Join(dir, "distance"), ids.Len()); err != nil {
			return nil, err
		}
		if n.MemoryBytes, err = r.memory(path.Join(dir, "meminfo")); err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	}
	// If the firmware gives no distances, the kernel has none for any node. The usual distances 10
	// and 20 are used instead.
	for i := range nodes {
		if nodes[i].Distances != nil {
			continue
		}
		for j := range nodes {
			d := 20
			if i == j {
				d = 10
			}
			nodes[i].Distances = append(nodes[i].Distances, d)
		}
	}
	return nodes, nil
}

// distances returns nil if the file does not exist.
func (r reader) distances(file string, nodes int) ([]int, error) {
	text, err := r.text(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(text)
	if len(fields) != nodes {
		return nil, fmt.Errorf("%s: %d distances for %d online nodes", file, len(fields), nodes)
	}
	out := make([]int, nodes)
	for i, f := range fields {
		if out[i], err = strconv.Atoi(f); err != nil || out[i] < 0 || out[i] > 255 {
			return nil, fmt.Errorf("%s: a distance is not a number from 0 to 255", file)
		}
	}
	return out, nil
}

// memory returns MemTotal in bytes, or 0 if meminfo does not exist.
func (r reader) memory(file string) (int64, error) {
	text, err := r.text(file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		_, value, ok := strings.Cut(line, "MemTotal:")
		if !ok {
			continue
		}
		fields := strings.Fields(value)
		if len(fields) == 0 {
			break
		}
		kib, err := strconv.ParseInt(fields[0], 10, 64)
		if err != nil || kib < 0 || kib > 1<<50 {
			return 0, fmt.Errorf("%s: MemTotal is not a size", file)
		}
		return kib << 10, nil
	}
	return 0, fmt.Errorf("%s: no MemTotal", file)
}

// efficient returns the CPUs of the smaller cores of a hybrid machine. Intel machines list them; on
// other machines cpu_capacity (1024 for the largest kind of core) shows them.
func (r reader) efficient(online cpuset.Set) (cpuset.Set, error) {
	atom, err := r.optionalList(atomCPU)
	if err != nil || !atom.IsEmpty() {
		return atom.Intersect(online), err
	}
	var small cpuset.Builder
	most, capacity := 0, map[int]int{}
	for id := range online.All() {
		c, ok, err := r.optionalInt(path.Join(cpuDir, "cpu"+strconv.Itoa(id), "cpu_capacity"))
		if err != nil {
			return cpuset.Set{}, err
		}
		if !ok {
			return cpuset.Set{}, nil
		}
		capacity[id], most = c, max(most, c)
	}
	for id, c := range capacity {
		if c < most {
			small.Add(id)
		}
	}
	return small.Set(), nil
}
