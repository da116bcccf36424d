// Package floor writes the objects of a measured run once more, without a controller: a bare client
// writes them from a copy and computes nothing. The least time that this takes until the last pod
// exists is the least that any controller could need on this server at this moment.
//
//	a run's jobs, pods and statuses at rest ──▶ New ──▶ Load
//	Load ──▶ Calibrate: samples at several concurrencies
//	     ├─▶ Rank: larger samples in several orders
//	     └─▶ Run: everything, in the best ways in alternation; the fastest counts
//
// A job is created before its pods, which carry its UID. Statuses are written after all pods, so
// that they delay none. Apart from that everything overlaps: the next possible write is sent as soon
// as a slot is free.
//
// Jobs are written with the identity of their user, and pods and statuses with the identity of the
// system, so that the server checks the same rights and applies the same flow control as in the
// run.
package floor

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.dev/lockstep/internal/lab/drive"
	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/lab/system"
)

// Load is a set of jobs to write, with their pods and statuses.
type Load struct {
	sys   system.System
	gang  bool
	items []item
}

type item struct {
	atRest drive.Object
	index  int
	pods   []corev1.Pod
	// size is the number of pods that the job asks for; a sample has fewer of them.
	size int
}

// New returns a load modelled on the jobs and the pods of a measured run at rest, where every job has
// all its pods.
func New(sys system.System, jobs []drive.Object, pods []corev1.Pod, gang bool) *Load {
	l := &Load{sys: sys, gang: gang}
	at := map[string]int{}
	for _, j := range jobs {
		at[j.GetName()] = len(l.items)
		l.items = append(l.items, item{atRest: j, index: len(l.items)})
	}
	for i := range pods {
		if job, _ := sys.Identify(pods[i].Name); sys.OfLoad(pods[i].Name) {
			if k, ok := at[job]; ok {
				l.items[k].pods = append(l.items[k].pods, pods[i])
				l.items[k].size++
			}
		}
	}
	return l
}

// Counts returns the numbers of jobs and pods of the load.
func (l *Load) Counts() (jobs, pods int) {
	for i := range l.items {
		pods += len(l.items[i].pods)
	}
	return len(l.items), pods
}

// Sample returns a part of the load with about n pods, with the same proportion of jobs to pods as
// far as whole jobs allow. A single job larger than n is cut.
func (l *Load) Sample(n int) *Load {
	s := &Load{sys: l.sys, gang: l.gang}
	for i := range l.items {
		if n <= 0 {
			break
		}
		it := l.items[i]
		it.pods = it.pods[:min(n, len(it.pods))]
		n -= max(1, len(it.pods))
		s.items = append(s.items, it)
	}
	return s
}

// pod returns the body of the request that creates a pod as its controller does: the spec of the
// user's template, the metadata that the controller added, and the node. It has no finalizers,
// because no controller runs that would remove them.
func pod(model *corev1.Pod, job drive.Object, namespace string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: model.Name, Labels: model.Labels, Annotations: model.Annotations,
		},
		Spec: scenario.PodSpec(),
	}
	// The floor has no objects between a job and its pods, and so no owner of that kind.
	if owner := metav1.GetControllerOf(model); owner != nil && owner.Name == job.GetName() {
		owner = owner.DeepCopy()
		owner.UID = job.GetUID()
		p.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	p.Spec.NodeName, p.Spec.SchedulerName = model.Spec.NodeName, model.Spec.SchedulerName
	return p
}

// Writers are the clients that write: jobs as User, pods and statuses as System.
type Writers struct{ User, System *drive.Client }

// Order says which of the writes that are possible is sent first.
type Order string

// The orders.
const (
	// PodsFirst finishes the pods of the jobs that exist before it creates another job.
	PodsFirst Order = "pods before further jobs"
	// JobsFirst creates all jobs and then their pods.
	JobsFirst Order = "jobs before pods"
	// Apart creates jobs beside pods, with slots of their own, as the measured client and system do.
	Apart Order = "jobs beside pods"
)

// Orders returns the orders that can differ for a load of so many jobs.
func Orders(jobs int) []Order {
	if jobs == 1 {
		return []Order{PodsFirst}
	}
	return []Order{PodsFirst, JobsFirst, Apart}
}

// Way is a way to write a load: Concurrency writes in flight. With the order Apart, JobsConcurrency
// creates of jobs are in flight besides.
type Way struct {
	Order           Order
	Concurrency     int
	JobsConcurrency int
}

// Run writes the load into a namespace. It returns how long that took by the client's clock, until
// the last pod was written.
func (l *Load) Run(ctx context.Context, writers Writers, namespace string, way Way, progress func(done int)) (time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &run{load: l, writers: writers, namespace: namespace, order: way.Order, created: make([]drive.Object, len(l.items)), progress: progress}
	_, r.total = l.Counts()
	r.change = sync.NewCond(&r.lock)
	stop := context.AfterFunc(ctx, func() {
		r.lock.Lock()
		defer r.lock.Unlock()
		r.change.Broadcast()
	})
	defer stop()

	start := time.Now()
	var workers sync.WaitGroup
	work := func(next func(context.Context) (write, bool)) {
		for {
			w, ok := next(ctx)
			if !ok {
				return
			}
			err := r.do(ctx, w)
			r.done(w, err == nil)
			if err != nil {
				cancel(err)
				return
			}
		}
	}
	for range way.Concurrency {
		workers.Go(func() { work(r.next) })
	}
	if way.Order == Apart {
		for range way.JobsConcurrency {
			workers.Go(func() { work(r.nextJob) })
		}
	}
	workers.Wait()
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	return r.lastPod.Sub(start), nil
}

// run is the state of one Run.
type run struct {
	load      *Load
	writers   Writers
	namespace string
	order     Order
	total     int // number of pods of the load
	progress  func(int)

	lock     sync.Mutex
	change   *sync.Cond
	begun    int // number of jobs begun
	pods     []write
	statuses []write
	inFlight int
	written  int // number of pods written
	lastPod  time.Time
	created  []drive.Object
}

type step int

const (
	createJob step = iota
	createPod
	writeStatus
)

type write struct {
	step      step
	item, pod int
}

// next waits for a write to do. It returns false if nothing is left.
func (r *run) next(ctx context.Context) (write, bool) {
	r.lock.Lock()
	defer r.lock.Unlock()
	for ctx.Err() == nil {
		if w, ok := r.possible(); ok {
			r.inFlight++
			return w, true
		}
		if r.begun == len(r.load.items) && r.inFlight == 0 {
			break
		}
		r.change.Wait()
	}
	return write{}, false
}

// possible takes the write that is to be sent next; ok is false if each has to wait for another one.
func (r *run) possible() (w write, ok bool) {
	switch {
	case r.order == JobsFirst && r.begun < len(r.load.items):
		return r.beginJob(), true
	case len(r.pods) > 0 && r.order == PodsFirst:
		w, r.pods = r.pods[len(r.pods)-1], r.pods[:len(r.pods)-1]
		return w, true
	case len(r.pods) > 0:
		w, r.pods = r.pods[0], r.pods[1:]
		return w, true
	case r.order == PodsFirst && r.begun < len(r.load.items):
		return r.beginJob(), true
	case len(r.statuses) > 0 && r.written == r.total:
		w, r.statuses = r.statuses[0], r.statuses[1:]
		return w, true
	}
	return write{}, false
}

func (r *run) beginJob() write {
	r.begun++
	return write{step: createJob, item: r.begun - 1}
}

// nextJob is next for a slot that only creates jobs.
func (r *run) nextJob(ctx context.Context) (write, bool) {
	r.lock.Lock()
	defer r.lock.Unlock()
	if ctx.Err() != nil || r.begun == len(r.load.items) {
		return write{}, false
	}
	r.inFlight++
	return r.beginJob(), true
}

func (r *run) do(ctx context.Context, w write) error {
	it := &r.load.items[w.item]
	switch w.step {
	case createJob:
		job, err := r.load.sys.FloorJob(system.Job{Namespace: r.namespace, Name: it.atRest.GetName(), Index: it.index,
			Pods: it.size, Gang: r.load.gang})
		if err != nil {
			return err
		}
		created := job.DeepCopyObject().(drive.Object)
		if err := r.writers.User.CreateJob(ctx, job, created); err != nil {
			return err
		}
		r.created[w.item] = created
		return nil
	case createPod:
		created := r.created[w.item]
		return r.writers.System.CreatePod(ctx, pod(&it.pods[w.pod], created, r.namespace))
	default:
		job := r.load.sys.WithStatus(r.created[w.item], it.atRest)
		if job == nil {
			return nil
		}
		// The job exists: what is not found is the status, which is then no subresource.
		if err := r.writers.System.UpdateJobStatus(ctx, job); !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	}
}

// done ends the write w. If ok is true, it makes the writes possible that waited for w.
func (r *run) done(w write, ok bool) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.inFlight--
	if ok {
		r.follow(w)
	}
	r.change.Broadcast()
}

func (r *run) follow(w write) {
	switch w.step {
	case createJob:
		n := len(r.load.items[w.item].pods)
		for i := range n {
			if r.order == PodsFirst {
				i = n - 1 - i // the last one is sent first
			}
			r.pods = append(r.pods, write{createPod, w.item, i})
		}
		r.statuses = append(r.statuses, write{step: writeStatus, item: w.item})
	case createPod:
		r.written++
		r.progress(r.written)
		if r.written == r.total {
			r.lastPod = time.Now()
		}
	case writeStatus:
		r.created[w.item] = nil
	}
}
