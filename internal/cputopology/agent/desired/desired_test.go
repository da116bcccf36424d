package desired

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/machines"
	"lockstep.dev/lockstep/internal/cputopology/request"
)

// layout returns a layout of 16 CPUs, 0-7 with their second threads 8-15, in L3 domains 0-1+8-9,
// 2-3+10-11, ...
func layout(t testing.TB) *allocate.Layout {
	t.Helper()
	m := machines.Machine{Name: "m", Sockets: 1, NUMAPerSocket: 1, CoresPerSocket: 8, Threads: 2, CoresPerL3: 2, L3Bytes: 1 << 20, MemoryBytesPerNUMA: 1 << 30}
	l, err := allocate.NewLayout(m.MustTopology(), cpuset.Set{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

type containers = map[string]request.ContainerResult

func pod(name string, age int, results containers, others ...string) Pod {
	p := Pod{UID: name, Namespace: "ns", Name: name, Created: time.Unix(int64(1000-age), 0), Containers: others}
	if results != nil {
		data, err := json.Marshal(request.Result{Version: 1, Node: "n", Containers: results})
		if err != nil {
			panic(err)
		}
		p.Result = string(data)
		p.Containers = append(slices.Sorted(maps.Keys(results)), others...)
	}
	return p
}

func own(cpus string) request.ContainerResult {
	return request.ContainerResult{CPUs: cpuset.MustParse(cpus), Share: 1}
}

func TestCompute(t *testing.T) {
	mems := cpuset.Of(0)
	for name, c := range map[string]struct {
		allowed string
		pods    []Pod
		kubelet Kubelet
		// want has lines "pod: CPUs of its cgroup" and "pod/container: CPUs", with "=" after pinned
		// containers and "!" after those pinned by the kubelet.
		want     []string
		pool     string
		problems []string
	}{
		"nobody is pinned": {pods: []Pod{pod("a", 0, nil, "c")}, want: []string{"a: 0-15", "a/c: 0-15"}, pool: "0-15"},
		"a pinned pod and one that is not": {
			pods: []Pod{pod("a", 0, containers{"c": own("0,8")}), pod("b", 0, nil, "c")},
			want: []string{"a: 0,8", "a/c: 0,8=", "b: 1-7,9-15", "b/c: 1-7,9-15"}, pool: "1-7,9-15"},
		"containers of one pod have CPUs of their own": {
			pods: []Pod{pod("a", 0, containers{"c": own("0"), "d": own("1")})},
			want: []string{"a: 0-1", "a/c: 0=", "a/d: 1="}, pool: "2-15"},
		"a container beside a pinned one is in the pool, and the pod's cgroup has room for both": {
			pods: []Pod{pod("a", 0, containers{"c": own("0-7")}, "log")},
			want: []string{"a: 0-15", "a/c: 0-7=", "a/log: 8-15"}, pool: "8-15"},
		"an init container runs on the CPUs of the others": {
			pods: []Pod{pod("a", 0, containers{"c": own("0-1"), "i": {CPUs: cpuset.MustParse("0-1"), Share: 1, Init: true, Shadow: true}})},
			want: []string{"a: 0-1", "a/c: 0-1=", "a/i: 0-1="}, pool: "2-15"},
		"memory nodes": {
			pods: []Pod{pod("a", 0, containers{"c": {CPUs: cpuset.Of(1), Share: 1, Mems: &mems}})},
			want: []string{"a: 1", "a/c: 1=0"}, pool: "0,2-15"},
		"the kubelet's cgroup is smaller than the machine": {allowed: "0-3",
			pods: []Pod{pod("a", 0, containers{"c": own("2-5")}), pod("b", 0, nil, "c")},
			want: []string{"a: 2-3", "a/c: 2-3=", "b: 0-1", "b/c: 0-1"}, pool: "0-1",
			problems: []string{"ns/a c: CPUs 4-5 are off line or not in the kubelet's cgroup"}},
		"nothing of what was chosen can be had": {allowed: "0-3",
			pods: []Pod{pod("a", 0, containers{"c": own("8-9")})},
			want: []string{"a: 0-3", "a/c: 0-3"}, pool: "0-3",
			problems: []string{"ns/a c: CPUs 8-9 are off line or not in the kubelet's cgroup"}},
		"every CPU is held": {
			pods: []Pod{pod("a", 0, containers{"c": own("0-15")}), pod("b", 0, nil, "c")},
			want: []string{"a: 0-15", "a/c: 0-15=", "b: 0-15", "b/c: 0-15"}, pool: "0-15",
			problems: []string{" : CPUs 0-15 are held exclusively, and there are no others: what is not pinned runs on them too; reserve CPUs for the system"}},
		"two claim the same": {
			pods: []Pod{pod("new", 1, containers{"c": own("0-1")}), pod("old", 2, containers{"c": own("1-2")})},
			want: []string{"new: 0,3-15", "new/c: 0,3-15", "old: 1-2", "old/c: 1-2="}, pool: "0,3-15",
			problems: []string{"ns/new : *"}},
		"an annotation that makes no sense": {
			pods: []Pod{{UID: "a", Namespace: "ns", Name: "a", Result: "{", Containers: []string{"c"}}},
			want: []string{"a: 0-15", "a/c: 0-15"}, pool: "0-15", problems: []string{"ns/a : *"}},
		"the kubelet has pinned a container": {
			kubelet: Kubelet{Static: true, Pins: map[string]map[string]cpuset.Set{"k": {"c": cpuset.MustParse("0,8")}}},
			pods:    []Pod{pod("k", 0, nil, "c", "d"), pod("a", 0, containers{"c": own("1")})},
			want:    []string{"a: 0-15", "a/c: 1=", "k: 0-15", "k/c: 0,8!", "k/d: 2-7,9-15"}, pool: "2-7,9-15"},
		"and a whole pod": {
			kubelet: Kubelet{Static: true, Pins: map[string]map[string]cpuset.Set{"k": {WholePod: cpuset.MustParse("0,8"), "c": cpuset.MustParse("0")}}},
			pods:    []Pod{pod("k", 0, nil, "c", "d")},
			want:    []string{"k: 0-15", "k/c: 0!", "k/d: 0,8!"}, pool: "1-7,9-15"},
	} {
		t.Run(name, func(t *testing.T) {
			in := Input{Node: "n", Layout: layout(t), Allowed: cpuset.Range(0, 15), Pods: c.pods, Kubelet: c.kubelet}
			if c.allowed != "" {
				in.Allowed = cpuset.MustParse(c.allowed)
			}
			s := Compute(in)
			var got []string
			for uid, p := range s.Pods {
				got = append(got, fmt.Sprintf("%s: %s", uid, p.CPUs))
				for name, ct := range p.Containers {
					mark := ""
					if ct.Pinned {
						mark = "="
					}
					if ct.Mems != nil {
						mark += ct.Mems.String()
					}
					if ct.Kubelet {
						mark += "!"
					}
					got = append(got, fmt.Sprintf("%s/%s: %s%s", uid, name, ct.CPUs, mark))
				}
			}
			slices.Sort(got)
			slices.Sort(c.want)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			if s.Pool.String() != c.pool {
				t.Errorf("the pool is %s, want %s", s.Pool, c.pool)
			}
			if len(s.Problems) != len(c.problems) {
				t.Fatalf("problems: %+v, want %q", s.Problems, c.problems)
			}
			for i, want := range c.problems {
				line := fmt.Sprintf("%s %s: %s", s.Problems[i].Pod, s.Problems[i].Container, s.Problems[i].Message)
				if prefix := want[:len(want)-1]; want[len(want)-1] != '*' && line != want || len(line) < len(prefix) || line[:len(prefix)] != prefix {
					t.Errorf("problem %q, want %q", line, want)
				}
			}
		})
	}
}

// TestMovesThatCannotBeMade checks that such moves leave pods where they are, if that is any
// better.
func TestMovesThatCannotBeMade(t *testing.T) {
	result := func(cpus, from string) Pod {
		before := cpuset.MustParse(from)
		c := own(cpus)
		c.From = &before
		p := pod("a", 1, containers{"c": c})
		p.Result = p.Result[:len(p.Result)-1] + `,"move":3}`
		return p
	}
	for name, c := range map[string]struct {
		allowed, cpus, from string
		want                string
		stuck               bool
	}{
		"all can be had":        {"0-15", "0-1", "2-3", "0-1", false},
		"one is missing":        {"1-15", "0-1", "2-3", "2-3", true},
		"so is one before":      {"1-2,4-15", "0-1", "2-3", "1", false},
		"the move was complete": {"1-15", "0-1", "2-3", "1", false},
	} {
		in := Input{Node: "n", Layout: layout(t), Allowed: cpuset.MustParse(c.allowed), Pods: []Pod{result(c.cpus, c.from)}}
		if name == "the move was complete" {
			in.Moved = 3
		}
		s := Compute(in)
		if got := s.Pods["a"].Containers["c"].CPUs.String(); got != c.want || s.Stuck["a"] != c.stuck {
			t.Errorf("%s: it runs on %s, stuck %v; want %s, %v", name, got, s.Stuck["a"], c.want, c.stuck)
		}
		if c.stuck && (s.Moves["a"] != 3 || len(s.Problems) != 1) {
			t.Errorf("%s: moves %v, problems %+v", name, s.Moves, s.Problems)
		}
	}
}

// TestAnythingComputes checks, for arbitrary annotations: each set is within the allowed CPUs, none
// is empty, a container's set is within its pod's, and the order of pods does not matter.
func TestAnythingComputes(t *testing.T) {
	l := layout(t)
	sets := rapid.Custom(func(r *rapid.T) cpuset.Set {
		return cpuset.Of(rapid.SliceOfN(rapid.IntRange(0, 19), 1, 6).Draw(r, "CPUs")...)
	})
	rapid.Check(t, func(r *rapid.T) {
		var pods []Pod
		for i := range rapid.IntRange(0, 6).Draw(r, "pods") {
			results := containers{}
			for j := range rapid.IntRange(0, 3).Draw(r, "containers") {
				results[fmt.Sprint(j)] = request.ContainerResult{CPUs: sets.Draw(r, "set"), Share: rapid.IntRange(0, 2).Draw(r, "share"),
					Burst: rapid.Bool().Draw(r, "burst"), Shadow: rapid.IntRange(0, 3).Draw(r, "shadow") == 0}
			}
			pods = append(pods, pod(fmt.Sprint(i), rapid.IntRange(0, 2).Draw(r, "age"), results, "x"))
		}
		in := Input{Node: "n", Layout: l, Allowed: sets.Draw(r, "allowed").Union(cpuset.Of(3)), Pods: pods}
		in.Allowed = in.Allowed.Intersect(cpuset.Range(0, 15))
		s := Compute(in)
		check := func(what string, set, within cpuset.Set) {
			if set.IsEmpty() || !set.SubsetOf(within) {
				r.Fatalf("%s has %s, which is not within %s", what, set, within)
			}
		}
		check("the pool", s.Pool, in.Allowed)
		for uid, p := range s.Pods {
			check("pod "+uid, p.CPUs, in.Allowed)
			for name, c := range p.Containers {
				check("container "+uid+"/"+name, c.CPUs, p.CPUs)
			}
		}
		in.Pods = rapid.Permutation(pods).Draw(r, "order")
		if diff := cmp.Diff(s, Compute(in)); diff != "" {
			r.Fatalf("another order of pods, another state:\n%s", diff)
		}
	})
}
