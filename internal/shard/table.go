package shard

import (
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"
)

// Times holds the durations on which the division is based.
type Times struct {
	Period time.Duration // interval between two renewals of a lease
	Fence  time.Duration // how long after its last renewal a member stops acting
	// Expiry is how long a lease stays unchanged before its member counts as dead; it is longer
	// than Fence.
	Expiry time.Duration
}

// DefaultTimes let another member take over within 15 seconds of a member's death.
var DefaultTimes = Times{Period: 2 * time.Second, Fence: 7 * time.Second, Expiry: 10 * time.Second}

// Lease is the content of a member's lease.
type Lease struct {
	Member string
	// Stamp differs after each renewal of the lease.
	Stamp string
	// View is the sorted list of members that the member acts upon; empty while it owns nothing
	// yet.
	View []string
}

// Table is a member's knowledge of the other members. It is a state machine without a clock, and is
// not safe for concurrent use.
type Table struct {
	self  string
	times Times

	others  map[string]*other
	live    []string // including self, sorted
	view    []string // as last written
	written time.Time
	listing bool // a list is in progress
	stale   bool // the lease lapsed since the list began: others may have acted since then
}

// other is another member's lease.
type other struct {
	Lease
	since time.Time // when its current state was first seen
}

// NewTable returns the table of a member that has not written its lease yet.
func NewTable(self string, times Times) *Table {
	return &Table{self: self, times: times, others: map[string]*other{}, live: []string{self}}
}

// Own returns the view to write at the next renewal. The first view is empty, as no member is known
// before the first list. While a list is in progress Own returns the last written view, because the
// list says nothing about a view written after it began.
func (t *Table) Own() []string {
	switch {
	case t.written.IsZero():
		return nil
	case t.listing:
		return t.view
	}
	return t.live
}

// Written records that the own lease was renewed with a view, and when the request was sent and
// answered.
func (t *Table) Written(view []string, sent, answered time.Time) {
	t.stale = t.stale || t.listing && t.lapsed(answered)
	t.view, t.written = view, sent
}

// Listing records that a list begins, while no renewal is in progress.
func (t *Table) Listing() { t.listing, t.stale = true, false }

// Listed records that the list has ended without an answer.
func (t *Table) Listed() { t.listing = false }

// Observe records all leases, from the list that began last, while no renewal is in progress. It
// returns false, and ignores the leases, if the own lease has lapsed since the list began.
func (t *Table) Observe(now time.Time, leases []Lease) bool {
	t.listing = false
	if t.stale || t.lapsed(now) {
		return false
	}
	seen := map[string]bool{}
	for _, l := range leases {
		if l.Member == t.self {
			continue
		}
		seen[l.Member] = true
		if o := t.others[l.Member]; o == nil || o.Stamp != l.Stamp {
			t.others[l.Member] = &other{Lease: l, since: now}
		}
	}
	maps.DeleteFunc(t.others, func(member string, _ *other) bool { return !seen[member] })
	t.live = []string{t.self}
	for member, o := range t.others {
		if now.Sub(o.since) < t.times.Expiry {
			t.live = append(t.live, member)
		}
	}
	slices.Sort(t.live)
	return true
}

// settled reports whether the members of the last list equal the last written view.
func (t *Table) settled() bool { return slices.Equal(t.live, t.view) }

// lapsed reports whether the own lease has not been renewed in time.
func (t *Table) lapsed(now time.Time) bool { return !now.Before(t.written.Add(t.times.Fence)) }

// Dead returns the members whose leases may be deleted: those unchanged for ten times Expiry.
func (t *Table) Dead(now time.Time) []string {
	out := maps.Clone(t.others)
	maps.DeleteFunc(out, func(_ string, o *other) bool { return now.Sub(o.since) < 10*t.times.Expiry })
	return slices.Sorted(maps.Keys(out))
}

// Division says which keys belong to a member. It is immutable.
type Division struct {
	self   string
	live   []string
	view   []string
	others [][2][]string // name and view of each other live member
	until  time.Time
}

// Division returns the division of keys according to the table.
func (t *Table) Division() Division {
	d := Division{self: t.self, live: t.live, view: t.view, until: t.written.Add(t.times.Fence)}
	if t.written.IsZero() {
		d.until = time.Time{}
	}
	for _, member := range t.live {
		if o := t.others[member]; o != nil {
			d.others = append(d.others, [2][]string{{member}, o.View})
		}
	}
	return d
}

// Extended returns d with the end that the last renewal gives it, if the renewal did not change the
// view. New members wait until this member has written a view that contains them. A division that
// has lapsed is not extended, because others may have acted in between, which only a list shows.
func (t *Table) Extended(d Division, now time.Time) Division {
	if renewed := t.Division(); !d.lapsed(now) && slices.Equal(renewed.view, d.view) {
		d.until = renewed.until
	}
	return d
}

// Owns reports whether a key belongs to the member at a time.
func (d *Division) Owns(key string, now time.Time) bool {
	if len(d.view) == 0 || !now.Before(d.until) || Owner(key, d.view) != d.self || Owner(key, d.live) != d.self {
		return false
	}
	for _, o := range d.others {
		if len(o[1]) > 0 && Owner(key, o[1]) == o[0][0] {
			return false
		}
	}
	return true
}

// lapsed reports whether the division has ended because the lease was not renewed.
func (d *Division) lapsed(now time.Time) bool { return !d.until.IsZero() && !now.Before(d.until) }

// same reports whether two divisions are equal except for their end.
func (d *Division) same(o *Division) bool {
	return slices.Equal(d.live, o.live) && slices.Equal(d.view, o.view) &&
		slices.EqualFunc(d.others, o.others, func(a, b [2][]string) bool {
			return slices.Equal(a[0], b[0]) && slices.Equal(a[1], b[1])
		})
}

// Owner returns the member that a key belongs to, among members, or an empty name if there are
// none.
func Owner(key string, members []string) string {
	var best string
	var most uint64
	for _, m := range members {
		h := fnv.New64a()
		h.Write([]byte(m))
		h.Write([]byte{0})
		h.Write([]byte(key))
		if weight := mix(h.Sum64()); best == "" || weight > most || weight == most && strings.Compare(m, best) > 0 {
			best, most = m, weight
		}
	}
	return best
}

// mix spreads the bits of a hash: with FNV alone, the high bits of similar strings are similar.
func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
