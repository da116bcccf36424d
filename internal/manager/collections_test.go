package manager_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
	jobcontroller "lockstep.dev/lockstep/internal/batch"
	"lockstep.dev/lockstep/internal/install"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/manager/managertest"
)

// podDeletions returns the manager's requests in the test's namespace that delete pods or are made to
// delete pods, by verb.
func (e *env) podDeletions() map[string]int {
	e.Helper()
	out := map[string]int{}
	for _, call := range localtest.ManagerCalls(e, e.c) {
		switch {
		case call.Resource == "pods" && call.Namespace == e.ns && strings.HasPrefix(call.Verb, "delete"):
			out[call.Verb]++
		case call.Resource == "selfsubjectreviews":
			out["who am I"]++
		}
	}
	return out
}

// since returns the difference of two results of podDeletions.
func since(before, after map[string]int) map[string]int {
	out := map[string]int{}
	for verb, n := range after {
		if n -= before[verb]; n > 0 {
			out[verb] = n
		}
	}
	return out
}

// runsMany creates a job of n small pods and waits until all run.
func (e *env) runsMany(name string, n int32) {
	e.Helper()
	e.create(newJob(name, n, "1m", minAvailable(1)))
	e.allRun(name, n)
}

func (e *env) allRun(name string, n int32) {
	e.Helper()
	e.until(name, func(j *batch.Job) error {
		if j.Status.Running != n {
			return fmt.Errorf("%d pods run, not %d", j.Status.Running, n)
		}
		return nil
	})
}

func (e *env) noPods(what string) {
	e.Helper()
	e.eventually(what, func() error {
		if pods := e.pods(); len(pods) > 0 {
			return fmt.Errorf("%d pods", len(pods))
		}
		return nil
	})
}

// staying returns the UIDs of the job's pods that are not being deleted, by name.
func (e *env) staying(job string) map[string]types.UID {
	e.Helper()
	out := map[string]types.UID{}
	for _, p := range e.podsOf(job) {
		if p.DeletionTimestamp == nil {
			out[p.Name] = p.UID
		}
	}
	return out
}

// collected waits until there are collections among the requests since before, and returns these and all
// requests. A request is in the audit log once it is answered, which may be after its pods are gone.
func (e *env) collected(before map[string]int) (made, after map[string]int) {
	e.Helper()
	e.eventually("collections are among the requests", func() error {
		after = e.podDeletions()
		if made = since(before, after); made["deletecollection"] == 0 {
			return fmt.Errorf("%v", made)
		}
		return nil
	})
	return made, after
}

// TestManyPodsAreDeletedByFewRequests counts the requests for the 220 pods of each run.
func TestManyPodsAreDeletedByFewRequests(t *testing.T) {
	e := startUnmanaged(t)
	e.run()
	const n = 220
	before := e.podDeletions()
	few := func(what string) {
		t.Helper()
		made, after := e.collected(before)
		before = after
		if sum(made) > 20 {
			t.Errorf("%s: %v, want at most 20 requests", what, made)
		}
	}
	e.runsMany("wide", n)
	first := e.staying("wide")
	e.command(bus.RestartJobAction, "Job", "wide")
	e.eventually("the next run", func() error {
		now := e.staying("wide")
		if len(now) != n {
			return fmt.Errorf("%d pods", len(now))
		}
		for name, uid := range now {
			if first[name] == uid {
				return fmt.Errorf("%s is of the first run", name)
			}
		}
		return nil
	})
	few("restart")
	e.command(bus.AbortJobAction, "Job", "wide")
	e.until("wide", inPhase(batch.Aborted))
	few("abort")
}

// TestThePodsOfADeletedJobAreDeletedByFewRequests covers both ways in which a job takes its pods along.
func TestThePodsOfADeletedJobAreDeletedByFewRequests(t *testing.T) {
	for _, how := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground} {
		t.Run(string(how), func(t *testing.T) {
			e := startUnmanaged(t)
			e.run()
			e.runsMany("wide", 110)
			before := e.podDeletions()
			if err := e.dyn.Resource(jobs).Namespace(e.ns).Delete(t.Context(), "wide", metav1.DeleteOptions{PropagationPolicy: &how}); err != nil {
				t.Fatal(err)
			}
			e.noPods("the pods are deleted")
			if made, _ := e.collected(before); sum(made) > 20 {
				t.Errorf("%v, want at most 20 requests", made)
			}
		})
	}
}

// TestPodsThatAJobLeavesBehindStay deletes a job without its dependents.
func TestPodsThatAJobLeavesBehindStay(t *testing.T) {
	e := startUnmanaged(t)
	e.run()
	e.runsMany("wide", 110)
	pods := e.staying("wide")
	orphan := metav1.DeletePropagationOrphan
	if err := e.dyn.Resource(jobs).Namespace(e.ns).Delete(t.Context(), "wide", metav1.DeleteOptions{PropagationPolicy: &orphan}); err != nil {
		t.Fatal(err)
	}
	e.eventually("the job is gone", func() error {
		left, err := e.dyn.Resource(jobs).Namespace(e.ns).List(t.Context(), metav1.ListOptions{})
		if err == nil && len(left.Items) > 0 {
			err = fmt.Errorf("it is there")
		}
		return err
	})
	// The manager has seen the deletion once it runs another job of that name.
	e.create(newJob("other", 1, "1m"))
	e.until("other", inPhase(batch.Running))
	if now := e.staying("wide"); !maps.Equal(now, pods) {
		t.Errorf("of %d pods %d are left", len(pods), len(now))
	}
}

// recordedCollections are the requests for collections of pods that the managers in this process make.
type recordedCollections struct {
	mu  sync.Mutex
	all []*http.Request
}

func isCollection(r *http.Request) bool {
	return r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "/pods")
}

func recordCollections(t *testing.T) *recordedCollections {
	c := &recordedCollections{}
	managertest.Refuse(t, func(r *http.Request) bool {
		if isCollection(r) {
			c.mu.Lock()
			c.all = append(c.all, r.Clone(r.Context()))
			c.mu.Unlock()
		}
		return false
	})
	return c
}

// again sends the recorded requests once more, as the network or a paused server may, and returns the
// answers.
func (c *recordedCollections) again(e *env) (answers []string) {
	e.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	cfg := e.c.ManagerRESTConfig()
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		e.Fatal(err)
	}
	for _, r := range c.all {
		late, err := http.NewRequestWithContext(e.Context(), r.Method, cfg.Host+r.URL.RequestURI(), nil)
		if err != nil {
			e.Fatal(err)
		}
		late.Header = r.Header
		got, err := client.Do(late)
		if err != nil {
			e.Fatal(err)
		}
		body, err := io.ReadAll(got.Body)
		if err != nil {
			e.Fatal(err)
		}
		_ = got.Body.Close()
		answers = append(answers, fmt.Sprint(got.StatusCode, " ", string(body[:min(len(body), 500)])))
	}
	return answers
}

// TestLateCollectionsDeleteNoPodOfTheNextRun sends the requests of a run again when the next one runs, as
// requests of a manager that has died since.
func TestLateCollectionsDeleteNoPodOfTheNextRun(t *testing.T) {
	e := startUnmanaged(t)
	e.run()
	sent := recordCollections(t)
	e.runsMany("wide", 110)
	e.command(bus.AbortJobAction, "Job", "wide")
	e.until("wide", inPhase(batch.Aborted))
	e.command(bus.ResumeJobAction, "Job", "wide")
	e.allRun("wide", 110)
	next := e.staying("wide")
	answers := sent.again(e)
	if len(answers) == 0 {
		t.Fatal("the run was not deleted by collections")
	}
	for _, a := range answers {
		if !strings.HasPrefix(a, "403 ") || !strings.Contains(a, jobcontroller.RunsPolicy) {
			t.Errorf("a late request is answered by %s", a)
		}
	}
	if now := e.staying("wide"); !maps.Equal(now, next) {
		t.Errorf("late requests have deleted pods: of %d, %d are left", len(next), len(now))
	}
	// A new job of that name has another UID.
	background := metav1.DeletePropagationBackground
	if err := e.dyn.Resource(jobs).Namespace(e.ns).Delete(t.Context(), "wide", metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		t.Fatal(err)
	}
	e.noPods("the job's pods are deleted")
	e.runsMany("wide", 110)
	next = e.staying("wide")
	sent.again(e)
	if now := e.staying("wide"); !maps.Equal(now, next) {
		t.Errorf("late requests have deleted pods of another job: of %d, %d are left", len(next), len(now))
	}
}

// TestAUsersPodUnderTheNameOfAJobsStays has a user replace a pod of the job by one of the same name and
// labels while the requests are on their way. The others are deleted nevertheless.
func TestAUsersPodUnderTheNameOfAJobsStays(t *testing.T) {
	e := startUnmanaged(t)
	e.run()
	e.runsMany("wide", 110)
	there, release := managertest.Delay(t, isCollection)
	e.command(bus.AbortJobAction, "Job", "wide")
	<-there
	pods := e.core.CoreV1().Pods(e.ns)
	theirs, err := pods.Get(t.Context(), "wide-main-7", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	now := int64(0)
	if err := pods.Delete(t.Context(), theirs.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	own := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: theirs.Name, Labels: theirs.Labels, Annotations: theirs.Annotations}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "main", Image: "busybox"}}, SchedulerName: "nobody"}}
	if own, err = pods.Create(t.Context(), own, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	release()
	e.until("wide", inPhase(batch.Aborted))
	left := e.pods()
	if len(left) != 1 || left[0].UID != own.UID || left[0].DeletionTimestamp != nil {
		t.Errorf("%d pods are left, want the user's alone", len(left))
	}
}

// TestWithoutThePolicyPodsAreDeletedOneByOne removes the policy's binding from the cluster.
func TestWithoutThePolicyPodsAreDeletedOneByOne(t *testing.T) {
	e := startUnmanaged(t)
	bindings := e.core.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	if err := bindings.Delete(t.Context(), jobcontroller.RunsPolicy, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := install.Apply(context.Background(), e.c.RESTConfig()); err != nil {
			t.Error(err)
		}
	})
	e.run()
	e.runsMany("wide", 120)
	before := e.podDeletions()
	sent := recordCollections(t)
	e.command(bus.AbortJobAction, "Job", "wide")
	e.until("wide", inPhase(batch.Aborted))
	e.eventually("the pods have been deleted one by one", func() error {
		if made := since(before, e.podDeletions()); made["delete"] < 120 {
			return fmt.Errorf("%v", made)
		}
		return nil
	})
	if made := since(before, e.podDeletions()); made["deletecollection"] > 0 || len(sent.all) > 0 {
		t.Errorf("without the policy: %v", made)
	}
}
