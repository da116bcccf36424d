package batch

import (
	"testing"

	"sigs.k8s.io/yaml"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/internal/unsupported"
)

func TestFieldsThatAreNotActedOnAreNamed(t *testing.T) {
	for spec, want := range map[string]string{
		`{tasks: [{name: a}]}`: "",
		`{tasks: [{name: a, topologyPolicy: single-numa-node}]}`:                                                                           "not acted on: spec.tasks[].topologyPolicy (of pods that are not of the QoS class Guaranteed)",
		`{tasks: [{name: a, topologyPolicy: restricted, template: {spec: {containers: [{resources: {limits: {cpu: 1, memory: 1Mi}}}]}}}]}`: "",
		`{tasks: [{name: a, template: {metadata: {annotations: {nvidia.com/use-gputype: A100}},
			spec: {containers: [{resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 3000}}}]}}}]}`: "not acted on: " +
			"spec.tasks[].template: requests for nvidia.com/gpumem (counted per node; no device is chosen), " +
			"spec.tasks[].template.metadata.annotations[nvidia.com/use-gputype]",
		`{tasks: [{name: a, template: {spec: {schedulingGroup: {podGroupName: g}}}}]}`: "not acted on: " +
			"spec.tasks[].template.spec.schedulingGroup (the pods of a Job are a gang of their own)",
		`{policies: [{event: PodEvicted, action: RestartJob}]}`:                       "",
		`{policies: [{event: PodEvicted, action: ResumeJob}]}`:                        "not acted on: spec.policies[].action ResumeJob",
		`{tasks: [{name: a, policies: [{event: PodPending, action: ResumeJob}]}]}`:    "not acted on: spec.tasks[].policies[].action ResumeJob",
		`{networkTopology: {mode: soft}, tasks: [{topologyPolicy: none, name: "a"}]}`: "",
	} {
		var s api.JobSpec
		if err := yaml.UnmarshalStrict([]byte(spec), &s); err != nil {
			t.Fatalf("%s: %v", spec, err)
		}
		if got, _ := unsupported.In(&s, notSupported); got != want {
			t.Errorf("%s: %q, want %q", spec, got, want)
		}
	}
}
