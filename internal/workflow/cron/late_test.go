package cron

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/localcluster/faultproxy"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// late holds back the first status write of each cron that begins to have an active workflow.
type late struct {
	*faultproxy.Proxy
	mu   sync.Mutex
	held bool
	// there is closed when a write is held; release sends it.
	there   chan struct{}
	release func()
	refuse  bool // refuse creates of workflows
}

func (c *testCluster) newLate() *late {
	c.Helper()
	p, err := localtest.Proxy(localtest.Shared(c))
	if err != nil {
		c.Fatal(err)
	}
	released := make(chan struct{})
	l := &late{Proxy: p, there: make(chan struct{}), release: sync.OnceFunc(func() { close(released) })}
	p.Decide(func(r *faultproxy.Request) (f faultproxy.Fault) {
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case r.Verb == "create" && r.Resource == "workflows" && l.refuse:
			f.Answer = http.StatusForbidden
		case r.Verb == "patch" && r.Resource == "cronworkflows" && !l.held && (l.refuse || strings.Contains(body(r), `"active":[`)):
			l.held = true
			f.Before = func() {
				close(l.there)
				select {
				case <-released:
				case <-r.Context().Done():
				}
			}
		}
		return f
	})
	c.Cleanup(p.Close)
	c.Cleanup(l.release)
	return l
}

func body(r *faultproxy.Request) string {
	in, err := r.GetBody()
	if err != nil {
		return ""
	}
	defer in.Close()
	data, err := io.ReadAll(in)
	if err != nil {
		return ""
	}
	return string(data)
}

// statuses counts the answers to the late controller's status writes.
func (l *late) statuses() (codes []int) {
	for _, w := range l.Writes() {
		if w.Resource == "cronworkflows" {
			codes = append(codes, w.Code)
		}
	}
	return codes
}

func (c *testCluster) awaitHeld(l *late) {
	c.Helper()
	select {
	case <-l.there:
	case <-time.After(time.Minute):
		c.Fatal("no status is on its way")
	}
}

// TestALateStatusOverwritesNothing checks that a manager's status write that reaches the server
// after newer writes of another manager is refused, and the first manager decides again from the
// current state.
func TestALateStatusOverwritesNothing(t *testing.T) {
	c := newCluster(t)
	l := c.newLate()
	var others sync.Map // crons that the second manager owns
	_, _ = c.startAt(l.REST(c.cfg), func(string) bool { return true })
	_, resync := c.startOwning(func(name string) bool { _, found := others.Load(name); return found })
	none := int32(0)
	c.create(&wf.CronWorkflow{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: wf.CronWorkflowSpec{
		Schedules: []string{"0 * * * *"}, SuccessfulJobsHistoryLimit: &none}})
	c.await("c", "[] 0 active 0 succeeded 0 failed Active")
	at := c.clock.Now().Truncate(time.Hour).Add(time.Hour)
	name := fmt.Sprintf("c-%d", at.Unix())
	c.clock.SetTime(at)
	c.awaitHeld(l)
	// The other manager accounts for the workflow, from its start to its end and beyond.
	others.Store("c", true)
	resync()
	c.await("c", fmt.Sprintf("[%s] 1 active 0 succeeded 0 failed Active", name))
	c.end(name, wf.WorkflowSucceeded)
	const counted = "[] 0 active 1 succeeded 0 failed Active"
	c.await("c", counted)
	before := len(l.statuses())
	l.release()
	localtest.Eventually(t, "the late status is answered", func() error {
		if codes := l.statuses(); len(codes) <= before || codes[before] == 0 {
			return fmt.Errorf("answers: %v", codes)
		}
		return nil
	})
	if codes := l.statuses(); codes[before] != http.StatusConflict {
		t.Errorf("the answers to statuses are %v, want %d for the late one", codes, http.StatusConflict)
	}
	if got := c.state("c"); got != counted {
		t.Errorf("after the late status it is %s, want %s", got, counted)
	}
	// Both continue from there.
	c.clock.SetTime(at.Add(time.Hour))
	next := fmt.Sprintf("c-%d", at.Add(time.Hour).Unix())
	c.await("c", fmt.Sprintf("[%s] 1 active 1 succeeded 0 failed Active", next))
	c.end(next, wf.WorkflowSucceeded)
	c.await("c", "[] 0 active 2 succeeded 0 failed Active")
}

// edit changes a cron as a user would.
func (c *testCluster) edit(name string) {
	c.Helper()
	data := []byte(`{"metadata":{"labels":{"edited":"yes"}}}`)
	if err := c.client.Patch(types.MergePatchType).Namespace(c.namespace).Resource("cronworkflows").Name(name).Body(data).Do(c.Context()).Error(); err != nil {
		c.Fatal(err)
	}
}

// TestAStatusThatMeetsAnEditIsWrittenAgain checks that the content of a status is not lost if a
// user changes the cron while the status write is in flight.
func TestAStatusThatMeetsAnEditIsWrittenAgain(t *testing.T) {
	for _, refuse := range []bool{false, true} {
		t.Run(map[bool]string{false: "a workflow began", true: "a workflow was refused"}[refuse], func(t *testing.T) {
			c := newCluster(t)
			l := c.newLate()
			c.startAt(l.REST(c.cfg), func(string) bool { return true })
			c.create(&wf.CronWorkflow{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: wf.CronWorkflowSpec{Schedules: []string{"0 * * * *"}}})
			c.await("c", "[] 0 active 0 succeeded 0 failed Active")
			l.mu.Lock()
			l.refuse = refuse
			l.mu.Unlock()
			at := c.clock.Now().Truncate(time.Hour).Add(time.Hour)
			c.clock.SetTime(at)
			c.awaitHeld(l)
			c.edit("c")
			l.release()
			localtest.Eventually(t, "the status", func() error {
				var cron wf.CronWorkflow
				if err := c.client.Get().Namespace(c.namespace).Resource("cronworkflows").Name("c").Do(t.Context()).Into(&cron); err != nil {
					return err
				}
				s := cron.Status
				started := len(s.Active) == 1 && s.LastScheduledTime != nil && s.LastScheduledTime.Time.Equal(at)
				told := len(s.Conditions) == 1 && s.Conditions[0].Type == conditionSubmissionError
				if cron.Labels["edited"] != "yes" || started == refuse || told != refuse {
					return fmt.Errorf("labels %v, status %+v", cron.Labels, s)
				}
				return nil
			})
			// These are the first status, the late one and its replacement, whose answer may come
			// after the test sees its content.
			localtest.Eventually(t, "the answers to statuses", func() error {
				if codes := l.statuses(); len(codes) != 3 || codes[1] != http.StatusConflict || codes[2] != http.StatusOK {
					return fmt.Errorf("they are %v", codes)
				}
				return nil
			})
		})
	}
}
