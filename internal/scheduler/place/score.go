package place

import "math"

// scorer computes the scores that depend on a node's use: the strategy's score and the evenness of
// cpu and memory. Formulas, integer rounding and defaults are those of the kube-scheduler's
// NodeResourcesFit and NodeResourcesBalancedAllocation.
type scorer struct {
	terms             []scoreTerm
	configured        Strategy
	resources, evenly int64 // weights
}

type scoreTerm struct {
	dim      int
	weight   int64
	opposite bool // scored by the other strategy than the configured one
}

const scoreMax = 100

func newScorer(dims *Dims, o Options) *scorer {
	sc := &scorer{configured: o.Strategy, resources: o.Weights.Resources, evenly: o.Weights.Balanced}
	for _, r := range o.Resources {
		if schedulable(r.Name) && r.Weight > 0 {
			sc.terms = append(sc.terms, scoreTerm{dims.intern(r.Name), r.Weight, r.Opposite})
		}
	}
	return sc
}

// score returns the weighted score of a node with one more pod of the class.
func (sc *scorer) score(c *Class, strategy Strategy, allocatable, used, usedNonZero Vector) int64 {
	var score int64
	if sc.resources != 0 {
		var sum, weights int64
		for _, t := range sc.terms {
			all := allocatable.At(t.dim)
			if all == 0 {
				continue
			}
			var taken int64
			switch t.dim {
			case CPU, Memory:
				taken = usedNonZero[t.dim] + c.NonZero[t.dim]
			case EphemeralStorage, Pods:
				taken = used[t.dim] + c.Request[t.dim]
			default:
				// An extended resource does not count for pods that do not ask for it.
				if c.Request.At(t.dim) == 0 {
					continue
				}
				taken = used[t.dim] + c.Request[t.dim]
			}
			taken = min(taken, all)
			// With another strategy than the configured one the Placer looks for a way to fit a gang.
			if (strategy == LeastAllocated) != (t.opposite && strategy == sc.configured) {
				taken = all - taken
			}
			sum += t.weight * quotient(taken*scoreMax, all, 1/float64(all))
			weights += t.weight
		}
		if weights > 0 {
			score += sc.resources * (sum / weights)
		}
	}
	// A pod without requests does not change the evenness of any node.
	if sc.evenly != 0 && !c.bestEffort {
		without := evenness(used[CPU], used[Memory], allocatable)
		with := evenness(used[CPU]+c.Request[CPU], used[Memory]+c.Request[Memory], allocatable)
		score += sc.evenly * (scoreMax/2 + (scoreMax/2+with-without)/2)
	}
	return score
}

// evenness returns 100 if the same fraction of cpu and memory is used, and 100 minus the standard
// deviation of the two fractions (in percent) otherwise.
func evenness(cpu, memory int64, allocatable Vector) int64 {
	if allocatable[CPU] == 0 || allocatable[Memory] == 0 {
		return scoreMax
	}
	a := fraction(cpu, allocatable[CPU])
	b := fraction(memory, allocatable[Memory])
	return int64((1 - math.Abs((a-b)/2)) * scoreMax)
}

func fraction(part, all int64) float64 {
	if part >= all {
		return 1
	}
	return float64(part) / float64(all)
}

// quotient returns a/b for a ≥ 0 and b > 0, given inverse = 1/b. It is exact, and several times
// faster than the processor's integer division, which otherwise takes most of the time of an
// index's rebuild.
func quotient(a, b int64, inverse float64) int64 {
	if a >= 1<<53 { // a float64 does not represent a exactly
		return a / b
	}
	q := int64(float64(a) * inverse) // off by at most one
	switch rest := a - q*b; {
	case rest < 0:
		return q - 1
	case rest >= b:
		return q + 1
	}
	return q
}
