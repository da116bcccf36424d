package applications

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/install"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/drive"
	"lockstep.dev/lockstep/internal/lab/observe"
	"lockstep.dev/lockstep/internal/lab/series"
	"lockstep.dev/lockstep/internal/localcluster"
)

// The scenarios.
const (
	ScenarioSmall   = "apps-small"
	ScenarioLarge   = "apps-large"
	ScenarioUpdates = "apps-updates"
	ScenarioHold    = "apps-hold"
	ScenarioShards  = "apps-shards"
	ScenarioFleet   = "apps-multicluster"
)

// Scenarios are the names of all scenarios.
var Scenarios = []string{ScenarioSmall, ScenarioLarge, ScenarioUpdates, ScenarioHold, ScenarioShards, ScenarioFleet}

// Config configures the scenarios.
type Config struct {
	series.Config
	Scenario string
	// Applications is the number of applications deployed at once.
	Applications int
	// Rounds is the number of rounds of updates.
	Rounds int
	// Hold is how long the system is observed at rest after all applications run.
	Hold time.Duration
	// Replicas is the number of replicas of each Deployment. With 0 there are no pods, and only the
	// applications are measured.
	Replicas int
	// Delete measures the deletion of all applications too.
	Delete bool
	Limits Limits
	// Shape is the shape of the applications; empty means the scenario's default.
	Shape Shape
	// Profile collects CPU profiles of the manager during the deployment, and a memory profile
	// after each phase, into OutDir.
	Profile bool
	// Clusters is the number of managed clusters of apps-multicluster, RoundTrip the round-trip
	// time to them in its last part. Managers is the number of managers of apps-shards.
	Clusters, Managers int
	RoundTrip          time.Duration
}

// Complete sets the scenario's defaults and validates the configuration.
func (c *Config) Complete() error {
	if !slices.Contains(Scenarios, c.Scenario) {
		return fmt.Errorf("scenario %q: want one of %v", c.Scenario, Scenarios)
	}
	if c.Shape == "" {
		c.Shape = Small
		switch c.Scenario {
		case ScenarioLarge, ScenarioUpdates:
			c.Shape = Large
		case ScenarioFleet:
			c.Shape = Plain
		}
	}
	if c.Scenario == ScenarioShards || c.Scenario == ScenarioFleet {
		c.FloorConcurrency, c.Hold, c.Delete = nil, 0, true
	}
	switch {
	case c.Shape != Small && c.Shape != Large && c.Shape != Plain:
		return fmt.Errorf("shape %q: want %s, %s or %s", c.Shape, Small, Large, Plain)
	case c.Scenario == ScenarioFleet && (c.Clusters < 2 || c.Clusters > clustersMax || c.Shape != Plain):
		return fmt.Errorf("clusters: %d is not between 2 and %d, or the shape is not %s", c.Clusters, clustersMax, Plain)
	case c.Scenario == ScenarioShards && (c.Managers < 2 || c.Managers > managersMax):
		return fmt.Errorf("managers: %d is not between 2 and %d", c.Managers, managersMax)
	case c.Applications < 1 || c.Applications > 99_999:
		return fmt.Errorf("applications: %d is not between 1 and 99999", c.Applications)
	case c.Rounds < 0 || c.Replicas < 0 || c.Limits.CPU < 0 || c.Limits.MemoryMiB < 0 || c.Hold < 0:
		return errors.New("rounds, replicas, hold and limits must not be negative")
	case c.ClientConcurrency < 1:
		return errors.New("client concurrency must be positive")
	}
	if c.Scenario != ScenarioUpdates {
		c.Rounds = 0
	}
	return c.Config.Complete()
}

// What runs take, as measured on two cores. They are for estimates only.
const (
	runTime         = 30 * time.Second
	applicationTime = 40 * time.Millisecond
	workBytes       = 250 << 20
	eachBytes       = 64 << 10
)

// estimate returns about what the runs take. Applications of many components take more.
func (c *Config) estimate() series.Estimate {
	each := int64(1)
	if c.Shape == Large {
		each = 8
	}
	rounds := int64(2 + c.Rounds) // with the deployment and the deletion
	written := int64(c.Applications) * each * rounds
	took := runTime + 2*c.Hold + time.Duration(written)*applicationTime
	work := workBytes + written*eachBytes
	if c.Scenario == ScenarioFleet {
		work += int64(c.Clusters) * workBytes
	}
	return series.Estimate{Runs: c.Repeat, Time: time.Duration(c.Repeat) * took, WorkBytes: work, ResultBytes: int64(c.Repeat) << 20}
}

// Measure makes all runs and writes the report into OutDir after each phase. A run that could not
// be completed is included with its error and its finished phases.
func Measure(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.Complete(); err != nil {
		return nil, err
	}
	inner, err := series.New[*Run](cfg.Config, cfg.effective())
	if err != nil {
		return nil, err
	}
	rep := &Report{inner}
	save := func() error { return series.Save(cfg.OutDir, rep, rep.Page()) }
	var runs []series.Planned[*Run]
	for repeat := range cfg.Repeat {
		t := &trial{cfg: &cfg, save: save, run: Run{Scenario: cfg.Scenario, Shape: cfg.Shape, Repeat: repeat + 1, Applications: cfg.Applications}}
		runs = append(runs, series.Planned[*Run]{Run: &t.run, Measure: t.measure})
	}
	if err := cfg.Afford(cfg.estimate()); err != nil {
		return nil, err
	}
	return rep, rep.MakeAll(ctx, &cfg.Config, save, runs...)
}

func (c *Config) effective() map[string]any {
	return map[string]any{"scenario": c.Scenario, "shape": c.Shape, "applications": c.Applications, "rounds": c.Rounds, "hold": c.Hold.String(),
		"replicas": c.Replicas, "limits": c.Limits, "nodes": c.Nodes.Count, "etcdDurable": c.Durable, "clientConcurrency": c.ClientConcurrency,
		"floorConcurrencyTried": c.FloorConcurrency, "managerArgs": c.ManagerArgs, "clusters": c.Clusters, "roundTrip": c.RoundTrip.String(), "managers": c.Managers}
}

// trial is one run on a fresh control plane.
type trial struct {
	*series.Trial
	cfg *Config
	run Run
	// save writes the report, including the unfinished run.
	save func() error

	apps rest.Interface
	// seen is the state of each application as the watch has shown it.
	seen observe.Seen[observation]
	// where returns the clusters of application i; nil means the local cluster for all.
	where func(i int) []string
	// far are the managed clusters.
	far []*managedCluster
}

// observation is the state of an application as the watch has shown it.
type observation struct {
	at         time.Time // when the watch first showed it running in generation
	generation int64     // the latest generation in which it ran
	phase      oam.ApplicationPhase
}

const (
	namespace = "bench"
	warmUp    = "warm-up"
	// warmUpApplications is the number of applications in the warm-up.
	warmUpApplications = 20
)

// measure makes the run, step by step.
func (t *trial) measure(ctx context.Context) (err error) {
	//   1. Start a control plane and observe it.
	t.Trial, err = t.cfg.StartTrial(ctx, t.run.Scenario, oam.GroupVersion.WithResource("applications"),
		func(c *localcluster.Config) { c.WithScheduler = t.cfg.Replicas > 0 }, t.managerArgs()...)
	if err != nil {
		return err
	}
	release := func() error { return nil }
	defer func() {
		err = errors.Join(err, t.Stop(ctx, err != nil))
		err = errors.Join(err, release())
	}()
	if t.apps, err = kubeclient.ForGroupVersion(t.REST, nil, oam.GroupVersion, scheme.Scheme); err != nil {
		return err
	}
	if err := install.AwaitApplications(ctx, t.REST); err != nil {
		return err
	}
	if pid, running := t.PID(localcluster.Manager); running {
		if release, err = limit(pid, t.cfg.Limits); err != nil {
			release = func() error { return nil }
			return err
		}
	}
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := t.watch(watching); err != nil {
		return err
	}
	//   2. Warm up: take every path once.
	t.Say("warming up")
	if err := t.warm(ctx); err != nil {
		return fmt.Errorf("warm-up: %w", err)
	}
	//   3. Deploy all applications at once.
	if err := t.Client.CreateNamespace(ctx, namespace); err != nil {
		return err
	}
	switch t.cfg.Scenario {
	case ScenarioShards:
		return t.shards(ctx)
	case ScenarioFleet:
		return t.fleet(ctx)
	}
	// Measure the cost of a manager without applications.
	if t.cfg.Scenario == ScenarioHold {
		if err := t.hold(ctx, "hold, none"); err != nil {
			return err
		}
	}
	profiled := t.profile(ctx, "deploy")
	_, err = t.deploy(ctx, "deploy")
	profiled()
	if err != nil {
		return err
	}
	//   4. Hold: measure the system at rest.
	if err := t.hold(ctx, "hold"); err != nil {
		return err
	}
	//   5. Change some of the applications' objects by hand.
	if t.cfg.Shape == Small && t.cfg.Scenario == ScenarioSmall {
		if err := t.drift(ctx); err != nil {
			return fmt.Errorf("drift: %w", err)
		}
	}
	//   6. Update the applications.
	for round := range t.cfg.Rounds {
		if _, err := t.update(ctx, fmt.Sprintf("update %d", round+1), round+1, func() error { return nil }); err != nil {
			return fmt.Errorf("round %d: %w", round+1, err)
		}
	}
	//   7. Copy the existing objects, for the floor.
	var left *copies
	if len(t.cfg.FloorConcurrency) > 0 {
		if left, err = t.copyForFloor(ctx); err != nil {
			return fmt.Errorf("floor: %w", err)
		}
	}
	//   8. Delete everything, and measure the floor.
	if t.cfg.Delete {
		if err := t.remove(ctx, "delete"); err != nil {
			return fmt.Errorf("deletion: %w", err)
		}
	}
	if left == nil || len(t.run.Violations) > 0 || t.run.Lost != "" {
		return nil
	}
	return t.run.FloorError(ctx, left.measure(ctx))
}

func (t *trial) managerArgs() []string {
	if t.cfg.Profile {
		return []string{"--pprof"}
	}
	return nil
}

// watch records when applications run, until ctx is done.
func (t *trial) watch(ctx context.Context) error {
	note := func(a *oam.Application) {
		now := time.Now()
		t.seen.Note(a.Namespace, a.Name, func(s observation) observation {
			s.phase = a.Status.Phase
			if a.Status.Phase == oam.PhaseRunning && a.Status.ObservedGeneration == a.Generation && s.generation < a.Generation {
				s.at, s.generation = now, a.Generation
			}
			return s
		})
	}
	kind := informer.New(t.apps, "applications", informer.Options[*oam.Application]{Trim: func(a *oam.Application) {
		a.Spec = oam.ApplicationSpec{}
		a.Status = oam.ApplicationStatus{Phase: a.Status.Phase, ObservedGeneration: a.Status.ObservedGeneration}
	}})
	kind.Follow(note, func(a *oam.Application) { t.seen.Forget(a.Namespace, a.Name) })
	go kind.Run(ctx)
	soon, cancel := context.WithTimeout(ctx, t.cfg.Timeout)
	defer cancel()
	return kind.WaitForSync(soon)
}

// running counts the applications of a namespace that run in the given generation or a later one.
func (t *trial) running(namespace string, generation int64) int {
	return t.seen.Count(namespace, func(s observation) bool { return s.generation >= generation && s.phase == oam.PhaseRunning })
}

func (t *trial) submit(ctx context.Context, namespace string, n int) error {
	return t.Client.Submit(ctx, n, t.cfg.ClientConcurrency, func(i int) drive.Object { return t.application(namespace, i, 0) }, func(int) {})
}

// application returns the i-th application after some rounds of updates.
func (t *trial) application(namespace string, i, round int) *oam.Application {
	var clusters []string
	if t.where != nil {
		clusters = t.where(i)
	}
	return t.cfg.Shape.application(namespace, i, round, t.cfg.Replicas, clusters)
}

// await waits until n applications run in the generation. That the time ran out is an error, because
// the phases after it need applications that run.
func (t *trial) await(ctx context.Context, namespace string, n int, generation int64) error {
	err := t.Await(ctx, n, "applications ran", func() (int, error) { return t.running(namespace, generation), nil })
	if err == nil && t.TimedOut != "" {
		err = errors.New(t.TimedOut)
	}
	return err
}

func (t *trial) warm(ctx context.Context) error {
	if err := t.Client.CreateNamespace(ctx, warmUp); err != nil {
		return err
	}
	if err := t.submit(ctx, warmUp, warmUpApplications); err != nil {
		return err
	}
	if err := t.await(ctx, warmUp, warmUpApplications, 1); err != nil {
		return err
	}
	return errors.Join(t.Quiet(ctx), t.clear(ctx, warmUp, warmUpApplications), t.Quiet(ctx))
}

// clear deletes the n applications of a namespace and waits until they are deleted.
func (t *trial) clear(ctx context.Context, namespace string, n int) error {
	group, sending := errgroup.WithContext(ctx)
	group.SetLimit(t.cfg.ClientConcurrency)
	for i := range n {
		group.Go(func() error {
			err := t.apps.Delete().Namespace(namespace).Resource("applications").Name(name(i)).Body(&metav1.DeleteOptions{}).Do(sending).Error()
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	_, err := t.Log.Until(ctx, t.cfg.Timeout, func() (bool, error) { return t.there(namespace) == 0, nil })
	return err
}

// collected waits until the garbage collector has deleted the revisions of deleted applications, which it
// does only half a minute after the control plane has learnt of their kind. Applications of the same
// names would find them, and write more.
func (t *trial) collected(ctx context.Context) error {
	revisions := 0
	reached, err := t.Log.Until(ctx, t.cfg.Timeout, func() (bool, error) {
		list := &oam.ApplicationRevisionList{}
		err := t.apps.Get().Namespace(namespace).Resource("applicationrevisions").Param("limit", "1").Do(ctx).Into(list)
		revisions = len(list.Items)
		return err == nil && revisions == 0, err
	})
	if err == nil && !reached {
		err = fmt.Errorf("--timeout=%s ran out when there were revisions of deleted applications", t.cfg.Timeout)
	}
	return err
}

// there counts the applications of a namespace.
func (t *trial) there(namespace string) int {
	return t.seen.Count(namespace, func(observation) bool { return true })
}

// phase measures act and the time after it until everything is at rest.
func (t *trial) phase(ctx context.Context, what string, act func() error) (*Phase, error) {
	used, err := t.Load(ctx, act)
	events := t.SaveEvents(fmt.Sprintf("%02d-%s", t.run.Repeat, t.run.Scenario), strings.ReplaceAll(what, " ", "-"))
	if err := errors.Join(err, events); err != nil {
		return nil, err
	}
	p := &Phase{Name: what, began: used.Began}
	p.count(t, used)
	return p, nil
}

// done adds a phase to the run, reports it, and saves the report: later phases may take long and be
// interrupted.
func (t *trial) done(ctx context.Context, p *Phase) error {
	if t.cfg.Profile {
		if err := t.live(ctx, p); err != nil {
			return err
		}
	}
	t.run.Phases = append(t.run.Phases, *p)
	if p.Done > 0 {
		t.Say("%s: %s", p.Name, p.line(t.cfg.Applications))
	}
	return t.save()
}

func (t *trial) deploy(ctx context.Context, what string) (*Phase, error) {
	if err := t.collected(ctx); err != nil {
		return nil, err
	}
	n := t.cfg.Applications
	t.Say("%s: %d applications", what, n)
	p, err := t.phase(ctx, what, func() error {
		if err := t.submit(ctx, namespace, n); err != nil {
			return err
		}
		return t.await(ctx, namespace, n, 1)
	})
	if err != nil {
		return nil, err
	}
	t.timings(p, 1, "create")
	return p, errors.Join(t.done(ctx, p), t.check(ctx))
}

// hold measures the system at rest: no client writes, and no application is active.
func (t *trial) hold(ctx context.Context, what string) error {
	if t.cfg.Hold <= 0 {
		return nil
	}
	t.Say("%s: until all are at rest", what)
	asleep, err := t.Log.Until(ctx, t.cfg.Timeout, func() (bool, error) {
		awake, err := t.metric(ctx, "lockstep_applications_awake")
		return awake == 0, err
	})
	if err == nil && !asleep {
		err = errors.New("applications do not come to rest")
	}
	if err != nil {
		return err
	}
	t.Say("%s: %s", what, t.cfg.Hold)
	p, err := t.phase(ctx, what, func() error {
		_, err := t.Log.Until(ctx, t.cfg.Hold, func() (bool, error) { return false, nil })
		return err
	})
	if err != nil {
		return err
	}
	elapsed := time.Since(p.began)
	p.Seconds = round(elapsed.Seconds())
	perHour := p.CPUSeconds[string(localcluster.Manager)] * 3600 / elapsed.Seconds()
	if len(t.run.Phases) == 0 {
		t.run.RestCPUSecondsNone = round3(perHour)
	} else {
		t.run.RestCPUSeconds = round3(perHour)
		t.run.RestCPUMsPerHour = round3(max(0, perHour-t.run.RestCPUSecondsNone) * 1e3 / float64(t.cfg.Applications))
		t.run.Held = held(&t.run.Phases[0], p, t.cfg.Applications)
	}
	return t.done(ctx, p)
}

// metric returns the value of one of the manager's metrics.
func (t *trial) metric(ctx context.Context, name string) (float64, error) {
	data, err := t.ask(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("the manager has no metric %s", name)
}

// update calls after, and then changes a field of each application. number counts the updates from
// 1.
func (t *trial) update(ctx context.Context, what string, number int, after func() error) (*Phase, error) {
	t.Say("%s", what)
	p, err := t.phase(ctx, what, func() error {
		if err := after(); err != nil {
			return err
		}
		group, sending := errgroup.WithContext(ctx)
		group.SetLimit(t.cfg.ClientConcurrency)
		for i := range t.cfg.Applications {
			group.Go(func() error {
				app := t.application(namespace, i, number)
				data, err := json.Marshal(map[string]any{"spec": map[string]any{"components": app.Spec.Components}})
				if err != nil {
					return err
				}
				return t.apps.Patch(types.MergePatchType).Namespace(namespace).Resource("applications").Name(app.Name).Body(data).Do(sending).Error()
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
		return t.await(ctx, namespace, t.cfg.Applications, int64(number+1))
	})
	if err != nil {
		return nil, err
	}
	t.timings(p, int64(number+1), "patch")
	return p, errors.Join(t.done(ctx, p), t.check(ctx))
}

func (t *trial) remove(ctx context.Context, what string) error {
	t.Say("%s", what)
	p, err := t.phase(ctx, what, func() error { return t.clear(ctx, namespace, t.cfg.Applications) })
	if err != nil {
		return err
	}
	p.Done = t.cfg.Applications - t.there(namespace)
	p.Seconds = round(analyse.Since(p.began, p.lastWrite("applications.core.oam.dev", t)))
	p.rate()
	if err := t.done(ctx, p); err != nil {
		return err
	}
	left, err := t.objects(ctx)
	if err != nil {
		return err
	}
	for _, l := range left {
		t.run.Bad("%s is still there", l)
	}
	return nil
}
