package series

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"

	"lockstep.dev/lockstep/internal/lab/page"
)

// Machine describes the machine of the measurement.
type Machine struct {
	Hostname  string `json:"hostname"`
	OS        string `json:"os"`
	Arch      string `json:"arch"`
	Kernel    string `json:"kernel"`
	CPU       string `json:"cpu"`
	CPUs      int    `json:"cpus"`
	MemoryMiB int64  `json:"memoryMiB"`
	Go        string `json:"go"`
	// CPULimit, in CPUs, and MemoryLimitMiB are the cgroup limits of the process; zero means none.
	CPULimit       float64 `json:"cpuLimit,omitempty"`
	MemoryLimitMiB int64   `json:"memoryLimitMiB,omitempty"`
}

// pairs returns the description for people.
func (m *Machine) pairs() []page.Pair {
	out := []page.Pair{
		{Name: "CPU", Value: fmt.Sprintf("%d × %s", m.CPUs, cmp.Or(m.CPU, "unknown"))},
		{Name: "memory", Value: fmt.Sprintf("%.1f GiB", float64(m.MemoryMiB)/1024)},
	}
	if m.CPULimit > 0 {
		out = append(out, page.Pair{Name: "CPU limit of the measurement", Value: fmt.Sprintf("%.1f CPUs", m.CPULimit)})
	}
	if m.MemoryLimitMiB > 0 {
		out = append(out, page.Pair{Name: "memory limit of the measurement", Value: fmt.Sprintf("%d MiB", m.MemoryLimitMiB)})
	}
	return append(out, page.Pair{Name: "system", Value: m.OS + "/" + m.Arch + " " + m.Kernel}, page.Pair{Name: "host", Value: m.Hostname},
		page.Pair{Name: "Go", Value: m.Go})
}

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
