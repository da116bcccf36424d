package malformed_test

import (
	"reflect"
	"strings"
	"testing"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/internal/malformed"
)

func TestFindNamesTheFieldAndItsValue(t *testing.T) {
	job, workflow := reflect.TypeFor[batch.Job](), reflect.TypeFor[wf.Workflow]()
	for name, tc := range map[string]struct {
		of   reflect.Type
		json string
		want string
	}{
		"an object without a fault": {job, `{"spec":{"minAvailable":1,"unknown":{"x":1}}}`, ""},
		"a duration":                {job, `{"spec":{"runningEstimate":"abc"}}`, `spec.runningEstimate: "abc" is no duration such as "90s"`},
		"a duration in a list": {job, `{"spec":{"policies":[{"action":"AbortJob"},{"action":"AbortJob","timeout":"5"}]}}`,
			`spec.policies[1].timeout: "5" is no duration such as "90s"`},
		"a quantity in a map": {job,
			`{"spec":{"tasks":[{"template":{"spec":{"containers":[{"resources":{"requests":{"cpu":"1e1.5"}}}]}}}]}}`,
			`spec.tasks[0].template.spec.containers[0].resources.requests[cpu]: "1e1.5" is no quantity such as "500m" or "2Gi"`},
		"a field of an inlined struct": {job, `{"spec":{"tasks":[{"template":{"spec":{"volumes":[{"emptyDir":{"sizeLimit":"1e1.5"}}]}}}]}}`,
			`spec.tasks[0].template.spec.volumes[0].emptyDir.sizeLimit: "1e1.5" is no quantity such as "500m" or "2Gi"`},
		"an object for a string": {workflow, `{"spec":{"templates":[{"container":{"image":{}}}]}}`,
			`spec.templates[0].container.image: {} is no string`},
		"a string for a list":   {workflow, `{"spec":{"volumes":"abc"}}`, `spec.volumes: "abc" is no list`},
		"a list for an object":  {workflow, `{"spec":{"templates":[{"container":[]}]}}`, `spec.templates[0].container: [] is no object`},
		"a number out of range": {job, `{"spec":{"minAvailable":99999999999}}`, `spec.minAvailable: 99999999999 is no integer of 32 bits`},
		"a fraction":            {job, `{"spec":{"minAvailable":1.5}}`, `spec.minAvailable: 1.5 is no integer of 32 bits`},
		"a time":                {workflow, `{"status":{"startedAt":"yesterday"}}`, `status.startedAt: "yesterday" is no time such as "2006-01-02T15:04:05Z"`},
		"a type with a decoder of its own": {workflow, `{"spec":{"arguments":{"parameters":[{"name":"a","value":{"b":1}}]}}}`,
			`spec.arguments.parameters[0].value: {"b":1} is refused: want a string, number or boolean, not {"b":1}`},
		"a long value": {workflow, `{"spec":{"entrypoint":["` + strings.Repeat("ä", 40) + `"]}}`,
			`spec.entrypoint: ["` + strings.Repeat("ä", 29) + `… is no string`},
		"not an object at all": {job, `[]`, `[] is no object`},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if f := malformed.Find([]byte(tc.json), tc.of); f != nil {
				got = f.Error()
			}
			if got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestMarkIsFoundAgain(t *testing.T) {
	j := &batch.Job{}
	j.Namespace, j.Name = "default", "a"
	if err := malformed.Of(j); err != nil {
		t.Fatalf("an object without a mark is malformed: %v", err)
	}
	malformed.Mark(j, "Job", "spec: [] is no object")
	if err := malformed.Of(j); err == nil || err.Error() != "Job default/a is malformed: spec: [] is no object" {
		t.Errorf("got %v", err)
	}
}
