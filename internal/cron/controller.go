package cron

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/panics"
)

// workers is the number of crons reconciled concurrently, not counting those that wait for an
// answer.
const workers = 8

// Config configures a Controller of crons of type C, whose runs are cached as type R. The fields
// above Owns are required.
type Config[C, R apiwriter.Object] struct {
	// Name is the name of the work queue, for example "crons". Prefix begins the names of owners of
	// writes, and the reasons of writes: "cron" for cron/namespace/name and cron-status.
	Name, Prefix string
	Crons        *informer.Informer[C]
	Runs         *informer.Informer[R]
	// Index is the index of Runs by the UID of their cron.
	Index string
	// Kind is the kind of the crons in the owner references of their runs.
	Kind   string
	Decide func(Turn[C, R]) (Plan[C], error)
	// Made converts a run that was just created to what the cache will have of it.
	Made   func(apiwriter.Object) R
	Writer apiwriter.Writer

	// Owns reports whether this manager owns a cron; nil means that it owns all. Call Resync after
	// the answers of Owns have changed.
	Owns func(namespace, name string) bool
	// Guard recovers from panics that one cron causes. If Guard is nil, a panic ends the process.
	Guard *panics.Guard
	// Clock defaults to the real clock.
	Clock clock.WithTicker
	Log   *slog.Logger
}

// Turn is what Decide decides from.
type Turn[C, R any] struct {
	Context context.Context
	Cron    C
	Runs    []R // including one that was just created; in no order
	// Passed is the field of the previous plan, or zero.
	Passed, Now time.Time
	// Yield runs a function that waits, while another cron has the worker.
	Yield func(wait func())
}

// Plan says what to do about a cron.
type Plan[C any] struct {
	// Replace are the writes that end the runs that Start replaces. Start is the run to create, or
	// nil.
	Replace []func(m apiwriter.Meta, done func(apiwriter.Object, error))
	Start   apiwriter.Object
	// Remove are the runs to delete: those beyond the history limits.
	Remove []apiwriter.Object
	// Started and Refused change the plan's status after Start was created, or was refused. Refused
	// reports whether the status did not say so before.
	Started func(created apiwriter.Object)
	Refused func(err error) (news bool)
	// Insist means that a refused run is tried again, with growing delays, for as long as its time
	// is due.
	Insist bool
	// Status returns the patch that writes the plan's status, and the cron after that, but for its
	// resource version. A nil patch means that nothing has changed.
	Status func() (patch []byte, after C, err error)
	// StatusOnly means that the kind has a status subresource.
	StatusOnly bool
	// Passed is the last due time that has been decided; Skipped is the reason if no run is started
	// for it.
	Passed  time.Time
	Skipped string
	// Wake is the time to decide again; zero if only a change requires that.
	Wake time.Time
}

// Controller starts runs on the schedules of crons.
type Controller[C, R apiwriter.Object] struct {
	cfg  Config[C, R]
	loop *controlloop.Loop[types.NamespacedName, state[C, R]]
}

// state is the in-memory state of one cron that the caches may not show yet or that is not stored
// at all.
type state[C, R apiwriter.Object] struct {
	uid types.UID
	// passed is Plan.Passed.
	passed time.Time
	// latest is the cron after the last write, and created is the run created last; each is nil
	// once the caches show it.
	latest  *C
	created *R
	// conflict is the resource version for which a status write was refused because the server had
	// a newer one. The watch will show that version.
	conflict string
}

// New returns a Controller. It registers handlers of the informers, which the caller runs.
func New[C, R apiwriter.Object](cfg Config[C, R]) (*Controller[C, R], error) {
	if cfg.Crons == nil || cfg.Runs == nil || cfg.Decide == nil || cfg.Made == nil || cfg.Writer == nil {
		return nil, errors.New("cron: informers, Decide, Made and a writer are required")
	}
	if cfg.Owns == nil {
		cfg.Owns = func(string, string) bool { return true }
	}
	cfg.Clock, cfg.Log = cmp.Or[clock.WithTicker](cfg.Clock, clock.RealClock{}), cmp.Or(cfg.Log, slog.Default())
	c := &Controller[C, R]{cfg: cfg}
	c.loop = controlloop.New[types.NamespacedName, state[C, R]](controlloop.Config[types.NamespacedName]{
		Name: cfg.Name, Workers: workers, Turn: c.turn, Guard: cfg.Guard, Panicked: c.panicked, Clock: cfg.Clock,
	})
	cfg.Crons.Handle(informer.Handler[C]{Added: c.wake, Updated: func(_, cron C) { c.wake(cron) }, Deleted: c.wake})
	cfg.Runs.Follow(c.wakeOwner, c.wakeOwner)
	return c, nil
}

func (c *Controller[C, R]) wake(cron C) { c.loop.Wake(informer.KeyOf(cron)) }

func (c *Controller[C, R]) wakeOwner(run R) {
	if owner := metav1.GetControllerOfNoCopy(run); owner != nil && owner.Kind == c.cfg.Kind {
		c.loop.Wake(types.NamespacedName{Namespace: run.GetNamespace(), Name: owner.Name})
	}
}

// ByCron returns the index of runs by the UID of their cron.
func ByCron[R metav1.Object](kind string) func(R) []string {
	return func(run R) []string {
		if owner := metav1.GetControllerOfNoCopy(run); owner != nil && owner.Kind == kind {
			return []string{string(owner.UID)}
		}
		return nil
	}
}

// Resync reconciles every cron again, after ownership has changed.
func (c *Controller[C, R]) Resync() {
	for _, cron := range c.cfg.Crons.List() {
		c.wake(cron)
	}
}

// Run runs the workers until ctx is done, once the informers have synced.
func (c *Controller[C, R]) Run(ctx context.Context) {
	if c.cfg.Crons.WaitForSync(ctx) == nil && c.cfg.Runs.WaitForSync(ctx) == nil {
		c.loop.Run(ctx)
	}
}

// panicked sets apart a cron until it is changed.
func (c *Controller[C, R]) panicked(key types.NamespacedName, p *panics.Panic) {
	if cron, found := c.cfg.Crons.Get(key.Namespace, key.Name); found {
		c.cfg.Crons.SetApart(key.Namespace, key.Name, cron.GetUID(), p)
	}
}

// turn reconciles one cron and schedules the next time.
func (c *Controller[C, R]) turn(key types.NamespacedName) {
	cron, found := c.cfg.Crons.Get(key.Namespace, key.Name)
	if c.loop.Context().Err() != nil {
		return
	}
	if !found || cron.GetDeletionTimestamp() != nil || !c.cfg.Owns(key.Namespace, key.Name) {
		c.loop.Drop(key)
		return
	}
	s := c.loop.Get(key)
	if s == nil || s.uid != cron.GetUID() {
		s = &state[C, R]{uid: cron.GetUID()}
		c.loop.Put(key, s)
	}
	wake, err := c.reconcile(c.loop.Context(), key, s.seen(cron), s)
	switch {
	case c.loop.Context().Err() != nil:
	case err != nil:
		c.cfg.Log.Warn("a cron could not be brought up to date; trying again", "kind", c.cfg.Kind, "cron", key, "error", err)
		c.loop.Retry(key)
	default:
		c.loop.Succeeded(key)
	}
	if !wake.IsZero() {
		c.loop.WakeAfter(key, wake.Sub(c.cfg.Clock.Now()))
	}
}

// reconcile makes a plan for one cron and carries it out. It returns the time to reconcile again,
// or zero if only a change requires that.
func (c *Controller[C, R]) reconcile(ctx context.Context, key types.NamespacedName, cron C, remembered *state[C, R]) (wake time.Time, err error) {
	if cron.GetResourceVersion() == remembered.conflict {
		return time.Time{}, nil
	}
	//   1. Decide.
	p, err := c.cfg.Decide(Turn[C, R]{Context: ctx, Cron: cron, Runs: c.runs(cron, remembered), Passed: remembered.passed,
		Now: c.cfg.Clock.Now(), Yield: c.loop.Yield})
	if err != nil || !c.cfg.Owns(key.Namespace, key.Name) { // evaluations take time
		return time.Time{}, err
	}
	if p.Skipped != "" {
		c.cfg.Log.Info("a time of a cron passed without a run", "kind", c.cfg.Kind, "cron", key, "time", p.Passed, "reason", p.Skipped)
		c.cfg.Writer.Event(cron, corev1.EventTypeNormal, "Skipped", fmt.Sprintf("%s: %s", p.Passed.UTC().Format(time.RFC3339), p.Skipped))
	}
	//   2. End the runs to be replaced.
	m := apiwriter.Meta{Owner: c.cfg.Prefix + "/" + key.String()}
	for _, end := range p.Replace {
		m.Reason = c.cfg.Prefix + "-replace"
		_, err := controlloop.Await(c.loop, func(done func(apiwriter.Object, error)) { end(m, done) })
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // otherwise it is deleted
			return time.Time{}, fmt.Errorf("end the run to be replaced: %w", err)
		}
	}
	//   3. Start.
	decided := p.Skipped != "" // the due time is decided for good
	var refused error
	if p.Start != nil {
		m.Reason = c.cfg.Prefix + "-run"
		switch created, err := controlloop.Await(c.loop, func(done func(apiwriter.Object, error)) { c.cfg.Writer.Create(m, p.Start, done) }); {
		case err == nil:
			p.Started(created)
			run := c.cfg.Made(created)
			remembered.created, decided = &run, true
			c.cfg.Log.Info("started a run of a cron", "kind", c.cfg.Kind, "cron", key, "run", p.Start.GetName())
		case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) || apierrors.IsAlreadyExists(err):
			if p.Refused(err) {
				c.cfg.Writer.Event(cron, corev1.EventTypeWarning, "SubmissionFailed", err.Error())
			}
			if p.Insist {
				p.Passed, refused = remembered.passed, fmt.Errorf("start %s: %w", p.Start.GetName(), err)
			}
		default:
			return time.Time{}, fmt.Errorf("start %s: %w", p.Start.GetName(), err)
		}
	}
	before := remembered.passed
	remembered.passed = p.Passed
	//   4. Write the status.
	switch latest, err := c.report(m, cron, &p); {
	case apierrors.IsNotFound(err): // deleted meanwhile
	case apierrors.IsConflict(err):
		// The cron has changed, or another manager owns it. The plan is made again from the
		// version that the watch will show, including a fault at the due time, which no status
		// would report otherwise.
		remembered.conflict = cron.GetResourceVersion()
		if !decided {
			remembered.passed = before
		}
		return time.Time{}, nil
	case err != nil:
		return time.Time{}, fmt.Errorf("status: %w", err)
	case latest != nil:
		remembered.latest = latest
	}
	//   5. Clean up.
	for _, old := range p.Remove {
		c.cfg.Writer.Delete(apiwriter.Meta{Owner: m.Owner, Reason: c.cfg.Prefix + "-history"}, old,
			apiwriter.DeleteOptions{Propagation: metav1.DeletePropagationBackground}, nil)
	}
	return p.Wake, refused
}

// seen returns the later of the versions of a cron in the cache and after the last write.
func (s *state[C, R]) seen(cron C) C {
	if s.latest != nil && informer.Older(cron.GetResourceVersion(), (*s.latest).GetResourceVersion()) {
		return *s.latest
	}
	s.latest = nil
	return cron
}

// runs returns the runs of a cron, including one that was just created.
func (c *Controller[C, R]) runs(cron C, s *state[C, R]) []R {
	known := false
	seen := c.cfg.Runs.SeenVersion() // read before the cache, which then has every write up to this version
	out := c.cfg.Runs.ByIndex(c.cfg.Index, string(cron.GetUID()))
	for _, r := range out {
		known = known || s.created != nil && r.GetUID() == (*s.created).GetUID()
	}
	switch {
	case s.created == nil:
	case known || !informer.Older(seen, (*s.created).GetResourceVersion()):
		s.created = nil // the cache has caught up: a run that it does not show is deleted
	default:
		out = append(out, *s.created)
	}
	return out
}

// report writes the status of a plan, conditional on the version of the cron that the plan was made
// from. It returns the cron after the write, or nil if there was nothing to write.
func (c *Controller[C, R]) report(m apiwriter.Meta, cron C, p *Plan[C]) (*C, error) {
	patch, after, err := p.Status()
	if err != nil || patch == nil {
		return nil, err
	}
	m.Reason, m.StatusOnly = c.cfg.Prefix+"-status", p.StatusOnly
	got, err := controlloop.Await(c.loop, func(done func(apiwriter.Object, error)) { c.cfg.Writer.PatchVersion(m, cron, false, patch, done) })
	if err != nil {
		return nil, err
	}
	after.SetResourceVersion(got.GetResourceVersion())
	return &after, nil
}
