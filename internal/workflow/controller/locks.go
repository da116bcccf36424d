package controller

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/workflow/engine"
	"lockstep.dev/lockstep/internal/workflow/locks"
)

// lockKeeper owns the table of locks and posts granted locks to the workflows.
type lockKeeper struct {
	c     *Controller
	table *locks.Table
	// database has the locks that controllers of several clusters share.
	database *lockDatabase
	// reads is the loop that reads ConfigMaps with limits, outside the turns of workflows and
	// without holding a mutex.
	reads *controlloop.Loop[types.NamespacedName, controlloop.Backoff]

	mu      sync.Mutex
	limits  map[types.NamespacedName]*limits
	watches int
	// ghosts are deleted workflows whose pods still run under locks, by UID.
	ghosts map[types.UID]types.NamespacedName
	ctx    context.Context
}

// limits is the state of one ConfigMap that holds semaphore limits. It is kept while its semaphores
// are held or waited for.
type limits struct {
	read bool // data or err is valid
	data map[string]string
	err  error
	// waiting are the functions to call once the ConfigMap has been read.
	waiting []func()
	// stop ends the watch; nil if the ConfigMap is not watched.
	stop context.CancelFunc
	// unused counts the consecutive sweeps that found the ConfigMap unused.
	unused int
}

const (
	// readTimeout bounds one read of a ConfigMap; readers is the number of concurrent reads.
	readTimeout = 5 * time.Second
	readers     = 4
	// watchesMax bounds the number of watched ConfigMaps. The others are read again every
	// lookAgain.
	watchesMax = 200
	lookAgain  = 15 * time.Second
)

func newLockKeeper(c *Controller) *lockKeeper {
	k := &lockKeeper{
		c: c, limits: map[types.NamespacedName]*limits{}, ghosts: map[types.UID]types.NamespacedName{}, ctx: context.Background(),
	}
	k.table = locks.New(k.limit)
	k.database = newLockDatabase(c, k.table)
	k.reads = controlloop.New[types.NamespacedName, controlloop.Backoff](controlloop.Config[types.NamespacedName]{
		Name: "workflow-limits", Workers: readers, Turn: k.look, Clock: c.Clock,
	})
	return k
}

// run reads and watches ConfigMaps until ctx is done.
func (k *lockKeeper) run(ctx context.Context) {
	k.mu.Lock()
	k.ctx = ctx
	k.mu.Unlock()
	var database sync.WaitGroup
	database.Go(func() { k.database.run(ctx) })
	k.reads.Run(ctx)
	database.Wait()
}

// release drops the locks and the request of a holder.
func (k *lockKeeper) release(holder string) {
	k.tell(k.table.Release(holder))
	k.database.wake()
}

// forget releases all holders of a workflow.
func (k *lockKeeper) forget(key types.NamespacedName) {
	k.tell(k.table.Forget(key.Namespace, key.Name))
	k.database.wake()
}

// restore acquires the locks that a workflow holds by its status. It does nothing unless this
// manager leads.
func (k *lockKeeper) restore(w *wf.Workflow) {
	if k.c.Leads && w.Status.Synchronization != nil {
		k.table.Restore(locks.HeldBy(w.Namespace, w.Name, w.Status.Synchronization))
	}
}

// tell posts the states of locks to the workflows of their holders.
func (k *lockKeeper) tell(states []locks.State) {
	for _, s := range states {
		namespace, name := locks.WorkflowOf(s.Holder)
		k.c.loop.Post(types.NamespacedName{Namespace: namespace, Name: name}, controlloop.Anyone, func(r *record) {
			if r.run != nil {
				r.events = append(r.events, engine.LockState(s))
			}
		})
	}
}

// abandon releases the locks of a deleted workflow, or keeps them until the last of its pods has
// ended. If elsewhere is true, the workflow still exists and the locks stay as they are.
func (k *lockKeeper) abandon(key types.NamespacedName, uid types.UID, elsewhere bool) {
	if elsewhere {
		return
	}
	if k.podsRun(uid) {
		k.mu.Lock()
		k.ghosts[uid] = key
		k.mu.Unlock()
		return
	}
	k.forget(key)
}

func (k *lockKeeper) podsRun(uid types.UID) bool {
	for _, p := range k.c.Informers.Pods.ByIndex(informer.PodsByController, string(uid)) {
		if !ended(p) {
			return true
		}
	}
	return false
}

// podSeen releases the locks of a deleted workflow after its last pod is gone.
func (k *lockKeeper) podSeen(uid types.UID, key types.NamespacedName, gone bool) {
	if !gone {
		return
	}
	k.mu.Lock()
	_, ghost := k.ghosts[uid]
	k.mu.Unlock()
	if !ghost || k.podsRun(uid) {
		return
	}
	k.mu.Lock()
	delete(k.ghosts, uid)
	k.mu.Unlock()
	if w, found := k.c.Informers.Workflows.Get(key.Namespace, key.Name); !found || w.UID == uid {
		k.forget(key)
	}
}
