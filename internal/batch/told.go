package batch

import (
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/equality"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/cluster"
)

// told is the last status that was handed to the writer. What the watch shows as the job's status is this controller's own, or
// older than it, unless somebody else has written: a manager that led before, whose write was late. Then the status is written
// again.
type told struct {
	from string // the job's version that it was made from
	// answered is the version that it made, or empty after an error; nil while it is under way.
	answered atomic.Pointer[string]
}

// newer reports whether the job has been written by somebody else after the status.
func (t *told) newer(job *api.Job) bool {
	version := t.answered.Load()
	return version != nil && cluster.Older(*version, job.ResourceVersion)
}

// statusEnded takes in the writer's answer to a status, or nil after an error.
func (c *Controller) statusEnded(r *record, t *told, o apiwriter.Object) {
	version := ""
	if o != nil {
		version = o.GetResourceVersion()
	}
	t.answered.Store(&version)
	if job, ok := c.Informers.Jobs.Get(r.key.Namespace, r.key.Name); ok && version != "" && r.told.Load() == t && t.newer(job) {
		c.loop.Wake(r.key) // the watch was faster, and showed what is newer than this
	}
}

// takeStatus compares the job's status with what was written last, when somebody else has written the job.
func (c *Controller) takeStatus(r *record, job *api.Job) {
	t := r.told.Load()
	if job.ResourceVersion == r.compared || t != nil && !t.newer(job) {
		return
	}
	r.compared = job.ResourceVersion
	if !equality.Semantic.DeepEqual(job.Status, r.status) {
		c.Log.Info("a job's status was overwritten and is written again", "job", r.key, "version", job.ResourceVersion)
		r.lost = true
	}
}

// statusConflict notes that the job was written by somebody else while the last status was on its way. It is written again in the
// place of the version that the watch shows then.
func (r *record) statusConflict(t *told) {
	if r.told.Load() == t {
		r.lost, r.conflicted = true, t.from
	}
}

// awaitsVersion reports whether a status has to wait for the watch to show what it met a conflict with.
func (r *record) awaitsVersion() bool {
	return r.conflicted != "" && r.conflicted == r.job.ResourceVersion
}
