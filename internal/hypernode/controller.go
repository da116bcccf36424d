package hypernode

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	api "lockstep.dev/lockstep/api/topology.volcano.sh/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/clip"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/panics"
	"lockstep.dev/lockstep/internal/scheduler/network"
)

// Model has the domains that HyperNodes make. It is a cluster.Cluster.
type Model interface{ Network() *network.Tree }

// Config configures a Controller. Informers, Model and Writer are required.
type Config struct {
	Informers *informer.Set
	Model     Model
	Writer    apiwriter.Writer
	// Guard recovers from panics that one HyperNode causes. With a nil Guard such panics end the
	// process.
	Guard *panics.Guard
	// Interval is the interval at which statuses are compared. Default 2 s.
	Interval time.Duration
	Clock    clock.WithTicker
	Log      *slog.Logger
}

// Controller writes the statuses of HyperNodes.
type Controller struct {
	Config
	loop *controlloop.Loop[types.NamespacedName, record]
	// touched means that a HyperNode has changed since the last sweep. Only sweeps use seen, the
	// Tree of the last one.
	touched atomic.Bool
	seen    *network.Tree
}

// record is the in-memory state of one HyperNode.
type record struct {
	uid types.UID
	// written is the last status passed to the writer, until the watch shows it or a later one.
	// version is the resource version that the write produced; it is empty before the answer.
	written *api.HyperNodeStatus
	version string
	// conflict is the resource version from which the last status was made, if its write met a
	// conflict.
	conflict string
}

// New returns a Controller and registers its handlers. Call it before the informers start.
func New(cfg Config) (*Controller, error) {
	if cfg.Informers == nil || cfg.Model == nil || cfg.Writer == nil {
		return nil, errors.New("hypernode: Informers, Model and Writer are required")
	}
	cfg.Interval = cmp.Or(max(cfg.Interval, 0), 2*time.Second)
	cfg.Clock = cmp.Or[clock.WithTicker](cfg.Clock, clock.RealClock{})
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	c := &Controller{Config: cfg}
	c.loop = controlloop.New[types.NamespacedName, record](controlloop.Config[types.NamespacedName]{
		Name: "hypernodes", Workers: 1, Turn: c.turn, Guard: cfg.Guard, Panicked: c.panicked, Clock: cfg.Clock,
		Sweep: c.sweep, SweepEvery: cfg.Interval, RetryMin: time.Second, RetryMax: time.Minute,
	})
	touch := func(*api.HyperNode) { c.touched.Store(true) }
	cfg.Informers.HyperNodes.Follow(touch, touch)
	return c, nil
}

// Run runs until ctx is done. The informers must have synced.
func (c *Controller) Run(ctx context.Context) { c.loop.Run(ctx) }

// sweep wakes the HyperNodes whose status may differ.
func (c *Controller) sweep() {
	tree := c.Model.Network()
	if !c.touched.Swap(false) && tree == c.seen {
		return
	}
	c.seen = tree
	for _, h := range c.Informers.HyperNodes.List() {
		if next := c.statusOf(h, tree); !equality.Semantic.DeepEqual(h.Status, next) {
			c.loop.Wake(informer.KeyOf(h))
		}
	}
}

// turn writes the status of a HyperNode if it differs.
func (c *Controller) turn(key types.NamespacedName) {
	c.loop.Deliver(key, controlloop.Anyone)
	h, found := c.Informers.HyperNodes.Get("", key.Name)
	if !found {
		c.loop.Drop(key)
		return
	}
	r := c.loop.Get(key)
	if r == nil {
		r = &record{}
		c.loop.Put(key, r)
	}
	if r.uid != h.UID { // a new HyperNode
		*r = record{uid: h.UID}
	}
	if r.conflict == h.ResourceVersion {
		return // the watch brings the present version
	}
	if r.version != "" && !informer.Older(h.ResourceVersion, r.version) {
		r.written, r.version = nil, ""
	}
	now := h
	if r.written != nil {
		now = &api.HyperNode{ObjectMeta: h.ObjectMeta, Spec: h.Spec, Status: *r.written}
	}
	next := c.statusOf(now, c.Model.Network())
	if r.conflict == "" && equality.Semantic.DeepEqual(now.Status, next) {
		c.loop.Drop(key) // most HyperNodes never change again
		return
	}
	r.written, r.version, r.conflict = &next, "", ""
	out := &api.HyperNode{ObjectMeta: h.ObjectMeta, Spec: h.Spec, Status: next}
	m := apiwriter.Meta{Owner: "hypernode/" + h.Name, Reason: "hypernode-status"}
	c.Writer.Status(m, out, false, func(o apiwriter.Object, err error) {
		if errors.Is(err, apiwriter.ErrStopped) {
			return
		}
		c.loop.Post(key, controlloop.Anyone, func(r *record) {
			if r.written == &next { // otherwise the answer to a later status follows
				c.answered(key, r, h, o, err)
			}
		})
	})
}

// answered handles the result of the last status write, which was made from this version of the
// HyperNode.
func (c *Controller) answered(key types.NamespacedName, r *record, h *api.HyperNode, o apiwriter.Object, err error) {
	switch {
	case err == nil:
		r.version = o.GetResourceVersion()
		c.loop.Succeeded(key)
	case apierrors.IsConflict(err):
		r.conflict = h.ResourceVersion
	case !apierrors.IsNotFound(err):
		c.Log.Warn("writing a HyperNode's status failed", "hyperNode", h.Name, "error", err)
		r.written = nil
		c.loop.Retry(key)
	}
}

// messageMax is the maximum length of a condition's message, in bytes.
const messageMax = 1024

// statusOf returns the status that a HyperNode should have.
func (c *Controller) statusOf(h *api.HyperNode, tree *network.Tree) api.HyperNodeStatus {
	next := api.HyperNodeStatus{Conditions: slices.Clone(h.Status.Conditions)}
	if domain, found := tree.HyperNode(h.Name); found {
		next.NodeCount = int64(domain.Count)
	}
	meta.RemoveStatusCondition(&next.Conditions, api.HyperNodeValid) // it can be decoded
	reason, message := network.Explain(tree.Faults[h.Name])
	if message == "" {
		meta.RemoveStatusCondition(&next.Conditions, api.HyperNodeMembersResolved)
		return next
	}
	meta.SetStatusCondition(&next.Conditions, metav1.Condition{
		Type: api.HyperNodeMembersResolved, Status: metav1.ConditionFalse, Reason: reason, Message: clip.Text(message, messageMax),
		LastTransitionTime: metav1.NewTime(c.Clock.Now().Truncate(time.Second)),
	})
	return next
}

// panicked leaves a HyperNode alone until it is changed.
func (c *Controller) panicked(key types.NamespacedName, p *panics.Panic) {
	if h, found := c.Informers.HyperNodes.Get("", key.Name); found {
		c.Informers.HyperNodes.SetApart("", key.Name, h.UID, p)
	}
}
