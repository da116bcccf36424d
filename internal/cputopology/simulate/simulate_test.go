package simulate

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/machines"
)

func frozen() time.Time { return time.Time{} }

// TestPlacementQuality is a small version of the allocator's acceptance test. At 85 % load, on both
// AMD layouts, no pod is split unnecessarily, and with moves within nodes nine tenths of the
// possible L3 domains stay free (more on larger clusters). Sizes that do not add up to an L3 domain
// are the exception: pods on their own domains leave gaps that no other size of the mix fits.
func TestPlacementQuality(t *testing.T) {
	policies := map[string]Policy{}
	for _, p := range Policies() {
		policies[p.Name()] = p
	}
	for _, m := range []machines.Machine{machines.AMD256NPS1, machines.AMD256NPS4} {
		for _, mix := range Mixes() {
			for _, policy := range []string{Own, OwnWithoutMoves} {
				r, err := Run(Config{Name: m.Name, Cluster: []Group{{m.MustTopology(), 10}}, Mix: mix, Seed: 1, Load: 0.85, Turnover: 1, Now: frozen}, policies[policy])
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("%+v", r)
				if r.L3SplitAvoidablePercent >= 1 || r.NUMASplitAvoidablePercent > 0 {
					t.Errorf("%s %s %s: %.2f %% avoidable L3 splits, %.2f %% avoidable NUMA splits", policy, m.Name, mix.Name, r.L3SplitAvoidablePercent, r.NUMASplitAvoidablePercent)
				}
				if least := map[bool]float64{true: 88, false: 92}[mix.Name == "odd"]; policy == Own && r.FreeL3Percent < least {
					t.Errorf("%s %s %s: only %.1f %% of the free L3 domains kept", policy, m.Name, mix.Name, r.FreeL3Percent)
				}
			}
		}
	}
}

// TestGapsAreBroughtTogether: with sizes that do not add up to L3 domains, moves keep 97 % of the domains
// that any packing of each node's pods could keep. It takes exchanges over several domains and NUMA nodes.
func TestGapsAreBroughtTogether(t *testing.T) {
	for _, sizes := range []string{"2,3,5,7,11,13", "6-14"} {
		mix, err := ParseMix(sizes)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Run(Config{Cluster: []Group{{machines.AMD256NPS4.MustTopology(), 20}}, Mix: mix, Seed: 1, Load: 0.85, Turnover: 1, Now: frozen},
			newRepacking(Own))
		if err != nil {
			t.Fatal(err)
		}
		if r.L3SplitAvoidablePercent > 0 || r.NUMASplitAvoidablePercent > 0 || 100*r.FreeL3Percent < freeL3Min*r.FreeL3WithinPercent {
			t.Errorf("%s: %.1f %% of at most %.1f %% kept, %.2f and %.2f %% avoidable splits", sizes, r.FreeL3Percent, r.FreeL3WithinPercent,
				r.L3SplitAvoidablePercent, r.NUMASplitAvoidablePercent)
		}
	}
}

func TestEqualSeedsGiveEqualResults(t *testing.T) {
	cfg := Config{Cluster: []Group{{machines.AMD256NPS4.MustTopology(), 3}}, Mix: Mixes()[0], Seed: 7, Load: 0.85, Turnover: 1, Now: frozen}
	for i := range Policies() {
		a, err := Run(cfg, Policies()[i])
		if err != nil {
			t.Fatal(err)
		}
		b, err := Run(cfg, Policies()[i])
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(a, b); diff != "" {
			t.Errorf("%s: %s", a.Policy, diff)
		}
		if a.Placed == 0 || a.Unplaced > a.Placed/10 {
			t.Errorf("%s placed %d and could not place %d", a.Policy, a.Placed, a.Unplaced)
		}
	}
}

func TestWrongConfigurations(t *testing.T) {
	good := Config{Cluster: []Group{{machines.NoL3.MustTopology(), 1}}, Mix: Mixes()[1], Load: 0.5, Turnover: 1, Now: frozen}
	for name, change := range map[string]func(*Config){
		"no nodes":      func(c *Config) { c.Cluster = nil },
		"no load":       func(c *Config) { c.Load = 0 },
		"too much load": func(c *Config) { c.Load = 1.1 },
		"no sizes":      func(c *Config) { c.Mix.Sizes = nil },
		"size zero":     func(c *Config) { c.Mix.Sizes = []int{0} },
	} {
		cfg := good
		change(&cfg)
		if _, err := Run(cfg, Policies()[0]); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := Run(good, Policies()[0]); err != nil {
		t.Error(err)
	}
}

func TestMixesOfOnesOwn(t *testing.T) {
	for text, want := range map[string][]int{
		"4":          {4},
		"3:2,8:1":    {3, 3, 8},
		"6-8":        {6, 7, 8},
		"1,2-3:2":    {1, 2, 3, 2, 3},
		"":           nil,
		"0":          nil,
		"8-6":        nil,
		"3:0":        nil,
		"3:x":        nil,
		"1-4096:900": nil,
		"5000":       nil,
	} {
		m, err := ParseMix(text)
		if (err != nil) != (want == nil) || err == nil && !slices.Equal(m.Sizes, want) {
			t.Errorf("%q: %v, %v; want %v", text, m.Sizes, err, want)
		}
	}
}

// TestMixedClusters: machines with L3 domains of 8 and of 16 CPUs, and one without domains of one
// size, which does not count.
func TestMixedClusters(t *testing.T) {
	r, err := Run(Config{Name: "mixed", Cluster: []Group{{machines.AMD256NPS4.MustTopology(), 2}, {machines.AMD256Milan.MustTopology(), 1},
		{machines.Offlined.MustTopology(), 1}}, Mix: Mix{"four", []int{4}}, Seed: 1, Load: 0.5, Turnover: 1, Now: frozen}, newRepacking(Own))
	if err != nil {
		t.Fatal(err)
	}
	// Pods of 4 CPUs fill any domain: the bound is what is idle, and it is reached but for the last
	// domain of each size.
	if r.Nodes != 4 || r.FreeL3 > r.FreeL3Possible || r.FreeL3 < r.FreeL3Possible-3 || r.FreeL3Possible > 60 || r.FreeL3Possible < 30 {
		t.Errorf("%+v", r)
	}
}

// TestOtherMachinesForTheSamePods: fewer machines than the pods need leave some unplaced.
func TestOtherMachinesForTheSamePods(t *testing.T) {
	e := Existing{Name: "cluster", Sizes: slices.Repeat([]int{8}, 40)}
	for nodes, unplaced := range map[int]int{1: 8, 2: 0} {
		other, err := e.On("new", []Group{{machines.AMD256NPS4.MustTopology(), nodes}})
		if err != nil {
			t.Fatal(err)
		}
		r, err := Anew(other, newRepacking(Own), 1, frozen)
		if err != nil || r.Unplaced != unplaced || r.Placed != 40-unplaced || r.Machine != "new" || r.Nodes != nodes {
			t.Errorf("%d nodes: %+v, %v", nodes, r, err)
		}
	}
}

// TestModelsOfTheKubeletsOptions: the choices of the models, on an AMD machine of 8 NUMA nodes whose
// first L3 domain has one free core.
func TestModelsOfTheKubeletsOptions(t *testing.T) {
	topo := machines.AMD256NPS4.MustTopology()
	idle := topo.Online().Minus(cpuset.MustParse("0-2,128-130"))
	for name, c := range map[string]struct {
		pick func(*cputopology.Topology, cpuset.Set, int) cpuset.Set
		cpus int
		want string
	}{
		"plain: the first free cores":                 {KubeletLike, 4, "3-4,131-132"},
		"uncore: a domain with room for all":          {kubeletUncoreLike, 4, "4-5,132-133"},
		"uncore: the fullest domain with room":        {kubeletUncoreLike, 2, "3,131"},
		"uncore: whole domains, then the rest in one": {kubeletUncoreLike, 10, "3-7,131-135"},
		"distribute: one NUMA node if it has room":    {kubeletDistributeLike, 4, "16-17,144-145"},
		"distribute: half of each of two":             {kubeletDistributeLike, 40, "16-25,32-41,144-153,160-169"},
	} {
		if got := c.pick(topo, idle, c.cpus); got.String() != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestModelsChooseWhatTheyAreAsked: every model chooses exactly the number of CPUs, all of them
// idle, in any state.
func TestModelsChooseWhatTheyAreAsked(t *testing.T) {
	topo := machines.AMD256NPS4.MustTopology()
	rapid.Check(t, func(t *rapid.T) {
		taken := cpuset.Of(rapid.SliceOfN(rapid.IntRange(0, 255), 0, 250).Draw(t, "taken")...)
		idle := topo.Online().Minus(taken)
		cpus := rapid.IntRange(1, idle.Len()).Draw(t, "CPUs")
		for _, pick := range []func(*cputopology.Topology, cpuset.Set, int) cpuset.Set{lowestNumbers, packedCores, KubeletLike,
			kubeletUncoreLike, kubeletDistributeLike} {
			if got := pick(topo, idle, cpus); got.Len() != cpus || !got.SubsetOf(idle) {
				t.Fatalf("%s of %d from %s", got, cpus, idle)
			}
		}
	})
}
