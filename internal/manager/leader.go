package manager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// The lease. A leader that dies without a word is followed after leaseDuration, one that stops, or that died on the same
// machine, at once. A server that has too much to do may take seconds for a renewal, and to end then and read the whole
// cluster again would give it more to do.
const (
	leaseName     = "lockstep-manager"
	leaseDuration = 12 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

var errLostLease = errors.New("manager: lost the lease: another manager leads now")

// leadInTurn leads while the lease is held.
func (m *Manager) leadInTurn(ctx context.Context, writer *apiwriter.W) error {
	client, err := kubeclient.Clientset(m.cfg.REST)
	if err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	if err := m.prepareLease(ctx, client, writer); err != nil {
		m.log.Warn("looking at the lease failed", "error", err) // the election tries again
	}
	shards, err := m.joinShards(ctx, client, writer)
	if err != nil {
		return err
	}
	defer shards.leave()
	// Until it is this manager's turn it works on its share of the workflows, and leaves the rest to the one that leads.
	following, endFollowing := context.WithCancel(ctx)
	defer endFollowing()
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		m.follow(following, writer, shards)
	}()
	defer func() { endFollowing(); <-followed }()
	// The election outlives the work, so that the lease is given up when everything has been written and not before.
	electing, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	var started atomic.Bool
	worked := make(chan error, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: m.cfg.LeaseNamespace, Name: leaseName},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity()},
		},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, ReleaseOnCancel: true,
		Name: leaseName,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(elected context.Context) {
				started.Store(true)
				defer giveUp()
				work, end := context.WithCancelCause(ctx)
				defer end(nil)
				stop := context.AfterFunc(elected, func() { end(errLostLease) })
				defer stop()
				endFollowing()
				<-followed
				worked <- m.lead(work, writer, shards)
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	stop := context.AfterFunc(ctx, func() {
		if !started.Load() {
			giveUp()
		}
	})
	defer stop()
	elector.Run(electing)
	if !started.Load() {
		return nil // asked to stop while it was another's turn
	}
	return <-worked
}

// prepareLease makes room for the lease, and frees it when its holder was a process of this machine that has ended.
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
	// The resource version makes sure that nobody else has done so, and leads by now.
	patch := fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"spec":{"holderIdentity":""}}`, lease.ResourceVersion)
	writer.Patch(meta, &coordinationv1.Lease{ObjectMeta: lease.ObjectMeta}, types.MergePatchType, []byte(patch), nil)
	return writer.Flush(ctx)
}

// identity names this process: HOST_PID_UUID.
func identity() string {
	host, _ := os.Hostname()
	return fmt.Sprintf("%s_%d_%s", host, os.Getpid(), uuid.NewUUID())
}

// hasEnded says whether the holder was a process of this machine (in a pod: of this pod) that exists no more.
func hasEnded(holder string) bool {
	parts := strings.Split(holder, "_")
	host, err := os.Hostname()
	if len(parts) != 3 || err != nil || parts[0] != host {
		return false
	}
	pid, err := strconv.Atoi(parts[1])
	if err != nil || pid <= 0 {
		return false
	}
	// In a container that was started again the process before had the same number.
	return pid == os.Getpid() || errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}
