package manager

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/util/uuid"
)

// process identifies the process that holds a lease, so that another manager can find out whether
// it has ended. A host name and a process number are not enough: containers share host names, each
// container has process numbers of its own, and numbers are reused.
type process struct {
	// pid is the process number in namespace; started is the start time of the process, in clock
	// ticks since boot.
	pid, started string
	// namespace is the process namespace (PID namespace); boot identifies the boot of the machine.
	namespace, boot string
}

// String returns the process in characters that object names permit.
func (p process) String() string {
	return strings.Join([]string{p.pid, p.started, p.namespace, p.boot}, "-")
}

var processPattern = regexp.MustCompile(`^([1-9][0-9]*)-([0-9]+)-([0-9]+)-([0-9a-f]{32})$`)

func parseProcess(s string) (process, bool) {
	m := processPattern.FindStringSubmatch(s)
	if m == nil {
		return process{}, false
	}
	return process{m[1], m[2], m[3], m[4]}, true
}

// procfs is the directory in which the kernel describes processes.
type procfs string

const proc procfs = "/proc"

// self returns this process, or false if the kernel does not describe it.
func (fs procfs) self() (process, bool) {
	p := process{pid: fmt.Sprint(os.Getpid())}
	var err error
	if p.started, err = fs.startedAt(p.pid); err != nil {
		return p, false
	}
	boot, err := os.ReadFile(string(fs) + "/sys/kernel/random/boot_id")
	if err != nil {
		return p, false
	}
	namespace, err := os.Readlink(string(fs) + "/self/ns/pid") // pid:[4026531836]
	if err != nil {
		return p, false
	}
	p.boot = strings.ReplaceAll(strings.TrimSpace(string(boot)), "-", "")
	p.namespace = strings.Trim(strings.TrimPrefix(namespace, "pid:"), "[]")
	_, valid := parseProcess(p.String())
	return p, valid
}

// startedAt returns the start time of a process: field 22 of its stat file. Field 2 is the name,
// which may contain blanks and parentheses.
func (fs procfs) startedAt(pid string) (string, error) {
	stat, err := os.ReadFile(string(fs) + "/" + pid + "/stat")
	if err != nil {
		return "", err
	}
	rest := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(rest) < 20 {
		return "", fmt.Errorf("%s/%s/stat has %d fields", fs, pid, len(rest)+2)
	}
	return string(rest[19]), nil
}

// ended reports whether it is certain that p, which is not this process, no longer exists.
func (fs procfs) ended(p, self process) bool {
	if p.boot != self.boot || p.namespace != self.namespace {
		// It runs on another machine, in another container, or ran before the last boot:
		// nothing is known about it here.
		return false
	}
	started, err := fs.startedAt(p.pid)
	if err == nil {
		return started != p.started // if they differ, the number belongs to another process now
	}
	// A process whose files cannot be read may belong to another user.
	var pid int
	if _, err := fmt.Sscan(p.pid, &pid); err != nil {
		return false
	}
	return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

// newIdentity returns a name for this process: HOST_PROCESS_UUID.
func newIdentity() string {
	host, _ := os.Hostname()
	name := fmt.Sprint(os.Getpid())
	if self, ok := proc.self(); ok {
		name = self.String()
	}
	return fmt.Sprintf("%s_%s_%s", host, name, uuid.NewUUID())
}

// hasEnded reports whether it is certain that the holder of a lease is a process that no longer
// exists. The leases of all other holders have to expire.
func hasEnded(holder string) bool {
	parts := strings.Split(holder, "_")
	host, err := os.Hostname()
	if len(parts) != 3 || err != nil || parts[0] != host {
		return false
	}
	p, ok := parseProcess(parts[1])
	self, known := proc.self()
	return ok && known && proc.ended(p, self)
}
