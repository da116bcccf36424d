package cgroup_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lockstep.dev/lockstep/internal/cputopology/agent/cgroup"
	"lockstep.dev/lockstep/internal/cputopology/agent/fakekernel"
)

func TestScan(t *testing.T) {
	const uid, id = "0d1e2f3a-0000-4000-8000-00000000000a", "7f3c0123456789ab"
	under := strings.ReplaceAll(uid, "-", "_")
	pod := func(path, class string, leaves ...cgroup.Leaf) cgroup.Pod {
		if leaves == nil {
			leaves = []cgroup.Leaf{}
		}
		return cgroup.Pod{Path: path, Class: class, UID: uid, Leaves: leaves}
	}
	for name, c := range map[string]struct {
		root string
		dirs []string
		want cgroup.Tree
	}{
		"cgroupfs": {"", []string{"kubepods", "kubepods/pod" + uid, "kubepods/pod" + uid + "/" + id, "kubepods/besteffort", "system"},
			cgroup.Tree{Roots: []string{"kubepods"}, QoS: []string{"kubepods/besteffort"},
				Pods: []cgroup.Pod{pod("kubepods/pod"+uid, "", cgroup.Leaf{Path: "kubepods/pod" + uid + "/" + id, ID: id})}}},
		"cgroupfs below a root of its own": {"a/b", []string{"a", "a/b", "a/b/kubepods", "a/b/kubepods/burstable", "a/b/kubepods/burstable/pod" + uid},
			cgroup.Tree{Roots: []string{"a/b/kubepods"}, QoS: []string{"a/b/kubepods/burstable"},
				Pods: []cgroup.Pod{pod("a/b/kubepods/burstable/pod"+uid, "a/b/kubepods/burstable")}}},
		"systemd": {"", []string{"kubepods.slice", "kubepods.slice/kubepods-pod" + under + ".slice",
			"kubepods.slice/kubepods-pod" + under + ".slice/cri-containerd-" + id + ".scope"},
			cgroup.Tree{Roots: []string{"kubepods.slice"}, Pods: []cgroup.Pod{pod("kubepods.slice/kubepods-pod"+under+".slice", "",
				cgroup.Leaf{Path: "kubepods.slice/kubepods-pod" + under + ".slice/cri-containerd-" + id + ".scope", ID: id})}}},
		"systemd below a slice of its own": {"x.slice", []string{"x.slice", "x.slice/x-kubepods.slice", "x.slice/x-kubepods.slice/x-kubepods-burstable.slice",
			"x.slice/x-kubepods.slice/x-kubepods-burstable.slice/x-kubepods-burstable-pod" + under + ".slice",
			"x.slice/x-kubepods.slice/x-kubepods-burstable.slice/x-kubepods-burstable-pod" + under + ".slice/crio-" + id + ".scope"},
			cgroup.Tree{Roots: []string{"x.slice/x-kubepods.slice"}, QoS: []string{"x.slice/x-kubepods.slice/x-kubepods-burstable.slice"},
				Pods: []cgroup.Pod{pod("x.slice/x-kubepods.slice/x-kubepods-burstable.slice/x-kubepods-burstable-pod"+under+".slice",
					"x.slice/x-kubepods.slice/x-kubepods-burstable.slice", cgroup.Leaf{Path: "x.slice/x-kubepods.slice/x-kubepods-burstable.slice/x-kubepods-burstable-pod" +
						under + ".slice/crio-" + id + ".scope", ID: id})}}},
	} {
		t.Run(name, func(t *testing.T) {
			k := fakekernel.New(cgroup.V1, 2, 1)
			for _, d := range c.dirs {
				k.Mkdir(d)
			}
			got, err := cgroup.Scan(k, c.root)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	if _, err := cgroup.Scan(fakekernel.New(cgroup.V1, 2, 1), ""); err == nil || !strings.Contains(err.Error(), "kubelet has not started") {
		t.Errorf("no kubelet: %v", err)
	}
}

// TestCachedIsDir checks that files kept open show the present state, even when cgroups come and
// go.
func TestCachedIsDir(t *testing.T) {
	version, mount, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		t.Skip(err)
	}
	top, err := os.MkdirTemp(string(mount), "lockstep-test-")
	if err != nil {
		t.Skipf("cgroups cannot be made: %v", err)
	}
	defer syscall.Rmdir(top)
	enable := func(sets cgroup.Sets, dir string) {
		t.Helper()
		if err := sets.Enable(dir); err != nil { // does nothing in version 1
			t.Fatal(err)
		}
	}
	enable(cgroup.Sets{Files: mount, Version: version}, filepath.Base(top))
	dir := cgroup.Dir(top)
	own := cgroup.Sets{Files: dir, Version: version}
	cached := cgroup.NewCached(dir)
	same := func(when string) {
		t.Helper()
		for _, name := range []string{"cpuset.cpus", "a/cpuset.cpus"} {
			want, wantErr := dir.ReadFile(name)
			got, gotErr := cached.ReadFile(name)
			if string(want) != string(got) || errors.Is(wantErr, fs.ErrNotExist) != errors.Is(gotErr, fs.ErrNotExist) {
				t.Errorf("%s: %s is %q, %v; kept open %q, %v", when, name, want, wantErr, got, gotErr)
			}
		}
		want, wantErr := dir.List("")
		got, gotErr := cached.List("")
		if wantErr != nil || gotErr != nil || !cmp.Equal(want, got) {
			t.Errorf("%s: there is %v, %v; kept open %v, %v", when, want, wantErr, got, gotErr)
		}
	}
	same("at first")
	cpus, err := cgroup.Sets{Files: mount, Version: version}.CPUs("")
	all := cpus.String() + "\n"
	if err == nil {
		err = cached.WriteFile("cpuset.cpus", all)
	}
	if err != nil {
		t.Fatal(err)
	}
	same("after a write")
	if err := os.Mkdir(filepath.Join(top, "a"), 0o755); err != nil {
		t.Fatal(err)
	}
	enable(own, "a")
	same("with a child")
	if err := dir.WriteFile("a/cpuset.cpus", all); err != nil {
		t.Fatal(err)
	}
	same("with CPUs in the child")
	cached.Sweep()
	same("after a sweep")
	if err := syscall.Rmdir(filepath.Join(top, "a")); err != nil {
		t.Fatal(err)
	}
	same("without the child")
	if err := os.Mkdir(filepath.Join(top, "a"), 0o755); err != nil {
		t.Fatal(err)
	}
	enable(own, "a")
	same("with another of its name")
	cached.Sweep()
	cached.Sweep()
	same("after it was not used")
	if err := syscall.Rmdir(filepath.Join(top, "a")); err != nil {
		t.Fatal(err)
	}
}

// TestAShorterValueOnAPlainFile checks the value read from a plain file, which keeps the end of a
// longer previous value. A kernel's file does not.
func TestAShorterValueOnAPlainFile(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "cpuset.cpus"), []byte("0-7,128-135,168-169\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := cgroup.Dir(root)
	if err := dir.WriteFile("cpuset.cpus", "174-175\n"); err != nil {
		t.Fatal(err)
	}
	if got, err := dir.ReadFile("cpuset.cpus"); err != nil || string(got) != "174-175\n" {
		t.Errorf("%q, %v", got, err)
	}
}
