package scheduler

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/scheduler/place"
	"lockstep.dev/lockstep/internal/scheduler/share"
)

const (
	// usageEvery is the interval at which what queues have used is computed for those who show or
	// store it.
	usageEvery = 10 * time.Second
	// usageUsersMax is the number of users whose usage is stored for each queue.
	usageUsersMax = 100
)

// usages hands on what queues have used:
//
//	ledger ──publishUsage──▶ Usage ──▶ metrics, and the statuses of queues
//	   ▲                                                  │
//	   └──────────────── remember ◀── after a restart ────┘
type usages struct {
	changes map[string]int64     // by queue: how often what its pods hold has changed
	loaded  map[string]types.UID // by queue: the object whose status has been read
	next    time.Time            // when it is computed again
	last    map[string]QueueUsage
}

// QueueUsage is what a queue has used.
type QueueUsage struct {
	schedulingv1beta1.QueueUsage
	// Changes grows whenever what the queue's pods hold changes. As long as it is the same, the usage at
	// a later moment follows from this one.
	Changes int64
}

func newUsages(counted bool) usages {
	u := usages{changes: map[string]int64{}, loaded: map[string]types.UID{}}
	if counted {
		u.last = map[string]QueueUsage{}
	}
	return u
}

func (u *usages) changed(queue string) { u.changes[queue]++ }

// Usage returns what queues have used, by name, at most a few seconds ago if they use anything now. It
// returns nil without Config.UsageHalfLife.
func (s *Scheduler) Usage() map[string]QueueUsage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.usages.last
}

// publishUsage computes what Usage returns.
func (s *Scheduler) publishUsage() {
	now := s.clock.Now()
	if s.cfg.UsageHalfLife == 0 || now.Before(s.usages.next) {
		return
	}
	s.usages.next = now.Add(usageEvery)
	dims := s.cluster.Dims()
	parts := map[string]map[string]place.Vector{}
	out := map[string]QueueUsage{}
	for line := range s.queues {
		if queue, user, isPart := partFrom(line); isPart {
			if parts[queue] == nil {
				parts[queue] = map[string]place.Vector{}
			}
			parts[queue][user] = s.ledger.Usage(line)
		}
	}
	for queue := range s.queues {
		if strings.HasPrefix(queue, hierarchyPrefix) || strings.HasPrefix(queue, share.PartPrefix) {
			continue
		}
		total := s.ledger.Usage(queue)
		for _, used := range parts[queue] {
			total = total.Plus(used, 1)
		}
		u := QueueUsage{Changes: s.usages.changes[queue]}
		u.At, u.Average = metav1.NewTime(now.Truncate(time.Second)), dims.List(total)
		for _, user := range s.topUsers(parts[queue]) {
			if list := dims.List(parts[queue][user]); len(list) > 0 {
				if u.Users == nil {
					u.Users = map[string]corev1.ResourceList{}
				}
				u.Users[user] = list
			}
		}
		out[queue] = u
	}
	s.mu.Lock()
	s.usages.last = out
	s.mu.Unlock()
}

// topUsers returns the users that have used most of the cluster, up to usageUsersMax.
func (s *Scheduler) topUsers(parts map[string]place.Vector) []string {
	names := slices.Sorted(maps.Keys(parts))
	if len(names) <= usageUsersMax {
		return names
	}
	total := s.cluster.Total()
	portion := func(v place.Vector) (most float64) {
		for dim, amount := range v {
			if total.At(dim) > 0 {
				most = max(most, float64(amount)/float64(total.At(dim)))
			}
		}
		return most
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(portion(parts[b]), portion(parts[a])) })
	return names[:usageUsersMax]
}

// remember tells the ledger what the status of a queue that is new to this manager says that it has used.
// What the queue's pods hold must have been charged: since then they count as holding that.
func (s *Scheduler) remember(object *schedulingv1beta1.Queue, queue *share.Queue, set func(share.Queue)) {
	if s.cfg.UsageHalfLife == 0 || object == nil {
		return
	}
	if uid, loaded := s.usages.loaded[object.Name]; loaded && uid == object.UID {
		return
	}
	s.usages.loaded[object.Name] = object.UID
	u := object.Status.Usage
	if u == nil {
		return
	}
	dims := s.cluster.Dims()
	own := dims.Vector(u.Average)
	if by, _ := schedulingv1beta1.FairShareBy(object); by != "" {
		for user, list := range u.Users {
			used := dims.Vector(list)
			own = positive(own.Plus(used, -1))
			set(partOf(queue, user))
			s.ledger.Remember(share.Part(object.Name, user), used, u.At.Time)
		}
	}
	s.ledger.Remember(object.Name, own, u.At.Time)
}
