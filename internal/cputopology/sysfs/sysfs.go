// Package sysfs reads a machine's processor topology from a sysfs tree: of the running kernel, of a
// container's view of the host, or of a dump. The root contains "sys/devices/system/cpu";
// os.DirFS("/") is the running machine.
//
//	cpuN/topology, cpuN/cache, node/nodeN ──▶ levels, each checked ──▶ cputopology.Parts ──▶ Topology
//	                                              │
//	                                              └── contradictory ──▶ left out, with a warning
//
// Files that the kernel omits on some machines may be missing (NUMA directory, die, cache, siblings
// files). A level whose files contradict themselves or the cores is left out, with a warning that
// names the file: without its NUMA nodes, caches or sockets a machine can still be used. Errors are
// left for files that cannot be read, and for a machine whose online CPUs are not known. The
// hardware threads of a core are read from the core's sibling list, not from core_id, which is
// neither dense nor unique across sockets.
package sysfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// Paths below the root.
const (
	cpuDir  = "sys/devices/system/cpu"
	nodeDir = "sys/devices/system/node"
)

// fileBytesMax bounds the part of a file that is read. sysfs files are at most one page; list files
// of large machines are a few pages.
const fileBytesMax = 1 << 16

// cacheIndexMax bounds the search for cache/indexN directories; machines have at most five.
const cacheIndexMax = 16

// Read reads the topology below root. The warnings say which contradictory files were left out, and
// what is assumed in their place. Errors name the file that is missing or cannot be read.
func Read(root fs.FS) (topology *cputopology.Topology, warnings []string, err error) {
	r := reader{root: root}
	online, err := r.onlineCPUs()
	if err != nil {
		return nil, nil, err
	}
	var p cputopology.Parts
	if p.Offline, p.Isolated, err = r.offlineAndIsolated(online); err != nil {
		return nil, nil, err
	}
	// Cores come first: the other levels are checked against them.
	for _, level := range []func(cpuset.Set, *cputopology.Parts) error{r.cores, r.sockets, r.dies, r.l3, r.numa, r.kinds} {
		if err := level(online, &p); err != nil {
			return nil, nil, err
		}
	}
	topology, err = cputopology.New(p)
	return topology, r.warnings, err
}

type reader struct {
	root     fs.FS
	warnings []string
}

// contentError is the error of a file that was read and makes no sense, alone or beside others. Such
// files do not change by being read again, so the reader goes on without them.
type contentError struct {
	file, problem string
}

func (e *contentError) Error() string { return e.file + ": " + e.problem }

func wrong(file, format string, args ...any) error {
	return &contentError{file, fmt.Sprintf(format, args...)}
}

// tolerate turns the error of a file's content into a warning with its consequence, and returns all
// other errors.
func (r *reader) tolerate(err error, consequence string) error {
	var content *contentError
	if !errors.As(err, &content) {
		return err
	}
	r.warnings = append(r.warnings, fmt.Sprintf("%v; %s", err, consequence))
	return nil
}

// text returns the content of a file without surrounding white space.
func (r *reader) text(name string) (string, error) {
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
		return "", wrong(name, "longer than %d bytes", fileBytesMax)
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

func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// cpuList reads a list such as "0-3,8".
func (r *reader) cpuList(name string) (cpuset.Set, error) {
	text, err := r.text(name)
	if err != nil {
		return cpuset.Set{}, err
	}
	s, err := cpuset.Parse(text)
	if err != nil {
		return s, wrong(name, "%v", err)
	}
	return s, nil
}

// cpuMask reads a mask of comma-separated 32-bit words, the highest first.
func (r *reader) cpuMask(name string) (cpuset.Set, error) {
	text, err := r.text(name)
	if err != nil {
		return cpuset.Set{}, err
	}
	var b cpuset.Builder
	words := strings.Split(text, ",")
	for i, word := range words {
		bits, err := strconv.ParseUint(word, 16, 32)
		if err != nil || len(words) > cputopology.MaxCPUs/32 {
			return cpuset.Set{}, wrong(name, "not a mask of CPUs")
		}
		for bit := range 32 {
			if bits>>bit&1 != 0 {
				b.Add(32*(len(words)-1-i) + bit)
			}
		}
	}
	return b.Set(), nil
}

// cpuSet reads the first file that exists, each of which is a list, or a mask if its name does not
// end in "list": old kernels have only masks.
func (r *reader) cpuSet(names ...string) (set cpuset.Set, file string, err error) {
	for _, file = range names {
		read := r.cpuMask
		if strings.HasSuffix(file, "list") {
			read = r.cpuList
		}
		if set, err = read(file); !missing(err) {
			return set, file, err
		}
	}
	return set, names[0], err
}

// optionalList is like cpuList but returns the empty set if the file does not exist.
func (r *reader) optionalList(name string) (cpuset.Set, error) {
	s, err := r.cpuList(name)
	if missing(err) {
		return cpuset.Set{}, nil
	}
	return s, err
}

// optionalInt reads a number. ok is false if the file does not exist or the kernel reports
// "unknown" (-1).
func (r *reader) optionalInt(name string) (n int, ok bool, err error) {
	text, err := r.text(name)
	if missing(err) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	n, err = strconv.Atoi(text)
	if err != nil {
		return 0, false, wrong(name, "not a number")
	}
	return n, n >= 0, nil
}

// numbered returns the numbers N of the directories dir/nameN.
func (r *reader) numbered(dir, name string) (cpuset.Set, error) {
	entries, err := fs.ReadDir(r.root, dir)
	if err != nil {
		return cpuset.Set{}, fmt.Errorf("%s: %w", dir, cause(err))
	}
	var b cpuset.Builder
	for _, e := range entries {
		if digits, ok := strings.CutPrefix(e.Name(), name); ok {
			if n, err := strconv.ParseUint(digits, 10, 16); err == nil {
				b.Add(int(n))
			}
		}
	}
	return b.Set(), nil
}

// onlineCPUs reads the list of online CPUs. Without it, the CPUs with a topology are online.
func (r *reader) onlineCPUs() (cpuset.Set, error) {
	file := path.Join(cpuDir, "online")
	online, err := r.cpuList(file)
	if missing(err) {
		all, readErr := r.numbered(cpuDir, "cpu")
		if readErr != nil {
			return online, err
		}
		var b cpuset.Builder
		for id := range all.All() {
			if _, err := fs.Stat(r.root, path.Join(cpuPath(id), "topology")); err == nil {
				b.Add(id)
			}
		}
		online, err = b.Set(), nil
	}
	switch n := online.Len(); {
	case err != nil:
		return online, err
	case n == 0:
		return online, wrong(file, "no CPU is online")
	case n > cputopology.MaxCPUs:
		return online, wrong(file, "%d CPUs, above the limit of %d", n, cputopology.MaxCPUs)
	}
	return online, nil
}

func cpuPath(id int) string { return path.Join(cpuDir, "cpu"+strconv.Itoa(id)) }

func (r *reader) offlineAndIsolated(online cpuset.Set) (offline, isolated cpuset.Set, err error) {
	present, err := r.optionalList(path.Join(cpuDir, "present"))
	if err = r.tolerate(err, "no CPU counts as offline"); err != nil {
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
		return wrong(file, "%s of CPU %d lists %q, without the CPU itself", g.what, cpu, set)
	}
	if i, seen := g.of[cpu]; seen {
		if !g.sets[i].Equal(set) {
			return wrong(file, "lists %q where %s lists %q", set, g.from[i], g.sets[i])
		}
		return nil
	}
	for id := range set.All() {
		if i, seen := g.of[id]; seen {
			return wrong(file, "lists %q, which overlaps %q of %s", set, g.sets[i], g.from[i])
		}
	}
	for id := range set.All() {
		g.of[id] = len(g.sets)
	}
	g.sets, g.from = append(g.sets, set), append(g.from, file)
	return nil
}

func newGroups(what string) *groups { return &groups{what: what, of: map[int]int{}} }

// cores reads the threads of each core. Without a siblings file a CPU is a core by itself.
func (r *reader) cores(online cpuset.Set, p *cputopology.Parts) error {
	g := newGroups("the core")
	read := func(id int) error {
		dir := path.Join(cpuPath(id), "topology")
		threads, file, err := r.cpuSet(path.Join(dir, "core_cpus_list"), path.Join(dir, "thread_siblings_list"),
			path.Join(dir, "core_cpus"), path.Join(dir, "thread_siblings"))
		if missing(err) {
			return g.add(id, cpuset.Of(id), dir)
		}
		if err != nil {
			return err
		}
		return g.add(id, threads.Intersect(online), file)
	}
	for id := range online.All() {
		err := read(id)
		if err == nil {
			continue
		}
		if err := r.tolerate(err, "every CPU counts as a core by itself"); err != nil {
			return err
		}
		g.sets = nil
		for id := range online.All() {
			g.sets = append(g.sets, cpuset.Of(id))
		}
		break
	}
	p.Cores = g.sets
	return nil
}

// cut returns an error if a core has CPUs both in the set and outside of it.
func cut(p *cputopology.Parts, set cpuset.Set, file string) error {
	for _, core := range p.Cores {
		if core.Overlaps(set) && !core.SubsetOf(set) {
			return wrong(file, "%q has some of the threads of core %q and not the others", set, core)
		}
	}
	return nil
}

// byNumber groups the online CPUs by the number in a file of each, and checks that no group cuts a
// core. CPUs without the file have the number that absent returns, if it returns one.
func (r *reader) byNumber(online cpuset.Set, p *cputopology.Parts, name string, absent func(id int) (int, bool)) (
	map[int]cpuset.Set, error) {
	builders := map[int]*cpuset.Builder{}
	for id := range online.All() {
		n, ok, err := r.optionalInt(path.Join(cpuPath(id), name))
		if err != nil {
			return nil, err
		}
		if !ok {
			if n, ok = absent(id); !ok {
				continue
			}
		}
		if builders[n] == nil {
			builders[n] = &cpuset.Builder{}
		}
		builders[n].Add(id)
	}
	out := map[int]cpuset.Set{}
	for n, b := range builders {
		out[n] = b.Set()
		if err := cut(p, out[n], path.Join(cpuPath(out[n].First()), name)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// sockets reads the sockets. CPUs whose socket the kernel does not know (-1) form socket 0.
func (r *reader) sockets(online cpuset.Set, p *cputopology.Parts) error {
	sets, err := r.byNumber(online, p, "topology/physical_package_id", func(int) (int, bool) { return 0, true })
	if err != nil {
		if err := r.tolerate(err, "all CPUs count as one socket"); err != nil {
			return err
		}
		sets = map[int]cpuset.Set{0: online}
	}
	for id, cpus := range sets {
		p.Sockets = append(p.Sockets, cputopology.Socket{ID: id, CPUs: cpus})
	}
	return nil
}

// dies reads the dies, whose numbers start again in each socket.
func (r *reader) dies(online cpuset.Set, p *cputopology.Parts) error {
	sets, err := r.byNumber(online, p, "topology/die_id", func(int) (int, bool) { return 0, false })
	if err != nil {
		return r.tolerate(err, "each socket counts as one die")
	}
	for _, cpus := range sets {
		for _, s := range p.Sockets {
			if die := cpus.Intersect(s.CPUs); !die.IsEmpty() {
				p.Dies = append(p.Dies, die)
			}
		}
	}
	return nil
}

// l3 reads the level-3 caches.
func (r *reader) l3(online cpuset.Set, p *cputopology.Parts) error {
	g, bytes := newGroups("the L3"), map[int]int64{} // index in g.sets -> size
	err := func() error {
		for id := range online.All() {
			if err := r.l3Of(id, online, g, bytes); err != nil {
				return err
			}
		}
		for i, set := range g.sets {
			if err := cut(p, set, g.from[i]); err != nil {
				return err
			}
		}
		return nil
	}()
	if err != nil {
		return r.tolerate(err, "no L3 cache is known, and dies count in place of L3 domains")
	}
	for i, set := range g.sets {
		p.L3 = append(p.L3, cputopology.L3{CPUs: set, Bytes: bytes[i]})
	}
	return nil
}

// l3Of adds the CPU's level-3 cache, if it has one. A cache that lists no CPU at all is none.
func (r *reader) l3Of(cpu int, online cpuset.Set, caches *groups, bytes map[int]int64) error {
	for i := range cacheIndexMax {
		index := path.Join(cpuPath(cpu), "cache/index"+strconv.Itoa(i))
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
		shared, file, err := r.cpuSet(path.Join(index, "shared_cpu_list"), path.Join(index, "shared_cpu_map"))
		if missing(err) || err == nil && shared.IsEmpty() {
			return nil
		}
		if err != nil {
			return err
		}
		size, err := r.cacheBytes(path.Join(index, "size"))
		if err := r.tolerate(err, "the size of the cache is not known"); err != nil {
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
func (r *reader) cacheBytes(name string) (int64, error) {
	text, err := r.text(name)
	if missing(err) || err == nil && text == "" {
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
		return 0, wrong(name, "not a cache size")
	}
	return n * unit, nil
}

// numa reads the NUMA nodes. Without any (a kernel without NUMA, or contradictory nodes) all CPUs
// are in node 0, whose memory is not known.
func (r *reader) numa(online cpuset.Set, p *cputopology.Parts) error {
	ids, err := r.numaIDs()
	if err == nil && !ids.IsEmpty() {
		p.NUMA, err = r.numaNodes(ids, online, p)
	}
	if err := r.tolerate(err, "NUMA is ignored, and the memory of the machine is not known"); err != nil {
		return err
	}
	if p.NUMA == nil {
		p.NUMA = []cputopology.NUMANode{{CPUs: online, Distances: []int{10}}}
	}
	return nil
}

// numaIDs returns the online NUMA nodes. Without the list of them, the directories tell.
func (r *reader) numaIDs() (cpuset.Set, error) {
	file := path.Join(nodeDir, "online")
	ids, err := r.cpuList(file) // node lists have the format of CPU lists
	if missing(err) {
		if ids, err = r.numbered(nodeDir, "node"); missing(err) {
			return ids, nil
		}
	}
	switch n := ids.Len(); {
	case err != nil:
		return ids, err
	case n > cputopology.MaxNUMANodes:
		return ids, wrong(file, "%d NUMA nodes, above the limit of %d", n, cputopology.MaxNUMANodes)
	}
	return ids, nil
}

func (r *reader) numaNodes(ids, online cpuset.Set, p *cputopology.Parts) ([]cputopology.NUMANode, error) {
	var nodes []cputopology.NUMANode
	var all cpuset.Set
	for id := range ids.All() {
		dir := path.Join(nodeDir, "node"+strconv.Itoa(id))
		n := cputopology.NUMANode{ID: id}
		cpus, file, err := r.cpuSet(path.Join(dir, "cpulist"), path.Join(dir, "cpumap"))
		if missing(err) {
			return nil, wrong(file, "missing")
		}
		if err != nil {
			return nil, err
		}
		n.CPUs = cpus.Intersect(online)
		if n.CPUs.Overlaps(all) {
			return nil, wrong(file, "CPUs %s are in more than one NUMA node", n.CPUs.Intersect(all))
		}
		all = all.Union(n.CPUs)
		if err := cut(p, n.CPUs, file); err != nil {
			return nil, err
		}
		n.MemoryBytes, err = r.memory(path.Join(dir, "meminfo"))
		if err := r.tolerate(err, "the memory of the NUMA node is not known"); err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	}
	if none := online.Minus(all); !none.IsEmpty() {
		return nil, wrong(nodeDir, "CPUs %s are in no NUMA node", none)
	}
	return nodes, r.setDistances(nodes)
}

// setDistances sets the distances between the NUMA nodes. If the firmware gives none, the kernel has
// none for any node. The usual distances 10 and 20 are used then.
func (r *reader) setDistances(nodes []cputopology.NUMANode) error {
	known := true
	for i := range nodes {
		file := path.Join(nodeDir, "node"+strconv.Itoa(nodes[i].ID), "distance")
		distances, err := r.distances(file, len(nodes))
		if known = known && distances != nil; err != nil {
			if err := r.tolerate(err, "the distances between NUMA nodes are not known"); err != nil {
				return err
			}
			break
		}
		nodes[i].Distances = distances
	}
	for i := range nodes {
		if known {
			break
		}
		nodes[i].Distances = slices.Repeat([]int{20}, len(nodes))
		nodes[i].Distances[i] = 10
	}
	return nil
}

// distances returns nil if the file does not exist.
func (r *reader) distances(file string, nodes int) ([]int, error) {
	text, err := r.text(file)
	if missing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(text)
	if len(fields) != nodes {
		return nil, wrong(file, "%d distances for %d online nodes", len(fields), nodes)
	}
	out := make([]int, nodes)
	for i, f := range fields {
		if out[i], err = strconv.Atoi(f); err != nil || out[i] < 0 || out[i] > 255 {
			return nil, wrong(file, "a distance is not a number from 0 to 255")
		}
	}
	return out, nil
}

// memory returns MemTotal in bytes, or 0 if meminfo does not exist.
func (r *reader) memory(file string) (int64, error) {
	text, err := r.text(file)
	if missing(err) {
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
			return 0, wrong(file, "MemTotal is not a size")
		}
		return kib << 10, nil
	}
	return 0, wrong(file, "no MemTotal")
}
