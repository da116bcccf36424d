package shard

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
)

// Label is on the leases of members.
const Label = "lockstep.dev/shard"

// viewAnnotation holds the members that a member acts upon.
const viewAnnotation = "lockstep.dev/shard-view"

// Leases are the leases of all members, at the API server. Every call returns when it has been answered.
type Leases interface {
	List(context.Context) ([]coordinationv1.Lease, error)
	// Put creates the lease, or replaces the one of that name.
	Put(context.Context, *coordinationv1.Lease) error
	Delete(ctx context.Context, name string) error
}

// Config is what a Member needs.
type Config struct {
	// Name is unique among members, and a DNS name but for underscores and capitals.
	Name, Namespace string
	Leases          Leases
	Times           Times // zero: DefaultTimes
	// Changing is called before other keys become this member's than before, or than a moment ago, when its lease had not been
	// renewed in time. Whoever had them has stopped by then: what is read from now on has all that it wrote, but for writes that
	// are still on their way. It must not block.
	Changing func()
	// Changed is called after that; it must not block.
	Changed func()
	Clock   clock.WithTicker
	Log     *slog.Logger
}

// Member takes part in the division of keys.
type Member struct {
	cfg Config

	mu       sync.RWMutex
	division Division
}

// New returns a member that owns nothing before Run.
func New(cfg Config) (*Member, error) {
	if cfg.Name == "" || cfg.Leases == nil {
		return nil, errors.New("shard: Name and Leases are required")
	}
	if cfg.Times == (Times{}) {
		cfg.Times = DefaultTimes
	}
	if cfg.Changing == nil {
		cfg.Changing = func() {}
	}
	if cfg.Changed == nil {
		cfg.Changed = func() {}
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Member{cfg: cfg}, nil
}

// Owns says whether a key is this member's to work on now.
func (m *Member) Owns(key string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.division.Owns(key, m.cfg.Clock.Now())
}

// Run renews the lease until ctx is done, and then gives it up. What is worked on must have ended before ctx is done.
func (m *Member) Run(ctx context.Context) {
	t := NewTable(m.cfg.Name, m.cfg.Times)
	timer := m.cfg.Clock.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-timer.C():
			if m.turn(ctx, t) {
				timer.Reset(0) // news of the members: it is written at once
			} else {
				timer.Reset(m.cfg.Times.Period)
			}
		}
	}
	m.set(Division{})
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.cfg.Times.Period)
	defer cancel()
	if err := m.cfg.Leases.Delete(last, m.leaseName(m.cfg.Name)); err != nil {
		m.cfg.Log.Warn("giving up the shard's lease failed; it expires", "error", err)
	}
}

// turn renews the lease and looks at those of others. It says whether the view has to be written anew.
func (m *Member) turn(ctx context.Context, t *Table) (again bool) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Times.Fence)
	defer cancel()
	view, sent := t.Own(), m.cfg.Clock.Now()
	if err := m.cfg.Leases.Put(ctx, m.lease(view, sent)); err != nil {
		m.cfg.Log.Warn("renewing the shard's lease failed", "error", err)
		return false
	}
	t.Written(view, sent)
	leases, err := m.cfg.Leases.List(ctx)
	if err != nil {
		m.cfg.Log.Warn("listing the shards' leases failed", "error", err)
		m.extend(t)
		return false
	}
	t.Observe(m.cfg.Clock.Now(), m.read(leases))
	m.publish(t)
	for _, dead := range t.Dead(m.cfg.Clock.Now()) {
		if err := m.cfg.Leases.Delete(ctx, m.leaseName(dead)); err != nil {
			m.cfg.Log.Warn("deleting a dead shard's lease failed", "member", dead, "error", err)
		}
	}
	return !t.checked
}

// publish makes the table's division the one in force.
func (m *Member) publish(t *Table) {
	d := t.Division()
	// Only this goroutine sets the division. One that lapses between here and there had been renewed in time.
	lapsed := m.division.lapsed(m.cfg.Clock.Now())
	changed := !m.division.same(&d)
	if changed || lapsed {
		m.cfg.Changing()
	}
	m.set(d)
	if lapsed {
		m.cfg.Log.Warn("the shard's lease was renewed late: nothing was worked on for a while")
	}
	if changed || lapsed {
		m.cfg.Log.Info("keys are divided anew", "members", strings.Join(d.live, " "), "settled", t.checked)
		m.cfg.Changed()
	}
}

// extend lets the division stay in force after a renewal that changed nothing and that no list followed.
func (m *Member) extend(t *Table) {
	d := m.division
	d.until = t.Division().until
	if !slices.Equal(t.Division().view, d.view) {
		return
	}
	lapsed := m.division.lapsed(m.cfg.Clock.Now())
	if lapsed {
		m.cfg.Changing()
	}
	m.set(d)
	if lapsed {
		m.cfg.Changed()
	}
}

func (m *Member) set(d Division) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.division = d
}

func (m *Member) leaseName(member string) string {
	return "lockstep-shard-" + strings.ToLower(strings.ReplaceAll(member, "_", "-"))
}

func (m *Member) lease(view []string, now time.Time) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: m.cfg.Namespace, Name: m.leaseName(m.cfg.Name), Labels: map[string]string{Label: "true"},
			Annotations: map[string]string{viewAnnotation: strings.Join(view, " ")},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To(m.cfg.Name), LeaseDurationSeconds: ptr.To(int32(m.cfg.Times.Expiry / time.Second)),
			RenewTime: ptr.To(metav1.NewMicroTime(now)),
		},
	}
}

func (m *Member) read(leases []coordinationv1.Lease) []Lease {
	out := make([]Lease, 0, len(leases))
	for i := range leases {
		l := &leases[i]
		if l.Spec.HolderIdentity == nil {
			continue
		}
		out = append(out, Lease{
			Member: *l.Spec.HolderIdentity, Stamp: l.ResourceVersion, View: strings.Fields(l.Annotations[viewAnnotation]),
		})
	}
	return out
}
