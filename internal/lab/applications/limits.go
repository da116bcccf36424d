package applications

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Limits are resource limits of the manager. Zero means no limit.
type Limits struct {
	CPU       float64 `json:"cpu"` // cores
	MemoryMiB int64   `json:"memoryMiB"`
}

// String formats the limits for reports.
func (l Limits) String() string {
	var parts []string
	if l.CPU > 0 {
		parts = append(parts, fmt.Sprintf("%g CPUs", l.CPU))
	}
	if l.MemoryMiB > 0 {
		parts = append(parts, fmt.Sprintf("%d MiB", l.MemoryMiB))
	}
	return strings.Join(parts, ", ")
}

const (
	cgroupRoot   = "/sys/fs/cgroup"
	periodMicros = 100_000
)

// limit puts a process into a control group of its own, of cgroup version 1 or 2. release removes
// the group and must be called after the process has ended. limit needs root.
func limit(pid int, l Limits) (release func() error, err error) {
	if l == (Limits{}) {
		return func() error { return nil }, nil
	}
	group := fmt.Sprintf("lockstep-bench-%d", pid)
	quota := strconv.FormatInt(int64(l.CPU*periodMicros), 10)
	memory := strconv.FormatInt(l.MemoryMiB<<20, 10)
	type file struct{ name, content string }
	groups := map[string][]file{}
	if _, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers")); err == nil {
		var files []file
		if l.CPU > 0 {
			files = append(files, file{"cpu.max", fmt.Sprintf("%s %d", quota, periodMicros)})
		}
		if l.MemoryMiB > 0 {
			files = append(files, file{"memory.max", memory})
		}
		groups[filepath.Join(cgroupRoot, group)] = files
	} else {
		if l.CPU > 0 {
			groups[filepath.Join(cgroupRoot, "cpu", group)] = []file{{"cpu.cfs_period_us", strconv.Itoa(periodMicros)}, {"cpu.cfs_quota_us", quota}}
		}
		if l.MemoryMiB > 0 {
			groups[filepath.Join(cgroupRoot, "memory", group)] = []file{{"memory.limit_in_bytes", memory}}
		}
	}
	release = func() error {
		var errs []error
		for dir := range groups {
			err := os.Remove(dir)
			for deadline := time.Now().Add(5 * time.Second); err != nil && !os.IsNotExist(err) && time.Now().Before(deadline); err = os.Remove(dir) {
				// The kernel keeps a group for some time after its last process has ended.
				time.Sleep(50 * time.Millisecond)
			}
			if err != nil && !os.IsNotExist(err) {
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	}
	for dir, files := range groups {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, errors.Join(fmt.Errorf("limits of the manager: %w", err), release())
		}
		for _, f := range append(files, file{"cgroup.procs", strconv.Itoa(pid)}) {
			if err := os.WriteFile(filepath.Join(dir, f.name), []byte(f.content), 0o644); err != nil {
				return nil, errors.Join(fmt.Errorf("limits of the manager: %w", err), release())
			}
		}
	}
	return release, nil
}
