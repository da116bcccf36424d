package archive

import (
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
	"k8s.io/client-go/util/workqueue"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/apiwriter"
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
	Log    *slog.Logger
}

const (
	// batchMax is the maximum number of workflows stored in one transaction.
	batchMax = 64
	// expireEvery is the interval at which workflows beyond the TTL are removed.
	expireEvery = 10 * time.Minute
	// retryAfter and retryMax bound the delay of the next attempt after a failure: a database that
	// is down is tried once a minute.
	retryAfter, retryMax = time.Second, time.Minute
)

// Keeper stores workflows in the archive when they have ended.
type Keeper struct {
	cfg    KeeperConfig
	client rest.Interface
	queue  workqueue.TypedRateLimitingInterface[types.NamespacedName]
}

// NewKeeper returns a Keeper and registers its handler with the informers, which must not have
// started.
func NewKeeper(cfg KeeperConfig) (*Keeper, error) {
	if cfg.DB == nil || cfg.REST == nil || cfg.Informers == nil || cfg.Writer == nil {
		return nil, errors.New("archive: a database, a cluster, informers and a writer are required")
	}
	if cfg.Labels == nil {
		cfg.Labels = labels.Everything()
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	client, err := kubeclient.ForGroupVersion(cfg.REST, nil, wf.GroupVersion, scheme.Scheme)
	if err != nil {
		return nil, fmt.Errorf("archive: %w", err)
	}
	k := &Keeper{cfg: cfg, client: client, queue: workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](retryAfter, retryMax))}
	cfg.Informers.Workflows.Follow(k.consider, nil)
	return k, nil
}

// Wants reports whether a finished workflow still has to be archived, and so must not be deleted
// yet.
func (k *Keeper) Wants(w *wf.Workflow) bool {
	return w.Status.Phase.Completed() && w.Labels[wf.LabelCompleted] == "true" && w.Labels[wf.LabelArchivingStatus] != Archived &&
		k.cfg.Labels.Matches(labels.Set(w.Labels))
}

func (k *Keeper) consider(w *wf.Workflow) {
	if k.Wants(w) {
		k.queue.Add(types.NamespacedName{Namespace: w.Namespace, Name: w.Name})
	}
}

// Run stores workflows until ctx is done.
func (k *Keeper) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() {
		for {
			batch, stopped := k.take()
			if stopped {
				return
			}
			k.store(ctx, batch)
		}
	})
	if k.cfg.TTL > 0 {
		running.Go(func() { k.expire(ctx) })
	}
	<-ctx.Done()
	k.queue.ShutDown()
	running.Wait()
}

// take waits for a workflow to store, and returns it with others that are waiting, at most
// batchMax.
func (k *Keeper) take() (batch []types.NamespacedName, stopped bool) {
	for len(batch) == 0 || len(batch) < batchMax && k.queue.Len() > 0 {
		key, stopped := k.queue.Get()
		if stopped {
			return nil, true
		}
		batch = append(batch, key)
	}
	return batch, false
}

// store reads the current versions of workflows, stores them in one transaction, and labels them.
func (k *Keeper) store(ctx context.Context, batch []types.NamespacedName) {
	var list []*wf.Workflow
	failed := func(keys []types.NamespacedName, err error) {
		if ctx.Err() == nil {
			k.cfg.Log.Warn("workflows could not be archived; trying again", "workflows", len(keys), "error", err)
		}
		for _, key := range keys {
			k.queue.AddRateLimited(key)
		}
	}
	defer func() {
		for _, key := range batch {
			k.queue.Done(key)
		}
	}()
	for _, key := range batch {
		w := &wf.Workflow{}
		err := k.client.Get().Namespace(key.Namespace).Resource("workflows").Name(key.Name).Do(ctx).Into(w)
		switch {
		case apierrors.IsNotFound(err):
			k.queue.Forget(key)
		case err != nil:
			failed([]types.NamespacedName{key}, err)
		case k.Wants(w):
			// The stored workflow has the label that the workflow will get.
			w.Labels[wf.LabelArchivingStatus] = Archived
			list = append(list, w)
		}
	}
	if len(list) == 0 {
		return
	}
	if err := k.cfg.DB.Put(ctx, time.Now(), list...); err != nil {
		keys := make([]types.NamespacedName, len(list))
		for i, w := range list {
			keys[i] = types.NamespacedName{Namespace: w.Namespace, Name: w.Name}
		}
		failed(keys, err)
		return
	}
	for _, w := range list {
		k.label(w)
	}
}

// label marks a workflow in the cluster as archived.
func (k *Keeper) label(w *wf.Workflow) {
	key := types.NamespacedName{Namespace: w.Namespace, Name: w.Name}
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]string{wf.LabelArchivingStatus: Archived}}})
	if err != nil {
		k.cfg.Log.Error("archive", "error", err)
		return
	}
	stub := &wf.Workflow{TypeMeta: w.TypeMeta, ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: w.Name, UID: w.UID}}
	k.cfg.Writer.Patch(apiwriter.Meta{Owner: "workflow/" + key.String(), Reason: "workflow-archived"}, stub, types.MergePatchType, data,
		func(_ apiwriter.Object, err error) {
			switch {
			case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err): // done, or gone
				k.queue.Forget(key)
			case !errors.Is(err, apiwriter.ErrStopped):
				k.cfg.Log.Warn("an archived workflow could not be labelled; trying again", "workflow", key, "error", err)
				k.queue.AddRateLimited(key)
			}
		})
}

// expire removes workflows beyond the TTL every expireEvery.
func (k *Keeper) expire(ctx context.Context) {
	tick := time.NewTicker(expireEvery)
	defer tick.Stop()
	for {
		n, err := k.cfg.DB.Expire(ctx, time.Now().Add(-k.cfg.TTL))
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			k.cfg.Log.Warn("old workflows could not be removed from the archive", "error", err)
		case n > 0:
			k.cfg.Log.Info("removed old workflows from the archive", "workflows", n)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
