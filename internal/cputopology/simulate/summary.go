package simulate

import "slices"

// Summary summarises one policy on one machine, number of nodes and mix: means over seeds, and the
// worst seed where that matters.
type Summary struct {
	Policy  string `json:"policy"`
	Machine string `json:"machine"`
	Nodes   int    `json:"nodes"`
	Mix     string `json:"mix"`
	Seeds   int    `json:"seeds"`

	Placed                       float64 `json:"placed"`
	Unplaced                     float64 `json:"unplaced"`
	L3SplitPercent               float64 `json:"l3SplitPercent"`
	L3SplitAvoidablePercent      float64 `json:"l3SplitAvoidablePercent"`
	L3SplitAvoidablePercentMax   float64 `json:"l3SplitAvoidablePercentMax"`
	NUMASplitPercent             float64 `json:"numaSplitPercent"`
	NUMASplitAvoidablePercent    float64 `json:"numaSplitAvoidablePercent"`
	NUMASplitAvoidablePercentMax float64 `json:"numaSplitAvoidablePercentMax"`
	FreeL3                       float64 `json:"freeL3"`
	FreeL3Possible               float64 `json:"freeL3Possible"`
	FreeL3Percent                float64 `json:"freeL3Percent"`
	FreeL3PercentMin             float64 `json:"freeL3PercentMin"`
	FreeL3IdlePercent            float64 `json:"freeL3IdlePercent"`
	FreeL3WithinPercent          float64 `json:"freeL3WithinPercent"`
	MovesPer100                  float64 `json:"movesPer100"` // pods moved for each 100 placed
	LatencyP50Micros             float64 `json:"latencyP50Micros"`
	LatencyP99Micros             float64 `json:"latencyP99Micros"`
}

// Requirements on a policy, over all seeds of each machine, number of nodes and mix.
const (
	l3AvoidableMax   = 1.0  // percent, below
	numaAvoidableMax = 0.0  // percent
	freeL3Min        = 97.0 // percent of what moves within nodes could keep
)

// Wanted describes the requirements in words.
const Wanted = "avoidable splits over L3 domains below 1 % and over NUMA nodes 0 % in every run, 97 % of the free " +
	"L3 domains kept that any moves of pods within their nodes could keep"

// Holds reports whether the summary meets the requirements on a policy: practically no avoidable
// splits, and nearly all of the possible L3 domains kept free.
func (s Summary) Holds() bool {
	return s.L3SplitAvoidablePercentMax < l3AvoidableMax && s.NUMASplitAvoidablePercentMax <= numaAvoidableMax &&
		100*s.FreeL3Percent >= freeL3Min*s.FreeL3WithinPercent
}

// Summarise groups results by machine, nodes, mix and policy, in the order in which these first
// appear.
func Summarise(results []Result) []Summary {
	type key struct {
		machine, mix, policy string
		nodes                int
	}
	var order []key
	groups := map[key][]Result{}
	for _, r := range results {
		k := key{r.Machine, r.Mix, r.Policy, r.Nodes}
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], r)
	}
	var out []Summary
	for _, k := range order {
		g := groups[k]
		all := func(field func(Result) float64) []float64 {
			var v []float64
			for _, r := range g {
				v = append(v, field(r))
			}
			return v
		}
		mean := func(field func(Result) float64) float64 {
			sum := 0.0
			for _, v := range all(field) {
				sum += v
			}
			return sum / float64(len(g))
		}
		l3 := func(r Result) float64 { return r.L3SplitAvoidablePercent }
		numa := func(r Result) float64 { return r.NUMASplitAvoidablePercent }
		free := func(r Result) float64 { return r.FreeL3Percent }
		out = append(out, Summary{Policy: k.policy, Machine: k.machine, Nodes: k.nodes, Mix: k.mix, Seeds: len(g),
			Placed:                  mean(func(r Result) float64 { return float64(r.Placed) }),
			Unplaced:                mean(func(r Result) float64 { return float64(r.Unplaced) }),
			L3SplitPercent:          mean(func(r Result) float64 { return r.L3SplitPercent }),
			L3SplitAvoidablePercent: mean(l3), L3SplitAvoidablePercentMax: slices.Max(all(l3)),
			NUMASplitPercent:          mean(func(r Result) float64 { return r.NUMASplitPercent }),
			NUMASplitAvoidablePercent: mean(numa), NUMASplitAvoidablePercentMax: slices.Max(all(numa)),
			FreeL3:         mean(func(r Result) float64 { return r.FreeL3 }),
			FreeL3Possible: mean(func(r Result) float64 { return r.FreeL3Possible }),
			FreeL3Percent:  mean(free), FreeL3PercentMin: slices.Min(all(free)),
			FreeL3IdlePercent:   mean(func(r Result) float64 { return r.FreeL3IdlePercent }),
			FreeL3WithinPercent: mean(func(r Result) float64 { return r.FreeL3WithinPercent }),
			MovesPer100:         mean(func(r Result) float64 { return 100 * float64(r.Moves) / float64(max(r.Placed, 1)) }),
			LatencyP50Micros:    mean(func(r Result) float64 { return r.LatencyP50Micros }),
			LatencyP99Micros:    mean(func(r Result) float64 { return r.LatencyP99Micros })})
	}
	return out
}
