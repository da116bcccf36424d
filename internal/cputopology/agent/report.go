package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/clip"
	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/agent/enforce"
	"lockstep.dev/lockstep/internal/informer"
)

// Limits of the API.
const (
	pinsMax         = 1024
	problemsMax     = 16
	messageBytesMax = 256
)

// statusOf returns the status that describes a pass.
func (a *Agent) statusOf(out enforce.Outcome, err error) topologyv1alpha1.NodeTopologyStatus {
	s := topologyv1alpha1.NodeTopologyStatus{
		AgentVersion: clip.Text(a.cfg.Version, 64), Mode: topologyv1alpha1.ApplyByFiles, Cgroups: a.version.String(),
		Reserved: cputopology.List(a.machine.reserved), Shared: cputopology.List(out.Pool), Pinned: int32(out.Pinned),
		KubeletPins: out.KubeletPins[:min(len(out.KubeletPins), pinsMax)], Moved: a.moved, Liveness: a.cfg.liveness(),
		Kubelet: a.kubelet.status(a.cfg.TakeOver),
	}
	if a.nri != nil && a.nri.Connected() {
		s.Mode = topologyv1alpha1.ApplyByNRI
	}
	problems := append(a.ownProblems(), out.Problems...)
	for _, p := range problems[:min(len(problems), problemsMax)] {
		p.Message = clip.Text(p.Message, messageBytesMax)
		s.Problems = append(s.Problems, p)
	}
	ready := metav1.Condition{Type: topologyv1alpha1.NodeReady, Status: metav1.ConditionFalse}
	switch {
	case errors.Is(err, errReleased):
		ready.Reason, ready.Message = "Released", err.Error()
	case err != nil:
		ready.Reason, ready.Message = "Failed", err.Error()
	case a.cfg.Observe:
		s.Mode = topologyv1alpha1.ApplyNothing
		ready.Reason, ready.Message = topologyv1alpha1.ReasonObserving, "the agent was told to write nothing"
	default:
		ready.Status, ready.Reason, ready.Message = metav1.ConditionTrue, "Applied", "CPU sets are applied"
	}
	s.Conditions = []metav1.Condition{ready}
	return s
}

// reporter keeps the node's NodeTopology up to date. It writes only differences.
type reporter struct {
	cfg    Config
	log    *slog.Logger
	writer apiwriter.Writer
	view   *view
	told   map[topologyv1alpha1.Problem]bool // problems for which events have been recorded

	topology *cputopology.Topology // the topology from which spec was made
	spec     topologyv1alpha1.NodeTopologySpec

	lock sync.Mutex
	// written is the object after the last write. writing means that a write is in flight.
	written *topologyv1alpha1.NodeTopology
	writing bool
	// status has been handed to the writer and may be delayed there.
	status *topologyv1alpha1.NodeTopologyStatus
	// refused is the time at which the API server last refused a write.
	refused time.Time
}

func newReporter(cfg Config, writer apiwriter.Writer, view *view) *reporter {
	return &reporter{cfg: cfg, log: cfg.Log, writer: writer, view: view}
}

// refusalPause is the time for which a refused write is not retried.
const refusalPause = 30 * time.Second

// report writes the differences from the API's state. It does not wait for writes: the next report
// sees their results.
func (r *reporter) report(topology *cputopology.Topology, status topologyv1alpha1.NodeTopologyStatus, now time.Time) {
	if topology == nil {
		return // the machine is unknown
	}
	if topology != r.topology {
		r.topology, r.spec = topology, topology.Encode()
	}
	r.events(status.Problems)
	r.lock.Lock()
	defer r.lock.Unlock()
	known := r.known()
	switch {
	case r.writing || now.Sub(r.refused) < refusalPause:
	case known == nil:
		r.create()
	case !equality.Semantic.DeepEqual(known.Spec, r.spec):
		r.patch(known)
	default:
		r.putStatus(known, status, now)
	}
}

func (r *reporter) meta(reason string) apiwriter.Meta {
	return apiwriter.Meta{Owner: "node/" + r.cfg.Node, Reason: reason}
}

// known returns the newer of the object watched and the object written. It returns nil if the
// object has been deleted and not written since.
func (r *reporter) known() *topologyv1alpha1.NodeTopology {
	watched := r.view.topology()
	switch {
	case watched == nil && r.written != nil && r.view.deleted(r.written):
		r.written, r.status = nil, nil
		return nil
	case watched == nil:
		return r.written
	case r.written == nil || !informer.Older(watched.ResourceVersion, r.written.ResourceVersion):
		return watched
	}
	return r.written
}

// object returns the node's NodeTopology, without its status. The node owns it.
func (r *reporter) object() *topologyv1alpha1.NodeTopology {
	o := &topologyv1alpha1.NodeTopology{
		ObjectMeta: metav1.ObjectMeta{Name: r.cfg.Node,
			Annotations: map[string]string{apiwriter.CreatorAnnotation: "agent/" + r.cfg.Node}},
		Spec: r.spec,
	}
	if r.view.nodeUID != "" {
		o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: r.cfg.Node, UID: r.view.nodeUID}}
	}
	return o
}

func (r *reporter) create() {
	r.writing = true
	r.writer.Create(r.meta("node-topology"), r.object(), r.done)
}

func (r *reporter) patch(known *topologyv1alpha1.NodeTopology) {
	data, err := json.Marshal([]apiwriter.PatchOp{{Op: "replace", Path: "/spec", Value: r.spec}})
	if err != nil {
		panic(err) // strings and integers always marshal
	}
	r.writing = true
	r.writer.Patch(r.meta("node-topology"), known, types.JSONPatchType, data, r.done)
}

// done handles the result of a write.
func (r *reporter) done(o apiwriter.Object, err error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.writing = false
	r.ended(o, err)
}

func (r *reporter) ended(o apiwriter.Object, err error) {
	if err != nil {
		switch {
		case errors.Is(err, apiwriter.ErrStopped):
		case apierrors.IsNotFound(err):
			r.written = nil // another client has deleted the object
		case apierrors.IsConflict(err):
			// The manager has written its part. The watch will show it, and the next pass starts
			// from there.
		default:
			r.refused = time.Now()
			r.log.Error("the NodeTopology cannot be written", "node", r.cfg.Node, "error", err)
		}
		return
	}
	if t, ok := o.(*topologyv1alpha1.NodeTopology); ok {
		r.written = t
	}
}

// putStatus hands the status to the writer, unless it is already written or in flight.
func (r *reporter) putStatus(known *topologyv1alpha1.NodeTopology, status topologyv1alpha1.NodeTopologyStatus,
	now time.Time) {
	ready := status.Conditions[0]
	ready.LastTransitionTime = metav1.NewTime(now).Rfc3339Copy()
	before := meta.FindStatusCondition(known.Status.Conditions, ready.Type)
	if before != nil && before.Status == ready.Status {
		ready.LastTransitionTime = before.LastTransitionTime
	}
	if r.status != nil && r.status.Conditions[0].Status == ready.Status {
		ready.LastTransitionTime = r.status.Conditions[0].LastTransitionTime
	}
	status.Conditions = []metav1.Condition{ready}
	// The other fields belong to the manager.
	status.Repack = known.Status.Repack
	for _, c := range known.Status.Conditions {
		if c.Type != ready.Type {
			status.Conditions = append(status.Conditions, c)
		}
	}
	if r.status != nil {
		if equality.Semantic.DeepEqual(*r.status, status) {
			return // in flight
		}
	} else if equality.Semantic.DeepEqual(known.Status, status) {
		return
	}
	o := known.DeepCopy()
	o.Status = status
	r.status = &status
	urgent := before == nil || before.Status != ready.Status ||
		!equality.Semantic.DeepEqual(known.Status.Problems, status.Problems) ||
		!equality.Semantic.DeepEqual(known.Status.KubeletPins, status.KubeletPins) || known.Status.Moved != status.Moved
	r.writer.Status(r.meta("node-topology-status"), o, urgent, func(o apiwriter.Object, err error) {
		r.lock.Lock()
		defer r.lock.Unlock()
		if r.status == &status {
			r.status = nil
		}
		r.ended(o, err)
	})
}

// events records events for new problems, on the pods concerned.
func (r *reporter) events(problems []topologyv1alpha1.Problem) {
	told := make(map[topologyv1alpha1.Problem]bool, len(problems))
	for _, p := range problems {
		told[p] = true
		if p.Pod == "" && !r.told[p] {
			if t := r.view.topology(); t != nil {
				r.writer.Event(t, corev1.EventTypeWarning, "NodeProblem", p.Message)
			} else {
				delete(told, p)
			}
			continue
		}
		pod := r.view.pod(p.Pod)
		if pod == nil || r.told[p] {
			continue
		}
		message := p.Message
		if p.Container != "" {
			message = fmt.Sprintf("container %s: %s", p.Container, message)
		}
		r.writer.Event(pod, corev1.EventTypeWarning, "CPUSetNotApplied", message)
	}
	r.told = told
}
