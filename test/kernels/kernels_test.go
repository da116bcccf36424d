package kernels

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

// TestTheAgentOnRealKernels runs the agent's tests on each kernel of LOCKSTEP_KERNELS (files,
// separated by colons), by default those that hack/kernels.sh has fetched.
func TestTheAgentOnRealKernels(t *testing.T) {
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Skip("qemu-system-x86_64 is not installed: make test-kernels installs it on Debian")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	kernels := filepath.SplitList(os.Getenv("LOCKSTEP_KERNELS"))
	if len(kernels) == 0 {
		if kernels, err = filepath.Glob(filepath.Join(root, "bin/kernels/vmlinuz-*")); err != nil {
			t.Fatal(err)
		}
	}
	if len(kernels) == 0 {
		t.Skip("there are no kernels: make test-kernels fetches them on Debian, or set LOCKSTEP_KERNELS")
	}
	image := filepath.Join(t.TempDir(), "initramfs")
	if err := os.WriteFile(image, initramfs(t, root), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, kernel := range kernels {
		t.Run(strings.TrimPrefix(filepath.Base(kernel), "vmlinuz-"), func(t *testing.T) {
			start := time.Now()
			log := boot(t, qemu, kernel, image)
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

func name(path string) string { return filepath.Base(path) + ".test" }

// boot runs a machine of 4 CPUs and 2 NUMA nodes, and returns its console.
func boot(t *testing.T, qemu, kernel, image string) string {
	ctx, cancel := context.WithTimeout(t.Context(), bootTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, qemu, "-M", "q35", "-accel", "tcg,thread=single", "-cpu", "max", "-m", "768", "-smp", "4,sockets=2,cores=2",
		"-object", "memory-backend-ram,id=m0,size=384M", "-object", "memory-backend-ram,id=m1,size=384M",
		"-numa", "node,nodeid=0,memdev=m0,cpus=0-1", "-numa", "node,nodeid=1,memdev=m1,cpus=2-3",
		"-display", "none", "-serial", "stdio", "-monitor", "none", "-nic", "none", "-no-reboot", "-nodefaults",
		"-kernel", kernel, "-initrd", image,
		"-append", "console=ttyS0 quiet panic=-1 cgroup_no_v1=all rdinit=/init -- -test.v -test.timeout=6m")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v", err)
	}
	return strings.ReplaceAll(string(out), "\r", "")
}

// initramfs builds the programs, and returns an archive with them.
func initramfs(t *testing.T, root string) []byte {
	dir := t.TempDir()
	build := func(to string, args ...string) []byte {
		file := filepath.Join(dir, to)
		cmd := exec.Command("go", append(args[:1:1], append([]string{"-o", file}, args[1:]...)...)...)
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
	var a archive
	guest := build("init", "build", "-ldflags=-s -w", "./test/kernels/guest")
	for _, d := range []string{"bin", "tests", "proc", "sys", "tmp", "dev"} {
		a.add(d, 0o40755, nil)
	}
	a.add("init", 0o100755, guest)
	a.add("bin/sleep", 0o120777, []byte("/init"))
	for _, p := range packages {
		a.add("tests/"+name(p), 0o100755, build(name(p), "test", "-c", "-ldflags=-s -w", "./"+p))
	}
	a.add("TRAILER!!!", 0, nil)
	return a.Bytes()
}

// archive is a cpio archive in the format "newc" of the kernel's documentation.
type archive struct {
	bytes.Buffer
	inode int
}

func (a *archive) add(name string, mode int, data []byte) {
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
