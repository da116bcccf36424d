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

// process says which process a holder of a lease is, so that another one can find out that it has ended. A host name and a
// number do not: containers share host names, each has its own numbers, and numbers come again.
type process struct {
	// pid is its number in namespace, started when it started, in clock ticks since boot.
	pid, started string
	// namespace is that of process numbers; boot is the machine's start.
	namespace, boot string
}

// String is the process in letters that names of objects may have.
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

// procfs is where the kernel tells of processes.
type procfs string

const proc procfs = "/proc"

// self is this process, or false where the kernel does not say.
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

// startedAt is when a process started: field 22 of its stat. The second is its name, which may have blanks and parentheses.
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

// ended reports whether it is certain that p, which is not this process, exists no more.
func (fs procfs) ended(p, self process) bool {
	if p.boot != self.boot || p.namespace != self.namespace {
		return false // of another machine or container, or of one before: nothing is known about it here
	}
	started, err := fs.startedAt(p.pid)
	if err == nil {
		return started != p.started // its number was given to another one
	}
	// A process whose files cannot be seen may belong to another user.
	var pid int
	if _, err := fmt.Sscan(p.pid, &pid); err != nil {
		return false
	}
	return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

// newIdentity names this process: HOST_PROCESS_UUID.
func newIdentity() string {
	host, _ := os.Hostname()
	name := fmt.Sprint(os.Getpid())
	if self, ok := proc.self(); ok {
		name = self.String()
	}
	return fmt.Sprintf("%s_%s_%s", host, name, uuid.NewUUID())
}

// hasEnded reports whether it is certain that the holder of a lease was a process that exists no more. Of others a lease has to
// expire.
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
