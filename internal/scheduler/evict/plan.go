package evict

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

// Rule is the rule by which a gang may be evicted. The package comment has a table.
type Rule int

// The rules.
const (
	Guarantee Rule = iota + 1
	Reclaim
	Preempt
	PreemptAcross
	Tasks
	// Revoked and Moved are not about a claim: see Depart and Spare.
	Revoked
	Moved
)

// String returns the reason for an eviction, for users.
func (r Rule) String() string {
	switch r {
	case Guarantee:
		return "uses what is guaranteed to the claimant's queue"
	case Reclaim:
		return "is in a queue that has more than it deserves, and the claimant's queue has less"
	case Preempt:
		return "has lower priority"
	case PreemptAcross:
		return "has lower priority and is in a queue that has more than it deserves"
	case Tasks:
		return "is of a task of lower priority of the same job"
	case Moved:
		return "is on a node that is used much, and another node is used little"
	case Revoked:
		return "is in a revocable zone whose hours are over"
	}
	return "may not be evicted"
}

// Plan is the outcome for one claim. If Refusal is nil, the claimant's minimum fits on Nodes once
// the victims and the pods that are leaving are gone. Nobody needs to be evicted if there are no
// Victims.
type Plan struct {
	Claim string
	// Victims are sorted by gang.
	Victims []Victim
	// Nodes has, for each demand, the nodes of the pods of the claimant's minimum.
	Nodes [][]string
	Cost  Cost
	// Exact means that all possibilities have been searched, and none is cheaper.
	Exact bool
	// Leaving is the number of pods that are leaving Nodes already.
	Leaving int
	// Gangs and Pods are how many gangs and pods were allowed as victims; Exempt counts the other
	// pods by the reason why they are not.
	Gangs, Pods int
	Exempt      map[string]int
	Refusal     *Refusal

	// For Accept:
	placed  place.Gang
	claim   *claim
	removed []int32
	// For findNear: the victims.
	chosen []ref
}

// Victim is a gang that loses pods.
type Victim struct {
	Gang     string
	Queue    string
	Priority int32
	Rule     Rule
	// Whole means that the gang loses all of its pods. Otherwise it loses pods above its minimum.
	Whole bool
	// Pods are the pods to evict, sorted by name.
	Pods []types.NamespacedName
	// Work is the work that is lost; Cost has its unit.
	Work time.Duration
}

// Cost is what a set of victims costs. Sets are compared field by field, in the order of the
// fields.
type Cost struct {
	// Disruptions is the number of pods evicted beyond what their budgets allow.
	Disruptions int
	// Gangs is the number of gangs that lose all of their pods.
	Gangs int
	// Priorities counts the gangs, and the pods of gangs that lose surplus, by priority, highest
	// priority first. The set with fewer of the highest priority is cheaper, and so on downwards.
	Priorities []PriorityCount
	// Work is how long the whole cluster takes to repeat what is lost: for each pod the time since
	// its start, times its largest fraction of any of the cluster's resources.
	Work time.Duration
	// AgeSeconds is the sum of the times since the pods' starts.
	AgeSeconds int64
	Pods       int
}

// PriorityCount is a number of victims of one priority.
type PriorityCount struct {
	Priority int32
	Count    int
}

// Compare returns a negative number if c is cheaper than o, a positive number if it is more
// expensive, and else 0.
func (c Cost) Compare(o Cost) int {
	return cmp.Or(cmp.Compare(c.Disruptions, o.Disruptions), cmp.Compare(c.Gangs, o.Gangs),
		slices.CompareFunc(c.Priorities, o.Priorities, func(a, b PriorityCount) int {
			return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Count, b.Count))
		}),
		cmp.Compare(c.Work, o.Work), cmp.Compare(c.AgeSeconds, o.AgeSeconds), cmp.Compare(c.Pods, o.Pods))
}

// Reasons why a pod may not be evicted. Plan.Exempt counts pods by them.
const (
	exemptProtected = "protected from eviction"
	exemptCritical  = "system-critical"
	exemptCooling   = "within their cool-down time"
	exemptOften     = "evicted often of late"
	exemptMinimum   = "of gangs with such pods, which are evicted whole or not at all"
	exemptPriority  = "not of lower priority"
	exemptKept      = "in queues that are not reclaimable"
	exemptQueue     = "in other queues, to which the claimant's queue has no claim"
	exemptPreempt   = "in the same queue, without preemption"
	exemptGuarantee = "within the guarantee of their queue"
	exemptShare     = "in queues that have no more than they deserve"
	exemptOwn       = "of the claimant's own gang"
	exemptSurplus   = "part of other gangs' minimums, and the claimant's minimum runs already"
)

// Codes of a Refusal.
const (
	// NeverEvicts: the claimant evicts nothing.
	NeverEvicts = "NeverEvicts"
	// EvictsOften: the claimant has evicted as often as it may within the window.
	EvictsOften = "EvictsOften"
	// NoVictims: there are no pods that may be evicted for the claimant.
	NoVictims = "NoVictims"
	// NotEnough: the claimant would not fit if all pods were evicted that may be.
	NotEnough = "NotEnough"
	// NotFound: the claimant might fit, but no allowed set of victims has been found.
	NotFound = "NotFound"
)

// Refusal says why no pods are evicted for a claim.
type Refusal struct {
	Code string
	// Fit is, for NotEnough, how many of the Wanted pods would fit. Both are zero if a queue's
	// capability is what the claimant lacks.
	Fit, Wanted int64
	// Queue is the queue whose capability the claimant would exceed, or empty.
	Queue string
}

// Stable returns a sentence without figures that change while the cause stays the same.
func (r *Refusal) Stable() string {
	switch r.Code {
	case NeverEvicts:
		return "it evicts no other pods (preemptionPolicy: Never)"
	case EvictsOften:
		return "it has evicted other pods as often as it may for now"
	case NoVictims:
		return "there are no pods that may be evicted for it"
	case NotFound:
		return "no allowed combination of victims makes room for it"
	}
	if r.Queue != "" {
		return fmt.Sprintf("it would exceed the capability of queue %q even if all pods were evicted that may be", r.Queue)
	}
	return "it would not fit even if all pods were evicted that may be"
}

// IsClaimants reports whether the reason lies with the claimant, whoever the other pods are.
func (r *Refusal) IsClaimants() bool { return r.Code == NeverEvicts || r.Code == EvictsOften }

// Explain describes the plan for users, one fact per line.
func (p *Plan) Explain() string {
	var b strings.Builder
	switch {
	case p.Refusal != nil:
		fmt.Fprintf(&b, "nothing is evicted for %s: %s\n", p.Claim, p.Refusal.Stable())
		if p.Refusal.Wanted > 0 {
			fmt.Fprintf(&b, "  %d of %d pods would fit\n", p.Refusal.Fit, p.Refusal.Wanted)
		}
	case len(p.Victims) == 0 && p.Leaving == 0:
		fmt.Fprintf(&b, "%s fits without evictions\n", p.Claim)
	case len(p.Victims) == 0:
		fmt.Fprintf(&b, "%s fits when pods that are leaving (%d) are gone\n", p.Claim, p.Leaving)
	default:
		fmt.Fprintf(&b, "%s needs %s to leave:\n", p.Claim, plural(p.Cost.Pods, "pod"))
	}
	for _, v := range p.Victims {
		how := "surplus"
		if v.Whole {
			how = "whole"
		}
		fmt.Fprintf(&b, "  %s (queue %q, priority %d): %s, %s; it %s\n", v.Gang, v.Queue, v.Priority, how,
			plural(len(v.Pods), "pod"), v.Rule)
	}
	if len(p.Victims) > 0 {
		c := &p.Cost
		fmt.Fprintf(&b, "cost: %s, highest priority %d, %s of work of the whole cluster", plural(c.Gangs, "gang"),
			c.Priorities[0].Priority, c.Work.Round(time.Millisecond))
		if c.Disruptions > 0 {
			fmt.Fprintf(&b, ", %s beyond disruption budgets", plural(c.Disruptions, "pod"))
		}
		why := "the cheapest found"
		if p.Exact {
			why = "no cheaper victims exist"
		}
		fmt.Fprintf(&b, " (%s)\n", why)
	}
	fmt.Fprintf(&b, "allowed as victims: %s of %s\n", plural(p.Pods, "pod"), plural(p.Gangs, "gang"))
	for _, why := range slices.Sorted(maps.Keys(p.Exempt)) {
		fmt.Fprintf(&b, "not allowed: %s %s\n", plural(p.Exempt[why], "pod"), why)
	}
	return b.String()
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
