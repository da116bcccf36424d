package manager

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/apiwriter"
	applications "lockstep.dev/lockstep/internal/application/controller"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/malformed/report"
	"lockstep.dev/lockstep/internal/shard"
	"lockstep.dev/lockstep/internal/workflow/controller"
	"lockstep.dev/lockstep/internal/workflow/cron"
)

// shards is this manager's part in the division of workflows, crons and applications. nil means
// that this is the only manager, to which all belong.
type shards struct {
	member  *shard.Member
	working atomic.Pointer[controller.Controller]
	// deploying is the controller of this manager's share of the applications.
	deploying atomic.Pointer[applications.Controller]
	crons     *cron.Controller
	// told reports objects of this manager's share on which it panicked.
	told  *report.Reporter
	leave func()
}

// joinShards takes part in the division of workflows, crons and applications, until leave is
// called. Crons run from now on, whichever manager leads, because they need nothing that only the
// leader has. The name of a workflow started by a cron contains its scheduled time, so it does no
// harm if two managers own a cron for a moment. crons is the writer for the workflows that crons
// start.
func (m *Manager) joinShards(ctx context.Context, client kubernetes.Interface, crons *apiwriter.W) (*shards, error) {
	// The lease of this manager's share must not wait behind other writes, so it has a writer of
	// its own.
	writer, err := apiwriter.New(apiwriter.Config{REST: m.cfg.REST, Scheme: scheme.Scheme, Fixed: 2, Logger: m.log})
	if err != nil {
		return nil, err
	}
	s := &shards{}
	// Only this manager knows on which objects it panicked.
	if s.told, err = report.New(report.Config{REST: m.cfg.REST, Scheme: scheme.Scheme, Writer: s.writer(crons),
		Log: m.log}); err != nil {
		return nil, err
	}
	s.crons, err = cron.New(cron.Config{REST: m.cfg.REST, Writer: s.writer(crons), Evaluators: m.evaluators, Settings: m.settings.Current, Guard: m.guard, Malformed: s.told.Tell, Log: m.log, Owns: func(namespace, name string) bool {
		return s.member.Owns(namespace + "/" + name)
	}})
	if err != nil {
		return nil, err
	}
	s.member, err = shard.New(shard.Config{
		Name: m.identity, Namespace: m.cfg.LeaseNamespace,
		Leases: &leases{namespace: m.cfg.LeaseNamespace, client: client, writer: writer},
		Lapsed: func() {
			if c := s.working.Load(); c != nil {
				c.Lapsed()
			}
			if c := s.deploying.Load(); c != nil {
				c.Lapsed()
			}
		},
		Changing: func() {
			if c := s.working.Load(); c != nil {
				c.Changing()
			}
		},
		Changed: func() {
			if c := s.working.Load(); c != nil {
				c.Rebalance()
			}
			if c := s.deploying.Load(); c != nil {
				c.Rebalance()
			}
			s.crons.Resync()
		},
		Log: m.log,
	})
	if err != nil {
		return nil, err
	}
	// Work on keys ends before the lease does.
	living, end := context.WithCancel(context.WithoutCancel(ctx))
	writing, endWriting := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { s.member.Run(living) })
	working, endWork := context.WithCancel(ctx)
	var worked sync.WaitGroup
	worked.Go(func() { s.crons.Run(working) })
	worked.Go(func() { s.told.Run(working) })
	worked.Go(func() { m.settings.following(s.crons.Resync)(working) })
	var written sync.WaitGroup
	written.Go(func() { _ = writer.Run(writing) })
	s.leave = func() {
		endWork()
		worked.Wait()
		end()
		running.Wait()
		endWriting()
		written.Wait()
	}
	return s, nil
}

// owns returns a function that reports whether a workflow belongs to this manager, or nil if all
// do. Workflows that need the leader belong to the leader, whichever share they are in. leads
// means that this manager leads.
func (s *shards) owns(leads bool) func(*wf.Workflow) bool {
	if s == nil {
		return nil
	}
	return func(w *wf.Workflow) bool {
		if w.Annotations[wf.AnnotationLeader] != "" {
			return leads
		}
		return s.member.Owns(w.Namespace + "/" + w.Name)
	}
}

// works sets the controller of this manager's share of the workflows.
func (s *shards) works(c *controller.Controller) {
	if s != nil {
		s.working.Store(c)
	}
}

// ownsKey returns a function that reports whether an application belongs to this manager, or nil if
// all do.
func (s *shards) ownsKey() func(string) bool {
	if s == nil {
		return nil
	}
	return s.member.Owns
}

// deploys sets the controller of this manager's share of the applications.
func (s *shards) deploys(c *applications.Controller) {
	if s != nil {
		s.deploying.Store(c)
	}
}

// follow works on this manager's share of the workflows and applications while another manager
// leads, until ctx is done. After an error nobody works on the share as long as this manager has
// its lease.
func (m *Manager) follow(ctx context.Context, writer *apiwriter.W, shards *shards) error {
	client, err := kubeclient.Clientset(m.cfg.REST)
	if err != nil {
		return err
	}
	informers, err := informer.NewWorkflowSet(m.cfg.REST)
	if err != nil {
		return err
	}
	informers.Guard(m.guard)
	informers.OnMalformed(func(o runtime.Object, why *malformed.Error) {
		if why.Panicked { // the leader reports objects that do not decode
			shards.told.Tell(o, why)
		}
	})
	registry := &temporaryRegistry{Registerer: m.registry}
	defer registry.unregisterAll()
	workflows, err := controller.New(controller.Config{
		Informers: informers, Writer: shards.writer(writer), Client: client,
		Keep: func(w *wf.Workflow) bool { return m.archiveTarget().Wants(w) }, Owns: shards.owns(false), SchedulerNames: m.cfg.SchedulerNames, NodesBytesMax: m.cfg.WorkflowNodesBytes,
		Pods: m.cfg.Executor, Events: m.cfg.WorkflowEvents, Settings: m.settings.Current, Images: m.images, Nodes: m.nodes, AlwaysMoveNodes: m.cfg.AlwaysMoveNodes,
		Evaluators: m.evaluators, Guard: m.guard, Metrics: registry, Log: m.log,
	})
	if err != nil {
		return err
	}
	// The controllers are set before anything is read, because they must learn of keys that move to
	// or from this manager meanwhile.
	shards.works(workflows)
	apps, err := m.applications(writer, shards, registry, nil)
	if err != nil {
		return err
	}
	watching, end := context.WithCancel(ctx)
	informers.Start(watching)
	defer informers.Wait()
	defer end()
	if informers.WaitForSync(ctx) != nil {
		return nil // ctx is done
	}
	workflows.Resume()
	m.log.Info("working on a share of the workflows and applications", "server", m.cfg.REST.Host)
	var deploying sync.WaitGroup
	deploying.Go(func() { apps.Run(ctx) })
	deploying.Go(func() { m.settings.following(workflows.Configured)(ctx) })
	defer deploying.Wait()
	workflows.Run(ctx)
	return nil
}

// temporaryRegistry registers metrics that are unregistered before the process ends.
type temporaryRegistry struct {
	prometheus.Registerer
	lent []prometheus.Collector
}

// Register implements prometheus.Registerer.
func (r *temporaryRegistry) Register(c prometheus.Collector) error {
	err := r.Registerer.Register(c)
	if err == nil {
		r.lent = append(r.lent, c)
	}
	return err
}

func (r *temporaryRegistry) unregisterAll() {
	for _, c := range r.lent {
		r.Unregister(c)
	}
}

// leases implements shard.Leases. Every write after the first is conditional on the version seen
// last, so a write that arrives late is refused.
type leases struct {
	namespace string
	client    kubernetes.Interface
	writer    apiwriter.Writer
	version   *coordinationv1.Lease // metadata of this manager's lease as last seen; nil if unknown
}

var leaseMeta = apiwriter.Meta{Owner: "manager", Reason: "shard"}

// List implements shard.Leases.
func (l *leases) List(ctx context.Context) ([]coordinationv1.Lease, error) {
	list, err := l.client.CoordinationV1().Leases(l.namespace).List(ctx, metav1.ListOptions{LabelSelector: shard.Label})
	if err != nil {
		return nil, err
	}
	// The lease of a process of this machine that has ended counts as expired.
	return slices.DeleteFunc(list.Items, func(lease coordinationv1.Lease) bool {
		return lease.Spec.HolderIdentity != nil && hasEnded(*lease.Spec.HolderIdentity)
	}), nil
}

// Put implements shard.Leases.
func (l *leases) Put(ctx context.Context, lease *coordinationv1.Lease) error {
	if l.version == nil {
		there, err := l.client.CoordinationV1().Leases(l.namespace).Get(ctx, lease.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			made, err := wait(ctx, func(done func(apiwriter.Object, error)) { l.writer.Create(leaseMeta, lease, done) })
			l.remember(made, err)
			return err
		case err != nil:
			return err
		}
		l.version = there
	}
	ops, err := json.Marshal([]apiwriter.PatchOp{
		{Op: "add", Path: "/metadata/annotations", Value: lease.Annotations},
		{Op: "add", Path: "/metadata/labels", Value: lease.Labels},
		{Op: "add", Path: "/spec", Value: lease.Spec},
	})
	if err != nil {
		return err
	}
	about := l.version
	now, err := wait(ctx, func(done func(apiwriter.Object, error)) {
		l.writer.PatchVersion(leaseMeta, about, true, ops, done)
	})
	l.remember(now, err)
	return err
}

// remember stores the version that was written; after an error the version is unknown.
func (l *leases) remember(o apiwriter.Object, err error) {
	l.version = nil
	if err == nil {
		l.version = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Namespace: l.namespace, Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
		}}
	}
}

// Delete implements shard.Leases.
func (l *leases) Delete(ctx context.Context, name string) error {
	_, err := wait(ctx, func(done func(apiwriter.Object, error)) {
		about := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: name}}
		l.writer.Delete(leaseMeta, about, apiwriter.DeleteOptions{}, func(err error) { done(nil, err) })
	})
	return err
}

// wait makes a write and returns its outcome. It returns errNotAnswered when ctx is done or a
// minute has passed; the write may still take effect then.
func wait(ctx context.Context, write func(done func(apiwriter.Object, error))) (apiwriter.Object, error) {
	type answer struct {
		o   apiwriter.Object
		err error
	}
	answers := make(chan answer, 1)
	write(func(o apiwriter.Object, err error) { answers <- answer{o, err} })
	select {
	case a := <-answers:
		return a.o, a.err
	case <-ctx.Done():
		return nil, errors.Join(errNotAnswered, ctx.Err())
	case <-time.After(time.Minute):
		return nil, errNotAnswered
	}
}

var errNotAnswered = errors.New("the server did not answer in time")
