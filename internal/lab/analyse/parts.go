package analyse

import (
	"cmp"
	"slices"
	"time"
)

// PartResult is the result of one part of a load.
type PartResult struct {
	Name      string `json:"name"`
	Jobs      int    `json:"jobs"`
	Pods      int    `json:"pods"`
	Scheduled int    `json:"scheduled"`
	// LatencyMs is the time from a job's creation until each of its pods was SCHEDULED, and MaxMs the
	// longest one.
	LatencyMs Percentiles `json:"latencyMs"`
	MaxMs     float64     `json:"latencyMaxMs"`
	// FirstSeconds and LastSeconds are when the part's first and last pod was SCHEDULED.
	FirstSeconds float64 `json:"firstScheduledSeconds"`
	LastSeconds  float64 `json:"scheduleSeconds"`
}

// Shares are the shares of the places that queues had while all of them wanted more: from Settling
// after the first job of the last queue until one queue had no pod left to schedule.
type Shares struct {
	FromSeconds  float64 `json:"fromSeconds"`
	UntilSeconds float64 `json:"untilSeconds"`
	// Places is the mean number of pods on nodes in that time.
	Places float64      `json:"places"`
	Queues []QueueShare `json:"queues"`
	// Deviation is the largest difference between a share and what was deserved; 1 is all places.
	Deviation float64 `json:"deviation"`
}

// QueueShare is the share of one queue. Deserved is its weight divided by the sum of all.
type QueueShare struct {
	Name     string  `json:"name"`
	Weight   int     `json:"weight"`
	Deserved float64 `json:"deserved"`
	Share    float64 `json:"share"`
}

// placeChange is a change of a number of places or pods.
type placeChange struct {
	at    time.Time
	delta int
}

// partsOf returns the results of the parts of a load, the places that each had over time, and the
// shares of their queues.
func partsOf(lifetimes []*podLifetime, in *Input, jobCreated map[string]time.Time, start time.Time) ([]PartResult, []Curve, *Shares) {
	if len(in.Parts) == 0 {
		return nil, nil, nil
	}
	parts := make([]PartResult, len(in.Parts))
	latencies := make([][]float64, len(in.Parts))
	changes := make([][]placeChange, len(in.Parts))
	arrived, emptied := make([]time.Time, len(in.Parts)), make([]time.Time, len(in.Parts))
	of := map[string]int{}
	for _, j := range in.Jobs {
		of[j.Name] = j.Part
		parts[j.Part].Jobs++
		parts[j.Part].Pods += j.Pods
		if at := jobCreated[j.Name]; !at.IsZero() && (arrived[j.Part].IsZero() || at.Before(arrived[j.Part])) {
			arrived[j.Part] = at
		}
	}
	for _, l := range lifetimes {
		i, ok := of[l.job]
		if !ok || l.scheduled.IsZero() {
			continue
		}
		parts[i].Scheduled++
		if at := jobCreated[l.job]; !at.IsZero() {
			latencies[i] = append(latencies[i], max(0, l.scheduled.Sub(at).Seconds()*1e3))
		}
		changes[i] = append(changes[i], placeChange{l.scheduled, 1})
		if end := l.end(); !end.IsZero() {
			changes[i] = append(changes[i], placeChange{end, -1})
		}
		if l.scheduled.After(emptied[i]) {
			emptied[i] = l.scheduled
		}
		if at := Since(start, l.scheduled); parts[i].FirstSeconds == 0 || at < parts[i].FirstSeconds {
			parts[i].FirstSeconds = at
		}
	}
	var held []Curve
	for i := range parts {
		parts[i].Name, parts[i].LastSeconds = in.Parts[i].Name, Since(start, emptied[i])
		parts[i].LatencyMs = PercentilesOf(latencies[i], 1)
		if n := len(latencies[i]); n > 0 {
			parts[i].MaxMs = Round(latencies[i][n-1], 1) // they are sorted now
		}
		curve, _ := over(start, changes[i]) // which sorts them
		held = append(held, curve)
	}
	return parts, held, shares(in, changes, arrived, emptied, start)
}

// end returns when the pod released its place; zero if it still has it.
func (l *podLifetime) end() time.Time {
	if (l.phase == "Succeeded" || l.phase == "Failed") && l.reported.After(l.scheduled) {
		return l.reported // a finish time in a status has seconds only
	}
	return l.freed
}

// over sorts changes, and returns their sum over time, thinned out to about curvePoints points, and the
// greatest sum. Of changes at the same moment those that take away come first.
func over(start time.Time, changes []placeChange) (c Curve, most int) {
	slices.SortFunc(changes, func(a, b placeChange) int { return cmp.Or(a.at.Compare(b.at), a.delta-b.delta) })
	step, n := max(1, len(changes)/curvePoints), 0
	for i, ch := range changes {
		n += ch.delta
		most = max(most, n)
		if i%step == 0 || i == len(changes)-1 {
			c.AtSeconds, c.Count = append(c.AtSeconds, Since(start, ch.at)), append(c.Count, n)
		}
	}
	return c, most
}

// waiting returns the changes of the number of pods that have no node, whether they exist or not.
func waiting(lifetimes []*podLifetime, in *Input, jobCreated map[string]time.Time) (out []placeChange) {
	wanted := map[string]int{}
	for _, j := range in.Jobs {
		if at, ok := jobCreated[j.Name]; ok {
			out, wanted[j.Name] = append(out, placeChange{at, j.Pods}), j.Pods
		}
	}
	for _, l := range lifetimes {
		// A pod that replaces another one was not counted.
		if at := l.scheduled; !at.IsZero() && wanted[l.job] > 0 {
			wanted[l.job]--
			if created := jobCreated[l.job]; at.Before(created) {
				at = created // the answer to the pod's create came first
			}
			out = append(out, placeChange{at, -1})
		}
	}
	return out
}

// pending returns the changes of the number of pods that exist without a node.
func pending(lifetimes []*podLifetime) (out []placeChange) {
	for _, l := range lifetimes {
		if l.created.IsZero() || l.scheduled.Equal(l.created) {
			continue
		}
		out = append(out, placeChange{l.created, 1})
		if end := l.scheduled; !end.IsZero() {
			out = append(out, placeChange{end, -1})
		} else if !l.freed.IsZero() {
			out = append(out, placeChange{l.freed, -1})
		}
	}
	return out
}

// shares returns the shares of the queues; nil if the parts have none, or if there was no time in
// which all wanted more.
func shares(in *Input, changes [][]placeChange, arrived, emptied []time.Time, start time.Time) *Shares {
	weights := 0
	for _, p := range in.Parts {
		weights += p.Weight
	}
	from, until := slices.MaxFunc(arrived, time.Time.Compare).Add(in.Settling), slices.MinFunc(emptied, time.Time.Compare)
	if weights == 0 || slices.ContainsFunc(arrived, time.Time.IsZero) || !until.After(from) {
		return nil
	}
	s := &Shares{FromSeconds: Since(start, from), UntilSeconds: Since(start, until)}
	sum, each := 0.0, make([]float64, len(in.Parts))
	for i := range in.Parts {
		each[i] = integral(changes[i], from, until)
		sum += each[i]
	}
	if sum == 0 {
		return nil
	}
	s.Places = Round(sum/until.Sub(from).Seconds(), 1)
	for i, p := range in.Parts {
		q := QueueShare{Name: p.Name, Weight: p.Weight, Deserved: Round(float64(p.Weight)/float64(weights), 4), Share: Round(each[i]/sum, 4)}
		s.Deviation = max(s.Deviation, Round(max(q.Share-q.Deserved, q.Deserved-q.Share), 4))
		s.Queues = append(s.Queues, q)
	}
	return s
}

// integral returns the place-seconds of a part between two moments.
func integral(sorted []placeChange, from, until time.Time) float64 {
	sum, n, last := 0.0, 0, from
	for _, ch := range sorted {
		if !ch.at.Before(until) {
			break
		}
		if ch.at.After(from) {
			sum += float64(n) * ch.at.Sub(last).Seconds()
			last = ch.at
		}
		n += ch.delta
	}
	return sum + float64(n)*until.Sub(last).Seconds()
}
