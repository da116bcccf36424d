package series

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"lockstep.dev/lockstep/internal/install"
	"lockstep.dev/lockstep/internal/lab/floor"
	"lockstep.dev/lockstep/internal/lab/metrics"
	"lockstep.dev/lockstep/internal/lab/observe"
	"lockstep.dev/lockstep/internal/lab/rig"
	"lockstep.dev/lockstep/internal/localcluster"
)

// restFor is how long there must be no writes until everything counts as at rest: longer than any
// controller here delays a status.
const restFor = 1500 * time.Millisecond

// Trial is one run on a control plane. Its Log collects all writes.
type Trial struct {
	*rig.Observed
	Config *Config
	// Stage is called with the name of each stage of the run.
	Stage func(string)
	// TimedOut says that Config.Timeout ran out, and how far the load was; empty if it did not. The
	// system is then not at rest.
	TimedOut string
}

// StartTrial starts a fresh control plane with Lockstep's manager for a run. jobs is the resource of the load, change changes
// the configuration of the control plane, and managerArgs are flags for the manager.
func (c *Config) StartTrial(ctx context.Context, title string, jobs schema.GroupVersionResource,
	change func(*localcluster.Config), managerArgs ...string) (*Trial, error) {
	t := &Trial{Config: c, Stage: func(stage string) { c.Progress(title + ": " + stage) }}
	t.Say("starting a control plane")
	cluster := localcluster.Config{
		KubeBinary: c.Kube, NotDurable: !c.Durable, Nodes: c.Nodes, ManagerCommand: []string{c.Lockstep, "manager"}, Install: install.Apply,
		ExtraArgs: map[localcluster.Component][]string{localcluster.Manager: append(slices.Clone(managerArgs),
			c.ManagerArgs...)},
	}
	change(&cluster)
	var err error
	t.Observed, err = rig.Observe(ctx, cluster, c.OutDir, jobs, func(localcluster.Component) {})
	return t, err
}

// Say reports progress.
func (t *Trial) Say(format string, args ...any) {
	t.Stage(fmt.Sprintf(format, args...))
}

// Quiet waits until there were no writes for a while, not counting heartbeats.
func (t *Trial) Quiet(ctx context.Context) error { return t.Log.Quiet(ctx, restFor) }

// Usage is the resource usage of every process before and after a load.
type Usage struct {
	Began         time.Time
	Before, After map[localcluster.Component]localcluster.Usage
	// OtherCPUs is how many CPUs other work on this machine used, on average.
	OtherCPUs float64
	// Metrics are what the processes reported about themselves, and Lost says which events the
	// observer lost.
	Metrics *metrics.Figures
	Lost    string
}

// Load calls act, which drives a load, and waits until everything is at rest. The log then has the
// events of this load alone.
func (t *Trial) Load(ctx context.Context, act func() error) (u Usage, err error) {
	t.Log.Forget()
	if u.Before, err = t.Usages(); err != nil {
		return u, err
	}
	u.Began = time.Now()
	busy := rig.BusyCPU()
	u.Metrics, err = t.Metered(ctx, func() error {
		if err := act(); err != nil || t.TimedOut != "" {
			return err
		}
		return t.Quiet(ctx)
	})
	u.Lost = cmp.Or(t.Log.Lost(), u.Metrics.Lost())
	if err != nil {
		return u, err
	}
	if u.After, err = t.Usages(); err != nil {
		return u, err
	}
	u.OtherCPUs = rig.OtherCPUs(busy, rig.UsedBetween(u.Before, u.After), time.Since(u.Began))
	return u, nil
}

// Await waits until done returns n or more. If Config.Timeout runs out before, it sets TimedOut; what
// says what is counted.
func (t *Trial) Await(ctx context.Context, n int, what string, done func() (int, error)) error {
	last := 0
	reached, err := t.Log.Until(ctx, t.Config.Timeout, func() (_ bool, err error) {
		last, err = done()
		return last >= n, err
	})
	if err == nil && !reached {
		t.TimedOut = fmt.Sprintf("--timeout=%s ran out when %d of %d %s", t.Config.Timeout, last, n, what)
	}
	return err
}

// Floor is the result of the measurement of a floor.
type Floor struct {
	Concurrency int
	Samples     []floor.Sample
	// Units were written in Took.
	Units int
	Took  time.Duration
}

// Floor stops writers, the components that act on the load, and measures the floor. clear removes
// the load of the run. write writes a sample or everything into a fresh namespace, and returns the
// number of units and the time that they took.
func (t *Trial) Floor(ctx context.Context, writers []localcluster.Component, clear func() error,
	write func(namespace string, sample bool, concurrency int) (int, time.Duration, error)) (f Floor, err error) {
	//   1. Stop the other writers, and delete the load.
	if err := t.ClearForFloor(ctx, writers, clear); err != nil {
		return f, err
	}
	//   2. Find the best concurrency by samples.
	f.Concurrency, f.Samples, err = floor.Calibrate(t.Config.FloorConcurrency,
		func(i, concurrency int) (int, time.Duration, error) {
			return write(fmt.Sprintf("floor-%d", i), true, concurrency)
		})
	if err := errors.Join(err, t.Quiet(ctx)); err != nil {
		return f, err
	}
	//   3. Write everything.
	t.Say("floor at %d in flight", f.Concurrency)
	f.Units, f.Took, err = write("floor", false, f.Concurrency)
	return f, err
}

// ClearForFloor stops writers, the components that act on the load, and calls clear, which removes
// the load of the run.
func (t *Trial) ClearForFloor(ctx context.Context, writers []localcluster.Component, clear func() error) error {
	t.Say("floor: clearing")
	for _, c := range writers {
		if err := t.StopComponent(ctx, c); err != nil {
			return err
		}
	}
	return errors.Join(clear(), t.Quiet(ctx))
}

// SaveEvents saves the events of the log in the subdirectory dir of the results.
func (t *Trial) SaveEvents(dir ...string) error {
	if t == nil || t.Observed == nil { // the control plane did not start
		return nil
	}
	path := filepath.Join(append([]string{t.Config.OutDir}, dir...)...)
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	return t.Log.Save(filepath.Join(path, observe.EventsFile))
}
