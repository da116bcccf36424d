package controller

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/cluster"
)

// former remembers of workflows that were let go of what was written last. A manager that could not renew its lease in time
// lets go of all of them, and may have them again a moment later, when its watch is behind what it has written: a workflow that
// was taken up as it was before would have its steps run again, or take pods that were collected for pods that somebody
// deleted. So one is not taken up before the watch shows what was written. The same goes for one that is over: the watch of its
// pods may be ahead of that of workflows by as long as it takes to open a watch again.
type former struct {
	mu    sync.Mutex
	lives map[types.UID]formerLife
}

type formerLife struct {
	writing uint64 // the status that was at the writer, or 0
	version string // of the last write
}

// left notes that a workflow was let go of.
func (f *former) left(r *record) {
	if r.writes > 0 {
		f.note(r)
	}
}

// ended notes that a workflow is over and nothing is left to do about it, which its watch, with seen, may not show yet.
func (f *former) ended(r *record, seen *wf.Workflow) {
	if cluster.Older(seen.ResourceVersion, r.version) {
		f.note(r)
	}
}

func (f *former) note(r *record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lives == nil {
		f.lives = map[types.UID]formerLife{}
	}
	f.lives[r.uid] = formerLife{writing: r.writing, version: r.version}
}

// gone forgets a workflow that does not exist any more.
func (f *former) gone(uid types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.lives, uid)
}

// answered takes in the answer to a status, with the version that it made, if any. It says whether the workflow had been let
// go of.
func (f *former) answered(uid types.UID, id uint64, version string) bool {
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

// settled says that a workflow can be taken up as the watch shows it.
func (f *former) settled(w *wf.Workflow) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	life, found := f.lives[w.UID]
	if !found {
		return true
	}
	if life.writing != 0 || cluster.Older(w.ResourceVersion, life.version) {
		return false
	}
	delete(f.lives, w.UID)
	return true
}
