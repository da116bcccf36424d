package shard

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"lockstep.dev/lockstep/internal/fence"
)

// Label is the label by which members' leases are found.
const Label = "lockstep.dev/shard"

// viewAnnotation holds the members that a member acts upon, separated by spaces.
const viewAnnotation = "lockstep.dev/shard-view"

// listTimeout is the timeout of a list. It is longer than a server waits until its cache has
// earlier writes.
const listTimeout = 15 * time.Second

// Leases reads and writes the leases of all members in the API server. Each method returns when the
// server has answered. List and Delete may be called during a Put.
type Leases interface {
	List(context.Context) ([]coordinationv1.Lease, error)
	// Put creates the lease, or replaces the lease of that name.
	Put(context.Context, *coordinationv1.Lease) error
	Delete(ctx context.Context, name string) error
}

// Config configures a Member.
type Config struct {
	// Name is unique among members, and is a DNS name that may also contain underscores and
	// capitals.
	Name, Namespace string
	Leases          Leases
	Times           Times // zero: DefaultTimes
	// Lapsed is called, before Changing, when the lease was renewed after it had lapsed: the end of
	// Term has cut off earlier work, which must be repeated. It must not block.
	Lapsed func()
	// Changing is called before this member owns different keys, or regains its keys after its
	// lease had lapsed. The previous owners have stopped by then: reads from now on return all that
	// they wrote, except writes still in flight. It must not block.
	Changing func()
	// Changed is called after the change. It must not block.
	Changed func()
	// Clock defaults to the real clock. By default, times come from fence.Now, which includes the
	// time while the machine is suspended.
	Clock clock.WithTicker
	Log   *slog.Logger
}

// Member takes part in the division of keys.
type Member struct {
	cfg Config
	now func() time.Time

	mu       sync.RWMutex
	division Division
	term     *fence.Term // replaced when the lease is renewed late
}

// New returns a member that owns nothing before Run.
func New(cfg Config) (*Member, error) {
	if cfg.Name == "" || cfg.Leases == nil {
		return nil, errors.New("shard: Name and Leases are required")
	}
	if cfg.Times == (Times{}) {
		cfg.Times = DefaultTimes
	}
	if cfg.Lapsed == nil {
		cfg.Lapsed = func() {}
	}
	if cfg.Changing == nil {
		cfg.Changing = func() {}
	}
	if cfg.Changed == nil {
		cfg.Changed = func() {}
	}
	now := fence.Now
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	} else {
		now = cfg.Clock.Now
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	return &Member{cfg: cfg, now: now, term: fence.NewTerm(true, now)}, nil
}

// Owns reports whether this member may work on a key now.
func (m *Member) Owns(key string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.term.Holds() && m.division.Owns(key, m.now())
}

// Term returns the term within which this member may act on a key, or nil if the key is not this
// member's now. The term ends when the lease is not renewed in time, even if it is renewed later,
// because others may have acted in between.
func (m *Member) Term(key string) *fence.Term {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if !m.term.Holds() || !m.division.Owns(key, m.now()) {
		return nil
	}
	return m.term
}

// Run renews the lease until ctx is done, and then deletes it. Work on keys must have ended before
// ctx is done.
//
// Lists do not delay renewals: on a busy server they take long, because they must show all earlier
// writes, and a member whose lease is renewed late stops its work.
func (m *Member) Run(ctx context.Context) {
	t := NewTable(m.cfg.Name, m.cfg.Times)
	timer := m.cfg.Clock.NewTimer(0)
	defer timer.Stop()
	lists := make(chan list, 1) // at most one is in progress
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-timer.C():
			began := m.now()
			if m.renew(ctx, t) && !t.listing {
				t.Listing()
				dead := t.Dead(began)
				go func() { lists <- m.list(ctx, dead) }()
			}
			timer.Reset(max(0, m.cfg.Times.Period-m.now().Sub(began)))
		case l := <-lists:
			if m.listed(ctx, t, l) {
				timer.Reset(0) // the members have changed: the new view is written at once
			}
		}
	}
	m.set(Division{})
	m.term.End()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.cfg.Times.Period)
	defer cancel()
	if err := m.cfg.Leases.Delete(last, m.leaseName(m.cfg.Name)); err != nil {
		m.cfg.Log.Warn("giving up the shard's lease failed; it expires", "error", err)
	}
}

// renew renews the lease, and reports whether that succeeded.
func (m *Member) renew(ctx context.Context, t *Table) bool {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Times.Fence)
	defer cancel()
	view, sent := t.Own(), m.now()
	if err := m.cfg.Leases.Put(ctx, m.lease(view, m.cfg.Clock.Now())); err != nil {
		m.cfg.Log.Warn("renewing the shard's lease failed", "error", err)
		return false
	}
	now := m.now()
	t.Written(view, sent, now)
	m.term.Extend(sent.Add(m.cfg.Times.Fence))
	m.set(t.Extended(m.division, now))
	return true
}

// list is the result of listing all leases.
type list struct {
	leases []coordinationv1.Lease
	err    error
}

// list deletes the leases of members that have long been dead, and then lists all leases.
func (m *Member) list(ctx context.Context, dead []string) (l list) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	for _, member := range dead {
		if err := m.cfg.Leases.Delete(ctx, m.leaseName(member)); err != nil {
			m.cfg.Log.Warn("deleting a dead shard's lease failed", "member", member, "error", err)
		}
	}
	l.leases, l.err = m.cfg.Leases.List(ctx)
	return l
}

// listed handles the result of a list. It reports whether the lease must be renewed at once: to
// write a changed view, or because the list does not count and another is needed.
func (m *Member) listed(ctx context.Context, t *Table, l list) (again bool) {
	if l.err != nil {
		t.Listed()
		if ctx.Err() == nil {
			m.cfg.Log.Warn("listing the shards' leases failed", "error", l.err)
		}
		return false
	}
	if !t.Observe(m.now(), m.read(l.leases)) {
		return true // the next renewal begins another list
	}
	m.publish(t)
	return !t.settled()
}

// publish applies the table's division.
func (m *Member) publish(t *Table) {
	d := t.Division()
	// Only this goroutine sets the division. A division that lapses between this check and set had
	// been renewed in time.
	lapsed := m.division.lapsed(m.now()) || m.term.Ended()
	changed := !m.division.same(&d)
	if lapsed {
		m.cfg.Lapsed()
	}
	if changed || lapsed {
		m.cfg.Changing()
	}
	m.set(d)
	if lapsed {
		m.renewed(d)
		m.cfg.Log.Warn("the shard's lease was renewed late: nothing was worked on for a while")
	}
	if changed || lapsed {
		m.cfg.Log.Info("keys are divided anew", "members", strings.Join(d.live, " "), "settled", t.settled())
		m.cfg.Changed()
	}
}

// renewed begins a new term that lasts as long as the division.
func (m *Member) renewed(d Division) {
	term := fence.NewTerm(true, m.now)
	term.Extend(d.until)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.term.End()
	m.term = term
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
