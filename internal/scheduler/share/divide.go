package share

import (
	"cmp"
	"math/bits"
	"slices"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

// divide sets a queue's deserved amounts and divides them among its children.
func (l *Ledger) divide(q *queue, deserved place.Vector) {
	width := max(len(l.total), len(q.sum.held), len(q.sum.pending))
	q.deserved = append(q.deserved[:0], deserved...)
	q.divided = q.divided[:0]
	for dim := range width {
		q.divided = append(q.divided, q.demand(dim))
	}
	l.rate(q)
	if len(q.children) == 0 {
		return
	}
	for _, c := range q.children {
		c.deserved = append(c.deserved[:0], make(place.Vector, len(deserved))...)
	}
	for dim := range deserved {
		l.fill(dim, deserved[dim], q.children)
	}
	for _, c := range q.children {
		l.divide(c, slices.Clone(c.deserved))
	}
}

// fill divides one resource among siblings. First each gets what its spec says that it deserves, or
// its demand if that is less. Then fill visits them in ascending order of remaining demand per
// weight; each gets its weight's part of the remainder, or its remaining demand if that is less.
func (l *Ledger) fill(dim int, left int64, siblings []*queue) {
	order := append(l.scratch[:0], siblings...)
	l.scratch = order
	weights := int64(0)
	asks := func(q *queue) int64 {
		ask := max(q.demand(dim), 0)
		if limit := q.Capability.at(dim); limit != Unlimited {
			ask = min(ask, limit)
		}
		return ask
	}
	first := int64(0)
	for _, q := range order {
		weights += int64(q.Weight)
		q.first = 0
		if stated := q.Deserved.at(dim); stated != Unlimited {
			q.first = min(stated, asks(q))
		}
		first += q.first
	}
	if first > left {
		for _, q := range order {
			q.first = muldiv(left, q.first, first)
		}
	}
	for _, q := range order {
		left -= q.first
	}
	slices.SortFunc(order, func(a, b *queue) int {
		return cmp.Or(compareProducts(asks(a)-a.first, int64(b.Weight), asks(b)-b.first, int64(a.Weight)), cmp.Compare(a.Name, b.Name))
	})
	for _, q := range order {
		part := muldiv(left, int64(q.Weight), weights)
		part = min(part, asks(q)-q.first)
		q.deserved[dim] = q.first + part
		left -= part
		weights -= int64(q.Weight)
	}
}

// rate computes the queue's share, the largest fraction of its deserved amounts that it holds, and its
// standing.
func (l *Ledger) rate(q *queue) {
	q.share, q.standing = 0, standing{}
	if q.attached {
		q.share = q.shareWith(nil, 0)
		if q.standing = (standing{q.share >= 1, q.share}); l.halfLife > 0 {
			q.standing = l.standingWith(q, nil, 0, 0)
		}
	}
}

// shareWith returns the share that the queue would have with n more pods of this request.
func (q *queue) shareWith(request place.Vector, n int64) float64 {
	share := 0.0
	for dim := range max(len(q.sum.held), len(request)) {
		held := q.sum.held.At(dim) + n*request.At(dim)
		switch deserved := q.deserved.At(dim); {
		case held <= 0:
		case deserved > 0:
			share = max(share, float64(held)/float64(deserved))
		default:
			share = max(share, 1)
		}
	}
	return share
}

// compareProducts compares a×b with c×d, none of them negative. Bytes times weights do not fit into
// 64 bits.
func compareProducts(a, b, c, d int64) int {
	h1, l1 := bits.Mul64(uint64(a), uint64(b))
	h2, l2 := bits.Mul64(uint64(c), uint64(d))
	return cmp.Or(cmp.Compare(h1, h2), cmp.Compare(l1, l2))
}

// muldiv returns a×b/c, rounded down, for 0 ≤ b ≤ c.
func muldiv(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(max(a, 0)), uint64(b))
	quotient, _ := bits.Div64(hi, lo, uint64(c))
	return int64(quotient)
}
