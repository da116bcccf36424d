package enforce

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"

	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/agent/cgroup"
	"lockstep.dev/lockstep/internal/cputopology/agent/desired"
	"lockstep.dev/lockstep/internal/cputopology/agent/fakekernel"
	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/request"
	"lockstep.dev/lockstep/internal/failpoint"
	"lockstep.dev/lockstep/internal/panics"
)

// node is a place with cgroups in which processes run.
type node interface {
	cgroup.Files
	// start creates a container's cgroup, as runtimes do, with a process in it. It creates the
	// pod's cgroup if it is missing.
	start(dir string)
	// runs returns the CPUs on which the process of a cgroup runs.
	runs(dir string) string
}

// fakeNode is a node on the fake kernel, of either version.
type fakeNode struct {
	*fakekernel.Kernel
	t       testing.TB
	version cgroup.Version
}

func newFakeNode(t testing.TB, version cgroup.Version, cpus int) *fakeNode {
	return newFakeNodeOn(t, fakekernel.New(version, cpus, 1), version)
}

func newFakeNodeOn(t testing.TB, kernel *fakekernel.Kernel, version cgroup.Version) *fakeNode {
	n := &fakeNode{kernel, t, version}
	n.mkdir("kubepods")
	n.mkdir("kubepods/burstable")
	return n
}

func (n *fakeNode) mkdir(dir string) {
	n.Mkdir(dir)
	sets := cgroup.Sets{Files: n, Version: n.version}
	if n.version == cgroup.V2 {
		check(n.t, sets.Enable(dir))
		return
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := n.ReadFile(path.Join(path.Dir(dir), file))
		check(n.t, err)
		check(n.t, n.WriteFile(path.Join(dir, file), string(value)))
	}
}

func (n *fakeNode) start(dir string) {
	if _, err := n.List(path.Dir(dir)); err != nil {
		n.mkdir(path.Dir(dir))
	}
	n.mkdir(dir)
	check(n.t, n.AddTask(dir))
}

func (n *fakeNode) runs(dir string) string { return n.Runs(dir).String() }

// realNode is a cgroup of the running kernel, with sleeping processes.
type realNode struct {
	cgroup.Dir
	t         testing.TB
	version   cgroup.Version
	cpu       cgroup.Dir // the same cgroups in the hierarchy with the cpu controller
	processes map[string]*exec.Cmd
	// before is called before each write.
	before func()
	// fail, if set, returns the result of a write that does not take place.
	fail func(name, content string) error
}

// newRealNode returns a realNode with that many CPUs, or skips the test if the kernel does not support
// it.
func newRealNode(t testing.TB, count int) *realNode {
	version, mount, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		t.Skip(err)
	}
	cpus, err := cgroup.Sets{Files: mount, Version: version}.CPUs("")
	check(t, err)
	own := cpuset.Range(0, count-1)
	if !own.SubsetOf(cpus) {
		t.Skipf("CPUs %s are needed, and there are %s", own, cpus)
	}
	top, err := os.MkdirTemp(string(mount), "lockstep-test-")
	if err != nil {
		t.Skipf("cgroups cannot be made: %v", err)
	}
	n := &realNode{Dir: cgroup.Dir(top), t: t, version: version, processes: map[string]*exec.Cmd{}}
	t.Cleanup(n.remove)
	cpu, found := cgroup.FindCPU("/sys/fs/cgroup", version)
	if !found {
		t.Skip("there is no cpu controller")
	}
	n.cpu = cpu + "/" + cgroup.Dir(filepath.Base(top))
	if version == cgroup.V2 {
		check(t, cgroup.Sets{Files: mount, Version: version}.Enable(filepath.Base(top)))
		check(t, mount.WriteFile("cgroup.subtree_control", "+cpu\n"))
	} else {
		check(t, os.Mkdir(string(n.cpu), 0o755))
		n.copySets("", mount, "")
	}
	check(t, n.Dir.WriteFile("cpuset.cpus", own.String()))
	n.mkdir("kubepods")
	n.mkdir("kubepods/burstable")
	return n
}

// copySets gives a new cgroup of version 1 the sets of another.
func (n *realNode) copySets(dir string, from cgroup.Dir, above string) {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := from.ReadFile(path.Join(above, file))
		check(n.t, err)
		check(n.t, n.Dir.WriteFile(path.Join(dir, file), string(value)))
	}
}

func (n *realNode) WriteFile(name, content string) error {
	if n.before != nil {
		n.before()
	}
	if n.fail != nil {
		if err := n.fail(name, content); err != nil {
			return err
		}
	}
	return n.Dir.WriteFile(name, content)
}

func (n *realNode) mkdir(dir string) {
	check(n.t, os.Mkdir(filepath.Join(string(n.Dir), dir), 0o755))
	if n.version == cgroup.V2 {
		check(n.t, cgroup.Sets{Files: n.Dir, Version: n.version}.Enable(dir))
		check(n.t, n.Dir.WriteFile(path.Join(path.Dir(dir), "cgroup.subtree_control"), "+cpu\n"))
		return
	}
	check(n.t, os.Mkdir(filepath.Join(string(n.cpu), dir), 0o755))
	n.copySets(dir, n.Dir, path.Dir(dir))
}

func (n *realNode) start(dir string) {
	if _, err := n.List(path.Dir(dir)); err != nil {
		n.mkdir(path.Dir(dir))
	}
	n.mkdir(dir)
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	check(n.t, cmd.Start())
	n.processes[dir] = cmd
	check(n.t, n.Dir.WriteFile(path.Join(dir, "cgroup.procs"), fmt.Sprint(cmd.Process.Pid)))
}

func (n *realNode) runs(dir string) string {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.processes[dir].Process.Pid))
	check(n.t, err)
	_, rest, _ := strings.Cut(string(status), "Cpus_allowed_list:")
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(line)
}

func (n *realNode) remove() {
	for _, cmd := range n.processes {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	n.removeTree(string(n.Dir))
	if n.version == cgroup.V1 {
		n.removeTree(string(n.cpu))
	}
}

// end removes the cgroups of pods, with their processes.
func (w *world) end(uids ...string) {
	for _, uid := range uids {
		dir := path.Dir(leaf(uid, "c"))
		switch n := w.node.(type) {
		case *realNode:
			for at, cmd := range n.processes {
				if path.Dir(at) == dir {
					_ = cmd.Process.Kill()
					_ = cmd.Wait()
					delete(n.processes, at)
				}
			}
			n.removeTree(filepath.Join(string(n.Dir), dir))
			if n.version == cgroup.V1 {
				n.removeTree(filepath.Join(string(n.cpu), dir))
			}
		case *fakeNode:
			n.Rmdir(dir)
		}
	}
}

func (n *realNode) removeTree(dir string) {
	children, err := cgroup.Dir(dir).List("")
	if err != nil {
		n.t.Error(err)
	}
	for _, child := range children {
		n.removeTree(filepath.Join(dir, child))
	}
	// The last process may still be exiting.
	last := error(nil)
	err = wait.PollUntilContextTimeout(context.Background(), 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		last = syscall.Rmdir(dir)
		return !errors.Is(last, unix.EBUSY), nil
	})
	if err := errors.Join(err, last); err != nil {
		n.t.Error(err)
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// layoutOf returns a machine of single-threaded cores in L3 domains of four.
func layoutOf(t testing.TB, cpus int) *allocate.Layout {
	p := cputopology.Parts{
		Sockets: []cputopology.Socket{{CPUs: cpuset.Range(0, cpus-1)}},
		NUMA:    []cputopology.NUMANode{{CPUs: cpuset.Range(0, cpus-1), MemoryBytes: 1 << 30, Distances: []int{10}}},
	}
	for id := range cpus {
		p.Cores = append(p.Cores, cpuset.Of(id))
		if id%4 == 0 {
			p.L3 = append(p.L3, cputopology.L3{CPUs: cpuset.Range(id, min(id+3, cpus-1)), Bytes: 1 << 20})
		}
	}
	topology, err := cputopology.New(p)
	check(t, err)
	l, err := allocate.NewLayout(topology, cpuset.Set{})
	check(t, err)
	return l
}

// pods is the API's state: by UID, the CPUs of each container, "" for containers that are not
// pinned, with the prefix "+" for burst containers.
type pods map[string]map[string]string

func (p pods) list() []desired.Pod {
	var out []desired.Pod
	for uid, containers := range p {
		pod := desired.Pod{UID: uid, Namespace: "ns", Name: uid}
		result := request.Result{Version: 1, Node: "n", Containers: map[string]request.ContainerResult{}}
		for name, cpus := range containers {
			pod.Containers = append(pod.Containers, name)
			bare, burst := strings.CutPrefix(cpus, "+")
			if cpus != "" {
				r := request.ContainerResult{CPUs: cpuset.MustParse(bare), Share: 1, Burst: burst}
				if burst {
					r.Share = 0
				}
				result.Containers[name] = r
			}
		}
		if len(result.Containers) > 0 {
			data, err := json.Marshal(result)
			if err != nil {
				panic(err)
			}
			pod.Result = string(data)
		}
		out = append(out, pod)
	}
	return out
}

// world is a node and the current enforcer.
type world struct {
	node
	t          testing.TB
	version    cgroup.Version
	layout     *allocate.Layout
	e          *Enforcer
	generation int64
	now        time.Time
	limits     map[string]map[string]int64 // desired.Pod.Limits, by UID
}

func newWorld(t testing.TB, n node, version cgroup.Version, cpus int) *world {
	w := &world{node: n, t: t, version: version, layout: layoutOf(t, cpus), now: time.Unix(1000, 0)}
	w.restart()
	return w
}

// restart simulates a crash: all state in memory is lost.
func (w *world) restart() {
	w.e = New(Config{Node: "n", Sets: cgroup.Sets{Files: w.node, Version: w.version}, Log: slog.New(slog.DiscardHandler)})
}

// names returns the names of containers by ID: the ID of a container is its pod's UID followed by
// its name.
func names(p pods) map[string]string {
	out := map[string]string{}
	for uid, containers := range p {
		for name := range containers {
			out[uid+name] = name
		}
	}
	return out
}

func leaf(uid, name string) string { return "kubepods/burstable/pod" + uid + "/" + uid + name }

func (w *world) input(p pods) Input {
	w.generation++
	list := p.list()
	for i := range list {
		list[i].Limits = w.limits[list[i].UID]
	}
	return Input{Generation: w.generation, Layout: w.layout, Pods: list, Names: names(p)}
}

func (w *world) pass(p pods) Outcome {
	w.t.Helper()
	out, err := w.e.Pass(w.input(p), w.now)
	check(w.t, err)
	return out
}

// is checks on which CPUs processes run: "pod container cpus".
func (w *world) is(want ...string) {
	w.t.Helper()
	for _, line := range want {
		f := strings.Fields(line)
		if got := w.runs(leaf(f[0], f[1])); got != f[2] {
			w.t.Errorf("container %s of pod %s runs on %s, want %s", f[1], f[0], got, f[2])
		}
	}
}

// onAll runs a test on the running kernel and on fake kernels. All have two CPUs.
func onAll(t *testing.T, test func(t *testing.T, w *world)) { onAllWith(t, 2, test) }

// onAllWith is onAll with that many CPUs.
func onAllWith(t *testing.T, cpus int, test func(t *testing.T, w *world)) {
	t.Run("this kernel", func(t *testing.T) {
		n := newRealNode(t, cpus)
		test(t, newWorld(t, n, n.version, cpus))
	})
	for _, version := range []cgroup.Version{cgroup.V1, cgroup.V2} {
		t.Run("fake "+version.String(), func(t *testing.T) { test(t, newWorld(t, newFakeNode(t, version, cpus), version, cpus)) })
	}
	t.Run("fake v2 that clears sets", func(t *testing.T) {
		k := fakekernel.New(cgroup.V2, cpus, 1)
		k.ClearsPopulated = true
		test(t, newWorld(t, newFakeNodeOn(t, k, cgroup.V2), cgroup.V2, cpus))
	})
}

// fail makes writes fail, on either kind of node.
func (w *world) fail(fail func(name, content string) error) {
	switch n := w.node.(type) {
	case *realNode:
		n.fail = fail
	case *fakeNode:
		n.Fail = fail
	}
}

func TestPinSwapWidenNarrow(t *testing.T) {
	onAll(t, func(t *testing.T, w *world) {
		for _, uid := range []string{"a", "b"} {
			w.start(leaf(uid, "c"))
			w.start(leaf(uid, "sandbox"))
		}
		steps := []struct {
			what string
			pods pods
			want []string
		}{
			{"nobody is pinned", pods{"a": {"c": ""}, "b": {"c": ""}}, []string{"a c 0-1", "b c 0-1"}},
			{"each has its own", pods{"a": {"c": "0"}, "b": {"c": "1"}}, []string{"a c 0", "a sandbox 0", "b c 1", "b sandbox 1"}},
			{"they swap", pods{"a": {"c": "1"}, "b": {"c": "0"}}, []string{"a c 1", "b c 0"}},
			{"one is in the pool, which is what the other leaves", pods{"a": {"c": "1"}, "b": {"c": ""}}, []string{"a c 1", "b c 0"}},
			{"one widens", pods{"a": {"c": "0-1"}, "b": {"c": ""}}, []string{"a c 0-1", "b c 0-1"}},
			{"and narrows", pods{"a": {"c": "0"}, "b": {"c": ""}}, []string{"a c 0", "b c 1"}},
			{"a pod that the API does not know is in the pool", pods{"a": {"c": "0"}}, []string{"a c 0", "b c 1"}},
			{"a pod that is gone leaves its CPUs", pods{"b": {"c": ""}}, []string{"a c 0-1", "b c 0-1"}},
		}
		for _, s := range steps {
			out := w.pass(s.pods)
			t.Run(s.what, func(t *testing.T) {
				w.t = t
				w.is(s.want...)
			})
			w.t = t
			if again := w.pass(s.pods); again.Writes != 0 || again.Repaired != 0 || out.Repaired != 0 {
				t.Errorf("%s: a second pass wrote %d times; repaired %d and %d", s.what, again.Writes, out.Repaired, again.Repaired)
			}
		}
	})
}

// crash is the panic that simulates a crash of the process.
type crash struct{}

func TestKilledBetweenAnyTwoWrites(t *testing.T) {
	from, to := pods{"a": {"c": "0", "d": ""}, "b": {"c": "1"}}, pods{"a": {"c": "1", "d": ""}, "b": {"c": ""}, "e": {"c": "0"}}
	onAll(t, func(t *testing.T, w *world) {
		for _, dir := range []string{leaf("a", "c"), leaf("a", "d"), leaf("b", "c"), leaf("e", "c")} {
			w.start(dir)
		}
		for at := 0; ; at++ {
			w.pass(from)
			left := at
			failpoint := func() {
				if left == 0 {
					panic(crash{})
				}
				left--
			}
			switch n := w.node.(type) {
			case *realNode:
				n.before = failpoint
			case *fakeNode:
				n.Before = func(string, string) { failpoint() }
			}
			crashed := crashes(func() { w.pass(to) })
			switch n := w.node.(type) {
			case *realNode:
				n.before = nil
			case *fakeNode:
				n.Before = nil
			}
			w.restart()
			if out := w.pass(to); out.Pinned != 2 {
				t.Errorf("after write %d: %d pinned; %v", at, out.Pinned, out.Problems)
			}
			w.is("a c 1", "e c 0")
			if !crashed {
				if at < 4 {
					t.Errorf("there were %d writes only", at)
				}
				return
			}
		}
	})
}

func crashes(f func()) (yes bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, yes = r.(crash); !yes {
				panic(r)
			}
		}
	}()
	f()
	return false
}

func TestDriftIsRepaired(t *testing.T) {
	onAll(t, func(t *testing.T, w *world) {
		w.start(leaf("a", "c"))
		w.start(leaf("b", "c"))
		p := pods{"a": {"c": "0"}, "b": {"c": ""}}
		w.pass(p)
		sets := cgroup.Sets{Files: w.node, Version: w.version}
		for _, dir := range []string{path.Dir(leaf("a", "c")), leaf("a", "c")} {
			check(t, sets.SetCPUs(dir, cpuset.MustParse("0-1")))
		}
		w.is("a c 0-1")
		out := w.pass(p)
		w.is("a c 0", "b c 1")
		if out.Repaired != 1 {
			t.Errorf("%d repaired", out.Repaired)
		}
	})
}

func TestContainerStartsAgain(t *testing.T) {
	onAll(t, func(t *testing.T, w *world) {
		w.start(leaf("a", "c"))
		w.start(leaf("b", "c"))
		p := pods{"a": {"c": "0"}, "b": {"c": ""}}
		w.pass(p)
		// A container with another ID, which the API does not list, is in its place before any
		// pass.
		w.start(leaf("a", "again"))
		w.is("a again 0")
		if out := w.pass(p); out.Repaired != 0 || out.Pinned != 1 {
			t.Errorf("%+v", out)
		}
		w.is("a again 0")
	})
}

func TestContainersOfOnePodHaveTheirOwn(t *testing.T) {
	onAll(t, func(t *testing.T, w *world) {
		p := pods{"a": {"c": "0", "d": "1"}}
		w.start(leaf("a", "c"))
		w.start(leaf("a", "late"))
		w.pass(p)
		// The runtime's files have the name before the API does.
		w.e.cfg.Name = func(id string) (string, bool) { return "d", id == "alate" }
		w.pass(p)
		w.is("a c 0", "a late 1")
	})
}

func TestStaticBurstShrinksAndWidens(t *testing.T) {
	onAllWith(t, 4, func(t *testing.T, w *world) {
		w.start(leaf("a", "c"))
		w.start(leaf("b", "c"))
		w.pass(pods{"a": {"c": "+0-1"}, "b": {"c": ""}})
		w.is("a c 0-3", "b c 0-3")
		w.start(leaf("e", "c"))
		w.pass(pods{"a": {"c": "+0-1"}, "b": {"c": ""}, "e": {"c": "2"}})
		w.is("a c 0-1,3", "b c 0-1,3", "e c 2")
		w.pass(pods{"a": {"c": "+0-1"}, "b": {"c": ""}})
		w.is("a c 0-3")
	})
}

func TestKubeletsPinsAreLeftAlone(t *testing.T) {
	for _, version := range []cgroup.Version{cgroup.V1, cgroup.V2} {
		t.Run(version.String(), func(t *testing.T) {
			w := newWorld(t, newFakeNode(t, version, 8), version, 8)
			w.start(leaf("k", "c"))
			w.start(leaf("a", "c"))
			sets := cgroup.Sets{Files: w.node, Version: version}
			check(t, sets.SetCPUs(leaf("k", "c"), cpuset.MustParse("6-7")))
			p := pods{"a": {"c": "0"}, "k": {"c": ""}}
			in := w.input(p)
			in.Kubelet = desired.Kubelet{Static: true, Pins: map[string]map[string]cpuset.Set{"k": {"c": cpuset.MustParse("6-7")}}}
			for range 2 {
				out, err := w.e.Pass(in, w.now)
				check(t, err)
				w.is("k c 6-7", "a c 0")
				if out.Pool.String() != "1-5" || len(out.KubeletPins) != 1 {
					t.Errorf("%+v", out)
				}
			}
			_, err := w.e.Release(in)
			check(t, err)
			w.is("k c 6-7", "a c 0-7")
		})
	}
}

func TestRelease(t *testing.T) {
	onAll(t, func(t *testing.T, w *world) {
		w.start(leaf("a", "c"))
		w.start(leaf("b", "c"))
		w.pass(pods{"a": {"c": "0"}, "b": {"c": ""}})
		w.is("a c 0", "b c 1")
		w.restart()
		_, err := w.e.Release(Input{})
		check(t, err)
		w.is("a c 0-1", "b c 0-1")
		if out, err := w.e.Release(Input{}); err != nil || out.Writes != 0 {
			t.Errorf("a second time: %d writes, %v", out.Writes, err)
		}
	})
}

// TestAPodThatCannotBePinnedIsInThePool lets each write to the cgroups of a new pod fail in turn. The
// pod must be in the pool after the same pass, never on the CPUs of another pod, and follow the pool
// while it waits for the next try.
func TestAPodThatCannotBePinnedIsInThePool(t *testing.T) {
	onAllWith(t, 4, func(t *testing.T, w *world) {
		w.start(leaf("a", "c"))
		w.pass(pods{"a": {"c": "0"}})
		for at, file := range []string{leaf("b", "c"), leaf("b", "sandbox"), path.Dir(leaf("b", "c"))} {
			w.start(leaf("b", "c"))
			w.start(leaf("b", "sandbox"))
			refused := 0
			w.fail(func(name, content string) error {
				if name == file+"/cpuset.cpus" && content == "1\n" {
					refused++
					return unix.EIO
				}
				return nil
			})
			both := pods{"a": {"c": "0"}, "b": {"c": "1"}}
			out := w.pass(both)
			w.is("a c 0")
			if refused == 0 { // in version 2 the sandbox inherits its CPUs
				w.end("b")
				continue
			}
			if got := w.runs(leaf("b", "c")); got != "2-3" && got != "1" {
				t.Errorf("%d: the failing pod runs on %s", at, got)
			}
			if len(out.Problems) != 1 || out.Problems[0].Pod != "ns/b" || out.Pinned != 1 ||
				file == leaf("b", "c") && !strings.Contains(out.Problems[0].Message, "it runs on the shared pool, CPUs 2-3") {
				t.Errorf("%d: %+v", at, out)
			}
			w.start(leaf("e", "c"))
			three := pods{"a": {"c": "0"}, "b": {"c": "1"}, "e": {"c": "2"}}
			for range 2 {
				out = w.pass(three)
				w.is("a c 0", "e c 2")
				if got := w.runs(leaf("b", "c")); got != "3" && got != "1" {
					t.Errorf("%d: when the pool has shrunk, the failing pod runs on %s", at, got)
				}
				if len(out.Problems) != 1 {
					t.Errorf("%d: %+v", at, out)
				}
			}
			w.fail(nil)
			w.now = w.now.Add(retryMax)
			if out := w.pass(three); len(out.Problems) != 0 || out.Pinned != 3 {
				t.Errorf("%d: later: %+v", at, out)
			}
			w.is("a c 0", "b c 1", "b sandbox 1", "e c 2")
			w.end("b", "e")
		}
	})
}

func TestAFailingPodIsNotTriedAllTheTime(t *testing.T) {
	n := newFakeNode(t, cgroup.V1, 2)
	w := newWorld(t, n, cgroup.V1, 2)
	w.start(leaf("a", "c"))
	tries := 0
	n.Fail = func(name, _ string) error {
		tries++
		return unix.EIO
	}
	p := pods{"a": {"c": "0"}}
	in := w.input(p)
	for range 100 {
		out, err := w.e.Pass(in, w.now)
		check(t, err)
		if len(out.Problems) != 1 || out.Problems[0].Pod != "ns/a" || out.Pinned != 0 {
			t.Fatalf("%+v", out)
		}
		w.now = w.now.Add(time.Second)
	}
	if tries < 5 || tries > 10 {
		t.Errorf("%d tries in 100 s", tries)
	}
	n.Fail = nil
	w.now = w.now.Add(retryMax)
	if out, err := w.e.Pass(in, w.now); err != nil || len(out.Problems) != 0 || out.Pinned != 1 {
		t.Errorf("%+v, %v", out, err)
	}
}

// TestHotPlug switches a CPU off and on again. It takes place only where LOCKSTEP_HOTPLUG allows it,
// because it concerns the whole machine.
func TestHotPlug(t *testing.T) {
	if os.Getenv("LOCKSTEP_HOTPLUG") == "" {
		t.Skip("LOCKSTEP_HOTPLUG is not set")
	}
	n := newRealNode(t, 4)
	w := newWorld(t, n, n.version, 4)
	w.start(leaf("a", "c"))
	w.start(leaf("b", "c"))
	p := pods{"a": {"c": "3"}, "b": {"c": ""}}
	w.pass(p)
	w.is("a c 3", "b c 0-2")
	sets := cgroup.Sets{Files: n.Dir, Version: n.version}
	online := func(value, cpus string) {
		t.Helper()
		check(t, os.WriteFile("/sys/devices/system/cpu/cpu3/online", []byte(value), 0))
		check(t, wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
			has, err := sets.CPUs("kubepods")
			return has.String() == cpus, err
		}))
	}
	online("0", "0-2")
	if out := w.pass(p); len(out.Problems) != 1 || !strings.Contains(out.Problems[0].Message, "off line") {
		t.Errorf("%+v", out)
	}
	w.is("a c 0-2", "b c 0-2")
	online("1", "0-3")
	if out := w.pass(p); len(out.Problems) != 0 {
		t.Errorf("%+v", out)
	}
	w.is("a c 3", "b c 0-2")
}

// TestAPanicConcernsOnePod lets the agent panic on pod b, either when it computes b's wanted state
// or when it writes that state. Pod a must get its CPUs.
func TestAPanicConcernsOnePod(t *testing.T) {
	for name, arm := range map[string]func(t *testing.T, n *fakeNode){
		"computing": func(t *testing.T, _ *fakeNode) {
			failpoint.Arm(t, func(part, key string) {
				if part == "pods" && key == "ns/b" {
					panic("a secret of ns/b")
				}
			})
		},
		"writing": func(_ *testing.T, n *fakeNode) {
			n.Fail = func(name, _ string) error {
				if strings.Contains(name, "podb") {
					panic("a secret of ns/b")
				}
				return nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newFakeNode(t, cgroup.V1, 3)
			w := newWorld(t, n, cgroup.V1, 3)
			var log bytes.Buffer
			logger := slog.New(slog.NewTextHandler(&log, nil))
			guard, err := panics.New(logger, nil)
			check(t, err)
			w.e = New(Config{Node: "n", Sets: cgroup.Sets{Files: n, Version: cgroup.V1}, Guard: guard, Log: logger})
			w.start(leaf("a", "c"))
			w.start(leaf("b", "c"))
			arm(t, n)
			p := pods{"a": {"c": "0"}, "b": {"c": "1"}}
			out := w.pass(p)
			w.is("a c 0")
			if out.Pinned != 1 || len(out.Problems) != 1 || out.Problems[0].Pod != "ns/b" || !strings.Contains(out.Problems[0].Message, "the agent failed in") {
				t.Errorf("%+v", out)
			}
			for _, s := range []string{"object=ns/b", "enforce_test.go", "type=string"} {
				if !strings.Contains(log.String(), s) {
					t.Errorf("the log does not have %q: %s", s, &log)
				}
			}
			if strings.Contains(log.String()+fmt.Sprint(out.Problems), "secret") {
				t.Errorf("what the panic held is told: %v %s", out.Problems, &log)
			}
			// Once the panics stop, the next passes repair the state.
			failpoint.Arm(t, func(string, string) {})
			n.Fail = nil
			w.now = w.now.Add(retryMax)
			if out := w.pass(p); out.Pinned != 2 || len(out.Problems) != 0 {
				t.Errorf("afterwards: %+v", out)
			}
			w.is("a c 0", "b c 1")
		})
	}
}

func TestObserveWritesNothing(t *testing.T) {
	n := newFakeNode(t, cgroup.V2, 2)
	w := newWorld(t, n, cgroup.V2, 2)
	w.start(leaf("a", "c"))
	w.e.cfg.Observe = true
	before := n.Writes
	if out := w.pass(pods{"a": {"c": "0"}}); out.Pinned != 0 || n.Writes != before {
		t.Errorf("%+v, %d writes", out, n.Writes-before)
	}
}

// BenchmarkAtRest runs passes over a full node where nothing has changed: 250 containers, each with
// a sandbox beside it.
func BenchmarkAtRest(b *testing.B) {
	n := newRealNode(b, 2)
	w := newWorld(b, n, n.version, 2)
	cached := cgroup.NewCached(n.Dir)
	w.e.cfg.Sets.Files = cached
	p := pods{}
	for i := range 250 {
		uid := fmt.Sprintf("%036d", i)
		p[uid] = map[string]string{"c": ""}
		if i == 0 {
			p[uid]["c"] = "0"
		}
		n.mkdir(path.Dir(leaf(uid, "c")))
		n.mkdir(leaf(uid, "c"))
		n.mkdir(leaf(uid, "sandbox"))
	}
	w.pass(p)
	in := w.input(p)
	_, err := w.e.Pass(in, w.now)
	check(b, err)
	for b.Loop() {
		if out, err := w.e.Pass(in, w.now); err != nil || out.Writes != 0 {
			b.Fatal(out.Writes, err)
		}
	}
}
