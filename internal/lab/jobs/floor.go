package jobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/drive"
	"lockstep.dev/lockstep/internal/lab/floor"
	"lockstep.dev/lockstep/internal/lab/observe"
)

const (
	// sampleSize is the minimum number of pods in one sample of the floor's calibration: half a
	// second's worth. samplePerFlight is the minimum per write in flight, because a shorter sample
	// would end before the server feels that many writes.
	sampleSize      = 400
	samplePerFlight = 2
	// orderShare is the part of the load that is written to compare orders: 1/orderShare.
	orderShare = 4
	// defaultFloorTries is how often the whole load is written.
	defaultFloorTries = 3
)

// floorTrial measures the floor of one run.
type floorTrial struct {
	*trial
	writers floor.Writers
	load    *floor.Load
	written int // number of loads written, each into a namespace of its own
}

// floor measures how long writing the same objects takes without the system: the least time of
// several tries.
func (t *trial) floor(ctx context.Context, namespace string, jobs []drive.Object, pods []corev1.Pod) error {
	asSystem, err := drive.New(t.sys.FloorConfig(t.Cluster), t.sys.Jobs())
	if err != nil {
		return err
	}
	f := &floorTrial{trial: t, writers: floor.Writers{User: t.Client, System: asSystem},
		load: floor.New(t.sys, jobs, pods, t.gang)}
	result := &Floor{}
	result.Jobs, result.Pods = f.load.Counts()
	if result.Jobs != t.jobs() || result.Pods != t.pods() {
		return fmt.Errorf("the run left %d jobs and %d pods", result.Jobs, result.Pods)
	}
	//   1. Stop the system and delete the load.
	clear := func() error { return t.Client.Clear(ctx, namespace, t.sys.NewList) }
	if err := t.ClearForFloor(ctx, t.sys.StopForFloor(), clear); err != nil {
		return err
	}
	//   2. Find the best concurrency by samples, and then the best order by larger ones.
	best, samples, err := floor.Calibrate(t.cfg.FloorConcurrency, func(_, concurrency int) (int, time.Duration, error) {
		try, err := f.try(ctx, f.load.Sample(max(sampleSize, samplePerFlight*concurrency)), f.way(floor.PodsFirst, concurrency))
		return try.pods, try.took, err
	})
	if err != nil {
		return err
	}
	for _, s := range samples {
		result.Calibration = append(result.Calibration, Calibration(s))
	}
	orders, err := floor.Rank(floor.Orders(t.jobs()), func(order floor.Order) (int, time.Duration, error) {
		sample := f.load.Sample(max(sampleSize, samplePerFlight*best, result.Pods/orderShare))
		try, err := f.try(ctx, sample, f.way(order, best))
		return try.pods, try.took, err
	})
	if err != nil {
		return err
	}
	//   3. Write everything in the best two orders, in alternation. The fastest try is the floor.
	orders = orders[:min(2, len(orders))]
	var tries []try
	for i := range t.cfg.FloorTries {
		try, err := f.try(ctx, f.load, f.way(orders[i%len(orders)], best))
		if err != nil {
			return err
		}
		tries = append(tries, try)
	}
	t.run.judgeFloor(result, tries)
	return nil
}

func (f *floorTrial) way(order floor.Order, concurrency int) floor.Way {
	return floor.Way{Order: order, Concurrency: concurrency, JobsConcurrency: f.cfg.ClientConcurrency}
}

// try is the result of writing a load once: pods were written in took by the client's clock.
type try struct {
	Try
	curve analyse.Curve
	pods  int
	took  time.Duration
}

// try writes a load and deletes it again.
func (f *floorTrial) try(ctx context.Context, load *floor.Load, way floor.Way) (out try, err error) {
	f.written++
	namespace := fmt.Sprintf("bench-floor-%d", f.written)
	_, out.pods = load.Counts()
	f.enter(fmt.Sprintf("floor: %s, %d in flight", way.Order, way.Concurrency), out.pods)
	if err := errors.Join(f.Client.CreateNamespace(ctx, namespace), f.Log.Quiet(ctx, pauseFor)); err != nil {
		return out, err
	}
	from := len(f.Log.Events)
	used, err := f.cost(func() (err error) {
		out.took, err = load.Run(ctx, f.writers, namespace, way, func(done int) { f.count(done, out.pods) })
		return err
	})
	if err != nil {
		return out, err
	}
	// The server logs an event before it answers, so all events are in the log.
	if err := f.Log.Collect(); err != nil {
		return out, err
	}
	if err := out.judge(f.Log.Events[from:], namespace); err != nil {
		return out, err
	}
	f.Log.Events = f.Log.Events[:from] // the events to save are those of the run
	out.Order, out.Concurrency, out.CPUSeconds = string(way.Order), way.Concurrency, keyed(used.CPUSeconds)
	return out, errors.Join(f.Client.Clear(ctx, namespace, f.sys.NewList), f.Log.Quiet(ctx, pauseFor))
}

// judge computes the times of a try from its events.
func (out *try) judge(events []analyse.Event, namespace string) error {
	mine := func(e *analyse.Event) bool {
		return e.Namespace == namespace && (e.Actor == observe.Client || e.Actor == observe.Manager)
	}
	var start time.Time
	var created []time.Time
	for i := range events {
		e := &events[i]
		if !mine(e) {
			continue
		}
		if start.IsZero() || e.Received.Before(start) {
			start = e.Received
		}
		if e.Resource == "pods" && e.Verb == "create" && e.OK() {
			created = append(created, e.Time)
		}
	}
	if len(created) != out.pods {
		return fmt.Errorf("%d of %d pods were created", len(created), out.pods)
	}
	out.curve = analyse.CurveOf(start, created)
	if n := len(out.curve.AtSeconds); n > 0 {
		out.PodsSeconds = out.curve.AtSeconds[n-1]
	}
	out.Seconds = analyse.Round(analyse.Span(events, mine).Seconds(), 3)
	return nil
}

// judgeFloor takes the fastest try, unless the run was faster than all.
func (r *Run) judgeFloor(f *Floor, tries []try) {
	var took []float64
	for i := range tries {
		took, f.Tries = append(took, tries[i].PodsSeconds), append(f.Tries, tries[i].Try)
	}
	r.Floor = f
	i := floor.Best(took, r.ScheduleSeconds)
	if i < 0 {
		f.None = fmt.Sprintf("no floor: the run (%s) was faster than the bare client at its best (%s)",
			seconds(r.ScheduleSeconds), seconds(slices.Min(took)))
		return
	}
	f.Order, f.Concurrency, f.Seconds, f.PodsSeconds = tries[i].Order, tries[i].Concurrency, tries[i].Seconds, tries[i].PodsSeconds
	f.CPUSeconds, f.Curve = tries[i].CPUSeconds, &tries[i].curve
	ratio := analyse.Round(r.ScheduleSeconds/f.PodsSeconds, 3)
	r.FloorSeconds, r.RatioToFloor = &f.PodsSeconds, &ratio
}
