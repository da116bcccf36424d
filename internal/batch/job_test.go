package batch

import (
	"errors"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/podset"
	"lockstep.dev/lockstep/internal/podset/podsettest"
)

// world is one job and its controller, without an API server.
type world struct {
	*podsettest.World
	t     *rapid.T
	c     *Controller
	clock *clocktesting.FakeClock

	job     *api.Job
	version int
	// conflict means that another client has changed the job, and the watch has not shown it yet.
	conflict bool
	events   []string // reasons
}

var jobKey = types.NamespacedName{Namespace: "ns", Name: "job"}

func newWorld(t *rapid.T, tasks []int32, least int32) *world {
	w := &world{t: t, version: 1, clock: clocktesting.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))}
	w.World = podsettest.New(func(what string, n int) int { return rapid.IntRange(0, n-1).Draw(t, what) }, t.Fatalf)
	w.job = &api.Job{ObjectMeta: metav1.ObjectMeta{
		Namespace: jobKey.Namespace, Name: jobKey.Name, UID: "uid", ResourceVersion: "1", Generation: 1,
		CreationTimestamp: metav1.NewTime(w.clock.Now()),
	}}
	w.job.Spec.MinAvailable = least
	for i, replicas := range tasks {
		task := api.TaskSpec{Name: string(rune('a' + i)), Replicas: replicas}
		task.Template.Spec.Containers = []corev1.Container{{Name: "main"}}
		w.job.Spec.Tasks = append(w.job.Spec.Tasks, task)
	}
	w.begin()
	return w
}

// begin starts a controller whose caches contain the server's objects.
func (w *world) begin() {
	informers, err := informer.NewSet(&rest.Config{Host: "http://none"})
	if err != nil {
		w.t.Fatal(err)
	}
	must := func(err error) {
		if err != nil {
			w.t.Fatal(err)
		}
	}
	must(informers.Nodes.Store().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: podsettest.Node}}))
	must(informers.Namespaces.Store().Add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: jobKey.Namespace}}))
	must(informers.Jobs.Store().Add(w.job))
	w.Show = func(p *corev1.Pod, gone bool) {
		if gone {
			must(informers.Pods.Store().Delete(p))
		} else {
			must(informers.Pods.Store().Add(p))
		}
	}
	w.Listed = func(pods []*corev1.Pod, version string) {
		var list []any
		for _, p := range pods {
			list = append(list, p)
		}
		must(informers.Pods.Store().Replace(list, version))
	}
	w.Restart()
	w.c, err = New(Config{Informers: informers, Scheduler: w.World, Model: w.World, Writer: w, Clock: w.clock, Window: 2})
	must(err)
	store := w.Show
	w.Show = func(p *corev1.Pod, gone bool) {
		if store(p, gone); gone {
			w.c.podGone(p)
		} else {
			w.c.podSeen(p)
		}
	}
}

// Status implements apiwriter.Writer: the status is stored, and then the watch shows it.
func (w *world) Status(_ apiwriter.Meta, o apiwriter.Object, _ bool, done func(apiwriter.Object, error)) {
	if w.conflict {
		done(nil, apierrors.NewConflict(schema.GroupResource{Resource: "jobs"}, jobKey.Name, errors.New("changed")))
		return
	}
	job := *o.(*api.Job)
	w.store(job, func(stored *api.Job) { done(stored, nil) })
}

// store stores the job as its next version, and then the watch shows it.
func (w *world) store(job api.Job, stored func(*api.Job)) {
	old := w.job
	w.version++
	job.ResourceVersion = strconv.Itoa(w.version)
	w.job = &job
	stored(w.job)
	if err := w.c.Informers.Jobs.Store().Update(w.job); err != nil {
		w.t.Fatal(err)
	}
	w.c.jobUpdated(old, w.job)
}

// Event implements apiwriter.Writer.
func (w *world) Event(_ apiwriter.Object, _, reason, _ string) { w.events = append(w.events, reason) }

func (w *world) turn() { w.c.loop.Take(jobKey) }

func (w *world) record() *record { return w.c.loop.Get(jobKey) }

func (w *world) phase() api.JobPhase { return w.record().status.State.Phase }

// settle makes steps until nothing is left to do.
func (w *world) settle() {
	w.Calm = true
	for quiet := 0; quiet < 3; {
		if w.turn(); w.Step() {
			quiet = 0
			continue
		}
		for name, p := range w.Server {
			if p.DeletionTimestamp != nil {
				w.Remove(name)
			}
		}
		w.clock.Step(10 * time.Minute)
		w.c.loop.Post(jobKey, "", w.c.takeUnseen)
		quiet++
	}
}

// all sets the phase of all pods.
func (w *world) all(phase corev1.PodPhase) {
	for name := range w.Server {
		w.Change(name, func(p *corev1.Pod) { p.Status.Phase = phase })
	}
}

func quota(*corev1.Pod) error {
	return apierrors.NewForbidden(podsettest.Pods, "", errors.New("exceeded quota"))
}

// TestAJobGetsItsPods applies events, faults, refusals and crashes in random order, and then none.
// The job must run with all its pods, and complete.
func TestAJobGetsItsPods(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tasks := rapid.SliceOfN(rapid.Int32Range(1, 3), 1, 2).Draw(t, "tasks")
		total := int32(0)
		for _, n := range tasks {
			total += n
		}
		w := newWorld(t, tasks, rapid.Int32Range(1, total).Draw(t, "least"))
		policy := func(*corev1.Pod) error { return nil }
		if rapid.Bool().Draw(t, "a policy forbids pods to name their node") {
			policy = func(p *corev1.Pod) error {
				if p.Spec.NodeName == "" {
					return nil
				}
				return apierrors.NewForbidden(podsettest.Pods, p.Name, errors.New("spec.nodeName is forbidden"))
			}
		}
		w.Refuse = policy
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 11).Draw(t, "what") {
			case 0:
				w.fault(policy)
			case 1, 2, 3, 4:
				w.turn()
			case 5:
				w.clock.Step(time.Second)
			default:
				w.Step()
			}
		}
		w.Refuse = policy
		w.settle()
		w.all(corev1.PodRunning)
		w.settle()
		if len(w.Server) != int(total) || w.phase() != api.Running {
			t.Errorf("job is %s with %d pods, want Running with %d; %v", w.phase(), len(w.Server), total, w.record().pods.Sum())
		}
		for name, p := range w.Server {
			if p.Spec.NodeName == "" {
				t.Errorf("pod %s has no node", name)
			}
		}
		if r := w.record(); len(w.Assumed()) > 0 || r.pods.Busy() || r.pods.Expects() {
			t.Errorf("room is assumed for %v; pods at the writer: %v, expected: %v", w.Assumed(), r.pods.Busy(), r.pods.Expects())
		}
		w.all(corev1.PodSucceeded)
		w.settle()
		if w.phase() != api.Completed || len(w.Server) != int(total) {
			t.Errorf("job is %s with %d pods, want Completed with %d", w.phase(), len(w.Server), total)
		}
	})
}

func (w *world) fault(policy func(*corev1.Pod) error) {
	var names []string
	for _, t := range w.job.Spec.Tasks {
		for i := range t.Replicas {
			names = append(names, "job-"+t.Name+"-"+string(rune('0'+i)))
		}
	}
	name := names[w.Choose("pod", len(names))]
	switch w.Choose("fault", 7) {
	case 0:
		w.Relist()
	case 1:
		w.Remove(name)
	case 2:
		w.Change(name, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: w.clock.Now()} })
	case 3:
		w.Change(name, func(p *corev1.Pod) {
			if p.Spec.NodeName != "" && p.Status.Phase == corev1.PodPending {
				p.Status.Phase, p.Status.Reason = corev1.PodFailed, "OutOfcpu"
			}
		})
	case 4:
		w.Refuse = quota
	case 5:
		w.Refuse = policy
	case 6:
		w.begin() // the manager was killed
	}
}

// TestAJobBelowItsMinimumHoldsNothing lets the server take fewer pods than the job's minimum.
func TestAJobBelowItsMinimumHoldsNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Int32Range(2, 5).Draw(t, "pods")
		least := rapid.Int32Range(2, total).Draw(t, "least")
		limit := rapid.IntRange(0, int(least)-1).Draw(t, "quota")
		w := newWorld(t, []int32{total}, least)
		w.Calm = true
		w.Refuse = func(p *corev1.Pod) error {
			if len(w.Server) < limit {
				return nil
			}
			return quota(p)
		}
		for range 400 {
			if w.turn(); !w.Step() && w.record().refusal.Noted() && !w.record().pods.Busy() {
				if w.turn(); w.Idle() && len(w.Server) == 0 {
					break
				}
			}
			for name, p := range w.Server {
				if p.DeletionTimestamp != nil {
					w.Remove(name)
				}
			}
			if w.Idle() {
				w.clock.Step(100 * time.Millisecond)
			}
		}
		r := w.record()
		if len(w.Server) > 0 || len(w.Assumed()) > 0 || r.pods.Sum().Held() > 0 {
			t.Errorf("%d of at least %d pods exist, with room for %v", len(w.Server), least, w.Assumed())
		}
		if reason, _ := r.waitsFor(); reason != reasonQuota {
			t.Errorf("the job waits for %q", reason)
		}
		w.Refuse = nil
		w.settle()
		if sum := r.pods.Sum(); sum[podset.Pending] != total {
			t.Errorf("with room the job has %v", sum)
		}
	})
}
