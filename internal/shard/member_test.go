package shard

import (
	"context"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	clocktesting "k8s.io/utils/clock/testing"
)

// memory stores leases.
type memory struct {
	mu     sync.Mutex
	leases map[string]coordinationv1.Lease
	failed error // returned by lists
}

func (m *memory) List(context.Context) ([]coordinationv1.Lease, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []coordinationv1.Lease
	for _, l := range m.leases {
		out = append(out, l)
	}
	return out, m.failed
}

func (m *memory) Put(_ context.Context, l *coordinationv1.Lease) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leases[l.Name] = *l
	return nil
}

func (m *memory) Delete(_ context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.leases, name)
	return nil
}

// TestALeaseThatIsRenewedLate checks that, after a late renewal, the member owns no key until it
// has listed the others' leases, and that it then reports a change although the division is the
// same.
func TestALeaseThatIsRenewedLate(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	leases := &memory{leases: map[string]coordinationv1.Lease{}}
	changes, lapses := 0, 0
	m, err := New(Config{Name: "a", Leases: leases, Clock: clock, Lapsed: func() { lapses++ }, Changed: func() { changes++ }})
	if err != nil {
		t.Fatal(err)
	}
	table := NewTable("a", DefaultTimes)
	look := func() { table.Listing(); m.listed(t.Context(), table, m.list(t.Context(), nil)) }
	for range 20 {
		m.renew(t.Context(), table)
		look()
		clock.Step(DefaultTimes.Period)
	}
	if !m.Owns("x") || changes == 0 {
		t.Fatalf("owns %t after %d changes", m.Owns("x"), changes)
	}
	before := changes
	for range 20 { // a list takes long
		m.renew(t.Context(), table)
		if clock.Step(DefaultTimes.Period); !m.Owns("x") || changes != before {
			t.Fatalf("though its lease is renewed: owns %t, %d changes", m.Owns("x"), changes-before)
		}
	}
	look()
	if changes != before {
		t.Fatal("a renewal in time changes something")
	}
	term := m.Term("x")
	if term == nil || !term.Holds() || lapses != 0 {
		t.Fatalf("no term, after %d lapses", lapses)
	}
	clock.Step(DefaultTimes.Fence)
	if m.Owns("x") || m.Term("x") != nil {
		t.Fatal("it acts though its lease was not renewed")
	}
	m.renew(t.Context(), table)
	leases.failed = context.DeadlineExceeded
	look()
	if m.Owns("x") || changes != before {
		t.Fatal("it acts though others may have acted in its place")
	}
	leases.failed = nil
	look()
	if !m.Owns("x") || changes != before+1 {
		t.Errorf("owns %t after %d changes, %d before", m.Owns("x"), changes, before)
	}
	if now := m.Term("x"); now == nil || now == term || !now.Holds() || !term.Ended() || lapses != 1 {
		t.Errorf("what was begun before the lapse goes on: ended %t, another term %t, %d lapses", term.Ended(), now != term, lapses)
	}
}

// TestTheFirstListIsActedUponAtOnce runs a member that renews its lease once an hour. The view from
// the first list is written at once, and the next list, which shows the same members, gives the
// member its keys.
func TestTheFirstListIsActedUponAtOnce(t *testing.T) {
	leases := &memory{leases: map[string]coordinationv1.Lease{}}
	owns := make(chan bool, 10)
	times := Times{Period: time.Hour, Fence: 2 * time.Hour, Expiry: 3 * time.Hour}
	var m *Member
	m, err := New(Config{Name: "a", Leases: leases, Times: times, Changed: func() { owns <- m.Owns("x") }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); m.Run(ctx) }()
	defer func() { stop(); <-ended }()
	hung := time.After(10 * time.Second)
	for owned := false; !owned; {
		select {
		case owned = <-owns:
		case <-hung:
			t.Fatal("a member that is alone waits for its next renewal")
		}
	}
}

// slow stores leases, and answers a list when the test lets it.
type slow struct {
	memory
	lists, puts chan struct{}
}

func (s *slow) List(ctx context.Context) ([]coordinationv1.Lease, error) {
	select {
	case <-s.lists:
		return s.memory.List(ctx)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *slow) Put(ctx context.Context, l *coordinationv1.Lease) error {
	s.puts <- struct{}{}
	return s.memory.Put(ctx, l)
}

// TestListsDoNotHoldRenewalsUp runs a member whose first list is not answered.
func TestListsDoNotHoldRenewalsUp(t *testing.T) {
	leases := &slow{memory: memory{leases: map[string]coordinationv1.Lease{}}, lists: make(chan struct{}), puts: make(chan struct{})}
	changed := make(chan struct{}, 1)
	times := Times{Period: time.Millisecond, Fence: time.Hour, Expiry: 2 * time.Hour}
	m, err := New(Config{Name: "a", Leases: leases, Times: times, Changed: func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); m.Run(ctx) }()
	for range 5 { // the test's own time limit ends it
		<-leases.puts
	}
	for !m.Owns("x") {
		select {
		case <-leases.puts:
		case leases.lists <- struct{}{}:
		case <-changed:
		}
	}
	stop()
	for {
		select {
		case <-leases.puts:
		case <-ended:
			return
		}
	}
}
