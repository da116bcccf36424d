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
)

var errEnd = io.EOF

// runtimeBytes is what the runtime and the C library may map beside the heap: stacks of threads, tables, and what a
// reservation of the heap is rounded up by.
const runtimeBytes = 128 << 20

// residentBytes is what a child may have in memory beyond MemoryBytes: what it has from the start.
const residentBytes = 48 << 20

// systemCalls are those that the Go runtime makes for memory, threads, signals, time and descriptors that are open
// already. No other is let through: no path, no socket, no other process.
var systemCalls = []string{
	"read", "write", "readv", "writev", "close", "lseek", "fcntl", "fstat",
	"mmap", "munmap", "mprotect", "mremap", "madvise", "mincore", "brk",
	"futex", "clone", "clone3", "set_robust_list", "rseq", "set_tid_address", "arch_prctl", "sched_yield", "sched_getaffinity",
	"rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "tgkill", "tkill", "getpid", "gettid", "getppid",
	"nanosleep", "clock_nanosleep", "clock_gettime", "gettimeofday", "time", "timer_create", "timer_settime", "timer_delete", "setitimer", "restart_syscall",
	"epoll_pwait", "epoll_wait", "epoll_ctl", "poll", "ppoll",
	"getrandom", "getrusage", "getrlimit", "setrlimit", "prlimit64", "prctl", "uname", "sysinfo",
	"exit", "exit_group",
}

// restrict limits this process for good. It returns what the system did not grant.
func restrict(limits *Limits) (missing string) {
	var problems []string
	try := func(what string, err error) {
		if err != nil {
			problems = append(problems, what+": "+err.Error())
		}
	}
	// The first to be killed for want of memory, whatever the limits.
	try("oom_score_adj", os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0))
	softMemory(limits)
	// The kernel does not count against RLIMIT_DATA what is mapped over an address range that was reserved before, as
	// the heap is; it counts the reservation against RLIMIT_AS.
	for _, m := range []struct {
		name, field string
		resource    int
	}{{"RLIMIT_AS", "VmSize:", unix.RLIMIT_AS}, {"RLIMIT_DATA", "VmData:", unix.RLIMIT_DATA}} {
		if raceFactor > 1 {
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
	}{{"RLIMIT_NOFILE", unix.RLIMIT_NOFILE}, {"RLIMIT_CORE", unix.RLIMIT_CORE}, {"RLIMIT_FSIZE", unix.RLIMIT_FSIZE}, {"RLIMIT_MEMLOCK", unix.RLIMIT_MEMLOCK}} {
		try(zero.name, unix.Setrlimit(zero.resource, &unix.Rlimit{}))
	}
	try("seccomp", filterCalls())
	return strings.Join(problems, "; ")
}

// filterCalls lets only systemCalls through, on all threads.
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
			DefaultAction: seccomp.ActionErrno, // EPERM: what the runtime can do without is not a crash
			Syscalls:      []seccomp.SyscallGroup{{Names: names, Action: seccomp.ActionAllow}},
		},
	})
}

// limitCPU has the kernel end this process when it uses far more CPU time than a request may. The parent is quicker
// when it is well. It returns what has been used.
func limitCPU(perRequest time.Duration) time.Duration {
	cpu := cpuTime()
	limit := unix.Rlimit{Cur: uint64((cpu+2*perRequest)/time.Second) + 2, Max: unix.RLIM_INFINITY}
	_ = unix.Setrlimit(unix.RLIMIT_CPU, &limit)
	return cpu
}

// cpuTime is the CPU time of this process.
func cpuTime() time.Duration {
	var used unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &used) != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// mappedBytes is the size of this process's mappings in a field of /proc/self/status.
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

// usage is what a child has used, as its parent sees it.
type usage struct {
	cpu time.Duration
	// memory is what is resident and not of files, in bytes.
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
		u.cpu += time.Duration(ticks) * 10 * time.Millisecond // USER_HZ is 100 on all platforms of Go
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
