package apply

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"lockstep.dev/lockstep/internal/cputopology/agent/cgroup"
	"lockstep.dev/lockstep/internal/cputopology/agent/fakekernel"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// machine is a fake kernel with the cgroups of a kubelet.
type machine struct {
	*fakekernel.Kernel
	version cgroup.Version
	cpus    int
	systemd bool
}

func newMachine(t fataler, version cgroup.Version, cpus int, systemd bool) *machine {
	m := &machine{fakekernel.New(version, cpus, 2), version, cpus, systemd}
	for _, class := range []string{"", "burstable", "besteffort"} {
		m.mkdir(t, m.class(class))
	}
	return m
}

type fataler interface{ Fatalf(string, ...any) }

func (m *machine) class(qos string) string {
	switch {
	case m.systemd && qos == "":
		return "kubepods.slice"
	case m.systemd:
		return "kubepods.slice/kubepods-" + qos + ".slice"
	}
	return path.Join("kubepods", qos)
}

func (m *machine) pod(qos, uid string) string {
	if !m.systemd {
		return path.Join(m.class(qos), "pod"+uid)
	}
	return path.Join(m.class(qos), strings.TrimSuffix(path.Base(m.class(qos)), ".slice")+"-pod"+strings.ReplaceAll(uid, "-", "_")+".slice")
}

func (m *machine) leaf(pod, id string) string {
	if m.systemd {
		return path.Join(pod, "cri-containerd-"+id+".scope")
	}
	return path.Join(pod, id)
}

// mkdir creates a cgroup as kubelets and runc do: in version 1 with all CPUs of the cgroup above
// it.
func (m *machine) mkdir(t fataler, dir string) {
	m.Mkdir(dir)
	if m.version == cgroup.V2 {
		if err := m.sets().Enable(dir); err != nil {
			t.Fatalf("%s: %v", dir, err)
		}
		return
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := m.ReadFile(path.Join(path.Dir(dir), file))
		if err == nil {
			err = m.WriteFile(path.Join(dir, file), string(value))
		}
		if err != nil {
			t.Fatalf("%s: %v", dir, err)
		}
	}
}

func (m *machine) start(t fataler, dir string) {
	m.mkdir(t, dir)
	if err := m.AddTask(dir); err != nil {
		t.Fatalf("%v", err)
	}
}

func (m *machine) sets() cgroup.Sets { return cgroup.Sets{Files: m, Version: m.version} }

// tree returns the result of a scan, which must succeed.
func (m *machine) tree(t fataler) cgroup.Tree {
	tree, err := cgroup.Scan(m, "")
	if err != nil {
		t.Fatalf("%v", err)
	}
	return tree
}

// plan gives pods CPUs of their own, by UID; all other pods are in the pool.
type plan map[string]cpuset.Set

// targets returns the targets of a plan. A pod of several containers distributes its CPUs among
// them, as far as they go.
func (m *machine) targets(t fataler, p plan) []Target {
	pool := cpuset.Range(0, m.cpus-1)
	for _, cpus := range p {
		pool = pool.Minus(cpus)
	}
	var out []Target
	for _, pod := range m.tree(t).Pods {
		cpus, pinned := p[pod.UID]
		if !pinned {
			cpus = pool
		}
		target := Target{Pod: pod, CPUs: cpus}
		for i := range pod.Leaves {
			own := cpus
			if ids := cpus.IDs(); pinned && i > 0 && len(ids) >= len(pod.Leaves) {
				own = cpuset.Of(ids[i-1])
			}
			target.Leaves = append(target.Leaves, Leaf{CPUs: own, Own: pinned})
		}
		out = append(out, target)
	}
	return out
}

// snapshot returns all CPU sets of a machine.
func (m *machine) snapshot(t fataler) map[string]string {
	out := map[string]string{}
	for _, pod := range m.tree(t).Pods {
		for _, dir := range append([]string{pod.Path}, leafPaths(pod)...) {
			cpus, err := m.sets().CPUs(dir)
			if err != nil {
				t.Fatalf("%v", err)
			}
			out[dir] = cpus.String()
		}
	}
	return out
}

func leafPaths(pod cgroup.Pod) []string {
	var out []string
	for _, l := range pod.Leaves {
		out = append(out, l.Path)
	}
	return out
}

func wanted(targets []Target) map[string]string {
	out := map[string]string{}
	for _, t := range targets {
		out[t.Pod.Path] = t.CPUs.String()
		for i, l := range t.Leaves {
			out[t.Pod.Leaves[i].Path] = l.CPUs.String()
		}
	}
	return out
}

// apply runs Apply, which must succeed, and must find nothing to do a second time.
func (m *machine) apply(t fataler, targets []Target) Report {
	report := Applier{Sets: m.sets()}.Apply(targets)
	if len(report.Failures) > 0 {
		t.Fatalf("%v", report.Failures)
	}
	if diff := cmp.Diff(wanted(targets), m.snapshot(t)); diff != "" {
		t.Fatalf("not as it should be (-want +got):\n%s", diff)
	}
	if again := (Applier{Sets: m.sets()}).Apply(targets); again.Writes != 0 {
		t.Fatalf("a second time it writes %d times", again.Writes)
	}
	return report
}

var versions = []cgroup.Version{cgroup.V1, cgroup.V2}

// drawMachine creates a machine with running pods.
func drawMachine(t *rapid.T, cpus []int, podsMax int) *machine {
	m := newMachine(t, rapid.SampledFrom(versions).Draw(t, "version"), rapid.SampledFrom(cpus).Draw(t, "CPUs"), rapid.Bool().Draw(t, "systemd"))
	m.ClearsPopulated = rapid.Bool().Draw(t, "sets can be cleared")
	for i := range rapid.IntRange(1, podsMax).Draw(t, "pods") {
		dir := m.pod(rapid.SampledFrom([]string{"", "burstable", "besteffort"}).Draw(t, "class"), fmt.Sprintf("a-%d", i))
		m.mkdir(t, dir)
		for j := range rapid.IntRange(1, 4).Draw(t, "leaves") {
			m.start(t, m.leaf(dir, fmt.Sprintf("%d%d", i, j)))
		}
		if rapid.IntRange(0, 5).Draw(t, "nested") == 0 {
			nested := m.leaf(dir, fmt.Sprintf("%d0", i)) + "/inner"
			m.start(t, nested)
		}
	}
	return m
}

// drawPlan gives some pods CPUs of their own, and leaves at least one CPU to the pool.
func drawPlan(t *rapid.T, m *machine) plan {
	free := rapid.Permutation(cpuset.Range(0, m.cpus-1).IDs()).Draw(t, "CPUs in order")
	p := plan{}
	for _, pod := range m.tree(t).Pods {
		n := rapid.IntRange(0, min(4, len(free)-1)).Draw(t, "pinned to")
		if n > 0 {
			p[pod.UID] = cpuset.Of(free[:n]...)
			free = free[n:]
		}
	}
	return p
}

// TestAnyPlanIsReached goes from plan to plan on machines of all kinds, and checks every write on
// the way.
func TestAnyPlanIsReached(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMachine(t, []int{2, 8, 256}, 8)
		for range rapid.IntRange(1, 4).Draw(t, "plans") {
			targets := m.targets(t, drawPlan(t, m))
			watch(t, m, targets)
			m.apply(t, targets)
			m.After = nil
		}
		release(t, m)
	})
}

// watch fails the test if a container gets a CPU that is, or will be, exclusive to another pod
// while that pod runs on it. Swaps between pods are exempt, because they cannot avoid it.
func watch(t *rapid.T, m *machine, targets []Target) {
	w := &work{sets: m.sets()}
	var changes []change
	for _, target := range targets {
		if p, err := w.compare(target); err != nil {
			t.Fatal(err)
		} else if p != nil {
			changes = append(changes, p.change)
		}
	}
	if circular(changes) {
		return
	}
	type runs struct {
		dir  string
		own  bool
		cpus cpuset.Set
		pod  int
	}
	var now []runs
	for i, target := range targets {
		for j, l := range target.Pod.Leaves {
			now = append(now, runs{l.Path, target.Leaves[j].Own, m.Runs(l.Path), i})
		}
	}
	m.After = func(name, content string) {
		before := slices.Clone(now)
		for i := range now {
			now[i].cpus = m.Runs(now[i].dir)
			if now[i].cpus.IsEmpty() {
				t.Fatalf("%q to %s leaves %s without a CPU", content, name, now[i].dir)
			}
		}
		for i, a := range now {
			gained := a.cpus.Minus(before[i].cpus)
			for _, b := range now {
				if both := gained.Intersect(b.cpus); a.pod != b.pod && (a.own || b.own) && !both.IsEmpty() {
					t.Fatalf("%q to %s lets %s run on %s, where %s is", content, name, a.dir, both, b.dir)
				}
			}
		}
	}
}

func circular(changes []change) bool {
	done := map[int]bool{}
	for _, i := range order(len(changes), func(i int) change { return changes[i] }) {
		for j, other := range changes {
			if j != i && !done[j] && other.give.Overlaps(changes[i].take) {
				return true
			}
		}
		done[i] = true
	}
	return false
}

func release(t *rapid.T, m *machine) {
	targets := m.targets(t, plan{})
	if report := (Applier{Sets: m.sets()}).Release(targets); len(report.Failures) > 0 {
		t.Fatal(report.Failures)
	}
	all := cpuset.Range(0, m.cpus-1).String()
	for dir, cpus := range m.snapshot(t) {
		if cpus != all {
			t.Fatalf("after the release %s has %s", dir, cpus)
		}
	}
	if m.version == cgroup.V2 {
		for _, target := range targets {
			if wish, err := m.sets().Wish(target.Pod.Path); err != nil || !wish.IsEmpty() && wish.String() != all {
				t.Fatalf("after the release %s wishes %s, %v", target.Pod.Path, wish, err)
			}
		}
	}
}

// crash is the panic that simulates a crash of the process.
type crash struct{}

// TestACrashAtAnyWriteIsRepaired repeats each plan once for every write in it, and ends the process
// at that write.
func TestACrashAtAnyWriteIsRepaired(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMachine(t, []int{2, 6}, 4)
		from, to := m.targets(t, drawPlan(t, m)), m.targets(t, drawPlan(t, m))
		for at := 0; ; at++ {
			m.apply(t, from)
			left := at
			m.Before = func(string, string) {
				if left == 0 {
					panic(crash{})
				}
				left--
			}
			crashed := crashes(func() { Applier{Sets: m.sets()}.Apply(to) })
			m.Before = nil
			m.apply(t, to)
			if !crashed {
				return // the plan had fewer writes
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

// TestAnErrorLeavesThePodAsItWas makes every write of a plan fail permanently.
func TestAnErrorLeavesThePodAsItWas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMachine(t, []int{2, 6}, 4)
		from, to := m.targets(t, drawPlan(t, m)), m.targets(t, drawPlan(t, m))
		m.apply(t, from)
		before := m.snapshot(t)
		var names []string
		m.Before = func(name, _ string) { names = append(names, name) }
		m.apply(t, to)
		m.Before = nil
		want := wanted(to)
		errno := rapid.SampledFrom([]unix.Errno{unix.EBUSY, unix.EINVAL, unix.EACCES, unix.ENOSPC, unix.EIO}).Draw(t, "errno")
		for _, name := range names {
			m.apply(t, from)
			m.Fail = func(n, _ string) error {
				if n == name {
					return errno
				}
				return nil
			}
			report := Applier{Sets: m.sets()}.Apply(to)
			m.Fail = nil
			var failed []string
			for _, f := range report.Failures {
				if !errors.Is(f.Err, errno) {
					t.Fatalf("%s: %v", name, f.Err)
				}
				failed = append(failed, f.UID)
			}
			after := m.snapshot(t)
			for _, target := range to {
				for _, dir := range append([]string{target.Pod.Path}, leafPaths(target.Pod)...) {
					expected := want[dir]
					if slices.Contains(failed, target.Pod.UID) {
						expected = before[dir]
					}
					if after[dir] != expected {
						t.Fatalf("%s cannot be written: %s has %s, want %s (failed: %v)", name, dir, after[dir], expected, failed)
					}
				}
			}
		}
	})
}

// TestLargeMachine uses a full node of 256 CPUs.
func TestLargeMachine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMachine(t, []int{256}, 110)
		targets := m.targets(t, drawPlan(t, m))
		m.apply(t, targets)
		m.apply(t, m.targets(t, drawPlan(t, m)))
	})
}

func TestVersion1sErrors(t *testing.T) {
	const pod, leaf = "kubepods/burstable/poda", "kubepods/burstable/poda/c"
	cases := []struct {
		what    string
		prepare func(t *testing.T, m *machine)
		cpus    string
		err     error
		// left are the CPUs of the container afterwards.
		left string
	}{
		{"the pod's class lacks a CPU that was off line: it is given back", func(t *testing.T, m *machine) {
			m.SetOnline(cpuset.MustParse("0-2"))
			m.SetOnline(cpuset.MustParse("0-3"))
			must(t, m.sets().SetCPUs("kubepods", cpuset.MustParse("0-3")))
		}, "3", nil, "3"},
		{"the kubelet's own cgroup lacks the CPU", func(t *testing.T, m *machine) {
			m.SetOnline(cpuset.MustParse("0-2"))
			m.SetOnline(cpuset.MustParse("0-3"))
		}, "3", unix.EACCES, "0-2"},
		{"there is no such CPU", func(*testing.T, *machine) {}, "7", unix.ERANGE, "0-3"},
		{"a CPU is off line", func(t *testing.T, m *machine) { m.SetOnline(cpuset.MustParse("0-2")) }, "3", unix.EINVAL, "0-2"},
		{"a container appears that has all of the pod's CPUs", func(t *testing.T, m *machine) {
			m.After = func(string, string) {
				m.After = nil
				m.start(t, pod+"/late")
			}
		}, "1", nil, "1"},
		{"the container has a cgroup of its own inside", func(t *testing.T, m *machine) { m.start(t, leaf+"/inner") }, "2-3", nil, "2-3"},
		{"a sibling has a CPU to itself", func(t *testing.T, m *machine) {
			must(t, m.sets().SetCPUs(leaf, cpuset.MustParse("2-3")))
			m.mkdir(t, pod+"/x")
			must(t, m.sets().SetCPUs(pod+"/x", cpuset.MustParse("0")))
			m.Rmdir("kubepods/besteffort")
			for _, dir := range []string{"", "kubepods", "kubepods/burstable", pod, pod + "/x"} {
				must(t, m.WriteFile(path.Join(dir, "cpuset.cpu_exclusive"), "1"))
			}
		}, "0-1", unix.EINVAL, "2-3"},
	}
	for _, c := range cases {
		t.Run(c.what, func(t *testing.T) {
			m := newMachine(t, cgroup.V1, 4, false)
			m.mkdir(t, pod)
			m.start(t, leaf)
			tree := m.tree(t)
			c.prepare(t, m)
			cpus := cpuset.MustParse(c.cpus)
			target := Target{Pod: tree.Pods[0], CPUs: cpus, Leaves: []Leaf{{CPUs: cpus, Own: true}}}
			before := m.snapshot(t)
			report := Applier{Sets: m.sets()}.Apply([]Target{target})
			if c.err == nil && len(report.Failures) > 0 || c.err != nil && (len(report.Failures) != 1 || !errors.Is(report.Failures[0].Err, c.err)) {
				t.Fatalf("got %v, want %v", report.Failures, c.err)
			}
			if got := m.Runs(leaf).String(); got != c.left {
				t.Errorf("the container has %s, want %s", got, c.left)
			}
			if after := m.snapshot(t); c.err != nil && !cmp.Equal(before, after) {
				t.Errorf("it is left half-way:\n%s", cmp.Diff(before, after))
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestVersion2(t *testing.T) {
	const pod = "kubepods/poda"
	t.Run("containers of the pool inherit: one write for each pod", func(t *testing.T) {
		m := newMachine(t, cgroup.V2, 8, false)
		m.mkdir(t, pod)
		for _, id := range []string{"1", "2", "3"} {
			m.start(t, pod+"/"+id)
		}
		cpus := cpuset.MustParse("0-3")
		report := m.apply(t, []Target{{Pod: m.tree(t).Pods[0], CPUs: cpus, Leaves: []Leaf{{CPUs: cpus}, {CPUs: cpus}, {CPUs: cpus}}}})
		if report.Writes != 1 || len(report.Changed) != 3 {
			t.Errorf("%d writes, changed %v", report.Writes, report.Changed)
		}
	})
	t.Run("a partition beside it is reported", func(t *testing.T) {
		m := newMachine(t, cgroup.V2, 8, false)
		m.mkdir(t, pod)
		m.start(t, pod+"/1")
		m.mkdir(t, "kubepods/taker")
		must(t, m.sets().SetCPUs("kubepods/taker", cpuset.MustParse("2-3")))
		must(t, m.WriteFile("kubepods/taker/cpuset.cpus.partition", "root"))
		cpus := cpuset.MustParse("1-2")
		report := Applier{Sets: m.sets()}.Apply([]Target{{Pod: m.tree(t).Pods[0], CPUs: cpus, Leaves: []Leaf{{CPUs: cpus, Own: true}}}})
		if len(report.Failures) != 1 || !strings.Contains(report.Failures[0].Err.Error(), "CPUs 1 where it should have 1-2") {
			t.Errorf("failures: %v", report.Failures)
		}
	})
	t.Run("the controller is handed down where it is not", func(t *testing.T) {
		m := newMachine(t, cgroup.V2, 4, true)
		dir := m.pod("burstable", "a")
		m.Mkdir(dir)
		m.Mkdir(m.leaf(dir, "1"))
		must(t, m.AddTask(m.leaf(dir, "1")))
		cpus := cpuset.MustParse("2")
		m.apply(t, []Target{{Pod: m.tree(t).Pods[0], CPUs: cpus, Leaves: []Leaf{{CPUs: cpus, Own: true}}}})
	})
}

func TestMemoryNodes(t *testing.T) {
	for _, version := range versions {
		t.Run(version.String(), func(t *testing.T) {
			m := newMachine(t, version, 4, false)
			m.mkdir(t, "kubepods/poda")
			m.start(t, "kubepods/poda/1")
			cpus, mems := cpuset.MustParse("2"), cpuset.MustParse("1")
			targets := []Target{{Pod: m.tree(t).Pods[0], CPUs: cpus, Leaves: []Leaf{{CPUs: cpus, Mems: &mems, Own: true}}}}
			m.apply(t, targets)
			if got, err := m.sets().Mems("kubepods/poda/1"); err != nil || !got.Equal(mems) {
				t.Errorf("memory nodes %s, %v", got, err)
			}
			if report := (Applier{Sets: m.sets()}).Release(targets); len(report.Failures) > 0 {
				t.Error(report.Failures)
			}
			if got, err := m.sets().Mems("kubepods/poda/1"); err != nil || got.String() != "0-1" {
				t.Errorf("memory nodes after the release %s, %v", got, err)
			}
		})
	}
}

func TestWhatIsKeptIsNotWritten(t *testing.T) {
	m := newMachine(t, cgroup.V1, 4, false)
	m.mkdir(t, "kubepods/poda")
	m.start(t, "kubepods/poda/1")
	m.start(t, "kubepods/poda/2")
	must(t, m.sets().SetCPUs("kubepods/poda/1", cpuset.MustParse("3")))
	pod := m.tree(t).Pods[0]
	report := Applier{Sets: m.sets()}.Apply([]Target{{Pod: pod, CPUs: cpuset.MustParse("0-1"), Leaves: []Leaf{{Keep: true}, {CPUs: cpuset.MustParse("0-1")}}}})
	if len(report.Failures) > 0 {
		t.Fatal(report.Failures)
	}
	want := map[string]string{"kubepods/poda": "0-1,3", "kubepods/poda/1": "3", "kubepods/poda/2": "0-1"}
	if diff := cmp.Diff(want, m.snapshot(t)); diff != "" {
		t.Error(diff)
	}
}
