package shard

import (
	"context"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	clocktesting "k8s.io/utils/clock/testing"
)

// memory keeps leases.
type memory struct {
	leases map[string]coordinationv1.Lease
	failed error // of lists
}

func (m *memory) List(context.Context) ([]coordinationv1.Lease, error) {
	var out []coordinationv1.Lease
	for _, l := range m.leases {
		out = append(out, l)
	}
	return out, m.failed
}

func (m *memory) Put(_ context.Context, l *coordinationv1.Lease) error {
	m.leases[l.Name] = *l
	return nil
}

func (m *memory) Delete(_ context.Context, name string) error {
	delete(m.leases, name)
	return nil
}

// TestALeaseThatIsRenewedLate: what was left alone meanwhile is looked at again, though the division is the same.
func TestALeaseThatIsRenewedLate(t *testing.T) {
	for about, listErr := range map[string]error{"and all leases are seen": nil, "and the others' are not seen": context.DeadlineExceeded} {
		t.Run(about, func(t *testing.T) {
			clock := clocktesting.NewFakeClock(time.Unix(1e9, 0))
			leases := &memory{leases: map[string]coordinationv1.Lease{}}
			changes := 0
			m, err := New(Config{Name: "a", Leases: leases, Clock: clock, Changed: func() { changes++ }})
			if err != nil {
				t.Fatal(err)
			}
			table := NewTable("a", DefaultTimes)
			for range 20 {
				m.turn(t.Context(), table)
				clock.Step(DefaultTimes.Period)
			}
			if !m.Owns("x") || changes == 0 {
				t.Fatalf("owns %t after %d changes", m.Owns("x"), changes)
			}
			before := changes
			m.turn(t.Context(), table)
			if changes != before {
				t.Fatal("a renewal in time changes something")
			}
			clock.Step(DefaultTimes.Fence)
			if m.Owns("x") {
				t.Fatal("it acts though its lease was not renewed")
			}
			leases.failed = listErr
			m.turn(t.Context(), table)
			if !m.Owns("x") || changes != before+1 {
				t.Errorf("owns %t after %d changes, %d before", m.Owns("x"), changes, before)
			}
		})
	}
}
