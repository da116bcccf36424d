package engine

import (
	"cmp"
	"fmt"
	"regexp"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/locks"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// lockAndCache is the check that precedes a template that needs locks or has a cache. The
// template's node is started when it has the locks and the cache does not have its outputs.
//
//	enter ──▶ ask for locks ──granted──▶ ask the cache ──miss──▶ proceed
//	              │ waiting                    └──hit──▶ Succeeded
//	              └──▶ node Pending, until granted
type lockAndCache struct {
	run    *Run
	node   *node
	call   call
	t      *compiled
	inputs *inputsScope
	kind   wf.NodeType
	holder string
	keys   []string
	memo   *wf.Memoize
	maxAge time.Duration
}

// acquire runs a template once it has its locks and the cache has answered.
func (r *Run) acquire(n *node, c *call, t *compiled, inputs *inputsScope) *node {
	old := r.nodes[wf.NodeID(r.Workflow.Name, c.name)]
	known := old != nil && old.known
	g := &lockAndCache{
		run: r, node: n, call: *c, t: t, inputs: inputs, kind: kindOf(t.Template),
		holder: locks.HolderKey(r.Workflow.Namespace, r.Workflow.Name, wf.NodeID(r.Workflow.Name, c.name)),
	}
	if t.RetryStrategy != nil {
		g.kind = wf.NodeRetry
	}
	if known && old.Phase.Fulfilled() || r.stopping != "" && !c.onExit && !known {
		return g.proceed()
	}
	if err := g.prepare(); err != nil {
		return r.fail(n, c, err)
	}
	if key, holder := g.heldAround(g.keys); !known && holder != "" && !locks.IsSemaphore(key) {
		return r.fail(n, c, fmt.Errorf("synchronization: mutex %s is held by %s, which waits for this node: it would wait for ever",
			locks.Shown(key), holder))
	}
	n.ending = append(n.ending, g.release)
	waits := known && old.SynchronizationStatus != nil && old.SynchronizationStatus.Waiting != ""
	asks := known && g.memo != nil && old.MemoizationStatus == nil && len(old.Children) == 0 && !r.observed[old.ID]
	holds := known && !waits && r.hasLocks(g.holder, g.keys)
	switch {
	case holds && asks:
		r.begin(n, &g.call, g.kind)
		n.known = false
		g.lookup()
	case holds:
		return g.proceed()
	case len(g.keys) > 0:
		r.begin(n, &g.call, g.kind)
		n.Phase, n.Inputs = wf.PhasePending, inputs.resolved
		n.SynchronizationStatus = &wf.NodeSynchronizationStatus{Waiting: locks.Shown(g.keys[0])}
		g.startTimer()
		r.requestLocks(g.holder, g.keys, n.StartedAt.Time, g)
	default:
		g.lookup()
	}
	return n
}

// heldAround returns the first of the locks that the workflow or an enclosing node holds, and the
// holder's name. The holder releases the lock only after this node has ended.
func (g *lockAndCache) heldAround(keys []string) (key, holder string) {
	r := g.run
	for _, key := range keys {
		holders := r.holds[key]
		if len(holders) == 0 {
			continue
		}
		if holders[locks.HolderKey(r.Workflow.Namespace, r.Workflow.Name, "")] {
			return key, "the workflow"
		}
		around := cmp.Or(g.call.parent, g.call.boundary)
		for ; around != nil; around = cmp.Or(around.parent, r.nodes[around.BoundaryID]) {
			if holders[locks.HolderKey(r.Workflow.Namespace, r.Workflow.Name, around.ID)] {
				return key, "node " + around.DisplayName
			}
		}
	}
	return "", ""
}

var cacheKey = regexp.MustCompile(`^[-._a-zA-Z0-9]{1,253}$`)

// prepare resolves the keys of the locks and of the cache entry.
func (g *lockAndCache) prepare() error {
	passes := []template.Scope{g.run.globals, g.inputs}
	if s := g.t.Synchronization; s != nil {
		keys, err := lockKeys(s, g.run.Workflow.Namespace, passes)
		if err != nil {
			return fmt.Errorf("synchronization.%w", err)
		}
		g.keys = keys
	}
	if g.t.Memoize == nil {
		return nil
	}
	memo := *g.t.Memoize.DeepCopy()
	err := template.Resolve(&memo, passes, known...)
	if err == nil && !cacheKey.MatchString(memo.Key) {
		err = fmt.Errorf("key: '%s' is not a key of a ConfigMap", shorten(memo.Key))
	}
	if err == nil && memo.MaxAge != "" {
		g.maxAge, err = duration(memo.MaxAge)
	}
	if err != nil {
		return fmt.Errorf("memoize.%w", err)
	}
	g.memo = &memo
	return nil
}

// databaseName matches the names that locks of the database may have: its columns are bounded.
var databaseName = regexp.MustCompile(`^[!-~]{1,180}$`)

const noDatabaseName = "is no name of a lock in the database: 1 to 180 visible ASCII characters"

// lockKeys returns the keys of the requested locks.
func lockKeys(s *wf.Synchronization, namespace string, passes []template.Scope) ([]string, error) {
	resolved := *s.DeepCopy()
	if err := template.Resolve(&resolved, passes, known...); err != nil {
		return nil, err
	}
	var keys []string
	for i, m := range resolved.AllMutexes() {
		if m.Name == "" {
			return nil, fmt.Errorf("mutexes[%d].name: is required", i)
		}
		in, err := lockNamespace(m.Namespace, namespace)
		if err != nil {
			return nil, fmt.Errorf("mutexes[%d].namespace: %w", i, err)
		}
		if !m.Database {
			keys = append(keys, locks.MutexKey(in, m.Name))
			continue
		}
		if !databaseName.MatchString(m.Name) {
			return nil, fmt.Errorf("mutexes[%d].name: '%s' %s", i, shorten(m.Name), noDatabaseName)
		}
		keys = append(keys, locks.DatabaseMutexKey(in, m.Name))
	}
	for i, s := range resolved.AllSemaphores() {
		if s.Database != nil {
			in, err := lockNamespace(s.Namespace, namespace)
			if err != nil {
				return nil, fmt.Errorf("semaphores[%d].namespace: %w", i, err)
			}
			if !databaseName.MatchString(s.Database.Key) {
				return nil, fmt.Errorf("semaphores[%d].database.key: '%s' %s", i, shorten(s.Database.Key), noDatabaseName)
			}
			keys = append(keys, locks.DatabaseSemaphoreKey(in, s.Database.Key))
			continue
		}
		if s.ConfigMapKeyRef == nil || s.ConfigMapKeyRef.Name == "" || s.ConfigMapKeyRef.Key == "" {
			return nil, fmt.Errorf("semaphores[%d].configMapKeyRef: name and key are required", i)
		}
		in, err := lockNamespace(s.Namespace, namespace)
		if err != nil {
			return nil, fmt.Errorf("semaphores[%d].namespace: %w", i, err)
		}
		keys = append(keys, locks.SemaphoreKey(in, s.ConfigMapKeyRef.Name, s.ConfigMapKeyRef.Key))
	}
	return keys, nil
}

// lockNamespace returns the namespace of a lock. A workflow must not take locks of another
// namespace, where it could block other workflows, unless that is the shared namespace.
func lockNamespace(named, own string) (string, error) {
	if named == "" {
		return own, nil
	}
	if !locks.Reachable(named, own) {
		return "", fmt.Errorf("workflows of namespace %s take no locks of namespace %s; locks for all namespaces are in %s",
			own, named, locks.SharedNamespace)
	}
	return named, nil
}

// lockState handles an answer to the lock request.
func (g *lockAndCache) lockState(s LockState) {
	n := g.node
	if n.Phase.Fulfilled() {
		return
	}
	switch {
	case s.Err != nil:
		n.SynchronizationStatus, n.known = nil, false
		g.run.fail(n, &g.call, s.Err)
	case s.Granted:
		n.SynchronizationStatus, n.known = nil, false // from here on the node is treated as new
		n.touch()
		g.lookup()
	default:
		n.SynchronizationStatus = &wf.NodeSynchronizationStatus{Waiting: locks.Shown(s.Waiting)}
		if _, holder := g.heldAround([]string{s.Waiting}); holder != "" {
			s.Message += fmt.Sprintf("; %s holds it and waits for this node", holder)
		}
		n.set(wf.PhasePending, s.Message)
	}
}

// startTimer bounds the wait by the template's timeout, which starts when the node becomes Pending.
func (g *lockAndCache) startTimer() {
	text, err := resolveText(g.t.Timeout, []template.Scope{g.run.globals, g.inputs})
	if err != nil || text == "" {
		return
	}
	if d, err := duration(text); err == nil {
		g.run.at(g.node.StartedAt.Add(d), func() { g.cancel("Step exceeded its timeout of " + text) })
	}
}

// cancel fails the node if it still waits.
func (g *lockAndCache) cancel(message string) {
	if g.run.lockWaiters[g.holder] == nil && g.run.lookups[g.id()] == nil || g.node.Phase.Fulfilled() {
		return
	}
	g.node.SynchronizationStatus = nil
	g.node.set(wf.PhaseFailed, message)
}

func (g *lockAndCache) id() string     { return wf.NodeID(g.run.Workflow.Name, g.call.name) }
func (g *lockAndCache) survives() bool { return g.call.onExit }

// lookup requests the cached outputs, or proceeds if the template has no cache.
func (g *lockAndCache) lookup() {
	if g.memo == nil {
		g.proceed()
		return
	}
	if g.node.run == nil {
		g.run.begin(g.node, &g.call, g.kind)
		g.node.Phase, g.node.Inputs = wf.PhasePending, g.inputs.resolved
	}
	put(&g.run.lookups, g.id(), g)
	g.run.out.Lookups = append(g.run.out.Lookups, CacheLookup{g.id(), g.memo.Cache.ConfigMap.Name, g.memo.Key})
}

// cached handles the answer of the cache.
func (g *lockAndCache) cached(e CacheAnswer) {
	r, n := g.run, g.node
	if n.Phase.Fulfilled() {
		return
	}
	if e.Err != nil {
		r.fail(n, &g.call, e.Err)
		return
	}
	hit := e.Found && (g.maxAge == 0 || !e.Created.Add(g.maxAge).Before(r.now))
	status := &wf.MemoizationStatus{Hit: hit, Key: g.memo.Key, CacheName: g.memo.Cache.ConfigMap.Name}
	n.MemoizationStatus = status
	n.touch()
	if !hit {
		g.proceed()
		return
	}
	r.begin(n, &g.call, kindOf(g.t.Template))
	n.Inputs = g.inputs.resolved
	n.give(e.Outputs.DeepCopy())
	if n.Outputs != nil {
		r.export(n.Outputs)
	}
	n.set(wf.PhaseSucceeded, "")
}

func (g *lockAndCache) proceed() *node { return g.run.runTemplate(g.node, &g.call, g.t, g.inputs) }

// release releases the locks and stores the outputs in the cache when the node has ended.
func (g *lockAndCache) release() {
	r, n := g.run, g.node
	r.unlock(g.holder)
	delete(r.lookups, g.id())
	if g.memo != nil && n.Phase == wf.PhaseSucceeded && (n.MemoizationStatus == nil || !n.MemoizationStatus.Hit) {
		r.out.Stores = append(r.out.Stores, CacheStore{g.memo.Cache.ConfigMap.Name, g.memo.Key, n.ID, n.Outputs, r.now})
	}
}

// waiter waits for locks: a lockAndCache, or the workflow itself.
type waiter interface {
	lockState(LockState)
	cancel(message string)
	survives() bool // keeps waiting when the workflow is stopped
}

// requestLocks requests locks for holder. w gets each change of the request's state.
func (r *Run) requestLocks(holder string, keys []string, since time.Time, w waiter) {
	put(&r.lockWaiters, holder, w)
	put(&r.requestedKeys, holder, keys)
	request := locks.Request{Holder: holder, Keys: keys, Created: r.Workflow.CreationTimestamp.Time, Since: since}
	if request.Since.IsZero() {
		request.Since = r.now
	}
	if p := r.spec.Priority; p != nil {
		request.Priority = *p
	}
	r.out.Locks = append(r.out.Locks, request)
}

// lockState passes the state of a request to its waiter.
func (r *Run) lockState(s LockState) {
	w := r.lockWaiters[s.Holder]
	if w == nil {
		return
	}
	r.locksChanged = true
	delete(r.waitingLocks, s.Holder)
	switch {
	case s.Granted:
		delete(r.lockWaiters, s.Holder)
		r.addLocks(s.Holder, r.requestedKeys[s.Holder])
		delete(r.requestedKeys, s.Holder)
		r.out.StatusFirst = true
	case s.Err != nil:
		delete(r.lockWaiters, s.Holder)
		delete(r.requestedKeys, s.Holder)
	default:
		put(&r.waitingLocks, s.Holder, s)
	}
	w.lockState(s)
}

// addLocks records that holder has locks.
func (r *Run) addLocks(holder string, keys []string) {
	for _, key := range keys {
		if !r.holds[key][holder] {
			r.addHolder(key, holder)
			r.locksChanged = true
		}
	}
}

func (r *Run) addHolder(key, holder string) {
	holders := r.holds[key]
	put(&holders, holder, true)
	put(&r.holds, key, holders)
}

// hasLocks reports whether the holder has all of the locks. Running nodes have their locks, unless
// a user made the workflow run again after its end.
func (r *Run) hasLocks(holder string, keys []string) bool {
	for _, key := range keys {
		if !r.holds[key][holder] {
			return false
		}
	}
	return true
}

// unlock releases a holder's locks and withdraws its request.
func (r *Run) unlock(holder string) {
	found := r.lockWaiters[holder] != nil
	for key, holders := range r.holds {
		if holders[holder] {
			found = true
			if delete(holders, holder); len(holders) == 0 {
				delete(r.holds, key)
			}
		}
	}
	if !found {
		return
	}
	delete(r.lockWaiters, holder)
	delete(r.requestedKeys, holder)
	delete(r.waitingLocks, holder)
	r.out.Unlock, r.locksChanged = append(r.out.Unlock, holder), true
}

// recordLocks writes the locks that are held or waited for into the status.
func (r *Run) recordLocks() {
	mutex, semaphore := &wf.LockStatus{}, &wf.LockStatus{}
	for _, key := range sortedKeys(r.holds) {
		holders := sortedKeys(r.holds[key])
		if locks.IsSemaphore(key) {
			semaphore.Holding = append(semaphore.Holding, wf.LockHolding{Semaphore: key, Holders: holders})
			continue
		}
		for _, h := range holders { // more than one holder only if the status was wrong
			mutex.Holding = append(mutex.Holding, wf.LockHolding{Mutex: locks.Shown(key), Holder: h})
		}
	}
	waits := map[string][]string{}
	for _, s := range r.waitingLocks {
		waits[s.Waiting] = s.Holders
	}
	for _, key := range sortedKeys(waits) {
		if locks.IsSemaphore(key) {
			semaphore.Waiting = append(semaphore.Waiting, wf.LockHolding{Semaphore: key, Holders: waits[key]})
			continue
		}
		holding := wf.LockHolding{Mutex: locks.Shown(key)}
		if len(waits[key]) > 0 {
			holding.Holder = waits[key][0]
		}
		mutex.Waiting = append(mutex.Waiting, holding)
	}
	var s *wf.SynchronizationStatus
	part := func(l *wf.LockStatus, to **wf.LockStatus) {
		if len(l.Holding)+len(l.Waiting) > 0 {
			*to = l
		}
	}
	if len(r.holds)+len(waits) > 0 {
		s = &wf.SynchronizationStatus{}
		part(mutex, &s.Mutex)
		part(semaphore, &s.Semaphore)
	}
	r.Workflow.Status.Synchronization, r.out.Status = s, true
}

// lockWorkflow requests the workflow's own locks. started is true if the workflow need not wait.
func (r *Run) lockWorkflow() (started bool) {
	s := &r.Workflow.Status
	if r.spec.Synchronization == nil {
		return true
	}
	keys, err := lockKeys(r.spec.Synchronization, r.Workflow.Namespace, []template.Scope{r.globals})
	if err != nil {
		r.end(wf.WorkflowError, "synchronization."+err.Error())
		return false
	}
	holder := locks.HolderKey(r.Workflow.Namespace, r.Workflow.Name, "")
	if s.Phase == wf.WorkflowRunning && r.hasLocks(holder, keys) {
		return true
	}
	r.requestLocks(holder, keys, time.Time{}, (*workflowLock)(r))
	return false
}

// workflowLock is the waiter for the workflow's own locks.
type workflowLock Run

func (g *workflowLock) survives() bool { return false }

func (g *workflowLock) lockState(e LockState) {
	r := (*Run)(g)
	s := &r.Workflow.Status
	switch {
	case e.Err != nil:
		r.end(wf.WorkflowError, "synchronization: "+e.Err.Error())
	case e.Granted:
		r.run()
	case s.Phase != wf.WorkflowPending || s.Message != e.Message:
		s.Phase, s.Message, r.out.Status = wf.WorkflowPending, e.Message, true
	}
}

func (g *workflowLock) cancel(message string) { (*Run)(g).end(wf.WorkflowFailed, message) }

// run starts the workflow or resumes it after a restart.
func (r *Run) run() {
	s := &r.Workflow.Status
	if s.Phase != wf.WorkflowRunning {
		s.Phase, s.Message, r.out.Status = wf.WorkflowRunning, "", true
		if s.StartedAt.IsZero() {
			s.StartedAt = metav1.NewTime(r.now)
		}
	}
	r.setDeadline()
	r.meterWorkflow()
	r.hooks = &hooks{run: r, name: r.Workflow.Name, spec: r.spec.Hooks, from: r.local(), finished: r.finish}
	r.root = r.execute(call{
		name: r.Workflow.Name, display: r.Workflow.Name, target: target{template: r.spec.Entrypoint}, from: r.local(),
		args: r.spec.Arguments, owner: (*mainOwner)(r), topLevel: true,
	})
	r.hooks.consider([]template.Scope{r.globals})
}
