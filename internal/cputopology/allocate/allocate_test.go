package allocate

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/machines"
	"lockstep.dev/lockstep/internal/cputopology/request"
)

func node(tb testing.TB, m machines.Machine, reserved string) *Node {
	l, err := NewLayout(m.MustTopology(), cpuset.MustParse(reserved))
	if err != nil {
		tb.Fatal(err)
	}
	return NewNode("n", l)
}

func prepared(tb interface{ Fatal(...any) }, containers ...request.Container) *Request {
	r, err := NewRequest(&request.Pod{Containers: containers})
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func own(cpus int, p request.Policy) request.Container {
	p.Share = 1
	return request.Container{Name: "c", CPUs: cpus, Policy: p}
}

func TestWhichCPUs(t *testing.T) {
	exact := func(cpus int) request.Container { return own(cpus, request.Policy{}) }
	for name, c := range map[string]struct {
		machine  machines.Machine
		reserved string
		taken    string // exclusive CPUs before
		ask      request.Container
		want     string // "" if the request does not fit
	}{
		"whole cores of one L3":                            {machines.AMD256NPS1, "", "", exact(4), "0-1,128-129"},
		"the tightest L3 that fits":                        {machines.AMD256NPS1, "", "0-1,128-129,4", exact(4), "2-3,130-131"},
		"no idle L3 is broken for what fits in used ones":  {machines.AMD256NPS1, "", "0,4,8", exact(2), "1,129"},
		"a whole L3 rather than two broken ones":           {machines.AMD256NPS1, "", "0,4", exact(8), "8-11,136-139"},
		"one and a half L3: the half from a used one":      {machines.AMD256NPS1, "", "2-3,130-131", exact(12), "0-1,4-7,128-129,132-135"},
		"the rest of a used L3":                            {machines.AMD256NPS4, "", "0-12,128-140", exact(6), "13-15,141-143"},
		"near NUMA nodes when one is too small":            {machines.AMD256NPS4, "", "", exact(64), "0-31,128-159"},
		"reserved CPUs are never given out":                {machines.AMD256NPS1, "0-3,128-131", "", exact(8), "4-7,132-135"},
		"CPUs isolated by the kernel neither":              {machines.Offlined, "", "0-2,4-7,10-15", exact(11), ""},
		"threads fill half-used cores":                     {machines.AMD256NPS1, "", "0", own(1, request.Policy{Bind: request.Threads}), "128"},
		"an odd CPU shares a half-used core":               {machines.AMD256NPS1, "", "0", exact(1), "128"},
		"otherwise half-used cores are avoided":            {machines.AMD256NPS1, "", "0-1", exact(2), "2,130"},
		"also where an idle core has to be split":          {machines.AMD256NPS1, "", "0-1", exact(5), "2-3,128,130-131"},
		"an idle L3 domain is broken into for whole cores": {machines.AMD256NPS1, "", "0-3", exact(2), "4,132"},
		"but not for the odd CPU":                          {machines.AMD256NPS1, "", "0-3", exact(1), "128"},
		"and no further L3 domain is used for it":          {machines.AMD256NPS1, "", "0-3,5-7,9-127,133-135,137-255", exact(4), "128-131"},
		"threads break into no idle L3 domain":             {machines.AMD256NPS1, "", "0-3", own(2, request.Policy{Bind: request.Threads}), "128-129"},
		"performance cores":                                {machines.Hybrid, "", "0-7", own(2, request.Policy{Cores: request.PerformanceCores}), "8-9"},
		"efficient cores":                                  {machines.Hybrid, "", "", own(3, request.Policy{Cores: request.EfficientCores}), "16-18"},
		"more performance cores than there are":            {machines.Hybrid, "", "0-7", own(9, request.Policy{Cores: request.PerformanceCores}), ""},
		"performance cores as a wish":                      {machines.Hybrid, "", "0-15", own(2, request.Policy{Cores: request.PerformanceCores, Prefer: request.CoresField}), "16-17"},
		"performance cores of a machine of one kind":       {machines.NoL3, "", "0-1", own(2, request.Policy{Cores: request.PerformanceCores}), "2-3"},
		"efficient cores of a machine of one kind":         {machines.NoL3, "", "", own(2, request.Policy{Cores: request.EfficientCores}), ""},
		"full cores only":                                  {machines.Hybrid, "", "0", own(2, request.Policy{Bind: request.FullCore}), "2-3"},
		"full cores cannot be odd on SMT":                  {machines.AMD256NPS1, "", "", own(3, request.Policy{Bind: request.FullCore}), ""},
		"full cores as a wish can":                         {machines.AMD256NPS1, "", "", own(3, request.Policy{Bind: request.FullCore, Prefer: request.BindField}), "0-1,128"},
		"whole L3 domains":                                 {machines.AMD256NPS1, "", "0", own(16, request.Policy{Bind: request.WholeL3}), "4-11,132-139"},
		"half an L3 domain is not whole":                   {machines.AMD256NPS1, "", "", own(12, request.Policy{Bind: request.WholeL3}), ""},
		"one thread on each core":                          {machines.AMD256NPS1, "", "", own(4, request.Policy{Bind: request.Spread}), "0-3"},
		"more than one L3 holds, in one L3":                {machines.AMD256NPS1, "", "", own(9, request.Policy{Span: request.SingleL3}), ""},
		"more than one NUMA node holds, in one socket":     {machines.AMD256NPS4, "", "0-20", own(128, request.Policy{Span: request.SingleSocket}), "64-127,192-255"},
		"what one NUMA node holds, if none has it free":    {machines.AMD256NPS4, "", "0-27,32-59,64-91,96-123,128-155,160-187,192-219,224-251", own(16, request.Policy{Span: request.FewestNUMA}), ""},
		"the same, in any NUMA nodes":                      {machines.AMD256NPS4, "", "0-27,32-59,64-91,96-123,128-155,160-187,192-219,224-251", exact(16), "28-31,60-63,156-159,188-191"},
		"more than one NUMA node holds, in two":            {machines.AMD256NPS4, "", "", own(40, request.Policy{Span: request.FewestNUMA}), "0-19,128-147"},
		"more than two NUMA nodes have free, not hold":     {machines.AMD256NPS4, "", "0-7,16-23,32-39,48-55,64-71,80-87,96-103,112-119,128-135,144-151,160-167,176-183,192-199,208-215,224-231,240-247", own(60, request.Policy{Span: request.FewestNUMA}), ""},
		"an L3 without neighbours":                         {machines.AMD256NPS1, "", "0,4", own(2, request.Policy{Isolation: request.IsolateL3}), "8,136"},
		"sparse NUMA ids":                                  {machines.Sparse, "", "0-35", exact(6), "36-41"},
		"nothing left":                                     {machines.NoL3, "", "0-6", exact(2), ""},
		"a machine without L3 or NUMA files":               {machines.NoL3, "", "0-1", exact(3), "2-4"},
		"exclusive CPUs of both kinds of core":             {machines.Hybrid, "", "0-15", exact(8), "16-23"},
	} {
		t.Run(name, func(t *testing.T) {
			n := node(t, c.machine, c.reserved)
			if s := cpuset.MustParse(c.taken); !s.IsEmpty() {
				if err := n.Restore(&Allocation{Key: "before", Containers: []ContainerCPUs{{CPUs: s, Held: s, Share: 1}}}); err != nil {
					t.Fatal(err)
				}
			}
			var al Allocator
			a, err := al.Allocate(n, "pod", prepared(t, c.ask))
			var unfit *UnfitError
			switch {
			case err != nil && !errors.As(err, &unfit):
				t.Fatal(err)
			case err != nil && c.want != "":
				t.Fatalf("does not fit: %v", err)
			case err == nil && a.CPUs().String() != c.want:
				t.Fatalf("got CPUs %s, want %q (cost %+v)", a.CPUs(), c.want, a.Cost)
			}
			if err := n.check(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestIsolationKeepsOthersOut(t *testing.T) {
	n := node(t, machines.AMD256NPS4, "")
	var al Allocator
	a, err := al.Allocate(n, "a", prepared(t, own(2, request.Policy{Isolation: request.IsolateNUMA})))
	if err != nil {
		t.Fatal(err)
	}
	if got := a.Containers[0].Held.String(); got != "0-15,128-143" {
		t.Errorf("holds %s, want its NUMA node", got)
	}
	b, err := al.Allocate(n, "b", prepared(t, request.Container{Name: "c", CPUs: 2}))
	if err != nil {
		t.Fatal(err)
	}
	if b.CPUs().Overlaps(a.Containers[0].Held) {
		t.Errorf("%s entered the isolated %s", b.CPUs(), a.Containers[0].Held)
	}
	if pool := n.SharedPool(); pool.Overlaps(a.Containers[0].Held) || !b.CPUs().SubsetOf(pool) {
		t.Errorf("the shared pool is %s", pool)
	}
}

func TestSharedCPUsTakeTheLeastUsedFirst(t *testing.T) {
	n := node(t, machines.NoL3, "")
	var al Allocator
	used := map[int]int{}
	for i := range 8 { // 8 pods of 3 CPUs on 8 CPUs: each CPU must end with exactly 3 containers
		a, err := al.Allocate(n, fmt.Sprint(i), prepared(t, request.Container{Name: "c", CPUs: 3}))
		if err != nil {
			t.Fatal(err)
		}
		for id := range a.CPUs().All() {
			used[id]++
		}
	}
	for id, count := range used {
		if count != 3 {
			t.Errorf("CPU %d has %d pods, want 3", id, count)
		}
	}
	if _, err := al.Allocate(n, "limited", prepared(t, request.Container{Name: "c", CPUs: 1, Policy: request.Policy{Share: 3}})); err == nil {
		t.Error("a pod that wants at most 3 pods on a CPU got a fourth place")
	}
}

func TestBurstWidensAndShrinks(t *testing.T) {
	n := node(t, machines.AMD256NPS1, "")
	var al Allocator
	burst := prepared(t, request.Container{Name: "c", CPUs: 4, Policy: request.Policy{Burst: true}})
	a, err := al.Allocate(n, "burst", burst)
	if err != nil {
		t.Fatal(err)
	}
	if got := n.Effective(a.Containers[0]).String(); got != "0-3,128-131" {
		t.Errorf("widened to %s, want the whole L3", got)
	}
	b, err := al.Allocate(n, "burst 2", burst)
	if err != nil {
		t.Fatal(err)
	}
	if b.CPUs().First() != 4 {
		t.Errorf("the second burst pod got %s, want another, idle L3", b.CPUs())
	}
	if _, err := al.Allocate(n, "exclusive", prepared(t, own(4, request.Policy{}))); err != nil {
		t.Fatal(err)
	}
	if got := n.Effective(a.Containers[0]); got.String() != "0-1,128-129" {
		t.Errorf("shrunk to %s, want its own 4 CPUs", got)
	}
	n.Release("exclusive")
	if got := n.Effective(a.Containers[0]).String(); got != "0-3,128-131" {
		t.Errorf("after the exclusive pod left: %s", got)
	}
}

func TestContainersOfOnePod(t *testing.T) {
	n := node(t, machines.AMD256NPS1, "")
	var al Allocator
	one := request.Policy{Share: 1}
	a, err := al.Allocate(n, "pod", prepared(t,
		request.Container{Name: "init", CPUs: 10, Init: true, Policy: one},
		request.Container{Name: "log", CPUs: 2, Policy: one},
		request.Container{Name: "web", CPUs: 6, Policy: one},
		request.Container{Name: "shared", CPUs: 1},
	))
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]ContainerCPUs{}
	for _, c := range a.Containers {
		by[c.Name] = c
	}
	if by["web"].CPUs.Len() != 6 || by["log"].CPUs.Len() != 2 || by["web"].CPUs.Overlaps(by["log"].CPUs) || by["shared"].CPUs.Len() != 1 {
		t.Errorf("parts: %+v", by)
	}
	if got := by["init"].CPUs; got.Len() != 10 || !by["log"].CPUs.Union(by["web"].CPUs).SubsetOf(got) {
		t.Errorf("the init container has %s", got)
	}
	if err := n.check(); err != nil {
		t.Error(err)
	}
}

func TestMemoryIsPlacedWithTheCPUs(t *testing.T) {
	n := node(t, machines.AMD256NPS4, "") // 128 GiB in each NUMA node
	var al Allocator
	local := own(4, request.Policy{Memory: request.LocalMemory})
	local.MemoryBytes = 100 << 30
	for i := range 8 {
		a, err := al.Allocate(n, fmt.Sprint(i), prepared(t, local))
		if err != nil {
			t.Fatal(err)
		}
		if a.Containers[0].Mems.Len() != 1 {
			t.Fatalf("memory from %s", a.Containers[0].Mems)
		}
	}
	a, err := al.Allocate(n, "9", prepared(t, local))
	if err != nil {
		t.Fatal(err) // 28 GiB remain in each of 8 nodes: four together have room
	}
	if a.Containers[0].Mems.Len() != 4 || a.Cost.NUMANodes != 4 {
		t.Errorf("memory from %s, cost %+v", a.Containers[0].Mems, a.Cost)
	}
	n.Release("9")
	local.Prefer = request.MemoryField
	if a, err = al.Allocate(n, "9", prepared(t, local)); err != nil || a.Cost.NUMANodes != 4 || a.Cost.Violations != 0 {
		t.Errorf("as a wish that can be met: %+v, %v", a, err)
	}
}

// TestContainersOfOnePodDoNotShareMemory checks that containers whose CPUs are chosen separately are
// promised different memory.
func TestContainersOfOnePodDoNotShareMemory(t *testing.T) {
	n := node(t, machines.AMD256NPS4, "") // 128 GiB in each NUMA node
	first := own(4, request.Policy{Memory: request.LocalMemory, Span: request.SingleNUMA})
	first.MemoryBytes = 70 << 30
	second := first
	first.Name, second.Name = "first", "second"
	var al Allocator
	a, err := al.Allocate(n, "pod", prepared(t, first, second))
	if err != nil {
		t.Fatal(err)
	}
	sum := int64(0)
	for _, bytes := range a.MemoryBytes {
		sum += bytes
	}
	if sum != 140<<30 || a.Containers[0].Mems.Equal(a.Containers[1].Mems) {
		t.Errorf("%d GiB are promised: %v; want 140", sum>>30, a.MemoryBytes)
	}
}

func TestChooseTakesTheBestNode(t *testing.T) {
	l := node(t, machines.AMD256NPS1, "").layout
	idle, used, full := NewNode("idle", l), NewNode("used", l), NewNode("full", l)
	var al Allocator
	fill := func(n *Node, s string) {
		set := cpuset.MustParse(s)
		if err := n.Restore(&Allocation{Key: "x", Containers: []ContainerCPUs{{CPUs: set, Held: set, Share: 1}}}); err != nil {
			t.Fatal(err)
		}
	}
	fill(used, "0-1,128-129")
	fill(full, "0-254")
	nodes := []*Node{full, idle, used}
	for _, c := range []struct {
		cpus int
		want string
	}{
		{1, "full"}, // the odd CPU may share a core, and fits without a rest
		{2, "used"},
		{4, "used"},
		{8, "used"},   // an idle L3 either way: the fuller node
		{125, "used"}, // no idle NUMA node is broken into
		{128, "used"},
		{250, "used"},
		{256, "idle"},
	} {
		i, err := al.Choose(nodes, exclusive(t, c.cpus), nil)
		if err != nil {
			t.Fatal(err)
		}
		if nodes[i].Name != c.want {
			t.Errorf("%d CPUs go to %s, want %s", c.cpus, nodes[i].Name, c.want)
		}
	}
	var unfit *UnfitError
	if _, err := al.Choose(nodes, exclusive(t, 257), nil); !errors.As(err, &unfit) || !strings.Contains(err.Error(), "257 free CPUs") {
		t.Errorf("257 CPUs: %v", err)
	}
	if _, err := al.Choose(nodes, exclusive(t, 8), func(i int) bool { return i == 0 }); !errors.As(err, &unfit) {
		t.Errorf("restricted to the full node: %v", err)
	}
}

// TestChooseForSharedCPUs checks that, when limits exceed the machines, a shared pod goes to the
// node whose CPUs have the fewest containers.
func TestChooseForSharedCPUs(t *testing.T) {
	l := node(t, machines.AMD256NPS4, "").layout
	var nodes []*Node
	var al Allocator
	everything := prepared(t, request.Container{Name: "c", CPUs: 256})
	for i := range 60 {
		n := NewNode(fmt.Sprint(i), l)
		for k := range 2 + (i+30)%60 {
			if _, err := al.Allocate(n, fmt.Sprint("x", k), everything); err != nil {
				t.Fatal(err)
			}
		}
		nodes = append(nodes, n)
	}
	i, a, err := al.Place(nodes, "pod", prepared(t, request.Container{Name: "c", CPUs: 16}), nil)
	if err != nil || i != 30 || a.Cost.Refs != 32 {
		t.Fatalf("placed on node %d at %+v, %v; want node 30, where each CPU has 2 containers", i, a, err)
	}
}

// drawPod draws a pod of one to three containers.
func drawPod(t *rapid.T) *request.Pod {
	p := &request.Pod{PodWide: rapid.IntRange(0, 4).Draw(t, "pod-wide") == 0}
	policy := drawPolicy(t)
	for i := range rapid.IntRange(1, 3).Draw(t, "containers") {
		if i > 0 && !p.PodWide && rapid.Bool().Draw(t, "own policy") {
			policy = drawPolicy(t)
		}
		p.Containers = append(p.Containers, request.Container{Name: fmt.Sprint("c", i), CPUs: rapid.IntRange(1, 12).Draw(t, "CPUs"),
			Init: rapid.IntRange(0, 3).Draw(t, "init") == 0, MemoryBytes: int64(rapid.IntRange(0, 40).Draw(t, "GiB")) << 30, Policy: policy})
	}
	return p
}

var setsEqual = cmp.Comparer(func(a, b cpuset.Set) bool { return a.Equal(b) })

// TestAllocationsUnderChurn lets pods come and go at random on irregular machines. After every
// step: counts are exact, all CPUs are allowed ones, exclusive CPUs overlap no other pod's, equal
// states give equal decisions, counters agree with a recount, and released CPUs are as free as
// before.
func TestAllocationsUnderChurn(t *testing.T) {
	kinds := []machines.Machine{machines.Hybrid, machines.Offlined, machines.Sparse, machines.AMD256NPS4, machines.Intel104SNC, machines.SMT4, machines.NoL3}
	var layouts []*Layout
	for _, m := range kinds {
		layouts = append(layouts, node(t, m, "0,5").layout)
	}
	rapid.Check(t, func(t *rapid.T) {
		l := rapid.SampledFrom(layouts).Draw(t, "machine")
		n := NewNode("n", l)
		allowed := l.topo.Online().Minus(cpuset.Of(0, 5)).Minus(l.topo.Isolated)
		var al, other Allocator
		var keys []string
		for step := range 12 {
			if len(keys) > 0 && rapid.IntRange(0, 3).Draw(t, "release") == 0 {
				i := rapid.IntRange(0, len(keys)-1).Draw(t, "which")
				n.Release(keys[i])
				keys = slices.Delete(keys, i, i+1)
			} else {
				pod := drawPod(t)
				r, err := NewRequest(pod)
				if err != nil {
					t.Fatal(err)
				}
				key := fmt.Sprint("pod", step)
				before := n.Clone()
				a, err := al.Allocate(n, key, r)
				again, err2 := other.Plan(before, key, r)
				if (err == nil) != (err2 == nil) || cmp.Diff(a, again, setsEqual, cmp.AllowUnexported(ContainerCPUs{})) != "" {
					t.Fatalf("equal states decide differently: %+v, %v and %+v, %v", a, err, again, err2)
				}
				if err != nil {
					continue
				}
				for i, c := range a.Containers {
					want := pod.Containers[i].CPUs
					if !pod.PodWide && c.CPUs.Len() != want || c.CPUs.Len() < want || !c.CPUs.SubsetOf(allowed) {
						t.Fatalf("container %+v has %s of %s", pod.Containers[i], c.CPUs, allowed)
					}
				}
				restored := before.Clone()
				if err := restored.Restore(FromResult(key, n.Result(a))); err != nil {
					t.Fatalf("restoring what was written: %v", err)
				}
				if diff := sameState(restored, n); diff != "" {
					t.Fatalf("restored from the annotation: %s", diff)
				}
				undo := n.Clone()
				undo.Release(key)
				if diff := sameState(undo, before); diff != "" {
					t.Fatalf("released: %s", diff)
				}
				keys = append(keys, key)
			}
			if err := n.check(); err != nil {
				t.Fatal(err)
			}
			noExclusiveOverlap(t, n)
		}
	})
}

func sameState(a, b *Node) string {
	return cmp.Diff([]any{a.refs, a.limit, a.exclusive, a.idle, a.cellIdle, a.cellWhole, a.numaIdle, a.totalIdle, a.memoryFree},
		[]any{b.refs, b.limit, b.exclusive, b.idle, b.cellIdle, b.cellWhole, b.numaIdle, b.totalIdle, b.memoryFree})
}

func noExclusiveOverlap(t *rapid.T, n *Node) {
	type holder struct {
		pod, container string
		exclusive      bool
	}
	held := map[int]holder{}
	for _, a := range n.Pods() {
		for _, c := range a.Containers {
			if c.shadow {
				continue
			}
			me := holder{a.Key, c.Name, c.Share == 1}
			for id := range c.CPUs.Union(c.Held).All() {
				if o, taken := held[id]; taken && (o.exclusive || me.exclusive) {
					t.Fatalf("CPU %d is held by %+v and %+v", id, o, me)
				}
				held[id] = me
			}
		}
	}
}

func TestRestoreRefusesCollisions(t *testing.T) {
	n := node(t, machines.NoL3, "")
	put := func(key, set string, share int) error {
		s := cpuset.MustParse(set)
		part := ContainerCPUs{CPUs: s, Share: share}
		if share == 1 {
			part.Held = s
		}
		return n.Restore(&Allocation{Key: key, Containers: []ContainerCPUs{part}})
	}
	if err := put("a", "0-1", 1); err != nil {
		t.Fatal(err)
	}
	if err := put("s", "2-3", 0); err != nil {
		t.Fatal(err)
	}
	for key, c := range map[string]struct {
		set   string
		share int
	}{"a": {"4", 1}, "exclusive on exclusive": {"1-2", 1}, "exclusive on shared": {"3", 1}, "shared on exclusive": {"0", 0}, "no such CPU": {"9", 0}} {
		if err := put(key, c.set, c.share); err == nil {
			t.Errorf("%s: no error", key)
		}
	}
	if err := n.check(); err != nil {
		t.Error(err)
	}
}

// TestChooseIsTheBestPlan checks that Choose, with its cache of earlier decisions, takes the node
// that planning on every node finds best, as long as it stays within its budget.
func TestChooseIsTheBestPlan(t *testing.T) {
	decisions, over := 0, 0
	var layouts []*Layout
	for _, m := range []machines.Machine{machines.AMD256NPS4, machines.Hybrid, machines.Offlined, machines.Sparse, machines.SMT4} {
		layouts = append(layouts, node(t, m, "1").layout)
	}
	rapid.Check(t, func(t *rapid.T) {
		var nodes []*Node
		for i := range 5 {
			nodes = append(nodes, NewNode(fmt.Sprint(i), rapid.SampledFrom(layouts).Draw(t, "machine")))
		}
		var al, other Allocator
		for step := range 20 {
			if step%3 == 2 {
				n := nodes[rapid.IntRange(0, 4).Draw(t, "leaves")]
				if pods := n.Pods(); len(pods) > 0 {
					n.Release(pods[0].Key)
				}
			}
			p := drawPolicy(t)
			c := request.Container{Name: "c", CPUs: rapid.IntRange(1, 20).Draw(t, "CPUs"), Policy: p, MemoryBytes: int64(rapid.IntRange(0, 60).Draw(t, "GiB")) << 30}
			r := prepared(t, c)
			want, best := -1, candidate{}
			for i, n := range nodes {
				a, err := other.Plan(n, "x", r)
				if err != nil {
					continue
				}
				bind := p.Bind
				if request.Fields(a.Cost.Violations)&request.BindField != 0 {
					bind = request.AnyCPU
				}
				if k := (candidate{cost: a.Cost.pack(bind), node: int32(i), idle: int32(n.totalIdle)}); want < 0 || k.compare(best) < 0 {
					want, best = i, k
				}
			}
			key := fmt.Sprint("pod", step)
			spent := al.s.work
			got, err := al.Choose(nodes, r, nil)
			decisions++
			if al.s.work-spent > chooseBudget && got >= 0 {
				over++
				want = got // see Choose
			}
			if err == nil {
				_, err = al.Allocate(nodes[got], key, r)
			}
			if got != want || (err == nil) != (want >= 0) {
				t.Fatalf("%+v goes to node %d (%v), the best plan is node %d at %+v", c, got, err, want, best.cost.unpack(p.Bind))
			}
		}
	})
	if over*200 > decisions {
		t.Errorf("%d of %d decisions went over the budget", over, decisions)
	}
}

// TestWhatCoresCannotGiveIsNotSearchedFor checks that an odd number of whole cores of two threads
// is refused at once, without a search through all sets of NUMA nodes.
func TestWhatCoresCannotGiveIsNotSearchedFor(t *testing.T) {
	for _, p := range []request.Policy{{Bind: request.FullCore}, {Bind: request.WholeL3}} {
		var al Allocator
		n := node(t, machines.AMD256NPS4, "1")
		r := prepared(t, request.Container{Name: "c", CPUs: 33, Policy: p})
		if _, err := al.Choose([]*Node{n}, r, nil); err == nil {
			t.Errorf("%v: 33 CPUs are found", p.Bind)
		}
		if _, err := al.Plan(n, "x", r); err == nil {
			t.Errorf("%v: 33 CPUs are planned", p.Bind)
		}
		if al.s.work > 10_000 {
			t.Errorf("%v: %d steps for what cannot be", p.Bind, al.s.work)
		}
	}
}
