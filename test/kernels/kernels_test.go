package kernels

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// packages are the packages whose tests run on the kernels.
var packages = []string{
	"internal/cputopology/agent/cgroup",
	"internal/cputopology/agent/fakekernel",
	"internal/cputopology/agent/enforce",
}

// bootTimeout bounds the life of a machine. A machine without KVM boots in about 20 s.
const bootTimeout = 8 * time.Minute

// machines returns what is needed for virtual machines, or skips the test: qemu, the root of the tree,
// and the kernels. These are the files in LOCKSTEP_KERNELS, separated by colons, or by default those
// that hack/kernels.sh has fetched.
func machines(t *testing.T) (qemu, root string, kernels []string) {
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Skip("qemu-system-x86_64 is not installed: make test-kernels installs it on Debian")
	}
	root, err = filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	kernels = filepath.SplitList(os.Getenv("LOCKSTEP_KERNELS"))
	if len(kernels) == 0 {
		if kernels, err = filepath.Glob(filepath.Join(root, "bin/kernels/vmlinuz-*")); err != nil {
			t.Fatal(err)
		}
	}
	if len(kernels) == 0 {
		t.Skip("there are no kernels: make test-kernels fetches them on Debian, or set LOCKSTEP_KERNELS")
	}
	return qemu, root, kernels
}

// TestTheAgentOnRealKernels runs the agent's tests on each kernel.
func TestTheAgentOnRealKernels(t *testing.T) {
	qemu, root, kernels := machines(t)
	var a archive
	a.add("init", 0o100755, build(t, root, "build", "./test/kernels/guest"))
	onEach(t, qemu, root, kernels, &a, packages, "rdinit=/init -- -test.v -test.timeout=6m")
}

// TestTheAgentBesideSystemd runs the tests that need systemd on each kernel, with the systemd of this
// machine, and with the rights of the agent's DaemonSet: root without capabilities (the guest switches
// the machine off), and with systemd's directory read-only.
func TestTheAgentBesideSystemd(t *testing.T) {
	qemu, root, kernels := machines(t)
	var a archive
	files, err := withLibraries("/lib/systemd/systemd")
	if err != nil {
		t.Skipf("there is no systemd to take along: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		a.add(strings.TrimPrefix(file, "/"), 0o100755, data)
	}
	a.add("init", 0o100755, build(t, root, "build", "./test/kernels/guest"))
	a.add("etc/machine-id", 0o100644, []byte("00000000000000000000000000000001\n"))
	a.add("etc/systemd/system/tests.service", 0o100644, []byte(`[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
Environment=LOCKSTEP_SYSTEMD=1
CapabilityBoundingSet=CAP_SYS_BOOT
NoNewPrivileges=yes
ReadOnlyPaths=/run/systemd
ExecStart=/init -test.v -test.timeout=6m
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
`))
	onEach(t, qemu, root, kernels, &a, []string{"internal/cputopology/agent/systemd"},
		"rdinit=/lib/systemd/systemd systemd.unit=tests.service systemd.show_status=0 systemd.unified_cgroup_hierarchy=1")
}

// withLibraries returns a program with the libraries that it loads.
func withLibraries(program string) ([]string, error) {
	out, err := exec.Command("ldd", program).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("ldd %s: %w: %s", program, err, out)
	}
	files := []string{program}
	for _, field := range strings.Fields(string(out)) {
		if strings.HasPrefix(field, "/") {
			files = append(files, field)
		}
	}
	return files, nil
}

// onEach boots each kernel with the archive's files and the tests of the packages.
func onEach(t *testing.T, qemu, root string, kernels []string, a *archive, packages []string, arguments string) {
	for _, d := range []string{"proc", "sys", "tmp", "dev", "run"} {
		a.add(d, 0o40755, nil)
	}
	a.add("bin/sleep", 0o120777, []byte("/init"))
	for _, p := range packages {
		a.add("tests/"+name(p), 0o100755, build(t, root, "test", "-c", "./"+p))
	}
	a.add("TRAILER!!!", 0, nil)
	image := filepath.Join(t.TempDir(), "initramfs")
	if err := os.WriteFile(image, a.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, kernel := range kernels {
		t.Run(strings.TrimPrefix(filepath.Base(kernel), "vmlinuz-"), func(t *testing.T) {
			start := time.Now()
			log := boot(t, qemu, kernel, image, arguments)
			t.Logf("%s", log)
			if !strings.Contains(log, "guest: kernel ") {
				t.Fatal("the machine has not started")
			}
			for _, p := range packages {
				if !strings.Contains(log, "guest: result of "+name(p)+" passed") {
					t.Errorf("the tests of %s have not passed", p)
				}
			}
			t.Logf("the machine lived for %v", time.Since(start).Round(time.Second))
		})
	}
}

func name(pkg string) string { return path.Base(pkg) + ".test" }

// boot runs a machine of 4 CPUs and 2 NUMA nodes, and returns its console.
func boot(t *testing.T, qemu, kernel, image, arguments string) string {
	ctx, cancel := context.WithTimeout(t.Context(), bootTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, qemu, "-M", "q35", "-accel", "tcg,thread=single", "-cpu", "max", "-m", "768", "-smp", "4,sockets=2,cores=2",
		"-object", "memory-backend-ram,id=m0,size=384M", "-object", "memory-backend-ram,id=m1,size=384M",
		"-numa", "node,nodeid=0,memdev=m0,cpus=0-1", "-numa", "node,nodeid=1,memdev=m1,cpus=2-3",
		"-display", "none", "-serial", "stdio", "-monitor", "none", "-nic", "none", "-no-reboot", "-nodefaults",
		"-kernel", kernel, "-initrd", image,
		"-append", "console=ttyS0 quiet panic=-1 cgroup_no_v1=all "+arguments)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v", err)
	}
	return strings.ReplaceAll(string(out), "\r", "")
}

// build returns a program that a go command makes.
func build(t *testing.T, root string, args ...string) []byte {
	file := filepath.Join(t.TempDir(), "program")
	last := len(args) - 1
	args = append(slices.Clone(args[:last]), "-ldflags=-s -w", "-o", file, args[last])
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// archive is a cpio archive in the format "newc" of the kernel's documentation.
type archive struct {
	bytes.Buffer
	inode int
	dirs  map[string]bool
}

// add adds a file, and the directories above it.
func (a *archive) add(name string, mode int, data []byte) {
	if dir := path.Dir(name); dir != "." && !a.dirs[dir] {
		a.add(dir, 0o40755, nil)
	}
	if mode == 0o40755 {
		if a.dirs == nil {
			a.dirs = map[string]bool{}
		}
		a.dirs[name] = true
	}
	a.inode++
	fmt.Fprintf(a, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00", a.inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0,
		len(name)+1, 0, name)
	a.pad()
	a.Write(data)
	a.pad()
}

func (a *archive) pad() {
	for a.Len()%4 != 0 {
		a.WriteByte(0)
	}
}
