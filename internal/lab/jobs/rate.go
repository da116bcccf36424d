package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/capacity"
	"lockstep.dev/lockstep/internal/lab/drive"
	"lockstep.dev/lockstep/internal/lab/rig"
	"lockstep.dev/lockstep/internal/lab/scenario"
)

// Pace configures the scenario Rate.
type Pace struct {
	// Search says which rates to try, in jobs per second, for StepTime each.
	Search   capacity.Search
	StepTime time.Duration
}

// Rate is the result of the scenario Rate. Rates are in jobs per second.
type Rate struct {
	PodsPerJob int `json:"podsPerJob"`
	// Sustained is the highest rate that the system kept up with, 0 if there is none, and Behind is
	// the lowest one at which it fell behind, 0 if there is none.
	Sustained float64 `json:"sustainedPerSecond"`
	Behind    float64 `json:"behindPerSecond"`
	// Bound says what ended the search before the system fell behind; empty if it did.
	Bound string     `json:"bound,omitempty"`
	Steps []RateStep `json:"steps"`
}

// RateStep is a step of the search: Jobs at a rate.
type RateStep struct {
	Rate float64 `json:"rate"`
	Jobs int     `json:"jobs"`
	// WaitMs is the time from when a job was due until all its pods had nodes, and Growth is by how
	// many seconds it became longer from one second to the next.
	WaitMs analyse.Percentiles `json:"waitMs"`
	Growth float64             `json:"growth"`
	// LagMs is how much later than due jobs were sent, and LagGrowth is the growth of that.
	LagMs     analyse.Percentiles `json:"lagMs"`
	LagGrowth float64             `json:"lagGrowth"`
	// Waiting is how many jobs had pods without nodes when the last job was due, and Unscheduled how
	// many had when --timeout ran out.
	Waiting     int    `json:"waiting"`
	Unscheduled int    `json:"unscheduled"`
	Verdict     string `json:"verdict"`
	// Waits are the waits over time, in milliseconds; nil in the output to stdout.
	Waits *Waits `json:"waits,omitempty"`
}

// Waits are the waits of the jobs of a step, by when they were due.
type Waits struct {
	AtSeconds []float64 `json:"t"`
	Ms        []float64 `json:"ms"`
}

// waitsMax bounds the length of Waits.
const waitsMax = 300

// measureRate makes a run of the scenario Rate.
func (t *trial) measureRate(ctx context.Context) error {
	before, began := rig.BusyCPU(), time.Now()
	used, err := t.cost(func() error { return t.findRate(ctx) })
	t.run.OtherCPUs = rig.OtherCPUs(before, used, time.Since(began))
	t.run.CPUSeconds, t.run.PeakRSSMiB = keyed(used.CPUSeconds), keyed(used.PeakMiB)
	if t.run.Lost = t.Log.Lost(); t.run.Lost != "" { // the waits that were observed are wrong
		t.run.Rate = &Rate{PodsPerJob: t.shape.PodsPerJob, Steps: []RateStep{}}
		t.run.Result = analyse.Result{Pods: t.run.Pods, Created: t.run.Created, Scheduled: t.run.Scheduled}
	}
	return err
}

// findRate searches the highest rate of jobs that the system keeps up with. Each step has a namespace of
// its own, which is cleared before the next one.
func (t *trial) findRate(ctx context.Context) error {
	search := t.cfg.Pace.Search
	result := &Rate{PodsPerJob: t.shape.PodsPerJob, Steps: []RateStep{}}
	t.run.Rate = result
	t.run.Result = analyse.Result{Invariants: analyse.Invariants{Violations: []string{}}}
	var verdicts []string
	for n := 1; ; n++ {
		rate, ok := search.Next()
		if !ok {
			break
		}
		jobs := max(capacity.ArrivalsMin, int(rate*t.cfg.Pace.StepTime.Seconds()))
		nodes, err := t.room(ctx, "")
		if err != nil {
			return err
		}
		if err := fits(nodes, podRequest(), jobs*t.shape.PodsPerJob); err != nil {
			result.Bound = err.Error()
			break
		}
		step, err := t.rateStep(ctx, n, rate, jobs, nodes)
		if err != nil {
			return fmt.Errorf("%.1f jobs a second: %w", rate, err)
		}
		result.Steps = append(result.Steps, step)
		verdicts = append(verdicts, step.Verdict)
		search.Note(rate, step.Verdict == capacity.KeptUp)
		low, high := search.Interval()
		result.Sustained, result.Behind = analyse.Round(low, 2), analyse.Round(high, 2)
		t.enter(fmt.Sprintf("%.1f jobs a second: %s", rate, step.Verdict), 0)
	}
	if result.Bound = cmp.Or(capacity.Doubt(verdicts), result.Bound); result.Behind == 0 && result.Bound == "" {
		result.Bound = "no rate above --rate-max was tried"
	}
	return nil
}

// rateStep sends jobs at a rate, waits until their pods have nodes, checks the invariants, and deletes
// everything.
func (t *trial) rateStep(ctx context.Context, n int, rate float64, jobs int, nodes map[string]analyse.Resources) (step RateStep, err error) {
	namespace := fmt.Sprintf("bench-rate-%d", n)
	load := part{Shape: scenario.Shape{Jobs: jobs, PodsPerJob: t.shape.PodsPerJob}}
	step = RateStep{Rate: analyse.Round(rate, 2), Jobs: jobs}
	if err := errors.Join(t.Client.CreateNamespace(ctx, namespace), t.Log.Quiet(ctx, pauseFor)); err != nil {
		return step, err
	}
	made, err := t.makeJobs(namespace, load, 0)
	if err != nil {
		return step, err
	}
	//   1. Send the jobs, each when it is due, and follow their pods until all have nodes.
	from := len(t.Log.Events)
	t.enter(fmt.Sprintf("%.1f jobs a second", rate), load.Pods())
	sending, cancel := context.WithCancel(ctx)
	defer cancel()
	type paced struct {
		sent []drive.Sent
		err  error
	}
	answered := make(chan paced, 1)
	go func() {
		sent, err := t.Client.Pace(sending, jobs, rate, func(i int) drive.Object { return made[i] })
		answered <- paced{sent, err}
	}()
	var sent []drive.Sent
	scheduled := map[string]bool{}
	seen := from
	_, err = t.Log.Until(ctx, t.cfg.Timeout, func() (bool, error) {
		select {
		case p := <-answered:
			if sent = p.sent; p.err != nil {
				return false, p.err
			}
		default:
		}
		for ; seen < len(t.Log.Events); seen++ {
			if e := &t.Log.Events[seen]; t.isPod(e, namespace) && e.Node != "" {
				scheduled[e.Name] = true
			}
		}
		t.count(len(scheduled), load.Pods())
		return sent != nil && len(scheduled) >= load.Pods(), nil
	})
	if err != nil {
		return step, err
	}
	if sent == nil { // the time ran out
		cancel()
		sent = (<-answered).sent
	}
	late := len(scheduled) < load.Pods()
	if !late {
		t.enter("waiting until all is at rest", 0)
		if err := t.Quiet(ctx); err != nil {
			return step, err
		}
	}
	//   2. Judge, and check the invariants.
	step.judge(sent, t.scheduledAt(from, namespace, load))
	s, err := t.atRest(ctx, namespace, nodes, []part{load}, late)
	if err != nil {
		return step, err
	}
	s.Events = t.Log.Events[from:]
	result := analyse.Analyse(s.Input)
	if late { // pods without nodes are what the step shows, and no failures
		result.Failed = 0
	}
	t.run.add(result)
	//   3. Clear. The events to save are those of the steps.
	until := len(t.Log.Events)
	t.enter("clearing", 0)
	err = errors.Join(t.Client.Clear(ctx, namespace, t.sys.NewList), t.Log.Quiet(ctx, pauseFor), t.Client.DeleteNamespace(ctx, namespace))
	t.Log.Events = t.Log.Events[:until]
	return step, err
}

// scheduledAt returns when the last pod of each job got its node; the zero time if one has none.
func (t *trial) scheduledAt(from int, namespace string, load part) []time.Time {
	pods, at := map[string]map[string]bool{}, map[string]time.Time{}
	for i := range t.Log.Events[from:] {
		e := &t.Log.Events[from+i]
		if !t.isPod(e, namespace) || e.Node == "" {
			continue
		}
		job, _ := t.sys.Identify(e.Name)
		if pods[job] == nil {
			pods[job] = map[string]bool{}
		}
		pods[job][e.Name] = true
		if e.Time.After(at[job]) {
			at[job] = e.Time
		}
	}
	out := make([]time.Time, load.Jobs)
	for i := range out {
		if name := scenario.JobName(i); len(pods[name]) >= load.PodsPerJob {
			out[i] = at[name]
		}
	}
	return out
}

// judge says whether the system kept up with the jobs that were sent.
func (s *RateStep) judge(sent []drive.Sent, scheduled []time.Time) {
	begin, end := sent[0].Due, sent[len(sent)-1].Due
	var waits, lags []capacity.Arrival
	var waitsMs, lagsMs []float64
	s.Waits = &Waits{}
	every := max(1, len(sent)/waitsMax)
	for i, job := range sent {
		at := job.Due.Sub(begin).Seconds()
		lags, lagsMs = append(lags, capacity.Arrival{AtSeconds: at, WaitSeconds: job.Lag.Seconds()}), append(lagsMs, job.Lag.Seconds()*1e3)
		if scheduled[i].After(end) || scheduled[i].IsZero() {
			s.Waiting++
		}
		if scheduled[i].IsZero() {
			s.Unscheduled++
			continue
		}
		wait := max(0, scheduled[i].Sub(job.Due).Seconds())
		waits, waitsMs = append(waits, capacity.Arrival{AtSeconds: at, WaitSeconds: wait}), append(waitsMs, wait*1e3)
		if i%every == 0 {
			s.Waits.AtSeconds, s.Waits.Ms = append(s.Waits.AtSeconds, analyse.Round(at, 3)), append(s.Waits.Ms, analyse.Round(wait*1e3, 1))
		}
	}
	s.WaitMs, s.LagMs = analyse.PercentilesOf(waitsMs, 1), analyse.PercentilesOf(lagsMs, 1)
	s.Growth, s.LagGrowth = analyse.Round(capacity.Growth(waits), 4), analyse.Round(capacity.Growth(lags), 4)
	s.Verdict = capacity.Step{Arrivals: s.Jobs, Waiting: s.Waiting, Unserved: s.Unscheduled, Growth: s.Growth, LagGrowth: s.LagGrowth}.Verdict()
}

// add adds the counts of a step to those of the run.
func (r *Run) add(step analyse.Result) {
	r.Pods, r.Created, r.Scheduled, r.Failed = r.Pods+step.Pods, r.Created+step.Created, r.Scheduled+step.Scheduled, r.Failed+step.Failed
	r.Invariants.Checked += step.Invariants.Checked
	r.Invariants.Violations = append(r.Invariants.Violations, step.Invariants.Violations...)
	if r.Writes == nil {
		r.Writes = map[string]int{}
	}
	total := 0
	for kind, n := range step.Writes {
		r.Writes[kind] += n
	}
	for _, n := range r.Writes {
		total += n
	}
	if r.Pods > 0 {
		r.WritesPerPod = analyse.Round(float64(total)/float64(r.Pods), 4)
	}
}
