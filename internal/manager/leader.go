package manager

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/fence"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// These constants describe the leader's lease. A leader that dies is succeeded after leaseDuration;
// one that stops, or that died on the same machine, is succeeded at once. An overloaded server may
// take seconds for a renewal; a leader that gave up then would make its successor read the whole
// cluster, which adds load.
//
// Other managers count leaseDuration from when they saw the last renewal. The leader writes until
// leaseFence after it sent the renewal: the difference leaves time for its last writes to arrive.
const (
	leaseName     = "lockstep-manager"
	leaseDuration = 12 * time.Second
	leaseFence    = 10 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

var errLostLease = errors.New("lost the lease: another manager leads now")

// leadInTurn follows until this manager holds the lease, and then leads while it holds the lease.
func (m *Manager) leadInTurn(ctx context.Context, writer *apiwriter.W) error {
	client, err := kubeclient.Clientset(m.cfg.REST)
	if err != nil {
		return err
	}
	if err := m.prepareLease(ctx, client, writer); err != nil {
		m.log.Warn("looking at the lease failed", "error", err) // the election tries again
	}
	shards, err := m.joinShards(ctx, client, writer)
	if err != nil {
		return err
	}
	defer shards.leave()
	// The election outlives the work, so that the lease is released only when everything has been
	// written.
	electing, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	// Until this manager leads, it works only on its share of the workflows and applications. If it
	// cannot, it ends, so that other managers work on its share.
	following, endFollowing := context.WithCancel(ctx)
	defer endFollowing()
	var failed error
	followed := make(chan struct{}) // closed when failed is set
	go func() {
		defer close(followed)
		if failed = m.follow(following, writer, shards); failed != nil {
			giveUp()
		}
	}()
	defer func() { endFollowing(); <-followed }()
	lock := &leaderLock{
		Interface: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: m.cfg.LeaseNamespace, Name: leaseName},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: m.identity},
		},
		now: fence.Now, term: fence.NewTerm(false, nil), lost: make(chan struct{}),
	}
	var started atomic.Bool
	worked := make(chan error, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          lock,
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, ReleaseOnCancel: true,
		Name: leaseName,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(elected context.Context) {
				started.Store(true)
				defer giveUp()
				work, end := context.WithCancelCause(ctx)
				defer end(nil)
				stop := context.AfterFunc(elected, lock.lose)
				defer stop()
				go func() {
					select {
					case <-lock.lost:
						end(errLostLease)
					case <-work.Done():
					}
				}()
				endFollowing()
				if <-followed; failed != nil {
					worked <- failed
					return
				}
				worked <- m.lead(work, writer, &leadership{lock.term, shards})
				lock.lose() // the next leader does the rest
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() {
		if !started.Load() {
			giveUp()
		}
	})
	defer stop()
	elector.Run(electing)
	if started.Load() {
		return <-worked
	}
	endFollowing()
	<-followed
	return failed // nil if this manager was stopped while another one led
}

// leaderLock is the leader's lease, with the term of this manager's leadership. Each renewal is
// conditional on the version of the lease that was seen last, so it proves that no other manager
// has led since.
type leaderLock struct {
	resourcelock.Interface
	now  func() time.Time
	term *fence.Term
	held atomic.Bool // this manager has held the lease
	// taken is true if another manager was seen to hold the lease after this one.
	taken atomic.Bool
	once  sync.Once
	lost  chan struct{} // closed when the term has ended
}

// lose ends the leadership for good.
func (l *leaderLock) lose() {
	l.once.Do(func() {
		l.term.End()
		close(l.lost)
	})
}

// Get implements resourcelock.Interface.
func (l *leaderLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	if err == nil && l.held.Load() && record.HolderIdentity != l.Identity() {
		l.taken.Store(true)
		l.lose()
	}
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (l *leaderLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(record, func() error { return l.Interface.Create(ctx, record) })
}

// Update implements resourcelock.Interface.
func (l *leaderLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(record, func() error { return l.Interface.Update(ctx, record) })
}

func (l *leaderLock) write(record resourcelock.LeaderElectionRecord, write func() error) error {
	if record.HolderIdentity != l.Identity() {
		l.lose() // the lease is released: end the term before others can take it
		if l.taken.Load() {
			// The elector would release the current lease, which belongs to another manager by now.
			return errLostLease
		}
		return write()
	}
	sent := l.now()
	if err := write(); err != nil {
		return err
	}
	l.held.Store(true)
	l.term.Extend(sent.Add(leaseFence))
	return nil
}

// prepareLease creates the namespace of the lease if it does not exist, and frees the lease if its
// holder was a process of this machine that has ended.
func (m *Manager) prepareLease(ctx context.Context, client kubernetes.Interface, writer apiwriter.Writer) error {
	lease, err := client.CoordinationV1().Leases(m.cfg.LeaseNamespace).Get(ctx, leaseName, metav1.GetOptions{})
	meta := apiwriter.Meta{Owner: "manager", Reason: "lease"}
	switch {
	case apierrors.IsNotFound(err):
		_, err := client.CoreV1().Namespaces().Get(ctx, m.cfg.LeaseNamespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: m.cfg.LeaseNamespace}}
			writer.Create(meta, ns, nil)
			return writer.Flush(ctx)
		}
		return err
	case err != nil:
		return err
	case lease.Spec.HolderIdentity == nil || !hasEnded(*lease.Spec.HolderIdentity):
		return nil
	}
	m.log.Info("freeing the lease of a manager of this machine that has ended", "holder", *lease.Spec.HolderIdentity)
	// The precondition on the version ensures that no other manager has freed the lease and leads
	// by now. A conflict is harmless: the election looks again.
	patch := []byte(`[{"op":"add","path":"/spec/holderIdentity","value":""}]`)
	writer.PatchVersion(meta, &coordinationv1.Lease{ObjectMeta: lease.ObjectMeta}, true, patch, nil)
	return writer.Flush(ctx)
}
