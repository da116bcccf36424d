package controller

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/informer"
)

// releasedWorkflows records the last write of each workflow that this manager released. A manager that could
// not renew its lease in time releases all workflows and may own them again a moment later, while
// its watch is still behind its own writes. To load such a workflow from the stale cache would run
// steps twice, or mistake collected pods for pods that another client deleted. So a workflow is not
// loaded before the watch shows its last write. The same holds for finished workflows: the watch of
// pods may be ahead of the watch of workflows by the time that it takes to reopen a watch.
type releasedWorkflows struct {
	mu    sync.Mutex
	lives map[types.UID]releasedState
}

type releasedState struct {
	// writing is the number of the last write in flight when the workflow was released, or 0.
	writing uint64
	// version is the resource version of the last write.
	version string
}

// left notes that the manager released a workflow.
func (f *releasedWorkflows) left(r *record) {
	if r.writes > 0 {
		f.note(r)
	}
}

// ended notes that a workflow is over and needs no more work, if seen, the workflow in the watch
// cache, is older than its last write.
func (f *releasedWorkflows) ended(r *record, seen *wf.Workflow) {
	if informer.Older(seen.ResourceVersion, r.version) {
		f.note(r)
	}
}

func (f *releasedWorkflows) note(r *record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lives == nil {
		f.lives = map[types.UID]releasedState{}
	}
	f.lives[r.uid] = releasedState{writing: r.writing, version: r.version}
}

// gone forgets a workflow that no longer exists.
func (f *releasedWorkflows) gone(uid types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.lives, uid)
}

// answered takes in the answer to a write; version is the resource version that the write
// produced, empty if the write failed. It reports whether the write belongs to a released workflow.
func (f *releasedWorkflows) answered(uid types.UID, id uint64, version string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	life, found := f.lives[uid]
	if !found || life.writing != id {
		return false
	}
	life.writing = 0
	if version != "" {
		life.version = version
	}
	f.lives[uid] = life
	return true
}

// settled reports whether the workflow in the watch cache is recent enough to be loaded.
func (f *releasedWorkflows) settled(w *wf.Workflow) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	life, found := f.lives[w.UID]
	if !found {
		return true
	}
	if life.writing != 0 || informer.Older(w.ResourceVersion, life.version) {
		return false
	}
	delete(f.lives, w.UID)
	return true
}
