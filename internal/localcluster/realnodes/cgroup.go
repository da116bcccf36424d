package realnodes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const cgroupMount = "/sys/fs/cgroup"

// controllers are the cgroup controllers that kubelets use to limit pods.
var controllers = []string{"cpu", "cpuset", "memory", "pids"}

// v1Only are the additional hierarchies that runc needs with cgroup v1.
var v1Only = []string{"cpuacct", "devices", "freezer"}

// cgroupV2 reports whether the unified hierarchy is in use.
func cgroupV2() bool {
	_, err := os.Stat(filepath.Join(cgroupMount, "cgroup.controllers"))
	return err == nil
}

// hierarchies returns the roots of all cgroup hierarchies.
func hierarchies() ([]string, error) {
	if cgroupV2() {
		return []string{cgroupMount}, nil
	}
	entries, err := os.ReadDir(cgroupMount)
	if err != nil {
		return nil, err
	}
	var roots []string
	for _, e := range entries {
		// Co-mounted hierarchies have links next to them: cpu -> cpu,cpuacct.
		if e.IsDir() {
			roots = append(roots, filepath.Join(cgroupMount, e.Name()))
		}
	}
	return roots, nil
}

// MakeCgroups creates the nodes' cgroups, with all controllers that kubelets use.
func (s Spec) MakeCgroups() error {
	roots, err := hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		for _, path := range s.cgroups() {
			dir := filepath.Join(root, path)
			if s.Host.CgroupV2 {
				if err := delegate(filepath.Dir(dir)); err != nil {
					return err
				}
			}
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("cgroup: %w", err)
			}
			if s.Host.CgroupV2 {
				continue
			}
			// In v1 a new cpuset is empty and accepts no process until it has CPUs and memory.
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				value, err := os.ReadFile(filepath.Join(filepath.Dir(dir), file))
				if errors.Is(err, fs.ErrNotExist) {
					continue
				}
				if err == nil {
					err = os.WriteFile(filepath.Join(dir, file), value, 0o644)
				}
				if err != nil {
					return fmt.Errorf("cgroup: %w", err)
				}
			}
		}
	}
	return nil
}

// cgroups returns the parent cgroup, followed by the cgroups of the nodes.
func (s Spec) cgroups() []string {
	list := []string{s.Cgroup}
	for _, n := range s.Nodes() {
		list = append(list, n.Cgroup())
	}
	return list
}

// delegate enables the controllers for the children of a unified cgroup.
func delegate(dir string) error {
	path := filepath.Join(dir, "cgroup.subtree_control")
	if err := os.WriteFile(path, []byte("+"+strings.Join(controllers, " +")), 0o644); err != nil {
		return fmt.Errorf("cgroup controllers %s: %w", strings.Join(controllers, ", "), err)
	}
	return nil
}

// RemoveCgroups removes the cgroups of the real nodes in dir, whose processes must have ended.
func RemoveCgroups(cluster, dir string) error {
	roots, err := hierarchies()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, root := range roots {
		err = errors.Join(err, removeTree(filepath.Join(root, CgroupOf(cluster, dir))))
	}
	return err
}

const (
	// A cgroup is busy for a moment after its last process was killed.
	removeRetries = 100
	removeDelay   = 20 * time.Millisecond
)

func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	for i := 0; ; i++ {
		err := syscall.Rmdir(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if i == removeRetries {
			return &fs.PathError{Op: "remove cgroup", Path: dir, Err: err}
		}
		time.Sleep(removeDelay)
	}
}
