package allocate

import "lockstep.dev/lockstep/internal/cputopology/request"

// Cost is the quality of a choice of CPUs. Fields compare one after the other, lower is better. See
// the package documentation for the reasons of this order.
type Cost struct {
	// Violations is the request.Fields of wishes given up, as a number: giving up a higher field is
	// worse than giving up all lower ones.
	Violations int
	NUMANodes  int // NUMA nodes used
	Distance   int // sum of the distances between each two of them
	Refs       int // sum, over the CPUs taken, of the containers already on them
	L3         int // L3 domains used
	// SharedCores and the following fields compare in an order that depends on how CPUs are bound
	// (see order). Fields that are not compared are 0. SharedCores is the number of cores shared
	// with other pods, except for the odd CPU of an odd number (see oddShares).
	SharedCores int
	// WholeL3 is the number of L3 domains that were entirely idle before (for burst requests: CPUs
	// in use in the domains taken).
	WholeL3      int
	SplitCores   int // idle cores used in part
	DoubledCores int // CPUs beyond the first on their core
	// Fit counts L3 domains left partly idle, then sizes that no longer fit, in units of the
	// request's fitScale.
	Fit       int
	WholeNUMA int // NUMA nodes that were entirely idle before
	Slack     int // idle CPUs left over in the L3 domains used
}

// order returns the last fields of a cost except WholeL3, packed in their order of comparison.
func order(bind request.Bind, shared, split, doubled, fit, slack int) uint64 {
	// above and below are the fields above and below the number of idle NUMA nodes broken into,
	// which follows Fit. top is the field above the number of idle L3 domains broken into.
	var top, above, below uint64
	switch bind {
	case request.Threads: // packs as tightly as possible and does not avoid shared cores
		above = uint64(fit)
		below = uint64(slack)<<(bitsCores+bitsCPUs) | uint64(split)<<bitsCPUs | uint64(shared)
	case request.Spread:
		above = uint64(doubled)<<(bitsCores+bitsFit) | uint64(shared)<<bitsFit | uint64(fit)
		below = uint64(slack)
	default:
		top = uint64(shared)
		above = uint64(fit)
		below = uint64(slack)<<bitsCores | uint64(split)
	}
	return top<<(shiftWholeL3(bind)+bitsWholeL3) | above<<(shiftWholeNUMA(bind)+bitsWholeNUMA) | below
}

// shiftWholeL3 returns the position of the number of idle L3 domains broken into.
func shiftWholeL3(bind request.Bind) int {
	switch bind {
	case request.Threads, request.Spread:
		return 64 - bitsWholeL3
	}
	return 64 - bitsWholeL3 - bitsCPUs
}

// sharedFirst returns the number of shared cores if it compares before everything else that follows
// the number of L3 domains.
func (c cost) sharedFirst(bind request.Bind) uint32 {
	if bind == request.Threads || bind == request.Spread {
		return 0
	}
	return uint32(c.lo >> (64 - bitsCPUs))
}

// shiftWholeNUMA returns the position of the number of idle NUMA nodes broken into.
func shiftWholeNUMA(bind request.Bind) int {
	switch bind {
	case request.Threads:
		return bitsSlack + bitsCores + bitsCPUs
	case request.Spread:
		return bitsSlack
	}
	return bitsSlack + bitsCores
}

// fitScale combines two quantities into Fit, the first more significant than the second, for
// requests that use up to some number of domains: each domain left partly idle counts open, and the
// sizes that a domain puts off count up to putOffMax.
type fitScale struct{ open, putOffMax int }

func newFitScale(domains int) fitScale {
	domains = max(domains, 1)
	open := (1<<bitsFit - 1) / (domains + 1)
	return fitScale{open, (open - 1) / domains}
}

// cost is a Cost packed for the inner loops: a comparison is two integer comparisons, an addition
// is two additions. The field widths bound what NewLayout accepts; no sum over one machine
// overflows into the next field.
type cost struct{ hi, lo uint64 }

// Widths in bits. The last four are the widths of order's fields: numbers of CPUs, of cores with
// more than one thread, the Fit, and the number of CPUs left over.
const (
	// Hi, below 5 bits of violations.
	bitsL3, bitsRefs, bitsDistance, bitsNUMA             = 10, 21, 18, 10
	bitsWholeNUMA, bitsWholeL3                           = 7, 11
	bitsCPUs, bitsCores, bitsFit, bitsSlack              = 11, 10, 14, 11
	shiftRefs, shiftDistance, shiftNUMA, shiftViolations = bitsL3, bitsL3 + bitsRefs, bitsL3 + bitsRefs + bitsDistance, 59
)

func (c Cost) pack(bind request.Bind) cost {
	return cost{
		uint64(c.Violations)<<shiftViolations | uint64(c.NUMANodes)<<shiftNUMA |
			uint64(min(c.Distance, 1<<bitsDistance-1))<<shiftDistance |
			uint64(c.Refs)<<shiftRefs | uint64(c.L3),
		uint64(c.WholeL3)<<shiftWholeL3(bind) | uint64(min(c.WholeNUMA, 1<<bitsWholeNUMA-1))<<shiftWholeNUMA(bind) |
			order(bind, c.SharedCores, c.SplitCores, c.DoubledCores, c.Fit, c.Slack),
	}
}

func (c cost) unpack(bind request.Bind) Cost {
	field := func(v uint64, shift, bits int) int { return int(v >> shift & (1<<bits - 1)) }
	out := Cost{
		Violations: field(c.hi, shiftViolations, 5), NUMANodes: field(c.hi, shiftNUMA, bitsNUMA),
		Distance: field(c.hi, shiftDistance, bitsDistance),
		Refs:     field(c.hi, shiftRefs, bitsRefs), L3: field(c.hi, 0, bitsL3),
		WholeL3: field(c.lo, shiftWholeL3(bind), bitsWholeL3), WholeNUMA: field(c.lo, shiftWholeNUMA(bind), bitsWholeNUMA),
	}
	at := 0
	next := func(bits int) int { // from the least significant field upwards
		at += bits
		return field(c.lo, at-bits, bits)
	}
	switch bind {
	case request.Threads:
		out.SharedCores, out.SplitCores, out.Slack, _, out.Fit = next(bitsCPUs), next(bitsCores), next(bitsSlack),
			next(bitsWholeNUMA), next(bitsFit)
	case request.Spread:
		out.Slack, _, out.Fit, out.SharedCores, out.DoubledCores = next(bitsSlack), next(bitsWholeNUMA), next(bitsFit),
			next(bitsCores), next(bitsCPUs)
	default:
		out.SplitCores, out.Slack, _, out.Fit, _, out.SharedCores = next(bitsCores), next(bitsSlack), next(bitsWholeNUMA),
			next(bitsFit), next(bitsWholeL3), next(bitsCPUs)
	}
	return out
}

func (c cost) less(d cost) bool { return c.hi < d.hi || c.hi == d.hi && c.lo < d.lo }

func (c cost) plus(d cost) cost { return cost{c.hi + d.hi, c.lo + d.lo} }

// infinite is above every cost, and stays above when any cost is added to it. The field Violations
// shares its bit: violations are added only to results that are known to be finite.
var infinite = cost{1 << 63, 0}

func (c cost) isInfinite() bool { return c.hi >= 1<<63 }
