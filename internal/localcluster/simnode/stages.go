package simnode

import (
	"time"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/kwok/pkg/apis/internalversion"
)

// Annotations of simulated pods.
const (
	AnnotationDuration = "lockstep.dev/sim-duration"
	AnnotationExitCode = "lockstep.dev/sim-exit-code"
	AnnotationMessage  = "lockstep.dev/sim-message"
)

// A node reports its status at a random time between heartbeatMin and heartbeatMax, like kubelets,
// which report every 5 minutes. Package localcluster allows three reports to be lost before a node
// counts as failed.
const (
	heartbeatMin = 4 * time.Minute
	heartbeatMax = 6 * time.Minute
)

var nodeRef = internalversion.StageResourceRef{APIGroup: "v1", Kind: "Node"}

// stages returns the transitions of nodes, which KWOK makes. Type kubelets handles pods.
func stages() map[internalversion.StageResourceRef][]*internalversion.Stage {
	return map[internalversion.StageResourceRef][]*internalversion.Stage{
		nodeRef: {
			whenReady(internalversion.SelectorOpNotIn, stage("node-ready", nil)),
			whenReady(internalversion.SelectorOpIn, stage("node-heartbeat", &internalversion.StageDelay{
				DurationMilliseconds:       ptr.To(heartbeatMin.Milliseconds()),
				JitterDurationMilliseconds: ptr.To(heartbeatMax.Milliseconds()),
			})),
		},
	}
}

// whenReady restricts a stage to nodes whose Ready condition is, or is not, True.
func whenReady(op internalversion.SelectorOperator, s *internalversion.Stage) *internalversion.Stage {
	s.Spec.Selector.MatchExpressions = []internalversion.MatchExpression{{JQ: &internalversion.SelectorJQ{
		Key:      `.status.conditions.[] | select(.type == "Ready") | .status`,
		Operator: op,
		Values:   []string{"True"},
	}}}
	return s
}

// stage returns a stage that patches a node's status with the result of the template function
// NodeReady; see status.go.
func stage(name string, delay *internalversion.StageDelay) *internalversion.Stage {
	s := &internalversion.Stage{}
	s.Name = name
	s.Spec = internalversion.StageSpec{
		ResourceRef: nodeRef,
		Selector:    &internalversion.StageSelector{},
		Weight:      1,
		Delay:       delay,
		Steps: []internalversion.StageStep{{
			Patch: &internalversion.StagePatch{Subresource: "status", Root: "status", Template: "{{ NodeReady . }}"},
		}},
	}
	return s
}
