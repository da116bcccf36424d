// Package fakekernel implements cgroups with CPU sets and CFS quotas in memory, with the kernel's
// rules, for machines and cgroup versions that the test machine does not have. A test compares it
// with the running kernel, of either version.
//
//   - Version 1: a child's CPUs must be among its parent's (else EACCES), and a parent's must
//     include its children's (else EBUSY). A cgroup with processes must have CPUs and memory nodes
//     (else ENOSPC). Siblings marked exclusive must not overlap (else EINVAL). CPUs must exist
//     (else ERANGE) and be online (else EINVAL). A new cgroup has no CPUs. A CPU that goes offline
//     is removed from all cgroups for good.
//   - Version 2: any set of CPUs is accepted as a wish. The effective CPUs are those CPUs of the
//     wish that are effective in the parent, or all of the parent's if there are none; minus the
//     CPUs of a sibling that is a partition. A set of a cgroup with processes cannot be cleared
//     (ENOSPC), except where ClearsPopulated. The files exist only if the parent enables the
//     controller for its children.
//   - Quotas: at least 1 ms in a period. In version 1 no cgroup may have a larger share of a CPU than
//     one above it (else EINVAL). The files of both hierarchies of version 1 are in one here.
package fakekernel

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"lockstep.dev/lockstep/internal/cputopology/agent/cgroup"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// Kernel is a hierarchy of cgroups. It must be used by one goroutine only.
type Kernel struct {
	version        cgroup.Version
	possible       int
	online, memory cpuset.Set
	root           *group
	// Before and After are called around each write that the rules allow, with the file and its
	// content.
	Before, After func(name, content string)
	// Fail, if set, is called for each write before the rules are checked. An error it returns is
	// the result of the write.
	Fail func(name, content string) error
	// Writes is the number of allowed writes.
	Writes int
	// ClearsPopulated means that, in version 2, the sets of a cgroup with processes may be cleared.
	// Kernel 7.2 allows that; kernels 6.1 and 6.12 answer ENOSPC.
	ClearsPopulated bool
}

type group struct {
	parent     *group
	children   map[string]*group
	cpus, mems cpuset.Set
	tasks      int
	exclusive  bool   // version 1
	migrate    bool   // version 1
	hands      bool   // version 2: the controller is enabled for its children
	partition  string // version 2: member, root
	quota      int64  // microseconds of CPU time in a period; -1: any
	period     int64
}

func newGroup(parent *group) *group {
	return &group{parent: parent, children: map[string]*group{}, partition: "member", quota: -1, period: 100_000}
}

// New returns the kernel of a machine with CPUs 0 to cpus-1 and memory nodes 0 to nodes-1, all
// online.
func New(version cgroup.Version, cpus, nodes int) *Kernel {
	k := &Kernel{version: version, possible: cpus, online: cpuset.Range(0, cpus-1), memory: cpuset.Range(0, nodes-1)}
	k.root = newGroup(nil)
	k.root.cpus, k.root.mems = k.online, k.memory
	return k
}

var _ cgroup.Files = (*Kernel)(nil)

func pathError(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// find returns the cgroup of a path, or nil.
func (k *Kernel) find(dir string) *group {
	g := k.root
	for name := range strings.SplitSeq(path.Clean("/" + dir)[1:], "/") {
		if name == "" {
			continue
		}
		if g = g.children[name]; g == nil {
			return nil
		}
	}
	return g
}

// Mkdir creates a cgroup in an existing one.
func (k *Kernel) Mkdir(dir string) {
	parent := k.find(path.Dir("/" + dir))
	name := path.Base(dir)
	if parent == nil || parent.children[name] != nil {
		panic("fakekernel: mkdir " + dir)
	}
	parent.children[name] = newGroup(parent)
}

// Rmdir removes a cgroup and everything below it, with their processes.
func (k *Kernel) Rmdir(dir string) {
	if g := k.find(dir); g != nil {
		delete(g.parent.children, path.Base(dir))
	}
}

// AddTask starts a process in a cgroup.
func (k *Kernel) AddTask(dir string) error {
	g := k.find(dir)
	if g == nil {
		return pathError("attach", dir, unix.ENOENT)
	}
	if k.version == cgroup.V1 && (g.cpus.IsEmpty() || g.mems.IsEmpty()) {
		return pathError("attach", dir, unix.ENOSPC)
	}
	g.tasks++
	return nil
}

// Runs returns the CPUs on which the processes of a cgroup run.
func (k *Kernel) Runs(dir string) cpuset.Set {
	g := k.find(dir)
	if k.version == cgroup.V1 {
		return g.cpus.Intersect(k.online)
	}
	return k.effective(g)
}

// SetOnline switches CPUs on and off.
func (k *Kernel) SetOnline(cpus cpuset.Set) {
	k.online = cpus
	k.root.cpus = cpus
	if k.version == cgroup.V1 {
		k.shrink(k.root)
	}
}

// shrink removes offline CPUs from the cgroups of version 1. The processes of a cgroup with no CPUs
// left move to its parent.
func (k *Kernel) shrink(g *group) {
	for _, child := range g.children {
		had := !child.cpus.IsEmpty()
		child.cpus = child.cpus.Intersect(k.online)
		if had && child.cpus.IsEmpty() {
			g.tasks += child.tasks
			child.tasks = 0
		}
		k.shrink(child)
	}
}

// effective returns the effective CPUs of a cgroup in version 2.
func (k *Kernel) effective(g *group) cpuset.Set {
	if g.parent == nil {
		return k.online
	}
	left := k.effective(g.parent)
	if g.partition == "root" {
		if own := g.cpus.Intersect(left); !own.IsEmpty() {
			return own
		}
		return left // an invalid partition counts as a member
	}
	for _, sibling := range g.parent.children {
		if sibling != g && sibling.partition == "root" {
			if rest := left.Minus(sibling.cpus); !rest.IsEmpty() {
				left = rest
			}
		}
	}
	if own := g.cpus.Intersect(left); !own.IsEmpty() {
		return own
	}
	return left
}

func (k *Kernel) effectiveMems(g *group) cpuset.Set {
	if g.parent == nil {
		return k.memory
	}
	left := k.effectiveMems(g.parent)
	if own := g.mems.Intersect(left); !own.IsEmpty() {
		return own
	}
	return left
}

// List implements cgroup.Files.
func (k *Kernel) List(dir string) ([]string, error) {
	g := k.find(dir)
	if g == nil {
		return nil, pathError("list", dir, unix.ENOENT)
	}
	return slices.Sorted(maps.Keys(g.children)), nil
}

// file returns the cgroup of a file, if the file exists.
func (k *Kernel) file(name string) (*group, string) {
	g, file := k.find(path.Dir("/"+name)), path.Base(name)
	if g == nil {
		return nil, ""
	}
	common := []string{"cpuset.cpus", "cpuset.mems"}
	switch k.version {
	case cgroup.V1:
		if slices.Contains(append(common, "cpuset.cpu_exclusive", "cpuset.memory_migrate", "cpu.cfs_quota_us", "cpu.cfs_period_us"), file) {
			return g, file
		}
	case cgroup.V2:
		if file == "cgroup.subtree_control" {
			return g, file
		}
		effective := file == "cpuset.cpus.effective" || file == "cpuset.mems.effective"
		if g.parent == nil && effective ||
			g.parent != nil && g.parent.hands && (effective || slices.Contains(append(common, "cpuset.cpus.partition", "cpu.max"), file)) {
			return g, file
		}
	}
	return nil, ""
}

// ReadFile implements cgroup.Files.
func (k *Kernel) ReadFile(name string) ([]byte, error) {
	g, file := k.file(name)
	var text string
	switch file {
	case "":
		return nil, pathError("open", name, unix.ENOENT)
	case "cpuset.cpus":
		text = g.cpus.String()
	case "cpuset.mems":
		text = g.mems.String()
	case "cpuset.cpus.effective":
		text = k.effective(g).String()
	case "cpuset.mems.effective":
		text = k.effectiveMems(g).String()
	case "cpuset.cpus.partition":
		text = g.partition
	case "cpuset.cpu_exclusive":
		text = strconv.Itoa(btoi(g.exclusive))
	case "cpuset.memory_migrate":
		text = strconv.Itoa(btoi(g.migrate))
	case "cpu.cfs_quota_us":
		text = strconv.FormatInt(g.quota, 10)
	case "cpu.cfs_period_us":
		text = strconv.FormatInt(g.period, 10)
	case "cpu.max":
		text = fmt.Sprintf("%d %d", g.quota, g.period)
		if g.quota < 0 {
			text = fmt.Sprintf("max %d", g.period)
		}
	case "cgroup.subtree_control":
		if g.hands {
			text = "cpuset"
		}
	}
	return []byte(text + "\n"), nil
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// WriteFile implements cgroup.Files.
func (k *Kernel) WriteFile(name, content string) error {
	if k.Fail != nil {
		if err := k.Fail(name, content); err != nil {
			return pathError("write", name, err)
		}
	}
	g, file := k.file(name)
	if g == nil {
		return pathError("open", name, unix.ENOENT)
	}
	if content == "" {
		return nil
	}
	apply, err := k.check(g, file, strings.TrimSpace(content))
	if err != nil {
		return pathError("write", name, err)
	}
	if k.Before != nil {
		k.Before(name, content)
	}
	apply()
	k.Writes++
	if k.After != nil {
		k.After(name, content)
	}
	return nil
}

// check returns the function that performs a write, or the error with which the write is refused.
func (k *Kernel) check(g *group, file, value string) (func(), error) {
	trial := *g
	switch file {
	case "cpuset.cpus":
		set, err := k.parse(value, k.possible)
		switch {
		case g.parent == nil:
			return nil, unix.EACCES
		case err != nil:
			return nil, err
		case k.version == cgroup.V1 && !set.SubsetOf(k.online):
			return nil, unix.EINVAL
		}
		trial.cpus = set
	case "cpuset.mems":
		set, err := k.parse(value, memoryNodesMax)
		switch {
		case g.parent == nil:
			return nil, unix.EACCES
		case err != nil:
			return nil, err
		case !set.SubsetOf(k.memory):
			return nil, unix.EINVAL
		}
		trial.mems = set
	case "cpuset.cpu_exclusive":
		trial.exclusive = value == "1"
	case "cpu.cfs_quota_us", "cpu.max":
		quota, err := strconv.ParseInt(value, 10, 64)
		switch {
		case file == "cpu.max" && value == "max", file != "cpu.max" && err == nil && quota < 0:
			quota = -1
		case err != nil || quota < quotaMin:
			return nil, unix.EINVAL
		}
		trial.quota = quota
		if k.version == cgroup.V1 && !g.schedulable(&trial) {
			return nil, unix.EINVAL
		}
		return func() { *g = trial }, nil
	case "cpuset.memory_migrate":
		return func() { g.migrate = value == "1" }, nil
	case "cpuset.cpus.partition":
		if value != "root" && value != "member" {
			return nil, unix.EINVAL
		}
		return func() { g.partition = value }, nil
	case "cgroup.subtree_control":
		if g.parent != nil && !g.parent.hands {
			return nil, unix.ENOENT
		}
		return func() { g.hands = value == "+cpuset" }, nil
	default:
		return nil, unix.EACCES
	}
	switch {
	case k.version == cgroup.V1:
		if err := g.allow(&trial); err != nil {
			return nil, err
		}
	case !k.ClearsPopulated && g.clearedBy(&trial):
		return nil, unix.ENOSPC
	}
	return func() { *g = trial }, nil
}

// quotaMin is the smallest quota, in microseconds.
const quotaMin = 1000

// schedulable reports whether no cgroup would have a larger share than one above it, in version 1.
func (g *group) schedulable(trial *group) bool {
	share := func(g *group) float64 { return float64(g.quota) / float64(g.period) }
	for above := g.parent; above != nil && trial.quota >= 0; above = above.parent {
		if above.quota >= 0 {
			if share(trial) > share(above) {
				return false
			}
			break
		}
	}
	var fits func(g *group) bool
	fits = func(g *group) bool {
		for _, c := range g.children {
			if c.quota >= 0 && share(c) > share(trial) || c.quota < 0 && !fits(c) {
				return false
			}
		}
		return true
	}
	return trial.quota < 0 || fits(g)
}

// memoryNodesMax is the limit for which distributions build their kernels.
const memoryNodesMax = 1024

// within reports whether g may be a child of parent, in version 1.
func (g *group) within(parent *group) bool {
	return g.cpus.SubsetOf(parent.cpus) && g.mems.SubsetOf(parent.mems) && (parent.exclusive || !g.exclusive)
}

// allow checks whether a cgroup may change to trial, in version 1.
func (g *group) allow(trial *group) error {
	for _, child := range g.children {
		if !child.within(trial) {
			return unix.EBUSY
		}
	}
	if g.parent == nil {
		return nil
	}
	if !trial.within(g.parent) {
		return unix.EACCES
	}
	if g.clearedBy(trial) {
		return unix.ENOSPC
	}
	for _, s := range g.parent.children {
		if s != g && (s.exclusive || trial.exclusive) && s.cpus.Overlaps(trial.cpus) {
			return unix.EINVAL
		}
	}
	return nil
}

// clearedBy reports whether a change to trial clears a set of a cgroup with processes.
func (g *group) clearedBy(trial *group) bool {
	return g.populated() && (trial.cpus.IsEmpty() && !g.cpus.IsEmpty() || trial.mems.IsEmpty() && !g.mems.IsEmpty())
}

func (k *Kernel) parse(value string, limit int) (cpuset.Set, error) {
	set, err := cpuset.Parse(value)
	if err != nil {
		return set, unix.EINVAL
	}
	for id := range set.All() {
		if id >= limit {
			return set, unix.ERANGE
		}
	}
	return set, nil
}

func (g *group) populated() bool {
	if g.tasks > 0 {
		return true
	}
	for _, c := range g.children {
		if c.populated() {
			return true
		}
	}
	return false
}
