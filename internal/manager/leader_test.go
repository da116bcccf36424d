package manager

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"lockstep.dev/lockstep/internal/fence"
)

// answers is a lease whose server answers as the test says.
type answers struct {
	resourcelock.Interface
	holder string
	err    error
	during func() // called while a write is at the server
}

func (a *answers) Identity() string { return "me" }

func (a *answers) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	return &resourcelock.LeaderElectionRecord{HolderIdentity: a.holder}, nil, a.err
}

func (a *answers) Update(context.Context, resourcelock.LeaderElectionRecord) error {
	if a.during != nil {
		a.during()
	}
	return a.err
}

func (a *answers) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return a.Update(ctx, r)
}

func TestTheLeadersTerm(t *testing.T) {
	const sentBefore = 3 * time.Second
	type test struct {
		*leaderLock
		server *answers
		at     time.Time
	}
	renew := func(x *test) {
		_ = x.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "me"})
	}
	look := func(x *test, holder string) {
		x.server.holder = holder
		_, _, _ = x.Get(t.Context())
	}
	for name, c := range map[string]struct {
		do          func(*test)
		holds, lost bool
	}{
		"does not hold while another leads": {do: func(x *test) { look(x, "another") }},
		"holds from the first renewal":      {do: renew, holds: true},
		"counts from when the renewal was sent": {do: func(x *test) {
			x.server.during = func() { x.at = x.at.Add(sentBefore) }
			renew(x)
			x.at = x.at.Add(leaseFence - sentBefore)
		}},
		"holds until then": {do: func(x *test) {
			x.server.during = func() { x.at = x.at.Add(sentBefore) }
			renew(x)
			x.at = x.at.Add(leaseFence - sentBefore - 1)
		}, holds: true},
		"is not longer for a renewal that failed": {do: func(x *test) {
			renew(x)
			x.at = x.at.Add(leaseFence - 1)
			x.server.err = errors.New("conflict")
			renew(x)
			x.at = x.at.Add(1)
		}},
		"holds again when the lease was renewed late, and nobody else had it": {do: func(x *test) {
			renew(x)
			x.at = x.at.Add(time.Hour)
			look(x, "me")
			renew(x)
		}, holds: true},
		"is lost when another is seen to lead": {do: func(x *test) {
			renew(x)
			x.at = x.at.Add(time.Hour)
			look(x, "another")
			renew(x)
		}, lost: true},
		"is lost when another has led and given up": {do: func(x *test) {
			renew(x)
			x.at = x.at.Add(time.Hour)
			look(x, "")
			renew(x)
		}, lost: true},
		"is not lost by a look that fails": {do: func(x *test) {
			renew(x)
			x.server.err = errors.New("unavailable")
			look(x, "")
		}, holds: true},
		"does not give up what another has by now": {do: func(x *test) {
			renew(x)
			x.at = x.at.Add(time.Hour)
			look(x, "another")
			x.server.during = func() { t.Error("the other one's lease was freed") }
			_ = x.Update(t.Context(), resourcelock.LeaderElectionRecord{})
		}, lost: true},
		"ends before the lease is given up": {do: func(x *test) {
			renew(x)
			x.server.during = func() {
				if x.term.Holds() {
					t.Error("it holds while others can have the lease")
				}
			}
			_ = x.Update(t.Context(), resourcelock.LeaderElectionRecord{})
		}, lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			x := &test{server: &answers{}, at: time.Unix(1000, 0)}
			now := func() time.Time { return x.at }
			x.leaderLock = &leaderLock{Interface: x.server, now: now, term: fence.NewTerm(false, now), lost: make(chan struct{})}
			c.do(x)
			lost := false
			select {
			case <-x.lost:
				lost = true
			default:
			}
			if x.term.Holds() != c.holds || lost != c.lost {
				t.Errorf("holds %t, lost %t", x.term.Holds(), lost)
			}
		})
	}
	if leaseFence >= leaseDuration {
		t.Error("the leader writes for longer than others wait")
	}
}
