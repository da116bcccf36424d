package analyse

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// maxViolations bounds the list of violations: one cause can produce thousands.
const maxViolations = 50

// finish is the verb of the event that a pod succeeded or failed. A watch sees this event; the
// audit log does not have it.
const finish = "finish"

// nodesActor is the actor of a pod's status.
const nodesActor = "nodes"

// podLifetime is one incarnation of a pod, from its creation to its removal.
type podLifetime struct {
	name, job string
	index     int
	node      string
	request   Resources
	phase     string
	atRest    bool

	created, scheduled time.Time
	// freed is when the pod released its node's resources because it finished or was removed; zero
	// if it still has them.
	freed time.Time
	// reported is when the node last wrote the pod's status: of a pod that has ended, its end.
	reported time.Time
}

// podLifetimes follows every pod of the namespace through the events, in the order in which the
// requests arrived at the server. A busy server may answer a pod's binding before it answers the
// pod's create; but a request that depends on another one always arrives after it.
func podLifetimes(events []Event, in *Input) []*podLifetime {
	events = slices.Clone(events)
	slices.SortStableFunc(events, func(a, b Event) int { return a.Received.Compare(b.Received) })
	atRest := map[string]*Pod{}
	for i := range in.Pods {
		atRest[in.Pods[i].Name] = &in.Pods[i]
	}
	var lifetimes []*podLifetime
	last := map[string]*podLifetime{}       // latest incarnation, by pod name
	removed := map[*podLifetime]time.Time{} // when the last delete of an incarnation reached the server
	var misnamed []*Event                   // creates under the name of an existing pod
	begin := func(name string) *podLifetime {
		l := &podLifetime{name: name, request: in.Request, index: -1}
		l.job, l.index = in.Identify(name)
		last[name] = l
		lifetimes = append(lifetimes, l)
		return l
	}
	for i := range events {
		e := &events[i]
		if e.Resource != "pods" || e.Namespace != in.Namespace || !e.OK() || in.OfLoad != nil && !in.OfLoad(e.Name) {
			continue
		}
		l := last[e.Name]
		switch {
		case e.Verb == "create" && e.Sub == "" && l != nil && !l.created.IsZero() && removed[l].IsZero():
			misnamed = append(misnamed, e)
		case e.Verb == "create" && e.Sub == "":
			l = begin(e.Name)
			l.created = e.Time
			if e.Node != "" {
				l.node, l.scheduled = e.Node, e.Time
			}
		case e.Verb == "create" && e.Sub == "binding":
			if l == nil {
				l = begin(e.Name)
			}
			if l.scheduled.IsZero() {
				l.node, l.scheduled = e.Node, e.Time
			}
			if l.created.After(l.scheduled) {
				l.created = l.scheduled
			}
		case e.Sub == "status" && e.Actor == nodesActor && l != nil:
			l.reported = e.Time
		case e.Verb == finish && l != nil:
			l.freed = e.Time
		case e.Verb == "delete" && e.Sub == "" && l != nil:
			// A graceful delete is followed by another one that removes the pod: the last one
			// counts.
			removed[l] = e.Received
		}
	}
	for _, e := range misnamed {
		claim(e, lifetimes, begin)
	}
	for _, l := range lifetimes {
		if p := atRest[l.name]; p != nil && last[l.name] == l {
			l.atRest = true
			l.request, l.phase = p.Request, p.Phase
			l.job, l.index = p.Job, p.Index
			if l.node == "" {
				l.node = p.Node // bound by a request whose node was not recorded
			}
			if l.freed.IsZero() {
				l.freed = p.Finished
			}
			continue
		}
		if at := removed[l]; !at.IsZero() && (l.freed.IsZero() || at.Before(l.freed)) {
			l.freed = at
		}
	}
	// Pods that no event mentions: the observer started late.
	for i := range in.Pods {
		p := &in.Pods[i]
		if last[p.Name] == nil {
			lifetimes = append(lifetimes, &podLifetime{name: p.Name, job: p.Job, index: p.Index, node: p.Node, request: p.Request,
				phase: p.Phase, atRest: true, freed: p.Finished})
		}
	}
	return lifetimes
}

// claim assigns a create that was logged under another pod's name to the pod that it created. Two
// pods of one name never exist at the same time: a server that generates a name in use generates
// another one, but logs the first. The created pod is one whose creation is unknown and that got
// its node afterwards; if there is none, claim takes the logged name.
func claim(e *Event, lifetimes []*podLifetime, begin func(string) *podLifetime) {
	for _, l := range lifetimes {
		if l.created.IsZero() && l.scheduled.After(e.Received) {
			l.created = e.Time
			if l.created.After(l.scheduled) {
				l.created = l.scheduled
			}
			return
		}
	}
	l := begin(e.Name)
	l.created = e.Time
	if e.Node != "" {
		l.node, l.scheduled = e.Node, e.Time
	}
}

// verdict collects the results of the checks.
type verdict struct {
	checked    int
	violations []string
	more       int
}

func (v *verdict) that(ok bool, format string, args ...any) {
	v.checked++
	if ok {
		return
	}
	if len(v.violations) >= maxViolations-1 {
		v.more++
		return
	}
	v.violations = append(v.violations, fmt.Sprintf(format, args...))
}

// check checks all invariants of the run.
func check(lifetimes []*podLifetime, in *Input) Invariants {
	v := &verdict{violations: []string{}} // an empty list in JSON instead of null
	byJob := map[string][]*podLifetime{}
	for _, l := range lifetimes {
		byJob[l.job] = append(byJob[l.job], l)
	}
	checkSeen(v, lifetimes)
	checkDuplicates(v, byJob, in.Jobs)
	checkOvercommit(v, lifetimes, in.Nodes)
	if !in.Unfinished {
		checkLost(v, byJob, in)
		checkGangs(v, byJob, in.Jobs)
		checkStatus(v, byJob, in)
	}
	if v.more > 0 {
		v.violations = append(v.violations, fmt.Sprintf("... and %d more", v.more))
	}
	return Invariants{Checked: v.checked, Violations: v.violations,
		LongestPartialGangSeconds: longestPartial(byJob, in.Jobs)}
}

// checkSeen checks that the creation of every pod was observed; if not, the measurement is
// incomplete.
func checkSeen(v *verdict, lifetimes []*podLifetime) {
	for _, l := range lifetimes {
		v.that(!l.created.IsZero(), "pod %s exists, but its creation was not observed", l.name)
	}
}

// checkDuplicates checks that no two live pods ever have the same index of a job, and that a job
// never has more live pods than it wants.
func checkDuplicates(v *verdict, byJob map[string][]*podLifetime, jobs []Job) {
	type change struct {
		at    time.Time
		delta int
		l     *podLifetime
	}
	for _, j := range jobs {
		var changes []change
		for _, l := range byJob[j.Name] {
			changes = append(changes, change{l.created, 1, l})
			if !l.freed.IsZero() {
				changes = append(changes, change{l.freed, -1, l})
			}
		}
		slices.SortStableFunc(changes, func(a, b change) int {
			if c := a.at.Compare(b.at); c != 0 {
				return c
			}
			// an end at the same moment frees its place before a beginning takes it
			return a.delta - b.delta
		})
		live, at, most := 0, map[int]int{}, 0
		for _, c := range changes {
			live += c.delta
			most = max(most, live)
			if c.l.index < 0 {
				continue
			}
			at[c.l.index] += c.delta
			if c.delta > 0 {
				v.that(at[c.l.index] == 1, "job %s: %d live pods of index %d at once, one of them %s",
					j.Name, at[c.l.index], c.l.index, c.l.name)
				v.that(c.l.index < j.Pods, "job %s: pod %s has index %d, but the job has %d pods", j.Name, c.l.name, c.l.index, j.Pods)
			}
		}
		v.that(most <= j.Pods, "job %s: %d live pods at once, but the job has %d", j.Name, most, j.Pods)
	}
}

// checkLost checks that at rest every requested pod exists, running or finished, and no other pod
// does.
func checkLost(v *verdict, byJob map[string][]*podLifetime, in *Input) {
	known := map[string]bool{}
	for _, j := range in.Jobs {
		known[j.Name] = true
		n, indexed := 0, map[int]bool{}
		for _, l := range byJob[j.Name] {
			if l.atRest {
				n++
				indexed[l.index] = true
			}
		}
		v.that(n >= j.Pods, "job %s: %d of %d pods exist at rest", j.Name, n, j.Pods)
		if indexed[-1] || n < j.Pods {
			continue
		}
		for i := range j.Pods {
			v.that(indexed[i], "job %s: no pod of index %d at rest", j.Name, i)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byJob)) {
		if !known[name] {
			l := byJob[name][0]
			v.that(false, "pod %s belongs to no job of the load", l.name)
		}
	}
}

// checkOvercommit checks that the pods of a node never request more than the node has. A pod takes
// its resources when the server has answered and releases them when the request that removes it
// arrives. The exact moments lie between arrival and answer; the latest start and the earliest end
// avoid false alarms.
func checkOvercommit(v *verdict, lifetimes []*podLifetime, nodes map[string]Resources) {
	type change struct {
		at   time.Time
		sign int64
		l    *podLifetime
	}
	byNode := map[string][]change{}
	for _, l := range lifetimes {
		if l.node == "" {
			continue
		}
		byNode[l.node] = append(byNode[l.node], change{l.scheduled, 1, l})
		if !l.freed.IsZero() {
			byNode[l.node] = append(byNode[l.node], change{l.freed, -1, l})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byNode)) {
		node, ok := nodes[name]
		v.that(ok, "pod %s is on node %s, which does not exist", byNode[name][0].l.name, name)
		if !ok {
			continue
		}
		changes := byNode[name]
		slices.SortStableFunc(changes, func(a, b change) int {
			if c := a.at.Compare(b.at); c != 0 {
				return c
			}
			return int(a.sign - b.sign)
		})
		var used Resources
		for _, c := range changes {
			used.MilliCPU += c.sign * c.l.request.MilliCPU
			used.MemoryBytes += c.sign * c.l.request.MemoryBytes
			used.Pods += c.sign
			if c.sign < 0 {
				continue
			}
			what, over := overcommitted(used, node)
			v.that(!over, "node %s: overcommitted by pod %s: %s", name, c.l.name, what)
		}
	}
}

func overcommitted(used, node Resources) (string, bool) {
	switch {
	case used.MilliCPU > node.MilliCPU:
		return fmt.Sprintf("%dm of %dm cpu", used.MilliCPU, node.MilliCPU), true
	case used.MemoryBytes > node.MemoryBytes:
		return fmt.Sprintf("%d of %d bytes of memory", used.MemoryBytes, node.MemoryBytes), true
	case used.Pods > node.Pods:
		return fmt.Sprintf("%d of %d pods", used.Pods, node.Pods), true
	}
	return "", false
}

// checkGangs checks that at rest either no pod of a gang has a node, or at least the minimum.
func checkGangs(v *verdict, byJob map[string][]*podLifetime, jobs []Job) {
	for _, j := range jobs {
		bound := 0
		for _, l := range byJob[j.Name] {
			if l.atRest && l.node != "" {
				bound++
			}
		}
		v.that(bound == 0 || bound >= j.Min, "job %s: a part of its gang holds nodes at rest: %d pods, minimum %d", j.Name, bound, j.Min)
	}
}

// StatusesSettled reports whether the counts in the jobs' statuses match the pods.
func StatusesSettled(in Input) bool {
	byJob := map[string][]*podLifetime{}
	for i := range in.Pods {
		p := &in.Pods[i]
		byJob[p.Job] = append(byJob[p.Job], &podLifetime{name: p.Name, node: p.Node, phase: p.Phase, atRest: true})
	}
	v := &verdict{}
	checkStatus(v, byJob, &in)
	return len(v.violations) == 0
}

// checkStatus checks that nothing failed silently: the counts in a job's status match its pods, and
// a job that did not get all of its pods says so.
func checkStatus(v *verdict, byJob map[string][]*podLifetime, in *Input) {
	states := map[string]*JobState{}
	for i := range in.States {
		states[in.States[i].Name] = &in.States[i]
	}
	for _, j := range in.Jobs {
		s := states[j.Name]
		v.that(s != nil, "job %s does not exist at rest", j.Name)
		if s == nil {
			continue
		}
		count := map[string]int{}
		bound := 0
		for _, l := range byJob[j.Name] {
			if !l.atRest {
				continue
			}
			count[l.phase]++
			if l.node != "" {
				bound++
			}
		}
		v.that(s.Running == Unknown || s.Running == count["Running"], "job %s: its status says %d running, %d are", j.Name, s.Running, count["Running"])
		v.that(s.Failed == Unknown || s.Failed == count["Failed"], "job %s: its status says %d failed, %d are", j.Name, s.Failed, count["Failed"])
		v.that(s.Succeeded == Unknown || s.Succeeded == count["Succeeded"], "job %s: its status says %d succeeded, %d are", j.Name, s.Succeeded, count["Succeeded"])
		v.that(bound >= j.Pods || s.Explained, "job %s: %d of %d pods hold nodes at rest, and its status does not say why", j.Name, bound, j.Pods)
	}
}

// longestPartial returns the longest time, in seconds, between a gang's first pod with a node and
// the pod that completed the gang's minimum.
func longestPartial(byJob map[string][]*podLifetime, jobs []Job) float64 {
	longest := 0.0
	for _, j := range jobs {
		if j.Min < 2 {
			continue
		}
		var at []time.Time
		for _, l := range byJob[j.Name] {
			if !l.scheduled.IsZero() {
				at = append(at, l.scheduled)
			}
		}
		if len(at) < j.Min {
			continue
		}
		slices.SortFunc(at, time.Time.Compare)
		longest = max(longest, Since(at[0], at[j.Min-1]))
	}
	return longest
}
