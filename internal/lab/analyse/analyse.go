package analyse

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// curvePoints bounds the points of a curve: more than a screen can show.
const curvePoints = 600

// maxStallsListed bounds the length of Stalls.AtSeconds.
const maxStallsListed = 20

// Analyse computes the result of a run.
func Analyse(in Input) Result {
	events := slices.Clone(in.Events)
	slices.SortStableFunc(events, func(a, b Event) int { return a.Time.Compare(b.Time) })

	jobCreated, start, lastJob := jobCreations(events, in.Namespace, in.JobResource)
	lifetimes := podLifetimes(events, &in)

	var res Result
	for _, j := range in.Jobs {
		res.Pods += j.Pods
	}
	var created, scheduled []time.Time
	var latencies []float64
	bound := 0
	for _, l := range lifetimes {
		if l.created.IsZero() {
			continue
		}
		created = append(created, l.created)
		if l.scheduled.IsZero() {
			continue
		}
		scheduled = append(scheduled, l.scheduled)
		if l.scheduled.After(l.created) {
			bound++
		}
		if at, ok := jobCreated[l.job]; ok {
			latencies = append(latencies, max(0, l.scheduled.Sub(at).Seconds()*1e3))
		}
	}
	slices.SortFunc(created, time.Time.Compare)
	slices.SortFunc(scheduled, time.Time.Compare)

	res.Created, res.Scheduled = len(created), len(scheduled)
	res.Failed = failed(&in)
	res.JobsSeconds = Since(start, lastJob)
	if n := len(created); n > 0 {
		res.CreateSeconds = Since(start, created[n-1])
	}
	var lastScheduled time.Time
	if n := len(scheduled); n > 0 {
		lastScheduled = scheduled[n-1]
		res.FirstScheduledSeconds = Since(start, scheduled[0])
		res.ScheduleSeconds = Since(start, lastScheduled)
	}
	res.LatencyMs = PercentilesOf(latencies, 1)
	res.Stalls = stalls(start, scheduled)
	res.Contention = contention(created, scheduled, bound)
	res.Curves = &Curves{
		Created: curve(start, created), Scheduled: curve(start, scheduled),
		CreatedPerSecond: perSecond(start, created), ScheduledPerSecond: perSecond(start, scheduled),
	}
	res.Curves.Waiting, res.WaitingMax = over(start, waiting(lifetimes, &in, jobCreated))
	res.Curves.Pending, res.PendingMax = over(start, pending(lifetimes))
	res.Parts, res.Curves.Held, res.Shares = partsOf(lifetimes, &in, jobCreated, start)
	countWrites(&res, events, &in, start, lastScheduled)
	res.Invariants = check(lifetimes, &in)
	return res
}

// Span returns the time from the arrival of the first request to the last answer, over the writes
// that match.
func Span(events []Event, match func(*Event) bool) time.Duration {
	var first, last time.Time
	for i := range events {
		e := &events[i]
		if !match(e) {
			continue
		}
		if first.IsZero() || e.Received.Before(first) {
			first = e.Received
		}
		if e.Time.After(last) {
			last = e.Time
		}
	}
	return last.Sub(first)
}

// jobCreations returns when each job was created, when the first create reached the server, and
// when the last was answered.
func jobCreations(events []Event, namespace, resource string) (at map[string]time.Time, start, last time.Time) {
	at = map[string]time.Time{}
	for i := range events {
		e := &events[i]
		if e.Resource != resource || e.Verb != "create" || e.Sub != "" || e.Namespace != namespace || !e.OK() {
			continue
		}
		if start.IsZero() || e.Received.Before(start) {
			start = e.Received
		}
		at[e.Name], last = e.Time, e.Time
	}
	return at, start, last
}

func failed(in *Input) int {
	bound := map[string]int{}
	n := 0
	for i := range in.Pods {
		p := &in.Pods[i]
		switch {
		case p.Phase == "Failed":
			n++
			bound[p.Job]++
		case p.Node != "":
			bound[p.Job]++
		}
	}
	for _, j := range in.Jobs {
		n += max(0, j.Pods-bound[j.Name])
	}
	return n
}

// Since returns the seconds from start to t, rounded to milliseconds, or 0 if either is the zero time.
func Since(start, t time.Time) float64 {
	if start.IsZero() || t.IsZero() {
		return 0
	}
	return Round(t.Sub(start).Seconds(), 3)
}

// Round rounds x to the given number of decimals.
func Round(x float64, digits int) float64 {
	p := math.Pow(10, float64(digits))
	return math.Round(x*p) / p
}

// PercentilesOf returns percentiles by the nearest rank: the smallest value that is at least as
// large as that share of all values, rounded to the given number of decimals. It sorts values.
func PercentilesOf(values []float64, digits int) Percentiles {
	if len(values) == 0 {
		return Percentiles{}
	}
	slices.Sort(values)
	rank := func(p float64) float64 {
		i := int(math.Ceil(p*float64(len(values)))) - 1
		return Round(values[max(0, i)], digits)
	}
	return Percentiles{P50: rank(0.50), P90: rank(0.90), P99: rank(0.99)}
}

func stalls(start time.Time, sorted []time.Time) Stalls {
	var s Stalls
	for i := 1; i < len(sorted); i++ {
		gap := sorted[i].Sub(sorted[i-1])
		s.LongestSeconds = max(s.LongestSeconds, Round(gap.Seconds(), 3))
		if gap <= StallThreshold {
			continue
		}
		s.Count++
		if len(s.AtSeconds) < maxStallsListed {
			s.AtSeconds = append(s.AtSeconds, Since(start, sorted[i-1]))
		}
	}
	return s
}

// CurveOf returns the cumulative curve of moments, which may be in any order.
func CurveOf(start time.Time, moments []time.Time) Curve {
	sorted := slices.Clone(moments)
	slices.SortFunc(sorted, time.Time.Compare)
	return curve(start, sorted)
}

func curve(start time.Time, sorted []time.Time) Curve {
	var c Curve
	if len(sorted) == 0 {
		return c
	}
	step := max(1, (len(sorted)+curvePoints-1)/curvePoints)
	for i := 0; i < len(sorted); i += step {
		c.AtSeconds = append(c.AtSeconds, Since(start, sorted[i]))
		c.Count = append(c.Count, i+1)
	}
	if last := len(sorted) - 1; c.Count[len(c.Count)-1] != last+1 {
		c.AtSeconds = append(c.AtSeconds, Since(start, sorted[last]))
		c.Count = append(c.Count, last+1)
	}
	return c
}

// maxSeconds bounds the length of the per-second series.
const maxSeconds = 24 * 3600

func perSecond(start time.Time, sorted []time.Time) []int {
	if len(sorted) == 0 {
		return nil
	}
	bucket := func(t time.Time) int { return min(maxSeconds-1, max(0, int(t.Sub(start)/time.Second))) }
	out := make([]int, bucket(sorted[len(sorted)-1])+1)
	for _, t := range sorted {
		out[bucket(t)]++
	}
	return out
}

// CountWrites counts the writes that match.
func CountWrites(events []Event, match func(*Event) bool) Writes {
	w := Writes{ByKind: map[string]int{}}
	for i := range events {
		e := &events[i]
		if !match(e) {
			continue
		}
		w.ByKind[e.Kind()]++
		w.Total++
		if !e.OK() {
			if w.Refused == nil {
				w.Refused = map[string]int{}
			}
			w.Refused[e.Kind()+" "+strconv.Itoa(e.Code)]++
		}
	}
	return w
}

// maxCauses bounds the length of Result.Causes: messages may name objects, also others than their own.
const maxCauses = 20

func countCause(res *Result, e *Event) {
	if res.Causes == nil {
		res.Causes = map[string]int{}
	}
	key := e.Kind() + ": " + e.Cause
	if e.Name != "" { // one cause, whichever object it is about
		key = strings.ReplaceAll(key, strconv.Quote(e.Name), `"…"`)
	}
	if _, known := res.Causes[key]; !known && len(res.Causes) >= maxCauses {
		key = "others"
	}
	res.Causes[key]++
}

func countWrites(res *Result, events []Event, in *Input, start, lastScheduled time.Time) {
	res.WritesByActor = map[string]map[string]int{}
	untilScheduled := 0
	writes := CountWrites(events, func(e *Event) bool {
		if e.Verb == finish || e.Received.Before(start) {
			return false
		}
		if res.WritesByActor[e.Actor] == nil {
			res.WritesByActor[e.Actor] = map[string]int{}
		}
		res.WritesByActor[e.Actor][e.Kind()]++
		if !in.System[e.Actor] || in.Heartbeats[e.Resource] {
			return false
		}
		if !e.Time.After(lastScheduled) {
			untilScheduled++
		}
		if e.Cause != "" {
			countCause(res, e)
		}
		return true
	})
	res.Writes, res.Refused = writes.ByKind, writes.Refused
	if res.Pods > 0 {
		res.WritesPerPod = Round(float64(writes.Total)/float64(res.Pods), 4)
		res.WritesPerPodUntilScheduled = Round(float64(untilScheduled)/float64(res.Pods), 4)
	}
}
