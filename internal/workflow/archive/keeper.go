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
	"lockstep.dev/lockstep/internal/workflow/compress"
)

// Archived is the value of the label workflow-archiving-status on workflows in the cluster that Argo's
// tables have: its server shows them from there, and no longer from the cluster.
// Workflows that Lockstep's own tables have are marked by wf.AnnotationArchived instead, which its
// server does not know, so that it lists them.
const Archived = "Archived"

// Marked reports whether a workflow has been archived.
func Marked(w *wf.Workflow) bool {
	return w.Labels[wf.LabelArchivingStatus] == Archived || w.Annotations[wf.AnnotationArchived] == mark(w)
}

// mark returns the value of wf.AnnotationArchived.
func mark(w *wf.Workflow) string { return w.Status.FinishedAt.UTC().Format(time.RFC3339) }

// Target says where finished workflows are kept, and which.
type Target struct {
	// Open opens the database. It is called again after errors.
	Open func(context.Context) (*DB, error)
	// Labels selects the workflows to archive; nil selects all. Of them, those of other instances of
	// the controller are left out.
	Labels     labels.Selector
	InstanceID string
	// TTL is how long the archive keeps workflows; zero means for ever.
	TTL time.Duration
}

// Wants reports whether a workflow has finished and is not yet archived, so that it must not be
// deleted. A nil target wants none.
func (t *Target) Wants(w *wf.Workflow) bool {
	return t != nil && w.Status.Phase.Completed() && w.Labels[wf.LabelCompleted] == "true" && w.Labels[wf.LabelInstanceID] == t.InstanceID &&
		!Marked(w) && (t.Labels == nil || t.Labels.Matches(labels.Set(w.Labels)))
}

// KeeperConfig configures a Keeper. Target, REST, Informers and Writer are required.
type KeeperConfig struct {
	// Target returns the present target, or nil. It returns another pointer only if the target has
	// changed.
	Target    func() *Target
	REST      *rest.Config
	Informers *informer.Set
	Writer    apiwriter.Writer
	// ReadNodes reads the nodes of a workflow that are in a database. If it is nil, such workflows are
	// archived without nodes.
	ReadNodes func(ctx context.Context, uid, version string) (wf.Nodes, error)
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

	storing sync.Mutex // held while a transaction runs, or the database is opened
	opened  *Target    // the target of db
	db      *DB
	mu      sync.Mutex
	waiting []waiting // for the next transaction
}

// keeping is the in-memory state of a workflow that is being archived.
type keeping struct {
	// marking is the UID of the workflow whose mark is being written, or is written but not yet in the
	// cache.
	marking  types.UID
	failures controlloop.Backoff
}

// waiting is a workflow that waits for a transaction.
type waiting struct {
	workflow *wf.Workflow
	stored   chan<- error
}

// NewKeeper returns a Keeper and registers its handlers with the informers, which must not have
// started.
func NewKeeper(cfg KeeperConfig) (*Keeper, error) {
	if cfg.Target == nil || cfg.REST == nil || cfg.Informers == nil || cfg.Writer == nil {
		return nil, errors.New("archive: a target, a cluster, informers and a writer are required")
	}
	cfg.Clock, cfg.Log = cmp.Or[clock.WithTicker](cfg.Clock, clock.RealClock{}), cmp.Or(cfg.Log, slog.Default())
	client, err := kubeclient.ForGroupVersion(cfg.REST, nil, wf.GroupVersion, scheme.Scheme)
	if err != nil {
		return nil, fmt.Errorf("archive: %w", err)
	}
	k := &Keeper{cfg: cfg, client: client}
	k.loop = controlloop.New[types.NamespacedName, keeping](controlloop.Config[types.NamespacedName]{
		Name: "archive", Workers: workers, Turn: k.turn, Clock: cfg.Clock,
		Sweep: func() { k.expire(k.loop.Context()) }, SweepEvery: expireEvery,
	})
	cfg.Informers.Workflows.Follow(k.consider, k.consider)
	return k, nil
}

// Wants reports whether a workflow has finished and is not yet archived, so that it must not be
// deleted.
func (k *Keeper) Wants(w *wf.Workflow) bool { return k.cfg.Target().Wants(w) }

// Changed takes in that the target has changed.
func (k *Keeper) Changed() {
	for _, w := range k.cfg.Informers.Workflows.List() {
		k.consider(w)
	}
}

func (k *Keeper) consider(w *wf.Workflow) {
	if key := informer.KeyOf(w); k.Wants(w) || k.loop.Get(key) != nil {
		k.loop.Wake(key)
	}
}

// Run stores workflows until ctx is done.
func (k *Keeper) Run(ctx context.Context) {
	var first sync.WaitGroup
	first.Go(func() { k.expire(ctx) })
	k.loop.Run(ctx)
	first.Wait()
	k.storing.Lock()
	defer k.storing.Unlock()
	k.close()
}

// database returns the database of a target. The caller holds storing.
func (k *Keeper) database(ctx context.Context, t *Target) (*DB, error) {
	if k.db != nil && k.opened == t {
		return k.db, nil
	}
	k.close()
	db, err := t.Open(ctx)
	if err != nil {
		return nil, err
	}
	k.cfg.Log.Info("archiving finished workflows", "archive", db)
	k.db, k.opened = db, t
	return db, nil
}

// close closes the database, if one is open. The caller holds storing.
func (k *Keeper) close() {
	if k.db == nil {
		return
	}
	if err := k.db.Close(); err != nil {
		k.cfg.Log.Warn("closing the archive", "error", err)
	}
	k.db, k.opened = nil, nil
}

// turn archives one workflow.
func (k *Keeper) turn(key types.NamespacedName) {
	target := k.cfg.Target()
	cached, found := k.cfg.Informers.Workflows.Get(key.Namespace, key.Name)
	if !found || !target.Wants(cached) {
		k.loop.Drop(key)
		return
	}
	state := k.loop.Get(key)
	if state == nil {
		state = &keeping{failures: controlloop.Backoff{Max: retryMax}}
		k.loop.Put(key, state)
	}
	k.loop.Deliver(key, cached.UID)
	if state.marking == cached.UID {
		return // the watch will show the mark
	}
	if left := state.failures.Left(k.cfg.Clock.Now()); left > 0 {
		k.loop.WakeAfter(key, left)
		return
	}
	//   1. Read the whole workflow; the cache has only a part of it.
	ctx := k.loop.Context()
	w := &wf.Workflow{}
	err := k.client.Get().Namespace(key.Namespace).Resource("workflows").Name(key.Name).Do(ctx).Into(w)
	if apierrors.IsNotFound(err) || err == nil && !target.Wants(w) {
		return // the watch will show the same
	}
	if _, unread := compress.Nodes(&w.Status); err == nil && errors.Is(unread, compress.ErrInDatabase) && k.cfg.ReadNodes != nil {
		var nodes wf.Nodes
		if nodes, err = k.cfg.ReadNodes(ctx, string(w.UID), w.Status.OffloadNodeStatusVersion); err == nil {
			w.Status.Nodes, w.Status.OffloadNodeStatusVersion = nodes, ""
		} else if errors.Is(err, compress.ErrNoNodes) {
			err = nil // nobody has them any more
		}
	}
	//   2. Store it.
	isShared := false
	if err == nil {
		isShared, err = k.store(ctx, target, w)
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
	//   3. Mark it.
	state.marking = w.UID
	k.mark(key, w, isShared)
}

// store stores a workflow in one transaction with all workflows that wait for a transaction. It
// reports whether the tables are Argo's.
func (k *Keeper) store(ctx context.Context, t *Target, w *wf.Workflow) (isShared bool, err error) {
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
	db, err := k.database(ctx, t)
	if len(batch) > 0 { // otherwise the previous transaction stored all
		if err == nil {
			list := make([]*wf.Workflow, len(batch))
			for i := range batch {
				list[i] = batch[i].workflow
			}
			if err = db.Put(ctx, k.cfg.Clock.Now(), list...); err != nil {
				k.close() // the next try reads the credentials anew
			}
		}
		for _, b := range batch {
			b.stored <- err
		}
	}
	if err := <-stored; err != nil || db == nil {
		return false, err
	}
	return db.Shared(), nil
}

// mark marks a workflow in the cluster as archived.
func (k *Keeper) mark(key types.NamespacedName, w *wf.Workflow, isShared bool) {
	metadata := map[string]any{"annotations": map[string]string{wf.AnnotationArchived: mark(w)}}
	if isShared {
		metadata = map[string]any{"labels": map[string]string{wf.LabelArchivingStatus: Archived}}
	}
	data, _ := json.Marshal(map[string]any{"metadata": metadata})
	stub := &wf.Workflow{TypeMeta: w.TypeMeta, ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: w.Name, UID: w.UID}}
	k.cfg.Writer.Patch(apiwriter.Meta{Owner: "workflow/" + key.String(), Reason: "workflow-archived"}, stub, types.MergePatchType, data,
		func(_ apiwriter.Object, err error) {
			if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) || errors.Is(err, apiwriter.ErrStopped) {
				return // marked, or deleted
			}
			k.cfg.Log.Warn("an archived workflow could not be marked; trying again", "workflow", key, "error", err)
			k.loop.Post(key, w.UID, func(state *keeping) {
				state.marking = ""
				state.failures.Failed(k.cfg.Clock.Now())
			})
		})
}

// expire removes workflows beyond the TTL.
func (k *Keeper) expire(ctx context.Context) {
	target := k.cfg.Target()
	if target == nil || target.TTL <= 0 {
		return
	}
	k.storing.Lock()
	defer k.storing.Unlock()
	n := 0
	db, err := k.database(ctx, target)
	if err == nil {
		n, err = db.Expire(ctx, k.cfg.Clock.Now().Add(-target.TTL))
	}
	switch {
	case ctx.Err() != nil:
	case err != nil:
		k.cfg.Log.Warn("old workflows could not be removed from the archive", "error", err)
	case n > 0:
		k.cfg.Log.Info("removed old workflows from the archive", "workflows", n)
	}
}
