package replay

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/drive"
	"lockstep.dev/lockstep/internal/lab/rig"
	"lockstep.dev/lockstep/internal/lab/series"
	"lockstep.dev/lockstep/internal/lab/system"
	"lockstep.dev/lockstep/internal/lab/trace"
	"lockstep.dev/lockstep/internal/localcluster"
)

// Scenario is the name of the scenario.
const Scenario = "replay"

// Config configures a replay.
type Config struct {
	series.SystemsConfig
	// Gang says that the pods of a job get nodes together, if the system can do that.
	Gang bool
	// Trace is the load, and TraceName its name for the report.
	Trace     *trace.Trace
	TraceName string
	// Speed is how many times as fast as in the trace jobs arrive and end.
	Speed float64
}

// Complete sets defaults and validates the configuration.
func (c *Config) Complete() error {
	switch {
	case c.Trace == nil || len(c.Trace.Jobs) == 0:
		return errors.New("no trace")
	case !(c.Speed > 0) || math.IsInf(c.Speed, 0):
		return fmt.Errorf("speed: %v is not positive", c.Speed)
	case c.ClientConcurrency < 1:
		return fmt.Errorf("client concurrency: %d is not positive", c.ClientConcurrency)
	}
	if err := c.SystemsConfig.Complete(); err != nil {
		return err
	}
	largest := slices.MaxFunc(c.Trace.Jobs, func(a, b trace.Job) int { return a.Pods - b.Pods })
	if room := c.Nodes.Count * c.Nodes.Pods; largest.Pods > room {
		return fmt.Errorf("the load does not fit: the largest job has %d pods, and %d nodes have room for %d", largest.Pods, c.Nodes.Count, room)
	}
	return nil
}

// What a run takes beside the trace, for the estimate.
const (
	startTime = 20 * time.Second
	workBytes = 300 << 20
	podBytes  = 8 << 10
)

// Measure makes all runs and writes the report into OutDir after each.
func Measure(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.Complete(); err != nil {
		return nil, err
	}
	inner, err := series.New[*Run](cfg.Config, cfg.Effective(Scenario, map[string]any{"trace": cfg.TraceName, "traceFormat": cfg.Trace.Format,
		"speed": cfg.Speed, "jobs": len(cfg.Trace.Jobs), "pods": cfg.Trace.Pods(), "mostPodsAtATime": cfg.Trace.Most(), "skippedJobs": cfg.Trace.Skipped,
		"gang": cfg.Gang, "clientConcurrency": cfg.ClientConcurrency}))
	if err != nil {
		return nil, err
	}
	rep := &Report{inner}
	runs, err := series.PlanSystems(&cfg.SystemsConfig, Scenario, func(sys system.System, run series.SystemRun) series.Planned[*Run] {
		t := &trial{cfg: &cfg, sys: sys, run: Run{SystemRun: run, Jobs: len(cfg.Trace.Jobs), Pods: cfg.Trace.Pods()}}
		return series.Planned[*Run]{Run: &t.run, Measure: t.measure, SaveEvents: func(n int) error {
			return t.SaveEvents(fmt.Sprintf("%02d-%s", n, t.run.System))
		}}
	})
	if err != nil {
		return nil, err
	}
	length := time.Duration(cfg.Trace.Length() / cfg.Speed * float64(time.Second))
	if err := cfg.Afford(series.Estimate{Runs: len(runs), Time: time.Duration(len(runs)) * (length + startTime),
		WorkBytes: workBytes + int64(cfg.Trace.Pods())*podBytes, ResultBytes: int64(len(runs)*cfg.Trace.Pods()) << 9}); err != nil {
		return nil, err
	}
	return rep, rep.MakeAll(ctx, &cfg.Config, func() error { return series.Save(cfg.OutDir, rep, rep.Page()) }, runs...)
}

// trial is one run on a fresh control plane.
type trial struct {
	*series.Trial
	cfg *Config
	sys system.System
	run Run
}

const namespace = "replay"

func jobName(i int) string { return fmt.Sprintf("replay-%07d", i) }

// progress is how far one job is.
type progress struct {
	arrived, started time.Time
	pods             int
	deleted          bool
}

// measure makes the run, step by step.
func (t *trial) measure(ctx context.Context) (err error) {
	//   1. Start a control plane.
	t.Trial, err = t.cfg.StartSystem(ctx, t.run.Title(), t.sys, func(*localcluster.Config) {})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Stop(ctx, err != nil)) }()
	if err := errors.Join(t.warmUp(ctx), t.Client.CreateNamespace(ctx, namespace)); err != nil {
		return err
	}
	//   2. Replay the trace.
	t.Say("replaying %d jobs", len(t.cfg.Trace.Jobs))
	jobs := map[string]*progress{}
	used, err := t.Load(ctx, func() error { return t.replay(ctx, jobs) })
	//   3. Analyse the run. Of one that was interrupted, the waits so far are worth showing.
	t.run.TimedOut, t.run.OtherCPUs, t.run.Metrics, t.run.Lost = t.TimedOut, used.OtherCPUs, used.Metrics, used.Lost
	t.run.Used = rig.UsedBetween(used.Before, used.After)
	t.run.analyse(t.cfg.Trace, t.Log.Events, jobs, t.sys)
	if err == nil {
		t.run.complete()
	}
	return err
}

// warmUp sends a job through the system and waits until its pod is deleted. The garbage collector of
// Kubernetes learns of a new kind only after half a minute, and deletes no pods of its objects before.
func (t *trial) warmUp(ctx context.Context) error {
	const namespace, name = "replay-warm-up", "warm-up"
	t.Say("warming up")
	job, err := t.sys.NewJob(system.Job{Namespace: namespace, Name: name, Pods: 1})
	if err != nil {
		return err
	}
	if err := t.Client.CreateNamespace(ctx, namespace); err != nil {
		return err
	}
	if err := t.Client.CreateJob(ctx, job, job.DeepCopyObject().(drive.Object)); err != nil {
		return err
	}
	for _, there := range []bool{true, false} {
		if !there {
			if err := t.Client.DeleteJob(ctx, namespace, name); err != nil {
				return err
			}
		}
		reached, err := t.Log.Until(ctx, t.cfg.Timeout, func() (bool, error) {
			pods, err := t.Client.Pods(ctx, namespace)
			return len(pods) > 0 == there, err
		})
		if err != nil {
			return err
		}
		if !reached {
			return fmt.Errorf("warm-up: --timeout=%s ran out before its pod was created and deleted", t.cfg.Timeout)
		}
	}
	return nil
}

// replay creates the jobs at their times, follows which have their nodes, and deletes each after its
// duration. It returns when every job has had its nodes and those with a duration are deleted.
func (t *trial) replay(ctx context.Context, jobs map[string]*progress) error {
	group, sending := errgroup.WithContext(ctx)
	group.Go(func() error { return t.send(sending) })
	length := time.Duration(t.cfg.Trace.Length() / t.cfg.Speed * float64(time.Second))
	byName := map[string]trace.Job{}
	for i, j := range t.cfg.Trace.Jobs {
		byName[jobName(i)] = j
		jobs[jobName(i)] = &progress{}
	}
	seen, started := 0, 0
	due := map[string]time.Time{} // when jobs that run have to be deleted
	reached, err := t.Log.Until(ctx, length+t.cfg.Timeout, func() (bool, error) {
		if sending.Err() != nil {
			return true, nil // the group has the error
		}
		for ; seen < len(t.Log.Events); seen++ {
			e := &t.Log.Events[seen]
			name := t.note(e, jobs)
			if name == "" {
				continue
			}
			started++
			if j := byName[name]; j.Duration > 0 {
				due[name] = jobs[name].started.Add(time.Duration(j.Duration / t.cfg.Speed * float64(time.Second)))
			}
		}
		now := time.Now()
		for name, at := range due {
			if now.Before(at) {
				continue
			}
			delete(due, name)
			jobs[name].deleted = true
			group.Go(func() error { return t.Client.DeleteJob(sending, namespace, name) })
		}
		return started == len(jobs) && len(due) == 0, nil
	})
	if err := errors.Join(err, group.Wait()); err != nil {
		return err
	}
	if !reached {
		t.TimedOut = fmt.Sprintf("--timeout=%s ran out after the trace when %d of %d jobs had nodes for all pods", t.cfg.Timeout, started, len(jobs))
	}
	return nil
}

// note records an event. It returns the name of the job that now has nodes for all pods, or nothing.
func (t *trial) note(e *analyse.Event, jobs map[string]*progress) string {
	if e.Namespace != namespace || !e.OK() || e.Verb != "create" {
		return ""
	}
	if e.Resource != "pods" {
		if j := jobs[e.Name]; j != nil && e.Sub == "" && j.arrived.IsZero() {
			j.arrived = e.Received
		}
		return ""
	}
	if e.Node == "" || !t.sys.OfLoad(e.Name) {
		return ""
	}
	name, _ := t.sys.Identify(e.Name)
	j := jobs[name]
	if j == nil || !j.started.IsZero() {
		return ""
	}
	if j.pods++; j.pods < t.podsOf(name) {
		return ""
	}
	j.started = e.Time
	return name
}

func (t *trial) podsOf(name string) int {
	var i int
	if _, err := fmt.Sscanf(name, "replay-%d", &i); err != nil || i >= len(t.cfg.Trace.Jobs) {
		return math.MaxInt
	}
	return t.cfg.Trace.Jobs[i].Pods
}

// send creates the jobs at their times.
func (t *trial) send(ctx context.Context) error {
	jobs := t.cfg.Trace.Jobs
	sent, err := t.Client.Send(ctx, drive.Arrivals{
		N: len(jobs), InFlight: t.cfg.ClientConcurrency,
		Due: func(i int) time.Duration { return time.Duration(jobs[i].Arrival / t.cfg.Speed * float64(time.Second)) },
		Job: func(i int) (drive.Object, error) {
			return t.sys.NewJob(system.Job{Namespace: namespace, Name: jobName(i), Index: i, Pods: jobs[i].Pods, Gang: t.cfg.Gang && t.sys.Gangs()})
		},
	})
	t.run.LagSeconds = analyse.Round(drive.LagMax(sent).Seconds(), 2)
	return err
}
