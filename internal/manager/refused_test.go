package manager_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
	"lockstep.dev/lockstep/internal/manager/managertest"
)

// TestWhatTheServerRefusesIsAskedForAgainLater checks that writes that the server refuses are
// neither repeated at once nor forgotten.
func TestWhatTheServerRefusesIsAskedForAgainLater(t *testing.T) {
	t.Parallel()
	e := start(t)
	about := func(method, path string) func(*http.Request) bool {
		return func(r *http.Request) bool {
			return r.Method == method && strings.Contains(r.URL.Path, "/namespaces/"+e.ns+"/"+path)
		}
	}
	gone := func(name string) func() error {
		return func() error {
			if _, err := e.dyn.Resource(jobs).Namespace(e.ns).Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("job %s is there: %w", name, err)
			}
			return nil
		}
	}
	cases := map[string]struct {
		match func(*http.Request) bool
		job   *batch.Job
		then  func()
		ends  func() error
	}{
		"a pod's deletion": {
			match: about(http.MethodDelete, "pods/pod-"), job: newJob("pod", 1, "100m"),
			then: func() {
				e.until("pod", inPhase(batch.Running))
				e.command(bus.AbortJobAction, "Job", "pod")
			},
			ends: func() error { return inPhase(batch.Aborted)(e.job("pod")) },
		},
		"a job's deletion": {
			match: about(http.MethodDelete, "jobs/expired"),
			job:   newJob("expired", 1, "100m", endsAfter("50ms"), func(j *batch.Job) { j.Spec.TTLSecondsAfterFinished = ptr.To[int32](0) }),
			ends:  gone("expired"),
		},
		"a status": {
			match: about(http.MethodPut, "jobs/status/status"), job: newJob("status", 1, "100m", endsAfter("50ms")),
			ends: func() error { return inPhase(batch.Completed)(e.job("status")) },
		},
	}
	for what, c := range cases {
		times, release := managertest.Refuse(t, c.match)
		e.create(c.job)
		if c.then != nil {
			c.then()
		}
		e.eventually(what+" is refused", func() error {
			if times() == 0 {
				return errors.New("it is not")
			}
			return nil
		})
		// A write that is repeated at once would be repeated hundreds of times before another job
		// ends.
		other := "after-" + c.job.Name
		e.create(newJob(other, 1, "100m", endsAfter("1s")))
		e.until(other, inPhase(batch.Completed))
		if n := times(); n > 10 {
			t.Errorf("%s was asked for %d times", what, n)
		}
		release()
		e.eventually(what+" is asked for again", c.ends)
	}
}
