package fakekernel

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"lockstep.dev/lockstep/internal/cputopology/agent/cgroup"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// TestTheFakeIsTheRunningKernel performs the same random operations on the fake kernel and on the
// running kernel, of either version, in a cgroup of its own, and compares every answer. Setting the
// flag cpu_exclusive is always refused, because it would disturb other users of cgroups.
func TestTheFakeIsTheRunningKernel(t *testing.T) {
	version, mount, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		t.Skip(err)
	}
	top, err := os.MkdirTemp(string(mount), "lockstep-test-")
	if err != nil {
		t.Skipf("cgroups cannot be made: %v", err)
	}
	defer removeAll(t, top)
	parent := cgroup.Sets{Files: mount, Version: version}
	own := cgroup.Sets{Files: cgroup.Dir(top), Version: version}
	cpus, err := parent.CPUs("")
	if err != nil {
		t.Fatal(err)
	}
	mems, err := parent.Mems("")
	if err != nil {
		t.Fatal(err)
	}
	if cpus.First() != 0 || cpus.Len() < 2 || mems.First() != 0 {
		t.Skipf("this test is for machines with CPUs from 0, at least 2, and memory node 0; there are %s and %s", cpus, mems)
	}
	possible, err := os.ReadFile("/sys/devices/system/cpu/possible")
	if err != nil {
		t.Fatal(err)
	}
	if s, err := cpuset.Parse(string(possible)); err != nil || !s.Equal(cpus) {
		t.Skipf("CPUs %s are possible and %s are on line", strings.TrimSpace(string(possible)), cpus)
	}
	if version == cgroup.V2 {
		if err := parent.Enable(filepath.Base(top)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(own.SetCPUs("", cpus), own.SetMems("", mems)); err != nil {
		t.Fatal(err)
	}
	sleeper := exec.Command("sleep", "1000")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = sleeper.Process.Kill()
		_ = sleeper.Wait()
	}()
	attach := func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(fmt.Sprint(sleeper.Process.Pid)), 0)
	}
	dirs := []string{"a", "b", "a/c", "a/d", "a/c/e"}
	homes := dirs // of the process
	files := []string{"cpuset.cpus", "cpuset.cpus", "cpuset.cpus", "cpuset.mems", "cpuset.cpu_exclusive"}
	compared := []string{"cpuset.cpus", "cpuset.mems"}
	if version == cgroup.V2 {
		homes = []string{"b", "a/d", "a/c/e"} // the others have cgroups with the controller
		files = append(files[:4:4], "cpu.max")
		compared = append(compared, "cpuset.cpus.effective", "cpuset.mems.effective", "cpu.max")
		if err := errors.Join(mount.WriteFile("cgroup.subtree_control", "+cpu"), own.Files.WriteFile("cgroup.subtree_control", "+cpu")); err != nil {
			t.Fatal(err)
		}
	}
	clears := version == cgroup.V2 && clearsPopulated(t, own, top, attach, string(mount))
	t.Logf("cgroups of version %v; sets of populated cgroups can be cleared: %v", version, clears)
	values := []string{"", "\n", "0\n", "1\n", "0-1\n", "0,1", "2\n", "7\n", "x\n", "1-0\n"}
	rapid.Check(t, func(t *rapid.T) {
		fake := New(version, cpus.Len(), mems.Len())
		fake.ClearsPopulated = clears
		fake.Mkdir("top")
		if version == cgroup.V2 {
			must(t, fake.WriteFile("cgroup.subtree_control", "+cpuset"))
		}
		must(t, fake.WriteFile("top/cpuset.cpus", cpus.String()))
		must(t, fake.WriteFile("top/cpuset.mems", mems.String()))
		if version == cgroup.V2 {
			must(t, fake.WriteFile("top/cgroup.subtree_control", "+cpuset"))
			must(t, own.Files.WriteFile("cgroup.subtree_control", "+cpuset"))
		}
		for _, d := range dirs {
			fake.Mkdir("top/" + d)
			must(t, os.Mkdir(filepath.Join(top, d), 0o755))
			if version == cgroup.V2 && (d == "a" || d == "a/c") {
				must(t, fake.WriteFile("top/"+d+"/cgroup.subtree_control", "+cpuset"))
				must(t, own.Files.WriteFile(d+"/cgroup.subtree_control", "+cpuset +cpu"))
			}
		}
		defer func() {
			must(t, attach(string(mount)))
			for i := len(dirs) - 1; i >= 0; i-- {
				must(t, syscall.Rmdir(filepath.Join(top, dirs[i])))
			}
		}()
		at := "" // the cgroup of the process
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			dir := rapid.SampledFrom(dirs).Draw(t, "dir")
			if rapid.IntRange(0, 9).Draw(t, "attach") == 0 {
				dir = rapid.SampledFrom(homes).Draw(t, "home")
				got, want := fake.AddTask("top/"+dir), attach(filepath.Join(top, dir))
				sameError(t, "attach to "+dir, got, want)
				if want == nil {
					if at != "" {
						fake.find("top/"+at).tasks--
					}
					at = dir
				}
				continue
			}
			file := rapid.SampledFrom(files).Draw(t, "file")
			value := rapid.SampledFrom(values).Draw(t, "value")
			switch file {
			case "cpu.max":
				value = rapid.SampledFrom([]string{"max\n", "200000\n", "1000\n", "999\n", "-1\n", "x\n"}).Draw(t, "quota")
			case "cpuset.cpu_exclusive":
				value = rapid.SampledFrom([]string{"0", "1"}).Draw(t, "flag")
			}
			name := dir + "/" + file
			sameError(t, fmt.Sprintf("%q to %s", value, name), fake.WriteFile("top/"+name, value), own.Files.WriteFile(name, value))
			for _, d := range dirs {
				for _, file := range compared {
					got, err := fake.ReadFile("top/" + d + "/" + file)
					must(t, err)
					want, err := own.Files.ReadFile(d + "/" + file)
					must(t, err)
					if string(got) != string(want) {
						t.Fatalf("after %q to %s, %s/%s: the kernel has %q, the fake %q", value, name, d, file, want, got)
					}
				}
			}
		}
	})
}

// clearsPopulated reports whether the running kernel accepts an empty set for a cgroup of version 2
// that has processes.
func clearsPopulated(t *testing.T, own cgroup.Sets, top string, attach func(dir string) error, home string) bool {
	dir := filepath.Join(top, "probe")
	if err := errors.Join(os.Mkdir(dir, 0o755), own.Enable("probe"), own.SetCPUs("probe", cpuset.Of(0)), attach(dir)); err != nil {
		t.Fatal(err)
	}
	err := own.SetCPUs("probe", cpuset.Set{})
	if err := errors.Join(attach(home), syscall.Rmdir(dir)); err != nil {
		t.Fatal(err)
	}
	if err != nil && !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	return err == nil
}

func sameError(t *rapid.T, what string, fake, kernel error) {
	var a, b unix.Errno
	errors.As(fake, &a)
	errors.As(kernel, &b)
	if a != b {
		t.Fatalf("%s: the kernel says %v, the fake %v", what, kernel, fake)
	}
}

func must(t *rapid.T, err error) {
	if err != nil {
		t.Fatal(err)
	}
}

func removeAll(t *testing.T, dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Error(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			removeAll(t, filepath.Join(dir, e.Name()))
		}
	}
	if err := syscall.Rmdir(dir); err != nil {
		t.Error(err)
	}
}

func TestVersion2(t *testing.T) {
	k := New(cgroup.V2, 8, 1)
	sets := cgroup.Sets{Files: k, Version: cgroup.V2}
	for _, d := range []string{"p", "p/a", "p/b"} {
		k.Mkdir(d)
	}
	if _, err := sets.CPUs("p/a"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("without the controller: %v", err)
	}
	if err := sets.Enable("p/a"); err != nil {
		t.Fatal(err)
	}
	steps := []struct{ what, file, value, dir, effective string }{
		{"nothing asked for is the parent's", "", "", "p/a", "0-7"},
		{"a wish within the parent's", "p/a/cpuset.cpus", "0-3", "p/a", "0-3"},
		{"a parent narrowed below its child narrows it", "p/cpuset.cpus", "2-5", "p/a", "2-3"},
		{"a wish outside of the parent's is the parent's", "p/a/cpuset.cpus", "0-1", "p/a", "2-5"},
		{"the wish comes true when the parent is widened", "p/cpuset.cpus", "\n", "p/a", "0-1"},
		{"a sibling is not affected", "p/b/cpuset.cpus", "0-2", "p/b", "0-2"},
		{"a partition takes its CPUs from its siblings", "p/a/cpuset.cpus.partition", "root", "p/b", "2"},
		{"and has them", "", "", "p/a", "0-1"},
	}
	for _, s := range steps {
		if s.file != "" {
			if err := k.WriteFile(s.file, s.value); err != nil {
				t.Errorf("%s: %v", s.what, err)
			}
		}
		if got := k.Runs(s.dir).String(); got != s.effective {
			t.Errorf("%s: %s has %s, want %s", s.what, s.dir, got, s.effective)
		}
	}
	if err := k.WriteFile("p/a/cpuset.cpus", "8"); !errors.Is(err, unix.ERANGE) {
		t.Errorf("a CPU that does not exist: %v", err)
	}
}
