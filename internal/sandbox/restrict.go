package sandbox

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/sys/unix"

	"lockstep.dev/lockstep/internal/race"
)

var errEnd = io.EOF

// runtimeBytes is the memory that the runtime and the C library may map beside the heap: stacks of
// threads, tables, and the rounding of heap reservations.
const runtimeBytes = 128 << 20

// residentBytes is the resident memory of a child beyond MemoryBytes: what it has from the start.
const residentBytes = 48 << 20

// systemCalls are the system calls that the Go runtime makes for memory, threads, signals, time and
// already open descriptors. No others are allowed: no paths, no sockets, no other processes.
var systemCalls = []string{
	"read", "write", "readv", "writev", "close", "lseek", "fcntl", "fstat",
	"mmap", "munmap", "mprotect", "mremap", "madvise", "mincore", "brk",
	"futex", "clone", "clone3", "set_robust_list", "rseq", "set_tid_address", "arch_prctl", "sched_yield",
	"sched_getaffinity",
	"rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "tgkill", "tkill", "getpid", "gettid", "getppid",
	"nanosleep", "clock_nanosleep", "clock_gettime", "gettimeofday", "time", "timer_create", "timer_settime",
	"timer_delete", "setitimer", "restart_syscall",
	"epoll_pwait", "epoll_wait", "epoll_ctl", "poll", "ppoll",
	"getrandom", "getrusage", "getrlimit", "setrlimit", "prlimit64", "prctl", "uname", "sysinfo",
	"exit", "exit_group",
}

// restrict permanently limits this process. It returns the limits that the system did not grant.
func restrict(limits *Limits) (missing string) {
	var problems []string
	try := func(what string, err error) {
		if err != nil {
			problems = append(problems, what+": "+err.Error())
		}
	}
	// The child is the first process to be killed when memory is short, whatever the limits.
	try("oom_score_adj", os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0))
	softMemory(limits)
	// RLIMIT_DATA does not count memory mapped over a reserved address range, as the heap is;
	// RLIMIT_AS counts the reservation.
	for _, m := range []struct {
		name, field string
		resource    int
	}{{"RLIMIT_AS", "VmSize:", unix.RLIMIT_AS}, {"RLIMIT_DATA", "VmData:", unix.RLIMIT_DATA}} {
		if race.Enabled {
			break // the race detector's own memory knows no limits
		}
		mapped, err := mappedBytes(m.field)
		if err == nil {
			bound := uint64(mapped + limits.MemoryBytes + runtimeBytes)
			err = unix.Setrlimit(m.resource, &unix.Rlimit{Cur: bound, Max: bound})
		}
		try(m.name, err)
	}
	for _, zero := range []struct {
		name     string
		resource int
	}{{"RLIMIT_NOFILE", unix.RLIMIT_NOFILE}, {"RLIMIT_CORE", unix.RLIMIT_CORE}, {"RLIMIT_FSIZE", unix.RLIMIT_FSIZE},
		{"RLIMIT_MEMLOCK", unix.RLIMIT_MEMLOCK}} {
		try(zero.name, unix.Setrlimit(zero.resource, &unix.Rlimit{}))
	}
	try("seccomp", filterCalls())
	return strings.Join(problems, "; ")
}

// filterCalls allows only systemCalls, on all threads.
func filterCalls() error {
	here, err := arch.GetInfo("")
	if err != nil {
		return err
	}
	names := slices.DeleteFunc(slices.Clone(systemCalls), func(name string) bool {
		_, known := here.SyscallNames[name]
		return !known
	})
	return seccomp.LoadFilter(seccomp.Filter{
		NoNewPrivs: true,
		Flag:       seccomp.FilterFlagTSync,
		Policy: seccomp.Policy{
			// EPERM: if the runtime can do without a call, there is no crash
			DefaultAction: seccomp.ActionErrno,
			Syscalls:      []seccomp.SyscallGroup{{Names: names, Action: seccomp.ActionAllow}},
		},
	})
}

// limitCPU makes the kernel end this process if it uses far more CPU time than a request may. The
// parent is faster if it runs normally. limitCPU returns the CPU time used so far.
func limitCPU(perRequest time.Duration) time.Duration {
	cpu := cpuTime()
	limit := unix.Rlimit{Cur: uint64((cpu+2*perRequest)/time.Second) + 2, Max: unix.RLIM_INFINITY}
	_ = unix.Setrlimit(unix.RLIMIT_CPU, &limit)
	return cpu
}

// cpuTime returns the CPU time of this process.
func cpuTime() time.Duration {
	var used unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &used) != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// mappedBytes returns the size of this process's mappings given by a field of /proc/self/status.
func mappedBytes(field string) (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, field); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/self/status has no %s", field)
}

// usage is the resource usage of a child, as measured by its parent.
type usage struct {
	cpu time.Duration
	// memory is the resident memory that does not belong to files, in bytes.
	memory int64
}

// usageOf reads the usage of a process.
func usageOf(pid int) (usage, error) {
	var u usage
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return u, err
	}
	// pid (name) state ...: utime and stime are the 12th and 13th field after the name.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return u, fmt.Errorf("process %d: stat has %d fields", pid, len(fields))
	}
	for _, f := range fields[11:13] {
		ticks, err := strconv.ParseInt(string(f), 10, 64)
		if err != nil {
			return u, err
		}
		// USER_HZ is 100 on all platforms of Go
		u.cpu += time.Duration(ticks) * 10 * time.Millisecond
	}
	statm, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	if err != nil {
		return u, err
	}
	var size, resident, shared int64
	if _, err := fmt.Sscan(string(statm), &size, &resident, &shared); err != nil {
		return u, err
	}
	u.memory = (resident - shared) * int64(os.Getpagesize())
	return u, nil
}
