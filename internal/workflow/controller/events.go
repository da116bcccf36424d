package controller

import (
	corev1 "k8s.io/api/core/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// Events says of which changes users get events. Each event is a write. The zero value reports only
// workflows that have failed.
type Events struct {
	Workflows bool // workflows that begin to run, and that have succeeded
	Nodes     bool // nodes that begin to run, and that have ended
}

// reported is what users have been told of a workflow by events.
type reported struct {
	phase wf.WorkflowPhase
	nodes map[string]wf.NodePhase // by node ID
}

// reportedSoFar returns what events of an earlier run have told, if events are reported at all.
func (r *record) reportedSoFar(s *wf.WorkflowStatus, nodes wf.Nodes) *reported {
	if r.tells == (Events{}) {
		return nil
	}
	out := &reported{phase: s.Phase}
	if r.tells.Nodes {
		out.nodes = map[string]wf.NodePhase{}
		for id := range nodes {
			out.nodes[id] = nodes[id].Phase
		}
	}
	return out
}

// nodeEvents are the types of the events about nodes, by phase. Other phases have no event.
var nodeEvents = map[wf.NodePhase]string{
	wf.PhaseRunning: corev1.EventTypeNormal, wf.PhaseSucceeded: corev1.EventTypeNormal,
	wf.PhaseFailed: corev1.EventTypeWarning, wf.PhaseError: corev1.EventTypeWarning,
}

// reportEvents reports the changes of a Step by events. The end of a workflow is reported when it
// has been written: see finish.
func (c *Controller) reportEvents(r *record, changed []string) {
	if r.reported == nil {
		return
	}
	w := r.run.Workflow
	if phase := w.Status.Phase; r.tells.Workflows && phase != r.reported.phase {
		if r.reported.phase = phase; phase == wf.WorkflowRunning {
			c.Writer.Event(w, corev1.EventTypeNormal, "WorkflowRunning", "Workflow Running")
		}
	}
	if !r.tells.Nodes {
		return
	}
	for _, id := range changed {
		n := w.Status.Nodes[id]
		kind, worth := nodeEvents[n.Phase]
		if r.reported.nodes[id] == n.Phase || !worth {
			continue
		}
		r.reported.nodes[id] = n.Phase
		message := string(n.Phase) + " node " + n.Name
		if n.Message != "" {
			message += ": " + n.Message
		}
		c.Writer.Event(w, kind, "WorkflowNode"+string(n.Phase), shortened(message))
	}
}
