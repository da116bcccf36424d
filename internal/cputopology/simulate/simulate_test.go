package simulate

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
				r, err := Run(Config{Machine: m, Nodes: 10, Mix: mix, Seed: 1, Load: 0.85, Turnover: 1, Now: frozen}, policies[policy])
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

func TestEqualSeedsGiveEqualResults(t *testing.T) {
	cfg := Config{Machine: machines.AMD256NPS4, Nodes: 3, Mix: Mixes()[0], Seed: 7, Load: 0.85, Turnover: 1, Now: frozen}
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
	good := Config{Machine: machines.NoL3, Nodes: 1, Mix: Mixes()[1], Load: 0.5, Turnover: 1, Now: frozen}
	for name, change := range map[string]func(*Config){
		"no nodes":      func(c *Config) { c.Nodes = 0 },
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
