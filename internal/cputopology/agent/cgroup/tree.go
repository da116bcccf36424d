package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

const (
	fileCPUs          = "cpuset.cpus"
	fileMems          = "cpuset.mems"
	fileEffective     = "cpuset.cpus.effective" // version 2
	fileEffectiveMems = "cpuset.mems.effective" // version 2
	fileMigrate       = "cpuset.memory_migrate" // version 1
	fileControllers   = "cgroup.subtree_control"
)

// Tree contains the cgroups that a kubelet has created.
type Tree struct {
	// Roots are the cgroups of all pods, usually one. QoS are the cgroups of the quality-of-service
	// classes below them.
	Roots, QoS []string
	Pods       []Pod
}

// Pod is the cgroup of a pod.
type Pod struct {
	Path string
	// Class is the cgroup of the pod's quality-of-service class; "" for guaranteed pods, which have
	// none.
	Class string
	UID   string
	// Leaves are the cgroups of the pod's containers and of its sandbox.
	Leaves []Leaf
}

// Leaf is the cgroup of a container.
type Leaf struct {
	Path string
	// ID is the container's ID in its runtime, or the name of the cgroup if it contains none.
	ID string
}

// Scan finds the pods below parent, the kubelet's cgroup root ("" is the root of the hierarchy).
// Cgroups that disappear in the meantime are omitted.
func Scan(files Files, parent string) (Tree, error) {
	var t Tree
	names, err := files.List(parent)
	if err != nil {
		return t, err
	}
	for _, name := range names {
		if name == "kubepods" || name == "kubepods.slice" || strings.HasSuffix(name, "-kubepods.slice") {
			t.Roots = append(t.Roots, path.Join(parent, name))
		}
	}
	if len(t.Roots) == 0 {
		return t, fmt.Errorf(
			"no kubepods or kubepods.slice in the cgroup /%s: the kubelet has not started yet, or has another --cgroup-root",
			parent)
	}
	for _, root := range t.Roots {
		if err := t.scanClass(files, root, false); err != nil {
			return t, err
		}
	}
	return t, nil
}

// scanClass finds the pods in a cgroup, which is either the cgroup of a class or a root that
// contains classes.
func (t *Tree) scanClass(files Files, class string, isClass bool) error {
	names, err := listed(files, class)
	if err != nil {
		return err
	}
	for _, name := range names {
		dir := path.Join(class, name)
		if uid := podUID(name); uid != "" {
			pod := Pod{Path: dir, UID: uid}
			if isClass {
				pod.Class = class
			}
			if pod.Leaves, err = Leaves(files, dir); err != nil {
				return err
			}
			t.Pods = append(t.Pods, pod)
			continue
		}
		if bare := strings.TrimSuffix(name, ".slice"); !isClass &&
			(strings.HasSuffix(bare, "burstable") || strings.HasSuffix(bare, "besteffort")) {
			t.QoS = append(t.QoS, dir)
			if err := t.scanClass(files, dir, true); err != nil {
				return err
			}
		}
	}
	return nil
}

// Leaves lists the cgroups in the cgroup of a pod.
func Leaves(files Files, pod string) ([]Leaf, error) {
	names, err := listed(files, pod)
	leaves := make([]Leaf, len(names))
	for i, name := range names {
		leaves[i] = Leaf{Path: path.Join(pod, name), ID: containerID(name)}
	}
	return leaves, err
}

// listed is like List, but returns no names for a cgroup that is gone.
func listed(files Files, dir string) ([]string, error) {
	names, err := files.List(dir)
	if Gone(err) {
		return nil, nil
	}
	return names, err
}

// podUID returns the pod's UID from the name of its cgroup, or "". systemd's names have underscores
// instead of the UID's dashes.
func podUID(name string) string {
	if uid, ok := strings.CutPrefix(name, "pod"); ok {
		return uid
	}
	if bare, ok := strings.CutSuffix(name, ".slice"); ok {
		if i := strings.LastIndex(bare, "-pod"); i >= 0 {
			return strings.ReplaceAll(bare[i+len("-pod"):], "_", "-")
		}
	}
	return ""
}

// containerID returns the container's ID from the name of its cgroup: the part after the last dash,
// without systemd's suffix.
func containerID(name string) string {
	bare := strings.TrimSuffix(name, ".scope")
	return bare[strings.LastIndexByte(bare, '-')+1:]
}

// Gone reports whether an error means that a cgroup no longer exists.
func Gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) }

// Sets reads and writes the CPU sets of a hierarchy.
type Sets struct {
	Files   Files
	Version Version
}

// CPUs returns the CPUs on which a cgroup's processes may run.
func (s Sets) CPUs(dir string) (cpuset.Set, error) {
	if s.Version == V2 {
		return s.read(dir, fileEffective)
	}
	return s.read(dir, fileCPUs)
}

// Wish returns the CPUs written to the cgroup. In version 2 the parent limits which of them are
// effective, and the set is empty if nothing was written.
func (s Sets) Wish(dir string) (cpuset.Set, error) { return s.read(dir, fileCPUs) }

// Mems returns the memory nodes that a cgroup's processes may use.
func (s Sets) Mems(dir string) (cpuset.Set, error) {
	if s.Version == V2 {
		return s.read(dir, fileEffectiveMems)
	}
	return s.read(dir, fileMems)
}

// WishMems returns the memory nodes written to the cgroup.
func (s Sets) WishMems(dir string) (cpuset.Set, error) { return s.read(dir, fileMems) }

func (s Sets) read(dir, file string) (cpuset.Set, error) {
	name := path.Join(dir, file)
	data, err := s.Files.ReadFile(name)
	if err != nil {
		return cpuset.Set{}, err
	}
	set, err := cpuset.Parse(strings.TrimSpace(string(data)))
	if err != nil {
		return set, fmt.Errorf("%s: %w", name, err)
	}
	return set, nil
}

// ClearCPUs removes the restriction of a cgroup of version 2 to CPUs: it gets its parent's, also
// those that the parent gets later. Kernels before 7.2 refuse that for a cgroup with processes, which
// then gets the CPUs that its parent has now.
func (s Sets) ClearCPUs(dir string) error { return clearSet(dir, s.Wish, s.CPUs, s.SetCPUs) }

// ClearMems is like ClearCPUs for memory nodes.
func (s Sets) ClearMems(dir string) error { return clearSet(dir, s.WishMems, s.Mems, s.SetMems) }

func clearSet(dir string, wish, effective func(string) (cpuset.Set, error), set func(string, cpuset.Set) error) error {
	err := set(dir, cpuset.Set{})
	if !errors.Is(err, unix.ENOSPC) {
		return err
	}
	above, err := effective(path.Dir(dir))
	if err != nil {
		return err
	}
	if has, err := wish(dir); err != nil || has.Equal(above) {
		return err
	}
	return set(dir, above)
}

// SetCPUs writes a cgroup's CPUs. In version 2 the empty set means that of ClearCPUs, and is refused
// as described there.
func (s Sets) SetCPUs(dir string, cpus cpuset.Set) error {
	// A write of zero bytes has no effect; an empty line has.
	return s.Files.WriteFile(path.Join(dir, fileCPUs), cpus.String()+"\n")
}

// SetMems writes a cgroup's memory nodes. In version 2 the kernel moves memory from other nodes by
// itself; version 1 needs a flag for that.
func (s Sets) SetMems(dir string, mems cpuset.Set) error {
	if s.Version == V1 {
		if err := s.Files.WriteFile(path.Join(dir, fileMigrate), "1\n"); err != nil {
			return err
		}
	}
	return s.Files.WriteFile(path.Join(dir, fileMems), mems.String()+"\n")
}

// Enable makes the cpuset controller available in dir, in version 2: all cgroups above must enable
// it for their children. It does nothing if the controller is available.
func (s Sets) Enable(dir string) error {
	if s.Version == V1 {
		return nil
	}
	if _, err := s.Files.ReadFile(path.Join(dir, fileCPUs)); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if dir == "" || dir == "." {
		return nil
	}
	parent := path.Dir(dir)
	if err := s.Enable(parent); err != nil {
		return err
	}
	return s.Files.WriteFile(path.Join(parent, fileControllers), "+cpuset\n")
}
