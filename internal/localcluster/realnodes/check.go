package realnodes

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Missing is the error that lists what a machine lacks for real nodes.
type Missing struct {
	// Problems are sentences. Packages are the packages to install, by their Debian names.
	Problems, Packages []string
}

func (m *Missing) Error() string {
	var b strings.Builder
	b.WriteString("this machine cannot run real nodes:")
	for _, p := range m.Problems {
		b.WriteString("\n  - " + p)
	}
	if len(m.Packages) > 0 {
		b.WriteString("\nOn Debian and Ubuntu: apt-get install --no-install-recommends " + strings.Join(m.Packages, " "))
	}
	return b.String()
}

func (m *Missing) add(pkg, problem string, args ...any) {
	m.Problems = append(m.Problems, fmt.Sprintf(problem, args...))
	if pkg != "" && !slices.Contains(m.Packages, pkg) {
		m.Packages = append(m.Packages, pkg)
	}
}

// programs are the programs that nodes run, with the packages that contain them.
var programs = []struct{ name, pkg string }{
	{"containerd", "containerd"}, {"containerd-shim-runc-v2", "containerd"}, {"ctr", "containerd"}, {"runc", "runc"},
	{"mount", "mount"},
}

// cniPaths are the directories where distributions and upstream install CNI plugins.
var cniPaths = []string{"/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"}

// Check describes the machine. If the machine cannot run real nodes, the error is a *Missing that
// lists everything that it lacks.
func Check() (Host, error) {
	missing := &Missing{}
	h := Host{CPUs: runtime.NumCPU(), CgroupV2: cgroupV2(), KeepOOMScores: !capable(unix.CAP_SYS_RESOURCE)}
	for _, p := range programs {
		if _, err := exec.LookPath(p.name); err != nil {
			missing.add(p.pkg, "%s is not installed", p.name)
		}
	}
	for _, dir := range cniPaths {
		if h.CNIPlugins == "" && hasAll(dir, "ptp", "host-local", "loopback") {
			h.CNIPlugins = dir
		}
	}
	if h.CNIPlugins == "" {
		missing.add("containernetworking-plugins", "the CNI plugins ptp, host-local and loopback are in none of %s",
			strings.Join(cniPaths, ", "))
	}
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		missing.add("", "its memory cannot be read: %v", err)
	}
	h.MemoryBytes = int64(info.Totalram) * int64(info.Unit)
	checkCgroups(missing, h.CgroupV2)
	if os.Geteuid() != 0 {
		missing.add("", "real nodes need root, and this is user %d", os.Geteuid())
	} else {
		checkKernel(missing, &h)
	}
	if len(missing.Problems) > 0 {
		return h, missing
	}
	return h, nil
}

func hasAll(dir string, names ...string) bool {
	for _, name := range names {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

// capable reports whether this process has a capability in its user namespace.
func capable(capability uint) bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false
	}
	return data[capability/32].Effective&(1<<(capability%32)) != 0
}

func checkCgroups(missing *Missing, v2 bool) {
	if v2 {
		data, err := os.ReadFile(filepath.Join(cgroupMount, "cgroup.controllers"))
		if err != nil {
			missing.add("", "cgroups: %v", err)
			return
		}
		for _, c := range controllers {
			if !slices.Contains(strings.Fields(string(data)), c) {
				missing.add("", "the cgroup controller %s is not available (%s/cgroup.controllers)", c, cgroupMount)
			}
		}
		return
	}
	for _, c := range slices.Concat(controllers, v1Only) {
		if _, err := os.Stat(filepath.Join(cgroupMount, c, "tasks")); err != nil {
			missing.add("", "the cgroup controller %s is not mounted at %s/%s", c, cgroupMount, c)
		}
	}
}

// checkKernel tries the kernel features that nodes need, in namespaces that end with the attempt.
func checkKernel(missing *Missing, h *Host) {
	if err := writable(filepath.Join(cgroupMount, map[bool]string{false: "memory"}[h.CgroupV2])); err != nil {
		missing.add("", "cgroups cannot be made: %v", err)
	}
	onThrowawayThread(func() {
		if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWNET); err != nil {
			missing.add("", "namespaces cannot be made: %v (a container needs to be privileged)", err)
			return
		}
		if err := tryVeth(); err != nil {
			missing.add("", "virtual network interfaces cannot be made: %v", err)
		}
		if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			missing.add("", "mounts cannot be made: %v", err)
			return
		}
		h.Snapshotter = trySnapshotter()
		h.ServiceProxy, h.NoServiceProxy = tryServiceProxy()
		h.PortMap = hasAll(h.CNIPlugins, "portmap") && quiet("iptables", "-t", "nat", "-S") == nil
	})
}

// onThrowawayThread runs f on a thread that ends with f, so that namespaces that f moved the thread
// to end too. That cannot be the main thread, which never ends and whose namespaces /proc shows as
// those of the process.
func onThrowawayThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			onThrowawayThread(f) // on another thread, because this one is locked
			runtime.UnlockOSThread()
			return
		}
		f()
	}()
	<-done
}

func writable(root string) error {
	dir, err := os.MkdirTemp(root, "lockstep-check-")
	if err != nil {
		return err
	}
	return syscall.Rmdir(dir)
}

func tryVeth() error {
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "check0"}}); err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "check1"},
		PeerName: "check2"}); err != nil {
		return fmt.Errorf("veth: %w", err)
	}
	return nil
}

// trySnapshotter returns the snapshotter to use. It tries to mount an overlay, which fails on top
// of another overlay or of some network file systems.
func trySnapshotter() string {
	dir, err := os.MkdirTemp("", "lockstep-check-")
	if err != nil {
		return "native"
	}
	defer os.RemoveAll(dir)
	for _, sub := range []string{"lower", "upper", "work", "merged"} {
		if os.Mkdir(filepath.Join(dir, sub), 0o700) != nil {
			return "native"
		}
	}
	options := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", dir)
	merged := filepath.Join(dir, "merged")
	if unix.Mount("overlay", merged, "overlay", 0, options) != nil {
		return "native"
	}
	_ = unix.Unmount(merged, unix.MNT_DETACH)
	return "overlayfs"
}

// tryServiceProxy returns the mode of kube-proxy that the machine supports, or why it supports
// none.
func tryServiceProxy() (mode, why string) {
	nft := quiet("nft", "add table ip check; add chain ip check c { type nat hook prerouting priority -100; }; "+
		"add rule ip check c numgen random mod 2 vmap { 0 : accept, 1 : accept }; add rule ip check c fib daddr type "+
		"local accept")
	if nft == nil {
		return "nftables", ""
	}
	iptables := quiet("iptables", "-t", "nat", "-S")
	if iptables == nil && quiet("iptables-restore", "--version") == nil {
		return "iptables", ""
	}
	return "", fmt.Sprintf("neither nftables (%v) nor iptables (%v) works", nft, iptables)
}

// quiet runs a program; the error contains its output.
func quiet(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil && len(out) > 0 {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	return err
}
