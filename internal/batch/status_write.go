package batch

import (
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/equality"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/informer"
)

// statusWrite is the last status that was handed to the writer. The status that the watch shows is
// this controller's own or older, unless another client has written the job, for example a previous
// leader whose write was late. In that case the status is written again.
type statusWrite struct {
	from string // resource version of the job from which the status was made
	// answered is the resource version that the write produced, or empty after an error. It is nil
	// while the write is in flight.
	answered atomic.Pointer[string]
}

// writtenStatus returns a copy of the job's status. It has no phase if no status has been written.
func writtenStatus(job *api.Job) api.JobStatus {
	s := *job.Status.DeepCopy()
	if s.Unwritten() {
		s.State.Phase = ""
	}
	return s
}

// newer reports whether another client has written the job after this status.
func (t *statusWrite) newer(job *api.Job) bool {
	version := t.answered.Load()
	return version != nil && informer.Older(*version, job.ResourceVersion)
}

// statusEnded handles the writer's answer to a status write; o is nil after an error.
func (c *Controller) statusEnded(r *record, t *statusWrite, o apiwriter.Object) {
	version := ""
	if o != nil {
		version = o.GetResourceVersion()
	}
	t.answered.Store(&version)
	if job, ok := c.Informers.Jobs.Get(r.key.Namespace, r.key.Name); ok && version != "" && r.lastStatus.Load() == t && t.newer(job) {
		c.loop.Wake(r.key) // the watch has already shown a version newer than this one
	}
}

// takeStatus compares the job's status with the last one written, if another client has written the
// job. If they differ, the status is written again.
func (c *Controller) takeStatus(r *record, job *api.Job) {
	t := r.lastStatus.Load()
	if job.ResourceVersion == r.compared || t != nil && !t.newer(job) {
		return
	}
	r.compared = job.ResourceVersion
	if !equality.Semantic.DeepEqual(writtenStatus(job), r.status) {
		c.Log.Info("a job's status was overwritten and is written again", "job", r.key, "version", job.ResourceVersion)
		r.lost = true
	}
}

// statusConflict records that another client wrote the job while the last status was in flight. The
// status is written again, from the version that the watch shows next.
func (r *record) statusConflict(t *statusWrite) {
	if r.lastStatus.Load() == t {
		r.lost, r.conflicted = true, t.from
	}
}

// awaitsVersion reports whether a status has to wait until the watch shows the version with which
// it conflicted.
func (r *record) awaitsVersion() bool {
	return r.conflicted != "" && r.conflicted == r.job.ResourceVersion
}
