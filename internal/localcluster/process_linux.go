package localcluster

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
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

// statFields returns the fields of /proc/PID/stat after the command name, which itself may contain
// spaces and parentheses. Field 0 is the state: number 3 in proc(5).
func statFields(pid int) ([]string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	end := bytes.LastIndexByte(data, ')')
	if end < 0 {
		return nil, fmt.Errorf("/proc/%d/stat: no command name", pid)
	}
	fields := strings.Fields(string(data[end+1:]))
	if len(fields) < 22 {
		return nil, fmt.Errorf("/proc/%d/stat: %d fields", pid, len(fields))
	}
	return fields, nil
}

// StartOf returns a process's StartTicks, or 0 if there is no such process.
func StartOf(pid int) StartTicks {
	fields, err := statFields(pid)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return 0
	}
	return StartTicks(n)
}

// Alive reports whether the process recorded as (pid, started) still runs or still holds its ports
// and locks. A zombie counts only while it has other threads: when a process is killed, its first
// thread may end before the others.
func Alive(pid int, started StartTicks) bool {
	fields, err := statFields(pid)
	if err != nil || fields[0] == "X" || fields[0] == "Z" && fields[17] == "1" {
		return false
	}
	n, err := strconv.ParseUint(fields[19], 10, 64)
	return err == nil && started != 0 && StartTicks(n) == started
}

// processUsage reads a running process's usage from /proc.
func processUsage(pid int) (Usage, error) {
	fields, err := statFields(pid)
	if err != nil {
		return Usage{}, err
	}
	var u Usage
	for _, i := range []int{11, 12} { // utime, stime
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return Usage{}, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
		u.CPU += time.Duration(n) * clockTick
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Usage{}, err
	}
	for line := range strings.Lines(string(status)) {
		var kib int64
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kib); err == nil {
			u.PeakRSSBytes = kib << 10
		}
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
			u.RSSBytes = kib << 10
		}
		if _, err := fmt.Sscanf(line, "RssAnon: %d kB", &kib); err == nil {
			u.AnonBytes = kib << 10
		}
	}
	return u, nil
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
