package apiwriter

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	batchv1alpha1 "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/internal/fence"
)

// role is a fence whose clock stands still.
type role struct {
	mu   sync.Mutex
	at   time.Time
	term *fence.Term
	lost bool // the owner belongs to another process
}

func newRole(final bool) *role {
	r := &role{at: time.Unix(1000, 0)}
	r.term = fence.NewTerm(final, r.now)
	r.renew()
	return r
}

func (r *role) now() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.at
}

func (r *role) sleep(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at = r.at.Add(d)
}

func (r *role) renew() { r.term.Extend(r.now().Add(10 * time.Second)) }

func (r *role) lose() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost = true
}

func (r *role) Term(string) *fence.Term {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost {
		return nil
	}
	return r.term
}

// everything makes one write of each kind, about a pod and a job that exist.
func everything(w Writer, b *bench, o *outcomes, p *corev1.Pod, job *batchv1alpha1.Job) (sorts int) {
	m := Meta{Owner: "test/ns/name", Reason: "fenced"}
	as := m
	as.As = &Identity{User: "somebody", Groups: []string{"system:masters"}}
	long := b.pod("long", "")
	// The long annotation makes the request go through Go's client.
	long.Annotations = map[string]string{"long": strings.Repeat("x", 64<<10)}
	w.Create(m, b.pod("created", ""), o.of("create"))
	w.Create(as, b.pod("created-as", ""), o.of("create as somebody"))
	w.Create(m, long, o.of("long create"))
	w.Bind(m, Binding{Pod: types.NamespacedName{Namespace: b.ns, Name: p.Name}, UID: p.UID, Node: "node"}, o.ofErr("bind"))
	w.Patch(m, p, types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), o.of("patch"))
	about := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: b.ns, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion}}
	w.PatchVersion(m, about, true, []byte(`[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`), o.of("patch of a version"))
	w.Status(m, withRunning(job, 1), true, o.of("status"))
	w.Delete(m, p, DeleteOptions{}, o.ofErr("delete"))
	w.DeletePods(m, Selection{Namespace: b.ns, Labels: "fenced=none"}, o.ofErr("delete pods"))
	w.Event(p, corev1.EventTypeWarning, "Fenced", "by the test")
	return 9
}

func (b *bench) untouched(p *corev1.Pod, job *batchv1alpha1.Job) error {
	pods, err := b.client.CoreV1().Pods(b.ns).List(b.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(pods.Items) != 1 || pods.Items[0].ResourceVersion != p.ResourceVersion {
		return fmt.Errorf("there are %d pods, the first %s at version %s", len(pods.Items), pods.Items[0].Name, pods.Items[0].ResourceVersion)
	}
	if v := b.job("job").ResourceVersion; v != job.ResourceVersion {
		return fmt.Errorf("the job has version %s", v)
	}
	events, err := b.client.CoreV1().Events(b.ns).List(b.Context(), metav1.ListOptions{})
	if err == nil && len(events.Items) > 0 {
		err = fmt.Errorf("there are %d events", len(events.Items))
	}
	return err
}

func TestNothingIsWrittenAfterTheTerm(t *testing.T) {
	for name, test := range map[string]struct {
		queued, sent func(*role) // run before the writes are made, and before they are sent
	}{
		"the lease lapsed while they waited":         {sent: func(r *role) { r.sleep(time.Minute) }},
		"it lapsed, and was renewed":                 {sent: func(r *role) { r.sleep(time.Minute); r.renew() }},
		"the term ended while they waited":           {sent: func(r *role) { r.term.End() }},
		"the lease had lapsed before they were made": {queued: func(r *role) { r.sleep(time.Minute) }},
		"the owner's work became another's":          {sent: func(r *role) { r.lose() }},
	} {
		t.Run(name, func(t *testing.T) {
			b, o := newBench(t, nil), newOutcomes()
			p, job := b.createdPod(b.pod("p", "")), b.createdJob("job")
			r := newRole(true)
			if test.queued != nil {
				test.queued(r)
			}
			n := everything(b.Fenced(r), b, o, p, job)
			if test.sent != nil {
				test.sent(r)
			}
			b.run().flush()
			if len(o.ended) != n {
				t.Errorf("%d of %d writes ended", len(o.ended), n)
			}
			for name, err := range o.errs {
				if !errors.Is(err, ErrFenced) || !errors.Is(err, ErrStopped) || o.ended[name] != 1 {
					t.Errorf("%s ended %d times: %v, want ErrFenced once", name, o.ended[name], err)
				}
			}
			if err := b.untouched(p, job); err != nil {
				t.Error(err)
			}
			b.Create(Meta{Owner: "other", Reason: "unfenced"}, b.pod("other", ""), o.of("other"))
			b.flush()
			if err := o.errs["other"]; err != nil {
				t.Errorf("a write without a fence: %v", err)
			}
		})
	}
}

// TestWritesWaitWhileTheLeaseMayStillBeRenewed checks that the writes of a lapsed term wait, and
// are sent when the lease is renewed, which proves that no other manager has taken it.
func TestWritesWaitWhileTheLeaseMayStillBeRenewed(t *testing.T) {
	b, o := newBench(t, nil), newOutcomes()
	p, job := b.createdPod(b.pod("p", "")), b.createdJob("job")
	r := newRole(false)
	n := everything(b.Fenced(r), b, o, p, job)
	r.sleep(time.Minute)
	b.run()
	// A write without a fence is queued behind the fenced ones. When it is written, the fenced
	// ones have had their turn.
	free := make(chan error)
	b.Create(Meta{Owner: "other", Reason: "unfenced"}, b.pod("other", ""), func(_ Object, err error) { free <- err })
	if err := <-free; err != nil {
		t.Fatal(err)
	}
	if err := b.client.CoreV1().Pods(b.ns).Delete(t.Context(), "other", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
	if err := b.untouched(p, job); err != nil {
		t.Error(err)
	}
	r.renew()
	b.flush()
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.ended) != n {
		t.Errorf("%d of %d writes ended", len(o.ended), n)
	}
	for name, err := range o.errs {
		if errors.Is(err, ErrStopped) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if o.errs["create"] != nil || o.errs["long create"] != nil || o.errs["status"] != nil {
		t.Errorf("after the renewal: %v", o.errs)
	}
}
