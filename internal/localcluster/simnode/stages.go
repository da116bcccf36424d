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

// A node reports its status at a random moment between these, as kubelets do every 5 minutes. localcluster allows three
// reports to be lost before a node counts as failed.
const (
	heartbeatMin = 4 * time.Minute
	heartbeatMax = 6 * time.Minute
)

var (
	podRef  = internalversion.StageResourceRef{APIGroup: "v1", Kind: "Pod"}
	nodeRef = internalversion.StageResourceRef{APIGroup: "v1", Kind: "Node"}
)

// stages are the transitions of doc.go's picture. Pods are matched by CEL on the typed object, which costs microseconds,
// where jq needs the object as JSON. Nodes change rarely, and KWOK's CEL cannot look into lists.
func stages() map[internalversion.StageResourceRef][]*internalversion.Stage {
	const (
		alive    = `!has(self.metadata.deletionTimestamp)`
		finishes = `has(self.metadata.annotations) && "` + AnnotationDuration + `" in self.metadata.annotations`
		// What is left of the pod's duration. startTime is in whole seconds, so it only counts where the simulation
		// has been restarted meanwhile.
		remaining = `duration(self.metadata.annotations["` + AnnotationDuration + `"]) - ` +
			`(Now() - self.status.startTime > duration("2s") ? Now() - self.status.startTime : duration("0s"))`
	)
	return map[internalversion.StageResourceRef][]*internalversion.Stage{
		podRef: {
			stage("pod-run", podRef, []string{alive, `self.status.phase == "Pending"`}, nil,
				statusPatch("{{ PodRunning . }}")),
			stage("pod-finish", podRef, []string{alive, `self.status.phase == "Running"`, finishes},
				&internalversion.StageDelay{DurationFrom: &internalversion.ExpressionFrom{CEL: &internalversion.ExpressionCEL{Expression: remaining}}},
				statusPatch("{{ PodFinished . }}")),
			// With a grace period of 0 the deletion no longer waits for the node.
			stage("pod-delete", podRef, []string{`has(self.metadata.deletionTimestamp) && self.metadata.deletionGracePeriodSeconds > 0`}, nil,
				internalversion.StageStep{Delete: true}),
		},
		nodeRef: {
			whenReady(internalversion.SelectorOpNotIn, stage("node-ready", nodeRef, nil, nil, statusPatch("{{ NodeReady . }}"))),
			whenReady(internalversion.SelectorOpIn, stage("node-heartbeat", nodeRef, nil,
				&internalversion.StageDelay{
					DurationMilliseconds:       ptr.To(heartbeatMin.Milliseconds()),
					JitterDurationMilliseconds: ptr.To(heartbeatMax.Milliseconds()),
				},
				statusPatch("{{ NodeReady . }}"))),
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

func stage(name string, ref internalversion.StageResourceRef, when []string, delay *internalversion.StageDelay, step internalversion.StageStep) *internalversion.Stage {
	s := &internalversion.Stage{}
	s.Name = name
	s.Spec = internalversion.StageSpec{
		ResourceRef: ref,
		Selector:    &internalversion.StageSelector{},
		Weight:      1,
		Delay:       delay,
		Steps:       []internalversion.StageStep{step},
	}
	for _, w := range when {
		s.Spec.Selector.MatchExpressions = append(s.Spec.Selector.MatchExpressions,
			internalversion.MatchExpression{CEL: &internalversion.ExpressionCEL{Expression: w}})
	}
	return s
}

// statusPatch is a step that patches the status with what the template function returns; see status.go.
func statusPatch(template string) internalversion.StageStep {
	return internalversion.StageStep{Patch: &internalversion.StagePatch{Subresource: "status", Root: "status", Template: template}}
}
