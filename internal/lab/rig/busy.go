package rig

import (
	"time"

	"github.com/prometheus/procfs"

	"lockstep.dev/lockstep/internal/lab/analyse"
)

// BusyCPU returns the CPU time that all processes of the machine have used so far, or 0 if the
// operating system does not report it. Time that a hypervisor took counts, too.
func BusyCPU() time.Duration {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return 0
	}
	s, err := proc.Stat()
	if err != nil {
		return 0
	}
	c := s.CPUTotal
	return time.Duration((c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ + c.Steal) * float64(time.Second))
}

// OtherCPUs returns how many CPUs other processes than those of the measurement used on average,
// since BusyCPU returned before. used is what the measurement itself used since then.
func OtherCPUs(before time.Duration, used Used, took time.Duration) float64 {
	now := BusyCPU()
	if before == 0 || now == 0 || took <= 0 {
		return 0
	}
	other := (now - before).Seconds()
	for _, seconds := range used.CPUSeconds {
		other -= seconds
	}
	return max(0, analyse.Round(other/took.Seconds(), 2))
}
