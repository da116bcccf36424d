package trace

import (
	"slices"
	"time"

	"lockstep.dev/lockstep/internal/lab/analyse"
)

// life is what the events say about one job.
type life struct {
	arrival time.Time
	// nodes is when each of its pods got its node, by name; zero for a pod without one.
	nodes map[string]time.Time
	// started is when its last pod got its node, and removed when, after that, it or the first of its
	// pods was deleted.
	started, removed time.Time
	// longest is the longest time that a pod which ended by itself had its node.
	longest time.Duration
}

// duration returns how long the pods run, or 0 if that is unknown.
func (l *life) duration() time.Duration {
	switch {
	case l.longest > 0:
		return l.longest
	case l.removed.IsZero():
		return 0
	}
	return max(time.Millisecond, l.removed.Sub(l.started))
}

// Record makes a trace of the events of a run or of an audit log. jobs is the resource of jobs;
// identify returns the job of a pod from its name, and ok for a pod that is of the load. If pods
// succeed or fail by themselves, a job runs for as long as the longest of them had its node, and else
// from its last pod's node until the first of its pods, or it, is deleted. Jobs without pods are
// skipped.
func Record(events []analyse.Event, jobs string, identify func(pod string) (job string, ok bool)) (*Trace, error) {
	lives := map[string]*life{}
	var order []*life
	events = slices.Clone(events)
	slices.SortStableFunc(events, func(a, b analyse.Event) int { return a.Time.Compare(b.Time) })
	for i := range events {
		if e := &events[i]; e.OK() && e.Resource == jobs && e.Verb == "create" && e.Sub == "" {
			l := &life{arrival: e.Received, nodes: map[string]time.Time{}}
			lives[e.Namespace+"/"+e.Name] = l
			order = append(order, l)
		}
	}
	for i := range events {
		e := &events[i]
		name := e.Name
		if e.Resource == "pods" {
			job, ok := identify(e.Name)
			if !ok {
				continue
			}
			name = job
		} else if e.Resource != jobs {
			continue
		}
		if l := lives[e.Namespace+"/"+name]; l != nil && e.OK() {
			l.note(e)
		}
	}
	t := &Trace{Format: "events"}
	var out []Job
	for _, l := range order {
		if len(l.nodes) == 0 {
			t.Skipped++
			continue
		}
		out = append(out, Job{Arrival: float64(l.arrival.UnixMicro()) / 1e6, Pods: len(l.nodes), Duration: l.duration().Seconds()})
	}
	return t, t.finish(out)
}

// note adds an event of the job or of one of its pods.
func (l *life) note(e *analyse.Event) {
	pod := e.Resource == "pods"
	switch {
	case pod && e.Verb == "create" && (e.Sub == "binding" || e.Sub == "" && e.Node != ""):
		l.nodes[e.Name], l.started = e.Time, e.Time
	case pod && e.Verb == "create" && e.Sub == "":
		if _, bound := l.nodes[e.Name]; !bound { // a server may answer a binding first
			l.nodes[e.Name] = time.Time{}
		}
	case pod && (e.Ended || e.Verb == "finish"):
		if at := l.nodes[e.Name]; !at.IsZero() {
			l.longest = max(l.longest, e.Received.Sub(at), time.Millisecond)
		}
	case e.Verb == "delete" && e.Sub == "" && l.removed.IsZero() && !l.started.IsZero():
		l.removed = e.Received
	}
}
