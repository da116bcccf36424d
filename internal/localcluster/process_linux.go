package localcluster

import (
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// clockTick is the unit of times in /proc: USER_HZ is always 100 in Linux's user-space interfaces.
const clockTick = time.Second / 100

// StartTicks is a process's start time in clock ticks since boot. Together with the pid it
// identifies a process: pids are reused, pairs are not.
type StartTicks uint64

func lockThread() { runtime.LockOSThread() }

func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// stat returns the content of /proc/PID/stat.
func stat(pid int) (procfs.ProcStat, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStat{}, err
	}
	return p.Stat()
}

// StartOf returns a process's StartTicks, or 0 if there is no such process.
func StartOf(pid int) StartTicks {
	s, err := stat(pid)
	if err != nil {
		return 0
	}
	return StartTicks(s.Starttime)
}

// Alive reports whether the process recorded as (pid, started) still runs or still holds its ports
// and locks. A zombie counts only while it has other threads: when a process is killed, its first
// thread may end before the others.
func Alive(pid int, started StartTicks) bool {
	s, err := stat(pid)
	if err != nil || s.State == "X" || s.State == "Z" && s.NumThreads == 1 {
		return false
	}
	return started != 0 && StartTicks(s.Starttime) == started
}

// processUsage reads a running process's usage from /proc.
func processUsage(pid int) (Usage, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return Usage{}, err
	}
	times, err := p.Stat()
	if err != nil {
		return Usage{}, err
	}
	memory, err := p.NewStatus()
	if err != nil {
		return Usage{}, err
	}
	return Usage{CPU: time.Duration(times.UTime+times.STime) * clockTick, PeakRSSBytes: int64(memory.VmHWM),
		RSSBytes: int64(memory.VmRSS), AnonBytes: int64(memory.RssAnon)}, nil
}

// exitUsage returns the usage of a process that has been waited for.
func exitUsage(state *os.ProcessState) Usage {
	if state == nil {
		return Usage{}
	}
	u := Usage{CPU: state.UserTime() + state.SystemTime()}
	if ru, ok := state.SysUsage().(*syscall.Rusage); ok {
		u.PeakRSSBytes = ru.Maxrss << 10
	}
	return u
}
