package manager_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/internal/manager"
)

// manifest creates the object in a manifest as a user writes it.
func (e *env) manifest(resource schema.GroupVersionResource, text string) {
	e.Helper()
	u := &unstructured.Unstructured{}
	err := yaml.Unmarshal([]byte(text), &u.Object)
	if err == nil && resource == queues {
		_, err = e.dyn.Resource(resource).Create(e.Context(), u, metav1.CreateOptions{FieldValidation: "Strict"})
	} else if err == nil {
		_, err = e.dyn.Resource(resource).Namespace(e.ns).Create(e.Context(), u, metav1.CreateOptions{FieldValidation: "Strict"})
	}
	if err != nil {
		e.Fatalf("%v in\n%s", err, text)
	}
}

const endlessJob = `
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: job}
spec:
  maxRetry: 9
  tasks:
  - name: main
    replicas: 2
    template: {spec: {terminationGracePeriodSeconds: 0, containers: [{name: main, image: busybox}]}}
`

const restartCommand = `
apiVersion: bus.volcano.sh/v1alpha1
kind: Command
metadata: {name: restart}
action: RestartJob
target: {apiVersion: batch.volcano.sh/v1alpha1, kind: Job, name: job, uid: ""}
`

// crash ends the writes of a manager at a request, before or after the server has carried it out,
// as if the manager had been killed.
type crash struct {
	match func(*http.Request) bool
	after bool

	mu   sync.Mutex
	dark bool
	hit  chan struct{}
}

func (c *crash) option(cfg *manager.Config) {
	cfg.StopTimeout = time.Millisecond // a killed manager writes nothing more
	cfg.REST.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodGet || strings.Contains(r.URL.Path, "/leases/") {
				return next.RoundTrip(r)
			}
			c.mu.Lock()
			first := !c.dark && c.match(r)
			c.dark = c.dark || first
			dark := c.dark
			c.mu.Unlock()
			if !dark {
				return next.RoundTrip(r)
			}
			if first && c.after {
				if answer, err := next.RoundTrip(r); err == nil {
					_ = answer.Body.Close()
				}
			}
			if first {
				close(c.hit)
			}
			return nil, syscall.ECONNRESET
		})
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestACommandIsCarriedOutOnceWhereverTheManagerEnds ends a manager before or after each of the
// writes that carry out a Command, and checks that the next manager completes the work.
func TestACommandIsCarriedOutOnceWhereverTheManagerEnds(t *testing.T) {
	t.Parallel()
	path := func(method, end string) func(*http.Request) bool {
		return func(r *http.Request) bool { return r.Method == method && strings.HasSuffix(r.URL.Path, end) }
	}
	type target struct {
		name           string
		status, delete func(*http.Request) bool
		// begin creates the target while a manager runs, and command creates the Command.
		begin, command func(*env)
		// done returns an error until the Command has been carried out, and if it was carried out
		// more than once.
		done func(*env) error
	}
	job := target{
		name:   "job",
		status: path(http.MethodPut, "/jobs/job/status"), delete: path(http.MethodDelete, "/commands/restart"),
		begin: func(e *env) {
			e.manifest(jobs, endlessJob)
			e.until("job", inPhase(batch.Running))
		},
		command: func(e *env) { e.manifest(commands, restartCommand) },
		done: func(e *env) error {
			j := e.job("job")
			if s := j.Status; s.State.Phase != batch.Running || s.Version != 1 || s.RetryCount != 1 || s.Running != 2 {
				return fmt.Errorf("the job's status is %s, want it to run for the second time", asJSON(s))
			}
			return nil
		},
	}
	queue := target{
		name:   "queue",
		status: path(http.MethodPut, "/queues/q/status"), delete: path(http.MethodDelete, "/commands/close"),
		begin: func(e *env) {
			e.Cleanup(func() {
				if err := e.dyn.Resource(queues).Delete(context.Background(), "q", metav1.DeleteOptions{}); err != nil {
					e.Error(err)
				}
			})
			e.manifest(queues, `{apiVersion: scheduling.volcano.sh/v1beta1, kind: Queue, metadata: {name: q}, spec: {weight: 1}}`)
			e.eventually("the queue is open", func() error { return e.queueIs("q", "Open") })
		},
		command: func(e *env) {
			e.manifest(commands, `
apiVersion: bus.volcano.sh/v1alpha1
kind: Command
metadata: {name: close}
action: CloseQueue
target: {apiVersion: scheduling.volcano.sh/v1beta1, kind: Queue, name: q, uid: ""}
`)
		},
		done: func(e *env) error { return e.queueIs("q", "Closed") },
	}
	for _, target := range []target{job, queue} {
		for _, point := range []string{"before the status", "after the status", "before the deletion", "after the deletion"} {
			t.Run(target.name+", "+point, func(t *testing.T) {
				e := startUnmanaged(t)
				cut := &crash{match: target.delete, after: strings.HasPrefix(point, "after"), hit: make(chan struct{})}
				if strings.HasSuffix(point, "status") {
					cut.match = target.status
				}
				stop := e.run()
				target.begin(e)
				stop()
				stop = e.run(cut.option)
				target.command(e)
				select {
				case <-cut.hit:
				case <-t.Context().Done():
				}
				stop()
				e.run()
				e.eventually("the command is carried out and gone", func() error {
					list, err := e.dyn.Resource(commands).Namespace(e.ns).List(t.Context(), metav1.ListOptions{})
					if err == nil && len(list.Items) > 0 {
						err = fmt.Errorf("%d commands are there", len(list.Items))
					}
					if err != nil {
						return err
					}
					return target.done(e)
				})
			})
		}
	}
}

func (e *env) queueIs(name, state string) error {
	u, err := e.dyn.Resource(queues).Get(e.Context(), name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if got, _, _ := unstructured.NestedString(u.Object, "status", "state"); got != state {
		return fmt.Errorf("queue %s is %q, not %q", name, got, state)
	}
	return nil
}

// TestCommandsAreCarriedOutInTheirOrder checks that Commands are carried out in order, and that no
// Command is skipped because another one follows.
func TestCommandsAreCarriedOutInTheirOrder(t *testing.T) {
	e := start(t)
	e.manifest(jobs, endlessJob)
	e.until("job", inPhase(batch.Running))
	for i, action := range []string{"RestartJob", "AbortJob", "ResumeJob", "AbortJob"} {
		text := strings.NewReplacer("name: restart", fmt.Sprintf("name: c%d", i), "RestartJob", action).Replace(restartCommand)
		e.manifest(commands, text)
	}
	e.eventually("all are gone", func() error {
		list, err := e.dyn.Resource(commands).Namespace(e.ns).List(t.Context(), metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d are there", len(list.Items))
		}
		return err
	})
	j := e.until("job", inPhase(batch.Aborted))
	if s := j.Status; s.Version != 2 || s.RetryCount != 1 {
		t.Errorf("the job's status is %s, want one restart, one resumption", asJSON(s))
	}
}

// TestACommandThatNobodyCanCarryOut checks that a Command that cannot be carried out is deleted,
// and that an event says why.
func TestACommandThatNobodyCanCarryOut(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.manifest(commands, restartCommand)
	e.manifest(commands, `{apiVersion: bus.volcano.sh/v1alpha1, kind: Command, metadata: {name: aimless}, action: AbortJob}`)
	for name, want := range map[string]string{
		"restart": `RestartJob: target: there is no job "job"`, "aimless": "AbortJob: target: it names no object",
	} {
		e.eventually("command "+name+" is refused", func() error {
			list, err := e.core.CoreV1().Events(e.ns).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Command,involvedObject.name=" + name})
			if err == nil && (len(list.Items) != 1 || list.Items[0].Message != want || list.Items[0].Type != corev1.EventTypeWarning) {
				err = fmt.Errorf("its events are %v", list.Items)
			}
			return err
		})
	}
	e.eventually("they are gone", func() error {
		list, err := e.dyn.Resource(commands).Namespace(e.ns).List(t.Context(), metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d are there", len(list.Items))
		}
		return err
	})
}
