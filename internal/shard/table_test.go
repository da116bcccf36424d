package shard

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestAMemberThatComesOrGoesMovesOnlyItsShare(t *testing.T) {
	three, four := []string{"a", "b", "c"}, []string{"a", "b", "c", "d"}
	count, moved := map[string]int{}, 0
	for i := range 4000 {
		key := fmt.Sprintf("ns/wf-%d", i)
		before, after := Owner(key, three), Owner(key, four)
		count[after]++
		if before != after {
			moved++
			if after != "d" {
				t.Fatalf("%s moved from %s to %s, which was there before", key, before, after)
			}
		}
	}
	for m, n := range count {
		if n < 800 || n > 1200 {
			t.Errorf("%s has %d of 4000 keys", m, n)
		}
	}
}

// server stores leases as the API server does.
type server struct {
	version int
	leases  map[string]Lease
}

func (s *server) put(member string, view []string) {
	s.version++
	s.leases[member] = Lease{Member: member, Stamp: fmt.Sprint(s.version), View: slices.Clone(view)}
}

func (s *server) list() []Lease {
	var out []Lease
	for _, l := range s.leases {
		out = append(out, l)
	}
	return out
}

// process is a member between two of its requests, each of which may take any time.
type process struct {
	table    *Table
	division Division
	step     int
	view     []string
	sent     time.Time
	listed   []Lease
	listStep int
	stuck    int // how often it could have continued but will not
	dead     bool
	next     time.Time
}

// TestNoKeyIsEverOwnedTwice runs members that start, die and are slow at any moment, in any order.
func TestNoKeyIsEverOwnedTwice(t *testing.T) {
	times := Times{Period: 2 * time.Second, Fence: 7 * time.Second, Expiry: 10 * time.Second}
	keys := []string{"k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"}
	rapid.Check(t, func(t *rapid.T) {
		s := &server{leases: map[string]Lease{}}
		now := time.Unix(1000, 0)
		var members []*process
		for range rapid.IntRange(20, 300).Draw(t, "moves") {
			switch move := rapid.IntRange(0, 19).Draw(t, "move"); {
			case move == 0 && len(members) < 5:
				members = append(members, &process{table: NewTable(fmt.Sprint("m", len(members)), times), next: now})
			case move == 1 && len(members) > 0:
				members[rapid.IntRange(0, len(members)-1).Draw(t, "dies")].dead = true
			case move <= 5:
				now = now.Add(time.Duration(rapid.IntRange(1, 4000).Draw(t, "ms")) * time.Millisecond)
			case move == 6 && len(members) > 0:
				members[rapid.IntRange(0, len(members)-1).Draw(t, "gets stuck")].stuck = rapid.IntRange(0, 60).Draw(t, "for")
			case len(members) > 0:
				p := members[rapid.IntRange(0, len(members)-1).Draw(t, "goes on")]
				if p.stuck--; p.dead || p.stuck > 0 {
					continue
				}
				// A list may be in progress while the lease is renewed, any number of times.
				if p.step == 0 && p.table.listing && rapid.Bool().Draw(t, "its list") {
					switch p.listStep {
					case 0: // the server lists
						p.listed = s.list()
						p.listStep++
					case 1:
						p.listStep = 0
						if rapid.IntRange(0, 9).Draw(t, "fails") == 0 {
							p.table.Listed()
							continue
						}
						if p.table.Observe(now, p.listed) {
							p.division = p.table.Division()
						}
					}
					continue
				}
				switch p.step {
				case 0: // decides what to write, and sends it
					p.view, p.sent = slices.Clone(p.table.Own()), now
				case 1: // the server stores it
					s.put(p.table.self, p.view)
				case 2: // the answer arrives
					p.table.Written(p.view, p.sent, now)
					p.division = p.table.Extended(p.division, now)
					if !p.table.listing {
						p.table.Listing()
					}
				}
				p.step = (p.step + 1) % 3
			}
			for _, key := range keys {
				owner := ""
				for _, p := range members {
					if !p.dead && p.division.Owns(key, now) {
						if owner != "" {
							t.Fatalf("%s is owned by %s and %s", key, owner, p.table.self)
						}
						owner = p.table.self
					}
				}
			}
		}
		// Without further changes, the live members divide all keys among them.
		alive := 0
		for _, p := range members {
			if !p.dead {
				alive++
			}
			p.step = 0
		}
		for range 12 {
			now = now.Add(times.Period)
			for _, p := range members {
				if p.dead {
					continue
				}
				p.table.Listed()
				view := slices.Clone(p.table.Own())
				s.put(p.table.self, view)
				p.table.Written(view, now, now)
				p.table.Listing()
				if p.table.Observe(now, s.list()) {
					p.division = p.table.Division()
				}
			}
		}
		for _, key := range keys {
			owners := 0
			for _, p := range members {
				if !p.dead && p.division.Owns(key, now) {
					owners++
				}
			}
			if alive > 0 && owners != 1 {
				t.Fatalf("%s has %d owners among %d members", key, owners, alive)
			}
		}
	})
}

// TestAListFromBeforeALapse gives a member whose lease was renewed late the answer to a list that
// it began before.
func TestAListFromBeforeALapse(t *testing.T) {
	s, now := &server{leases: map[string]Lease{}}, time.Unix(1000, 0)
	slow, quick := NewTable("slow", DefaultTimes), NewTable("quick", DefaultTimes)
	renew := func(m *Table) {
		view := slices.Clone(m.Own())
		s.put(m.self, view)
		m.Written(view, now, now)
	}
	look := func(m *Table) { m.Listing(); m.Observe(now, s.list()) }
	for range 3 {
		renew(slow)
		look(slow)
	}
	if d := slow.Division(); !d.Owns("k", now) {
		t.Fatal("a member that is alone does nothing")
	}
	slow.Listing()
	listed := s.list()
	for range 8 { // meanwhile the other member starts, and is left alone
		renew(quick)
		look(quick)
		now = now.Add(DefaultTimes.Period)
	}
	if d := quick.Division(); !d.Owns("k", now.Add(-DefaultTimes.Period)) {
		t.Fatal("nobody took over")
	}
	renew(slow)
	if slow.Observe(now, listed) {
		t.Error("a list from before the lease lapsed means something")
	}
}

// TestOnlyTheDeadAreTakenForDead checks that a member whose lease changes before Expiry is alive,
// however close to Expiry.
func TestOnlyTheDeadAreTakenForDead(t *testing.T) {
	s, now := &server{leases: map[string]Lease{}}, time.Unix(1000, 0)
	a := NewTable("a", DefaultTimes)
	renew := func() {
		view := slices.Clone(a.Own())
		s.put("a", view)
		a.Written(view, now, now)
		a.Listing()
		a.Observe(now, s.list())
	}
	// Each other member's lease is renewed at its interval; the last one's is never renewed.
	every := map[string]time.Duration{"quick": time.Second, "slow": DefaultTimes.Expiry - time.Second, "dead": time.Hour}
	start := now
	for second := 0; second < 120; second++ {
		for member, d := range every {
			if now.Sub(start)%d == 0 {
				s.put(member, nil)
			}
		}
		renew()
		want := []string{"a", "dead", "quick", "slow"}
		if now.Sub(start) >= DefaultTimes.Expiry {
			want = []string{"a", "quick", "slow"}
		}
		if !slices.Equal(a.live, want) {
			t.Fatalf("after %s %q are alive, want %q", now.Sub(start), a.live, want)
		}
		dead := a.Dead(now)
		if long := now.Sub(start) >= 10*DefaultTimes.Expiry; long != slices.Equal(dead, []string{"dead"}) || !long && len(dead) > 0 {
			t.Fatalf("after %s the leases of %q are to be deleted", now.Sub(start), dead)
		}
		now = now.Add(time.Second)
	}
}
