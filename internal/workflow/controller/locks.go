package controller

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/keyed"
	"lockstep.dev/lockstep/internal/workflow/engine"
	"lockstep.dev/lockstep/internal/workflow/locks"
)

// lockKeeper keeps the table of locks, and tells workflows what they were granted.
type lockKeeper struct {
	c     *Controller
	table *locks.Table
	// reads reads ConfigMaps: in no turn of a workflow, and under no lock.
	reads *keyed.Loop[types.NamespacedName, keyed.Pause]

	mu      sync.Mutex
	limits  map[types.NamespacedName]*limits
	watches int
	// ghosts are workflows that are gone while pods of theirs run under locks, by their UID.
	ghosts map[types.UID]types.NamespacedName
	ctx    context.Context
}

// limits is a ConfigMap that holds limits of semaphores. It is known while semaphores of it are held or waited for.
type limits struct {
	read bool // data or err is what there is
	data map[string]string
	err  error
	// waiting are called when it has been read.
	waiting []func()
	// stop ends the watch; nil without one.
	stop context.CancelFunc
	// unused is how many sweeps in a row have found that nobody uses it.
	unused int
}

const (
	// readTimeout bounds one look at a ConfigMap, and readers how many there are at a time.
	readTimeout = 5 * time.Second
	readers     = 4
	// watchesMax bounds the ConfigMaps that are watched; others are looked at again and again, after lookAgain.
	watchesMax = 200
	lookAgain  = 15 * time.Second
)

func newLockKeeper(c *Controller) *lockKeeper {
	k := &lockKeeper{
		c: c, limits: map[types.NamespacedName]*limits{}, ghosts: map[types.UID]types.NamespacedName{}, ctx: context.Background(),
	}
	k.table = locks.New(k.limit)
	k.reads = keyed.New[types.NamespacedName, keyed.Pause](keyed.Config[types.NamespacedName]{
		Name: "workflow-limits", Workers: readers, Turn: k.look, Clock: c.Clock,
	})
	return k
}

// run reads and watches until ctx is done.
func (k *lockKeeper) run(ctx context.Context) {
	k.mu.Lock()
	k.ctx = ctx
	k.mu.Unlock()
	k.reads.Run(ctx)
}

// restore takes over what a workflow holds by its status.
func (k *lockKeeper) restore(w *wf.Workflow) {
	if k.c.Leads && w.Status.Synchronization != nil {
		k.table.Restore(locks.HeldBy(w.Namespace, w.Name, w.Status.Synchronization))
	}
}

// tell gives workflows their answers.
func (k *lockKeeper) tell(states []locks.State) {
	for _, s := range states {
		namespace, name := locks.WorkflowOf(s.Holder)
		k.c.loop.Post(types.NamespacedName{Namespace: namespace, Name: name}, keyed.Anyone, func(r *record) {
			if r.run != nil {
				r.events = append(r.events, engine.LockState(s))
			}
		})
	}
}

// abandon releases the locks of a workflow that is gone. While pods of it run, they are held for them.
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
	k.tell(k.table.Forget(key.Namespace, key.Name))
}

func (k *lockKeeper) podsRun(uid types.UID) bool {
	for _, p := range k.c.Informers.Pods.ByIndex(cluster.PodsByController, string(uid)) {
		if !ended(p) {
			return true
		}
	}
	return false
}

// podSeen releases the locks of a workflow that is gone with the last of its pods.
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
		k.tell(k.table.Forget(key.Namespace, key.Name))
	}
}
