package allocate

import "lockstep.dev/lockstep/internal/cputopology/request"

// Cost is how good a choice of CPUs is: fields compare one after the other, lower is better. See the package
// documentation for why they stand in this order.
type Cost struct {
	// Violations is the request.Fields of wishes given up, as a number: giving up a higher field is worse than all lower.
	Violations int
	NUMANodes  int // NUMA nodes used
	Distance   int // sum of distances between each two of them
	Refs       int // sum, over the CPUs taken, of the containers already on them
	L3         int // L3 domains used
	WholeL3    int // L3 domains that were entirely idle before (for burst requests: CPUs in use in the domains taken)
	WholeNUMA  int // NUMA nodes that were entirely idle before
	// The rest compares in the order given by how CPUs are bound (see order); what is not compared is 0.
	SharedCores  int // cores used that other pods use too
	SplitCores   int // idle cores used in part
	DoubledCores int // CPUs beyond the first on their core
	Loss         int // shapes of 2, 4, 8, 16 and 32 CPUs that no longer fit in the L3 domains used, weighed by size
	Slack        int // idle CPUs left over in the L3 domains used
}

// order returns the last fields of a cost in their order of comparison, packed.
func order(bind request.Bind, shared, split, doubled, loss, slack int) uint64 {
	a, b, c, d := shared, split, loss, slack
	switch bind {
	case request.Threads: // packs as tightly as it can, and does not mind company
		a, b, c, d = slack, split, loss, shared
	case request.Spread:
		a, b = doubled, shared
	}
	return uint64(a)<<shiftA | uint64(b)<<shiftB | uint64(c)<<shiftC | uint64(d)
}

// cost is a Cost packed for the inner loops: comparing two is two comparisons, adding is two additions. Field widths
// bound what a Layout accepts (see limits in NewLayout); no sum over one machine overflows into the next field.
type cost struct{ hi, lo uint64 }

// Widths in bits, from the most significant field down. A to D are the fields of order.
const (
	bitsL3, bitsRefs, bitsDistance, bitsNUMA               = 10, 22, 18, 10 // hi, below 4 bits of violations
	bitsD, bitsC, bitsB, bitsA, bitsWholeNUMA, bitsWholeL3 = 11, 13, 11, 11, 7, 11
	shiftRefs, shiftDistance, shiftNUMA, shiftViolations   = bitsL3, bitsL3 + bitsRefs, bitsL3 + bitsRefs + bitsDistance, 60
	shiftC, shiftB, shiftA, shiftWholeNUMA, shiftWholeL3   = bitsD, 24, 35, 46, 53
)

func (c Cost) pack(bind request.Bind) cost {
	return cost{
		uint64(c.Violations)<<shiftViolations | uint64(c.NUMANodes)<<shiftNUMA | uint64(min(c.Distance, 1<<bitsDistance-1))<<shiftDistance |
			uint64(c.Refs)<<shiftRefs | uint64(c.L3),
		uint64(c.WholeL3)<<shiftWholeL3 | uint64(min(c.WholeNUMA, 1<<bitsWholeNUMA-1))<<shiftWholeNUMA |
			order(bind, c.SharedCores, c.SplitCores, c.DoubledCores, c.Loss, c.Slack),
	}
}

func (c cost) unpack(bind request.Bind) Cost {
	field := func(v uint64, shift, bits int) int { return int(v >> shift & (1<<bits - 1)) }
	out := Cost{
		Violations: field(c.hi, shiftViolations, 4), NUMANodes: field(c.hi, shiftNUMA, bitsNUMA), Distance: field(c.hi, shiftDistance, bitsDistance),
		Refs: field(c.hi, shiftRefs, bitsRefs), L3: field(c.hi, 0, bitsL3),
		WholeL3: field(c.lo, shiftWholeL3, bitsWholeL3), WholeNUMA: field(c.lo, shiftWholeNUMA, bitsWholeNUMA),
	}
	a, b, last, d := field(c.lo, shiftA, bitsA), field(c.lo, shiftB, bitsB), field(c.lo, shiftC, bitsC), field(c.lo, 0, bitsD)
	switch bind {
	case request.Threads:
		out.Slack, out.SplitCores, out.Loss, out.SharedCores = a, b, last, d
	case request.Spread:
		out.DoubledCores, out.SharedCores, out.Loss, out.Slack = a, b, last, d
	default:
		out.SharedCores, out.SplitCores, out.Loss, out.Slack = a, b, last, d
	}
	return out
}

func (c cost) less(d cost) bool { return c.hi < d.hi || c.hi == d.hi && c.lo < d.lo }

func (c cost) plus(d cost) cost { return cost{c.hi + d.hi, c.lo + d.lo} }

// infinite is above every cost, and stays above when any cost is added to it. Violations share its bit: they are added
// to results only, when it is known that there is one.
var infinite = cost{1 << 63, 0}

func (c cost) isInfinite() bool { return c.hi >= 1<<63 }
