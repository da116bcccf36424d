package archive

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// Archived is the value of the label workflow-archiving-status on archived workflows.
const Archived = "Archived"

// KeeperConfig configures a Keeper. DB, REST, Informers and Writer are required.
type KeeperConfig struct {
	DB        *DB
	REST      *rest.Config
	Informers *informer.Set
	Writer    apiwriter.Writer
	// TTL is how long the archive keeps workflows; zero means for ever.
	TTL time.Duration
	// Labels selects the workflows to archive; nil selects all.
	Labels labels.Selector
	// Clock defaults to the real clock.
	Clock clock.WithTicker
	Log   *slog.Logger
}

const (
	// workers is the number of workflows read at a time, and the maximum number of workflows stored
	// in one transaction.
	workers = 16
	// expireEvery is the interval at which workflows beyond the TTL are removed.
	expireEvery = 10 * time.Minute
	// retryMax bounds the backoff: a database that is down is tried once a minute.
	retryMax = time.Minute
)

// Keeper stores workflows in the archive after they have ended.
type Keeper struct {
	cfg    KeeperConfig
	client rest.Interface
	loop   *controlloop.Loop[types.NamespacedName, keeping]

	storing sync.Mutex // held while a transaction runs
	mu      sync.Mutex
	waiting []waiting // for the next transaction
}

// keeping is the in-memory state of a workflow that is being archived.
type keeping struct {
	// labelling is the UID of the workflow whose label is being written, or is written but not yet
	// in the cache.
	labelling types.UID
	failures  controlloop.Backoff
}

// waiting is a workflow that waits for a transaction.
type waiting struct {
	workflow *wf.Workflow
	stored   chan<- error
}

// NewKeeper returns a Keeper and registers its handlers with the informers, which must not have
// started.
func NewKeeper(cfg KeeperConfig) (*Keeper, error) {
	if cfg.DB == nil || cfg.REST == nil || cfg.Informers == nil || cfg.Writer == nil {
		return nil, errors.New("archive: a database, a cluster, informers and a writer are required")
	}
	if cfg.Labels == nil {
		cfg.Labels = labels.Everything()
	}
	cfg.Clock, cfg.Log = cmp.Or[clock.WithTicker](cfg.Clock, clock.RealClock{}), cmp.Or(cfg.Log, slog.Default())
	client, err := kubeclient.ForGroupVersion(cfg.REST, nil, wf.GroupVersion, scheme.Scheme)
	if err != nil {
		return nil, fmt.Errorf("archive: %w", err)
	}
	k := &Keeper{cfg: cfg, client: client}
	loop := controlloop.Config[types.NamespacedName]{Name: "archive", Workers: workers, Turn: k.turn, Clock: cfg.Clock}
	if cfg.TTL > 0 {
		loop.Sweep, loop.SweepEvery = func() { k.expire(k.loop.Context()) }, expireEvery
	}
	k.loop = controlloop.New[types.NamespacedName, keeping](loop)
	cfg.Informers.Workflows.Follow(k.consider, k.consider)
	return k, nil
}

// Wants reports whether a workflow has finished and is not yet archived, so that it must not be
// deleted.
func (k *Keeper) Wants(w *wf.Workflow) bool {
	return w.Status.Phase.Completed() && w.Labels[wf.LabelCompleted] == "true" && w.Labels[wf.LabelArchivingStatus] != Archived &&
		k.cfg.Labels.Matches(labels.Set(w.Labels))
}

func (k *Keeper) consider(w *wf.Workflow) {
	if key := informer.KeyOf(w); k.Wants(w) || k.loop.Get(key) != nil {
		k.loop.Wake(key)
	}
}

// Run stores workflows until ctx is done.
func (k *Keeper) Run(ctx context.Context) {
	var first sync.WaitGroup
	defer first.Wait()
	if k.cfg.TTL > 0 {
		first.Go(func() { k.expire(ctx) })
	}
	k.loop.Run(ctx)
}

// turn archives one workflow.
func (k *Keeper) turn(key types.NamespacedName) {
	cached, found := k.cfg.Informers.Workflows.Get(key.Namespace, key.Name)
	if !found || !k.Wants(cached) {
		k.loop.Drop(key)
		return
	}
	state := k.loop.Get(key)
	if state == nil {
		state = &keeping{failures: controlloop.Backoff{Max: retryMax}}
		k.loop.Put(key, state)
	}
	k.loop.Deliver(key, cached.UID)
	if state.labelling == cached.UID {
		return // the watch will show the label
	}
	if left := state.failures.Left(k.cfg.Clock.Now()); left > 0 {
		k.loop.WakeAfter(key, left)
		return
	}
	//   1. Read the whole workflow; the cache has only a part of it.
	ctx := k.loop.Context()
	w := &wf.Workflow{}
	err := k.client.Get().Namespace(key.Namespace).Resource("workflows").Name(key.Name).Do(ctx).Into(w)
	if apierrors.IsNotFound(err) || err == nil && !k.Wants(w) {
		return // the watch will show the same
	}
	//   2. Store it with the label that the workflow will get.
	if err == nil {
		w.Labels[wf.LabelArchivingStatus] = Archived
		err = k.store(ctx, w)
	}
	if err != nil {
		if ctx.Err() == nil {
			k.cfg.Log.Warn("a workflow could not be archived; trying again", "workflow", key, "error", err)
		}
		now := k.cfg.Clock.Now()
		state.failures.Failed(now)
		k.loop.WakeAfter(key, state.failures.Left(now))
		return
	}
	//   3. Label it.
	state.labelling = w.UID
	k.label(key, w)
}

// store stores a workflow in one transaction with all workflows that wait for a transaction.
func (k *Keeper) store(ctx context.Context, w *wf.Workflow) error {
	stored := make(chan error, 1)
	k.mu.Lock()
	k.waiting = append(k.waiting, waiting{w, stored})
	k.mu.Unlock()

	k.storing.Lock()
	defer k.storing.Unlock()
	k.mu.Lock()
	batch := k.waiting
	k.waiting = nil
	k.mu.Unlock()
	if len(batch) > 0 { // otherwise the previous transaction stored all
		list := make([]*wf.Workflow, len(batch))
		for i := range batch {
			list[i] = batch[i].workflow
		}
		err := k.cfg.DB.Put(ctx, k.cfg.Clock.Now(), list...)
		for _, b := range batch {
			b.stored <- err
		}
	}
	return <-stored
}

// label marks a workflow in the cluster as archived.
func (k *Keeper) label(key types.NamespacedName, w *wf.Workflow) {
	data, _ := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]string{wf.LabelArchivingStatus: Archived}}})
	stub := &wf.Workflow{TypeMeta: w.TypeMeta, ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: w.Name, UID: w.UID}}
	k.cfg.Writer.Patch(apiwriter.Meta{Owner: "workflow/" + key.String(), Reason: "workflow-archived"}, stub, types.MergePatchType, data,
		func(_ apiwriter.Object, err error) {
			if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) || errors.Is(err, apiwriter.ErrStopped) {
				return // labelled, or deleted
			}
			k.cfg.Log.Warn("an archived workflow could not be labelled; trying again", "workflow", key, "error", err)
			k.loop.Post(key, w.UID, func(state *keeping) {
				state.labelling = ""
				state.failures.Failed(k.cfg.Clock.Now())
			})
		})
}

// expire removes workflows beyond the TTL.
func (k *Keeper) expire(ctx context.Context) {
	switch n, err := k.cfg.DB.Expire(ctx, k.cfg.Clock.Now().Add(-k.cfg.TTL)); {
	case ctx.Err() != nil:
	case err != nil:
		k.cfg.Log.Warn("old workflows could not be removed from the archive", "error", err)
	case n > 0:
		k.cfg.Log.Info("removed old workflows from the archive", "workflows", n)
	}
}
