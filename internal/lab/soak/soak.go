package soak

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/drive"
	"lockstep.dev/lockstep/internal/lab/metrics"
	"lockstep.dev/lockstep/internal/lab/rig"
	"lockstep.dev/lockstep/internal/lab/series"
	"lockstep.dev/lockstep/internal/lab/system"
	"lockstep.dev/lockstep/internal/localcluster"
)

// Scenario is the name of the scenario.
const Scenario = "soak"

// Config configures a soak.
type Config struct {
	series.SystemsConfig
	// Duration is how long jobs come. JobsPerSecond jobs of PodsPerJob pods come each second, and each
	// is deleted after Life.
	Duration      time.Duration
	JobsPerSecond float64
	PodsPerJob    int
	Life          time.Duration
}

// Complete sets defaults and validates the configuration.
func (c *Config) Complete() error {
	switch {
	case c.Duration < durationMin:
		return fmt.Errorf("duration: %s is less than %s, which says nothing about growth", c.Duration, durationMin)
	case c.JobsPerSecond <= 0 || c.JobsPerSecond > 1000 || c.PodsPerJob < 1 || c.Life < time.Second:
		return errors.New("soak: want 0 to 1,000 jobs per second, at least one pod each, and a life of at least a second")
	}
	if err := c.SystemsConfig.Complete(); err != nil {
		return err
	}
	if room, most := c.Nodes.Count*c.Nodes.Pods, int(c.JobsPerSecond*c.Life.Seconds()*float64(c.PodsPerJob)); room < 2*most {
		return fmt.Errorf("the load does not fit: about %d pods live at a time, and %d nodes have room for %d; half of it has to be free", most, c.Nodes.Count, room)
	}
	return nil
}

const (
	durationMin = 30 * time.Second
	// points is about how many values a series has.
	points = 300
	// everyMin is the least interval of values.
	everyMin = time.Second
)

// Measure makes all runs and writes the report into OutDir after each.
func Measure(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.Complete(); err != nil {
		return nil, err
	}
	inner, err := series.New[*Run](cfg.Config, cfg.Effective(Scenario, map[string]any{"duration": cfg.Duration.String(),
		"jobsPerSecond": cfg.JobsPerSecond, "podsPerJob": cfg.PodsPerJob, "life": cfg.Life.String()}))
	if err != nil {
		return nil, err
	}
	rep := &Report{inner}
	runs, err := series.PlanSystems(&cfg.SystemsConfig, Scenario, func(sys system.System, run series.SystemRun) series.Planned[*Run] {
		t := &trial{cfg: &cfg, sys: sys, run: Run{SystemRun: run}}
		return series.Planned[*Run]{Run: &t.run, Measure: t.measure}
	})
	if err != nil {
		return nil, err
	}
	pods := int64(cfg.Duration.Seconds() * cfg.JobsPerSecond * float64(cfg.PodsPerJob))
	if err := cfg.Afford(series.Estimate{Runs: len(runs), Time: time.Duration(len(runs)) * (cfg.Duration + startTime),
		WorkBytes: workBytes + pods*podBytes, ResultBytes: int64(len(runs)) << 20}); err != nil {
		return nil, err
	}
	return rep, rep.MakeAll(ctx, &cfg.Config, func() error { return series.Save(cfg.OutDir, rep, rep.Page()) }, runs...)
}

// What a run takes beside its duration, for the estimate.
const (
	startTime = 20 * time.Second
	workBytes = 300 << 20
	podBytes  = 2 << 10
)

// trial is one run on a fresh control plane.
type trial struct {
	*series.Trial
	cfg *Config
	sys system.System
	run Run

	lock sync.Mutex
}

const namespace = "soak"

// measure makes the run, step by step.
func (t *trial) measure(ctx context.Context) (err error) {
	//   1. Start a control plane, whose etcd forgets old versions often enough to see its growth, and
	//      which counts its objects as often as they are asked for.
	t.Trial, err = t.cfg.StartSystem(ctx, t.run.Title(), t.sys, func(c *localcluster.Config) {
		compact := max(10*time.Second, min(5*time.Minute, t.cfg.Duration/30))
		c.ExtraArgs[localcluster.APIServer] = append([]string{"--etcd-compaction-interval=" + compact.String(),
			"--etcd-count-metric-poll-period=" + max(everyMin, t.cfg.Duration/points).String()}, c.ExtraArgs[localcluster.APIServer]...)
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Stop(ctx, err != nil)) }()
	if err := t.Client.CreateNamespace(ctx, namespace); err != nil {
		return err
	}
	//   2. Churn, and look at all processes meanwhile.
	t.Say("churning for %s", t.cfg.Duration)
	busy, began := rig.BusyCPU(), time.Now()
	before, err := t.Usages()
	if err != nil {
		return err
	}
	group, churning := errgroup.WithContext(ctx)
	done := make(chan struct{})
	group.Go(func() error {
		defer close(done)
		return t.churn(churning)
	})
	group.Go(func() error { return t.watch(churning, began, done) })
	err = group.Wait()
	t.run.Seconds = analyse.Round(time.Since(began).Seconds(), 1)
	t.run.conclude(t.sys)
	if err != nil {
		return err
	}
	after, err := t.Usages()
	if err != nil {
		return err
	}
	used := rig.UsedBetween(before, after)
	t.run.OtherCPUs, t.run.Used, t.run.Lost = rig.OtherCPUs(busy, used, time.Since(began)), used, t.Log.Lost()
	//   3. Everything is deleted at the end: nothing may be left.
	return t.end(ctx)
}

// churn creates jobs at the rate, and deletes each after its life.
func (t *trial) churn(ctx context.Context) error {
	name := func(i int) string { return fmt.Sprintf("soak-%07d", i) }
	each := time.Duration(float64(time.Second) / t.cfg.JobsPerSecond)
	group, living := errgroup.WithContext(ctx)
	arrivals := drive.Arrivals{
		N:   int((t.cfg.Duration + each - 1) / each),
		Due: func(i int) time.Duration { return time.Duration(i) * each },
		Job: func(i int) (drive.Object, error) {
			return t.sys.NewJob(system.Job{Namespace: namespace, Name: name(i), Index: i, Pods: t.cfg.PodsPerJob})
		},
		Created: func(i int) {
			t.lock.Lock()
			t.run.Jobs++
			t.lock.Unlock()
			ends := time.Now().Add(t.cfg.Life)
			group.Go(func() error {
				if err := drive.Until(living, ends); err != nil {
					return err
				}
				return t.Client.DeleteJob(living, namespace, name(i))
			})
		},
	}
	group.Go(func() error {
		sent, err := t.Client.Send(living, arrivals)
		t.run.LagSeconds = analyse.Round(drive.LagMax(sent).Seconds(), 2)
		return err
	})
	return errors.Join(group.Wait(), context.Cause(ctx))
}

// watch adds a point to each line at the interval until the churn has ended.
func (t *trial) watch(ctx context.Context, began time.Time, done <-chan struct{}) error {
	tick := time.NewTicker(max(everyMin, t.cfg.Duration/points))
	defer tick.Stop()
	created := map[string]bool{}
	for {
		select {
		case <-ctx.Done():
			return nil // the churn says why
		case <-done:
			return nil
		case <-tick.C:
		}
		if err := errors.Join(t.Broken(), t.Log.Collect()); err != nil {
			return err
		}
		for i := range t.Log.Events {
			e := &t.Log.Events[i]
			if e.Resource == "pods" && e.Verb == "create" && e.Sub == "" && e.OK() && e.Namespace == namespace && t.sys.OfLoad(e.Name) {
				created[e.Name] = true
			}
		}
		t.run.Pods += len(created)
		clear(created)
		t.Log.Forget() // a soak has too many events to keep
		t.point(ctx, analyse.Round(time.Since(began).Seconds(), 1))
	}
}

// point adds a point to each line.
func (t *trial) point(ctx context.Context, at float64) {
	usages, err := t.Usages()
	if err != nil {
		return
	}
	for c, u := range usages {
		if u.AnonBytes > 0 {
			t.run.add(Memory, string(c), at, float64(u.AnonBytes)/(1<<20))
		}
	}
	for process, page := range t.Pages(ctx) {
		if n := page.Sum("go_goroutines"); n > 0 {
			t.run.add(Goroutines, process, at, n)
		}
		switch process {
		case metrics.EtcdName:
			t.run.add(Database, process, at, page.Sum("etcd_mvcc_db_total_size_in_use_in_bytes")/(1<<20))
		case metrics.APIServer:
			all := 0.0
			for _, v := range page["apiserver_resource_objects"] {
				// The counts of -1 are unknown. Events expire by themselves, after an hour.
				if resource := v.Labels["resource"]; v.Value > 0 && !strings.HasPrefix(resource, "events") {
					all += v.Value
				}
			}
			t.run.add(Objects, "cluster", at, all)
		default:
			for queue, depth := range page.Depths() {
				t.run.add(Waiting, process+": "+queue, at, float64(depth))
			}
		}
	}
}

// end waits until the system has deleted everything.
func (t *trial) end(ctx context.Context) error {
	t.Say("waiting until everything is deleted")
	left := 0
	reached, err := t.Log.Until(ctx, t.cfg.Timeout, func() (bool, error) {
		pods, err := t.Client.Pods(ctx, namespace)
		left = len(pods)
		return left == 0, err
	})
	if err != nil {
		return err
	}
	t.run.Checked++
	if !reached {
		t.run.Bad("%d pods are left %s after the last job was deleted", left, t.cfg.Timeout)
	}
	t.run.Checked++
	if want := t.run.Jobs * t.cfg.PodsPerJob; t.run.Pods < want*9/10 {
		// A job whose life ends before its turn has fewer pods: the rate was too high.
		t.run.Bad("the system created %d of %d pods in the lives of their jobs: it did not keep up", t.run.Pods, want)
	}
	return nil
}

// own reports whether a process belongs to the system under test.
func own(sys system.System, process string) bool {
	switch process {
	case string(localcluster.APIServer), string(localcluster.Etcd), string(localcluster.Kwok), string(rig.Client):
		return false
	case string(localcluster.ControllerManager), string(localcluster.Scheduler):
		return slices.Contains(sys.StopForFloor(), localcluster.Component(process)) || sys.Name() == "kubernetes"
	}
	return true
}
