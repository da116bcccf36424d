package replay

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/drive"
	"lockstep.dev/lockstep/internal/lab/observe"
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
	series.Config
	// Systems are the systems to measure, one after the other, and Parameters those of files.
	Systems    []string
	Parameters map[string]string
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
	case len(c.Systems) == 0:
		return errors.New("no system")
	case c.Trace == nil || len(c.Trace.Jobs) == 0:
		return errors.New("no trace")
	case !(c.Speed > 0) || math.IsInf(c.Speed, 0):
		return fmt.Errorf("speed: %v is not positive", c.Speed)
	case c.ClientConcurrency < 1:
		return fmt.Errorf("client concurrency: %d is not positive", c.ClientConcurrency)
	}
	if err := c.Nodes.Complete(); err != nil {
		return err
	}
	largest := slices.MaxFunc(c.Trace.Jobs, func(a, b trace.Job) int { return a.Pods - b.Pods })
	if room := c.Nodes.Count * c.Nodes.Pods; largest.Pods > room {
		return fmt.Errorf("the load does not fit: the largest job has %d pods, and %d nodes have room for %d", largest.Pods, c.Nodes.Count, room)
	}
	for _, name := range c.Systems {
		if _, err := c.system(name); err != nil {
			return err
		}
	}
	return c.Config.Complete()
}

func (c *Config) system(name string) (system.System, error) {
	writes := 0
	if len(c.WriterConcurrency) > 0 {
		writes = c.WriterConcurrency[0]
	}
	return system.New(name, system.Options{Manager: c.Lockstep, ManagerArgs: c.ManagerArgs, Parameters: c.Parameters, WriterConcurrency: writes})
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
	inner, err := series.New[*Run](cfg.Config, map[string]any{"scenario": Scenario, "systems": cfg.Systems, "trace": cfg.TraceName, "traceFormat": cfg.Trace.Format,
		"speed": cfg.Speed, "jobs": len(cfg.Trace.Jobs), "pods": cfg.Trace.Pods(), "mostPodsAtATime": cfg.Trace.Most(), "skippedJobs": cfg.Trace.Skipped,
		"gang": cfg.Gang, "nodes": cfg.Nodes.Count, "nodeCPU": cfg.Nodes.CPU, "nodePods": cfg.Nodes.Pods, "etcdDurable": cfg.Durable, "managerArgs": cfg.ManagerArgs,
		"repeat": cfg.Repeat})
	if err != nil {
		return nil, err
	}
	rep := &Report{inner}
	var runs []series.Planned[*Run]
	for repeat := range cfg.Repeat {
		for _, name := range cfg.Systems {
			sys, err := cfg.system(name)
			if err != nil {
				return nil, err
			}
			t := &trial{cfg: &cfg, sys: sys, run: Run{System: sys.Name(), Scenario: Scenario, Repeat: repeat + 1, Jobs: len(cfg.Trace.Jobs), Pods: cfg.Trace.Pods()}}
			runs = append(runs, series.Planned[*Run]{Run: &t.run, Measure: t.measure, SaveEvents: func(n int) error {
				return t.SaveEvents(fmt.Sprintf("%02d-%s", n, t.run.System))
			}})
		}
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

	lock sync.Mutex
	// lag is how late the client was at most.
	lag time.Duration
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
	t.Trial, err = t.cfg.StartTrial(ctx, t.run.Title(), t.sys.Jobs(), func(c *localcluster.Config) {
		c.ManagerCommand, c.Install, c.ExtraArgs = nil, nil, nil
		t.sys.Configure(c)
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Stop(ctx, err != nil)) }()
	t.Log.Source.(*observe.AuditLog).Users = t.sys.Users()
	if err := t.Client.CreateNamespace(ctx, namespace); err != nil {
		return err
	}
	//   2. Replay the trace.
	t.Say("replaying %d jobs", len(t.cfg.Trace.Jobs))
	jobs := map[string]*progress{}
	used, err := t.Load(ctx, func() error { return t.replay(ctx, jobs) })
	if err != nil {
		return err
	}
	//   3. Analyse the run.
	t.run.TimedOut, t.run.OtherCPUs, t.run.Metrics, t.run.Lost = t.TimedOut, used.OtherCPUs, used.Metrics, used.Lost
	t.run.Used = rig.UsedBetween(used.Before, used.After)
	t.run.LagSeconds = analyse.Round(t.lag.Seconds(), 2)
	t.run.analyse(t.cfg.Trace, t.Log.Events, jobs, t.sys)
	return nil
}

// replay creates the jobs at their times, follows which have their nodes, and deletes each after its
// duration. It returns when every job has had its nodes and those with a duration are deleted.
func (t *trial) replay(ctx context.Context, jobs map[string]*progress) error {
	began := time.Now()
	group, sending := errgroup.WithContext(ctx)
	group.Go(func() error { return t.send(sending, began) })
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
func (t *trial) send(ctx context.Context, began time.Time) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(t.cfg.ClientConcurrency)
	for i, j := range t.cfg.Trace.Jobs {
		at := began.Add(time.Duration(j.Arrival / t.cfg.Speed * float64(time.Second)))
		timer := time.NewTimer(time.Until(at))
		select {
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(group.Wait(), context.Cause(ctx))
		case <-timer.C:
		}
		job, err := t.sys.NewJob(system.Job{Namespace: namespace, Name: jobName(i), Index: i, Pods: j.Pods, Gang: t.cfg.Gang && t.sys.Gangs()})
		if err != nil {
			return fmt.Errorf("job %s: %w", jobName(i), err)
		}
		group.Go(func() error {
			t.lock.Lock()
			t.lag = max(t.lag, time.Since(at))
			t.lock.Unlock()
			return t.Client.CreateJob(ctx, job, job.DeepCopyObject().(drive.Object))
		})
	}
	return group.Wait()
}
