package agent

import (
	"context"
	"encoding/json"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
)

// An agent that runs in a pod needs no heartbeat of its own: its kubelet probes its health anyway,
// and writes when that changes. An agent that runs as a plain process renews a Lease; on 5,000
// nodes that is 330 writes a second.

// renewalsMissed is the number of renewals that may be missed before the agent counts as gone.
const renewalsMissed = 3

// leasePrefix precedes the node's name in the names of leases. The policy
// leases.topology.lockstep.dev contains it too.
const leasePrefix = "lockstep-agent."

// liveness returns how the agent shows that it is alive.
func (c Config) liveness() *topologyv1alpha1.Liveness {
	if c.Pod != "" {
		return &topologyv1alpha1.Liveness{Pod: c.Pod}
	}
	return &topologyv1alpha1.Liveness{Lease: c.LeaseNamespace + "/" + leasePrefix + c.Node}
}

// leaseRenewer renews the agent's lease as long as passes are made.
type leaseRenewer struct {
	cfg     Config
	log     *slog.Logger
	writer  apiwriter.Writer
	nodeUID types.UID
	busy    atomic.Bool // a renewal is in flight
}

func newLeaseRenewer(cfg Config, writer apiwriter.Writer, node types.UID) *leaseRenewer {
	return &leaseRenewer{cfg: cfg, log: cfg.Log, writer: writer, nodeUID: node}
}

func (p *leaseRenewer) run(ctx context.Context, health *health) {
	tick := time.NewTicker(p.cfg.PulseInterval)
	defer tick.Stop()
	for {
		now := time.Now()
		if last := health.last.Load(); last == 0 || now.Sub(time.Unix(0, last)) < stalled {
			p.renew(now)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (p *leaseRenewer) renew(now time.Time) {
	if p.busy.Swap(true) {
		return
	}
	lease := p.lease(now)
	data, err := json.Marshal(map[string]any{"spec": lease.Spec})
	if err != nil {
		panic(err) // a lease always marshals
	}
	m := apiwriter.Meta{Owner: "node/" + p.cfg.Node, Reason: "agent-lease"}
	done := func(_ apiwriter.Object, err error) {
		p.busy.Store(false)
		if err != nil {
			p.log.Warn("the lease cannot be renewed", "lease", lease.Name, "error", err)
		}
	}
	p.writer.Patch(m, lease, types.MergePatchType, data, func(o apiwriter.Object, err error) {
		if apierrors.IsNotFound(err) {
			p.writer.Create(m, lease, done)
			return
		}
		done(o, err)
	})
}

// lease returns the agent's lease, which the node owns.
func (p *leaseRenewer) lease(now time.Time) *coordinationv1.Lease {
	holder, renewed := p.cfg.Node, metav1.NewMicroTime(now)
	seconds := int32(math.Ceil((renewalsMissed * p.cfg.PulseInterval).Seconds()))
	l := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.cfg.LeaseNamespace, Name: leasePrefix + p.cfg.Node,
			Labels:      map[string]string{topologyv1alpha1.AgentLabel: "lease"},
			Annotations: map[string]string{apiwriter.CreatorAnnotation: "agent/" + p.cfg.Node},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &renewed},
	}
	if p.nodeUID != "" {
		l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: p.cfg.Node, UID: p.nodeUID}}
	}
	return l
}
