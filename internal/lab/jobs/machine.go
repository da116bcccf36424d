package jobs

import (
	"os"
	"runtime"
	"strconv"
	"strings"
)

// machine describes this machine. Fields that the operating system does not report stay empty.
func machine() Machine {
	m := Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), Go: runtime.Version()}
	m.Hostname, _ = os.Hostname()
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(release))
	}
	m.CPU = procField("/proc/cpuinfo", "model name")
	if kib, err := strconv.ParseInt(strings.TrimSuffix(procField("/proc/meminfo", "MemTotal"), " kB"), 10, 64); err == nil {
		m.MemoryMiB = kib / 1024
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

// procField returns the value of the first line "name : value" of a file.
func procField(path, name string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func firstLine(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(data), "\n")
	return line
}
