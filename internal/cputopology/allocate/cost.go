package allocate

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
	// Core1 and Core2 depend on how CPUs are bound: cores shared with others and idle cores split in two; for Threads
	// the other way round; for Spread second threads of a core and shared cores.
	Core1, Core2 int
	Loss         int // shapes of 2, 4, 8, 16 and 32 CPUs that no longer fit in the L3 domains used, weighed by size
	Slack        int // idle CPUs left over in the L3 domains used
}

// cost is a Cost packed for the inner loops: comparing two is two comparisons, adding is two additions. Field widths
// bound what a Layout accepts (see limits in NewLayout); no sum over one machine overflows into the next field.
type cost struct{ hi, lo uint64 }

// Widths in bits, from the most significant field down.
const (
	bitsL3, bitsRefs, bitsDistance, bitsNUMA                   = 10, 22, 18, 10 // hi, below 4 bits of violations
	bitsSlack, bitsLoss, bitsCore, bitsWholeNUMA, bitsWholeL3  = 11, 13, 11, 7, 11
	shiftRefs, shiftDistance, shiftNUMA, shiftViolations       = bitsL3, bitsL3 + bitsRefs, bitsL3 + bitsRefs + bitsDistance, 60
	shiftLoss, shiftCore2, shiftCore1, shiftWholeNUMA, shiftL3 = bitsSlack, 24, 35, 46, 53
)

func (c Cost) pack() cost {
	return cost{
		uint64(c.Violations)<<shiftViolations | uint64(c.NUMANodes)<<shiftNUMA | uint64(min(c.Distance, 1<<bitsDistance-1))<<shiftDistance |
			uint64(c.Refs)<<shiftRefs | uint64(c.L3),
		uint64(c.WholeL3)<<shiftL3 | uint64(min(c.WholeNUMA, 1<<bitsWholeNUMA-1))<<shiftWholeNUMA | uint64(c.Core1)<<shiftCore1 |
			uint64(c.Core2)<<shiftCore2 | uint64(c.Loss)<<shiftLoss | uint64(c.Slack),
	}
}

func (c cost) unpack() Cost {
	field := func(v uint64, shift, bits int) int { return int(v >> shift & (1<<bits - 1)) }
	return Cost{
		Violations: field(c.hi, shiftViolations, 4), NUMANodes: field(c.hi, shiftNUMA, bitsNUMA), Distance: field(c.hi, shiftDistance, bitsDistance),
		Refs: field(c.hi, shiftRefs, bitsRefs), L3: field(c.hi, 0, bitsL3),
		WholeL3: field(c.lo, shiftL3, bitsWholeL3), WholeNUMA: field(c.lo, shiftWholeNUMA, bitsWholeNUMA), Core1: field(c.lo, shiftCore1, bitsCore),
		Core2: field(c.lo, shiftCore2, bitsCore), Loss: field(c.lo, shiftLoss, bitsLoss), Slack: field(c.lo, 0, bitsSlack),
	}
}

func (c cost) less(d cost) bool { return c.hi < d.hi || c.hi == d.hi && c.lo < d.lo }

func (c cost) plus(d cost) cost { return cost{c.hi + d.hi, c.lo + d.lo} }

// infinite is above every cost, and stays above when any cost is added to it. Violations share its bit: they are added
// to results only, when it is known that there is one.
var infinite = cost{1 << 63, 0}

func (c cost) isInfinite() bool { return c.hi >= 1<<63 }
