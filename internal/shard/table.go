package shard

import (
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"
)

// Times are the durations that the division rests on.
type Times struct {
	Period time.Duration // between two renewals of a lease
	Fence  time.Duration // how long after its last renewal a member stops acting
	Expiry time.Duration // how long a lease must not have changed for its holder to be taken for dead; more than Fence
}

// DefaultTimes let another member take over within 15 seconds of a member's death.
var DefaultTimes = Times{Period: 2 * time.Second, Fence: 7 * time.Second, Expiry: 10 * time.Second}

// Lease is what a member says about itself.
type Lease struct {
	Member string
	// Stamp differs whenever the lease was renewed.
	Stamp string
	// View are the members that it acts upon, sorted; empty while it does nothing yet.
	View []string
}

// Table is what a member knows of the others. It is a state machine without clock; it is not safe for concurrent use.
type Table struct {
	self  string
	times Times

	others  map[string]*other
	live    []string // with self, sorted
	view    []string // as last written
	written time.Time
	listing bool // a list is under way,
	stale   bool // and the lease was not renewed in time since it was begun: others may have acted since then
}

// other is another member's lease.
type other struct {
	Lease
	since time.Time // when it was first seen as it is
}

// NewTable returns the table of a member that has not written its lease yet.
func NewTable(self string, times Times) *Table {
	return &Table{self: self, times: times, others: map[string]*other{}, live: []string{self}}
}

// Own is the view to write at the next renewal. The first is empty: nobody is known before the first list. While a list is
// under way it is the one that was written last, for the list says nothing about a view that is written after it began.
func (t *Table) Own() []string {
	switch {
	case t.written.IsZero():
		return nil
	case t.listing:
		return t.view
	}
	return t.live
}

// Written takes in that the own lease was renewed with a view, by a request that was sent at one time and answered at another.
func (t *Table) Written(view []string, sent, answered time.Time) {
	t.stale = t.stale || t.listing && t.lapsed(answered)
	t.view, t.written = view, sent
}

// Listing takes in that a list is begun, while no renewal is under way.
func (t *Table) Listing() { t.listing, t.stale = true, false }

// Listed takes in that the list has ended without an answer.
func (t *Table) Listed() { t.listing = false }

// Observe takes in all leases, from the list that was begun last, while no renewal is under way. It says whether they
// mean anything: not if the lease has lapsed since the list was begun.
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

// settled reports whether the members of the last list are those of the view that was written last.
func (t *Table) settled() bool { return slices.Equal(t.live, t.view) }

// lapsed says that the lease has not been renewed in time.
func (t *Table) lapsed(now time.Time) bool { return !now.Before(t.written.Add(t.times.Fence)) }

// Dead are the members whose leases may be deleted.
func (t *Table) Dead(now time.Time) []string {
	var out []string
	for member, o := range t.others {
		if now.Sub(o.since) >= 10*t.times.Expiry {
			out = append(out, member)
		}
	}
	slices.Sort(out)
	return out
}

// Division says which keys are a member's. It does not change.
type Division struct {
	self   string
	live   []string
	view   []string
	others [][2][]string // of each other member alive: its name, and its view
	until  time.Time
}

// Division returns how the keys are divided as far as the table knows.
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

// Extended is a division that a renewal keeps in force: it changed nothing, and no list has shown a change yet. Newcomers wait
// until their existence has been taken in. A division that has lapsed is not extended, because others may have acted
// meanwhile, which only a list shows.
func (t *Table) Extended(d Division, now time.Time) Division {
	if renewed := t.Division(); !d.lapsed(now) && slices.Equal(renewed.view, d.view) {
		d.until = renewed.until
	}
	return d
}

// Owns says whether a key is the member's at a time.
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

// lapsed says that keys were the member's and are not, for want of a renewal.
func (d *Division) lapsed(now time.Time) bool { return !d.until.IsZero() && !now.Before(d.until) }

// same says whether two divisions give the same answers, but for how long.
func (d *Division) same(o *Division) bool {
	return slices.Equal(d.live, o.live) && slices.Equal(d.view, o.view) && slices.EqualFunc(d.others, o.others, func(a, b [2][]string) bool {
		return slices.Equal(a[0], b[0]) && slices.Equal(a[1], b[1])
	})
}

// Owner is the member that a key belongs to among some, or empty if there is none.
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

// mix spreads the bits of a hash: FNV alone leaves the high ones of similar texts alike.
func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
