package jobs

import (
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

// machine describes this machine. Fields that the operating system does not report stay empty.
func machine() Machine {
	m := Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), Go: runtime.Version()}
	m.Hostname, _ = os.Hostname()
	m.Kernel = firstLine("/proc/sys/kernel/osrelease")
	if proc, err := procfs.NewDefaultFS(); err == nil {
		if cpus, err := proc.CPUInfo(); err == nil && len(cpus) > 0 {
			m.CPU = cpus[0].ModelName
		}
		if memory, err := proc.Meminfo(); err == nil && memory.MemTotal != nil {
			m.MemoryMiB = int64(*memory.MemTotal / 1024)
		}
	}
	if quota, period, ok := strings.Cut(firstLine("/sys/fs/cgroup/cpu.max"), " "); ok {
		q, err1 := strconv.ParseFloat(quota, 64)
		p, err2 := strconv.ParseFloat(period, 64)
		if err1 == nil && err2 == nil && p > 0 {
			m.CPULimit = q / p
		}
	}
	if bytes, err := strconv.ParseInt(firstLine("/sys/fs/cgroup/memory.max"), 10, 64); err == nil {
		m.MemoryLimitMiB = bytes >> 20
	}
	return m
}

func firstLine(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(data), "\n")
	return line
}
