package trace

import (
	"slices"
	"time"

	"lockstep.dev/lockstep/internal/lab/analyse"
)

// Record makes a trace of the events of a run or of an audit log. jobs is the resource of jobs;
// identify returns the job of a pod from its name, and ok for a pod that is of the load. A job runs
// from its last pod's node until the first of its pods, or it, is deleted or ends. Jobs without pods
// are skipped.
func Record(events []analyse.Event, jobs string, identify func(pod string) (job string, ok bool)) (*Trace, error) {
	type life struct {
		arrival, started, ended time.Time
		pods                    int
	}
	lives := map[string]*life{}
	var order []*life
	events = slices.Clone(events)
	slices.SortStableFunc(events, func(a, b analyse.Event) int { return a.Time.Compare(b.Time) })
	for i := range events {
		if e := &events[i]; e.OK() && e.Resource == jobs && e.Verb == "create" && e.Sub == "" {
			l := &life{arrival: e.Received}
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
		l := lives[e.Namespace+"/"+name]
		if l == nil || !e.OK() {
			continue
		}
		pod := e.Resource == "pods"
		switch {
		case pod && e.Verb == "create" && e.Sub == "":
			l.pods++
			if e.Node != "" {
				l.started = e.Time
			}
		case pod && e.Verb == "create" && e.Sub == "binding":
			l.started = e.Time
		case (e.Verb == "delete" && e.Sub == "" || e.Verb == "finish") && l.ended.IsZero() && !l.started.IsZero():
			l.ended = e.Received
		}
	}
	t := &Trace{Format: "events"}
	var out []Job
	for _, l := range order {
		if l.pods == 0 {
			t.Skipped++
			continue
		}
		j := Job{Arrival: float64(l.arrival.UnixMicro()) / 1e6, Pods: l.pods}
		if !l.ended.IsZero() {
			j.Duration = max(0.001, l.ended.Sub(l.started).Seconds())
		}
		out = append(out, j)
	}
	return t, t.finish(out)
}
