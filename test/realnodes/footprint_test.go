package realnodes

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"lockstep.dev/lockstep/internal/localcluster/supervise"
)

// footprint is the machine's state that real nodes could change: lines by kind. Other programs run
// beside the tests, so only new lines count.
type footprint map[string][]string

// counters matches counters and times in packet filter rules, which change by themselves.
var counters = regexp.MustCompile(`packets \d+ bytes \d+|\[\d+:\d+\]|# (Generated|Completed).*`)

func takeFootprint() (footprint, error) {
	f := footprint{}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	f["mount"] = lines(string(mounts))
	err = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (strings.Contains(path, "lockstep") || strings.Contains(path, "kubepods")) {
			f["cgroup"] = append(f["cgroup"], path)
		}
		return nil // cgroups of other programs come and go
	})
	if err != nil {
		return nil, err
	}
	links, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		f["interface"] = append(f["interface"], l.Name)
	}
	for _, cmd := range []string{"nft list ruleset", "iptables-save", "ip route"} {
		args := strings.Fields(cmd)
		if out, err := exec.Command(args[0], args[1:]...).Output(); err == nil {
			f[cmd] = lines(counters.ReplaceAllString(string(out), ""))
		}
	}
	for _, name := range []string{"net/ipv4/ip_forward", "vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
		"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes", "net/netfilter/nf_conntrack_max"} {
		if value, err := os.ReadFile(filepath.Join("/proc/sys", name)); err == nil {
			f["sysctl"] = append(f["sysctl"], name+" = "+strings.TrimSpace(string(value)))
		}
	}
	for _, dir := range []string{"/run", "/run/netns", "/run/containerd", "/var/lib", "/var/lib/cni", "/var/log", "/opt", "/etc", "/etc/cni"} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			f["file"] = append(f["file"], filepath.Join(dir, e.Name()))
		}
	}
	f["process"], f["namespace"] = processes()
	return f, nil
}

// processes lists the processes that belong to the tests or are in other network namespaces than
// this process, and these namespaces.
func processes() (list, namespaces []string) {
	own, _ := os.Readlink("/proc/self/ns/net")
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		ns, err := os.Readlink(filepath.Join("/proc", e.Name(), "ns/net"))
		if err != nil {
			continue
		}
		cmdline, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		args := strings.ReplaceAll(string(cmdline), "\x00", " ")
		if ns != own {
			namespaces = append(namespaces, ns)
		}
		if ns != own || strings.Contains(args, os.Getenv("XDG_STATE_HOME")) {
			list = append(list, fmt.Sprintf("%d %s", pid, args))
		}
	}
	return list, namespaces
}

func lines(s string) []string { return strings.Split(strings.TrimSpace(s), "\n") }

// unchanged returns an error that lists what exists now and did not exist before.
func (f footprint) unchanged() error {
	now, err := takeFootprint()
	if err != nil {
		return err
	}
	var left []string
	for kind, list := range now {
		for _, line := range list {
			if line != "" && !slices.Contains(f[kind], line) {
				left = append(left, kind+": "+line)
			}
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("%d things are left:\n%s", len(left), strings.Join(left, "\n"))
	}
	return nil
}

func (e *env) state() (supervise.State, error) {
	var s supervise.State
	data, err := os.ReadFile(filepath.Join(e.dir, "state.json"))
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(data, &s)
}

func (e *env) killSupervisor() error {
	s, err := e.state()
	if err != nil {
		return err
	}
	return kill(s.Supervisor)
}

// kubelet returns the PID of a node's kubelet.
func (e *env) kubelet(node string) (int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err != nil {
			continue
		}
		args := strings.Split(string(cmdline), "\x00")
		// The kubelet's directory distinguishes it from kubelets of other clusters: its path is the
		// same in each node, but the file is not.
		if len(args) > 1 && args[1] == "kubelet" && slices.Contains(args, "--hostname-override="+node) {
			if _, err := os.Stat(filepath.Join("/proc", entry.Name(), "root/run/lockstep/kubelet.yaml")); err != nil {
				continue
			}
			same, err := sameFile(filepath.Join("/proc", entry.Name(), "root/run/lockstep/kubelet.yaml"), filepath.Join(e.dir, "real", node, "kubelet.yaml"))
			if err != nil {
				return 0, err
			}
			if same {
				return pid, nil
			}
		}
	}
	return 0, fmt.Errorf("no kubelet of %s", node)
}

func sameFile(a, b string) (bool, error) {
	x, err := os.Stat(a)
	if err != nil {
		return false, err
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y), err
}
