package flow

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	api "lockstep.dev/lockstep/api/flow/v1alpha1"
)

// flowOf returns a JobFlow called f with a spec in YAML.
func flowOf(t testing.TB, spec string) *api.JobFlow {
	t.Helper()
	f := &api.JobFlow{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "f", UID: "flow"}}
	if err := yaml.UnmarshalStrict([]byte(spec), &f.Spec); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestCheck(t *testing.T) {
	probed := func(probe string) string {
		return "flows: [{name: a}, {name: b, dependsOn: {targets: [a], probe: {" + probe + "}}}]"
	}
	for name, c := range map[string]struct{ spec, want string }{
		"nothing":            {"{}", ""},
		"a chain":            {"flows: [{name: b, dependsOn: {targets: [a]}}, {name: a}]", ""},
		"a diamond":          {"flows: [{name: a}, {name: b, dependsOn: {targets: [a]}}, {name: c, dependsOn: {targets: [a]}}, {name: d, dependsOn: {targets: [b, c, b]}}]", ""},
		"no name":            {"flows: [{name: ''}]", "spec.flows[0].name: is required"},
		"two of one name":    {"flows: [{name: a}, {name: b}, {name: a}]", `spec.flows[2].name: "a" is also the name of spec.flows[0]`},
		"a long name":        {"flows: [{name: " + strings.Repeat("a", 58) + "}]", "spec.flows[0].name: the Job would be called f-" + strings.Repeat("a", 58) + ", which has more than 59 characters"},
		"an unknown target":  {"flows: [{name: a, dependsOn: {targets: [b]}}]", `spec.flows[0].dependsOn.targets[0]: there is no flow "b"`},
		"itself":             {"flows: [{name: a, dependsOn: {targets: [a]}}]", "spec.flows[0].dependsOn.targets: flows wait for each other: a waits for a"},
		"a circle":           {"flows: [{name: z}, {name: a, dependsOn: {targets: [z, c]}}, {name: b, dependsOn: {targets: [a]}}, {name: c, dependsOn: {targets: [b]}}]", "spec.flows[1].dependsOn.targets: flows wait for each other: a waits for c waits for b waits for a"},
		"a probe of nothing": {"flows: [{name: a, dependsOn: {probe: {taskStatusList: [{taskName: t, phase: Running}]}}}]", "spec.flows[0].dependsOn.probe: there are no targets whose tasks could be probed"},
		"an empty probe":     {"flows: [{name: a, dependsOn: {probe: {}}}]", ""},
		"http":               {probed("httpGetList: [{taskName: t, port: 80, path: '/x?y=z', httpHeader: {name: X-A, value: b}}]"), ""},
		"http, no header":    {probed("httpGetList: [{taskName: t, port: 80, httpHeader: {name: '', value: ''}}]"), ""},
		"http, no task":      {probed("httpGetList: [{port: 80}]"), "spec.flows[1].dependsOn.probe.httpGetList[0].taskName: is required"},
		"http, no port":      {probed("httpGetList: [{taskName: t}]"), "spec.flows[1].dependsOn.probe.httpGetList[0].port: must be from 1 to 65535"},
		"http, another host": {probed("httpGetList: [{taskName: t, port: 80, path: 'http://example.com/'}]"), "spec.flows[1].dependsOn.probe.httpGetList[0].path: must begin with /"},
		"http, a bad path":   {probed("httpGetList: [{taskName: t, port: 80, path: '/%zz'}]"), "spec.flows[1].dependsOn.probe.httpGetList[0].path: is no path of a URL"},
		"http, a bad value":  {probed(`httpGetList: [{taskName: t, port: 80, httpHeader: {name: a, value: "b\r\nHost: x"}}]`), "spec.flows[1].dependsOn.probe.httpGetList[0].httpHeader.value: must not contain control characters"},
		"tcp":                {probed("tcpSocketList: [{taskName: t, port: 80}]"), ""},
		"tcp, no task":       {probed("tcpSocketList: [{port: 80}]"), "spec.flows[1].dependsOn.probe.tcpSocketList[0].taskName: is required"},
		"tcp, no port":       {probed("tcpSocketList: [{taskName: t, port: 0}]"), "spec.flows[1].dependsOn.probe.tcpSocketList[0].port: must be from 1 to 65535"},
		"a status":           {probed("taskStatusList: [{taskName: t, phase: Succeeded}]"), ""},
		"a status, no task":  {probed("taskStatusList: [{phase: Running}]"), "spec.flows[1].dependsOn.probe.taskStatusList[0].taskName: is required"},
		"no status":          {probed("taskStatusList: [{taskName: t, phase: Completed}]"), `spec.flows[1].dependsOn.probe.taskStatusList[0].phase: "Completed" is not known; there are Pending, Running, Succeeded, Failed, Unknown`},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if err := Validate(flowOf(t, c.spec)); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
	if err := Validate(flowOf(t, probed("httpGetList: [{taskName: t, port: 80, httpHeader: {name: 'a b', value: c}}]"))); err == nil || !strings.HasPrefix(err.Error(), "spec.flows[1].dependsOn.probe.httpGetList[0].httpHeader.name: ") {
		t.Errorf("a bad header: %v", err)
	}
}

// TestCircleIn checks that a circle is found exactly if the flows have no order.
func TestCircleIn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "flows")
		f := &api.JobFlow{}
		at := map[string]int{}
		for i := range n {
			name := fmt.Sprintf("f%d", i)
			at[name] = i
			entry := api.Flow{Name: name, DependsOn: &api.DependsOn{}}
			for range rapid.IntRange(0, 2).Draw(t, "targets") {
				entry.DependsOn.Targets = append(entry.DependsOn.Targets, fmt.Sprintf("f%d", rapid.IntRange(0, n-1).Draw(t, "target")))
			}
			f.Spec.Flows = append(f.Spec.Flows, entry)
		}
		done := map[string]bool{} // flows that can complete
		for range n {
			for _, e := range f.Spec.Flows {
				done[e.Name] = !slices.ContainsFunc(e.DependsOn.Targets, func(to string) bool { return !done[to] })
			}
		}
		circle := circleIn(f.Spec.Flows, at)
		stuck := slices.ContainsFunc(f.Spec.Flows, func(e api.Flow) bool { return !done[e.Name] })
		if (circle != nil) != stuck {
			t.Fatalf("the circle is %v, of %+v", circle, f.Spec.Flows)
		}
		for i := 1; i < len(circle); i++ {
			if !slices.Contains(f.Spec.Flows[at[circle[i-1]]].DependsOn.Targets, circle[i]) {
				t.Fatalf("%v is no circle", circle)
			}
		}
	})
}

func TestMerge(t *testing.T) {
	const template = `
queue: research
maxRetry: 0
tasks:
- replicas: 1
  template: {spec: {containers: [{name: c, image: a, env: [{name: A, value: "1"}]}, {name: side, image: s}]}}
- {name: ps, replicas: 2, template: {spec: {containers: [{name: c, image: b}]}}}
`
	for name, c := range map[string]struct{ patch, want string }{
		"nothing":     {"{}", `{"queue":"research","maxRetry":0,"tasks":[{"name":"default0","replicas":1,"template":{"spec":{"containers":[{"name":"c","image":"a","env":[{"name":"A","value":"1"}]},{"name":"side","image":"s"}]}}},{"name":"ps","replicas":2,"template":{"spec":{"containers":[{"name":"c","image":"b"}]}}}]}`},
		"a field":     {"{queue: other, minAvailable: 1}", `{"minAvailable":1,"queue":"other","maxRetry":0,"tasks":[{"name":"default0","replicas":1,"template":{"spec":{"containers":[{"name":"c","image":"a","env":[{"name":"A","value":"1"}]},{"name":"side","image":"s"}]}}},{"name":"ps","replicas":2,"template":{"spec":{"containers":[{"name":"c","image":"b"}]}}}]}`},
		"a task":      {"{tasks: [{name: ps, replicas: 5}]}", `{"queue":"research","maxRetry":0,"tasks":[{"name":"default0","replicas":1,"template":{"spec":{"containers":[{"name":"c","image":"a","env":[{"name":"A","value":"1"}]},{"name":"side","image":"s"}]}}},{"name":"ps","replicas":5,"template":{"spec":{"containers":[{"name":"c","image":"b"}]}}}]}`},
		"a task less": {"{tasks: [{name: ps, $patch: delete}]}", `{"queue":"research","maxRetry":0,"tasks":[{"name":"default0","replicas":1,"template":{"spec":{"containers":[{"name":"c","image":"a","env":[{"name":"A","value":"1"}]},{"name":"side","image":"s"}]}}}]}`},
		"a container's variable": {"{tasks: [{name: default0, template: {spec: {containers: [{name: c, env: [{name: B, value: '2'}]}]}}}]}",
			`{"queue":"research","maxRetry":0,"tasks":[{"name":"default0","replicas":1,"template":{"spec":{"containers":[{"name":"c","image":"a","env":[{"name":"B","value":"2"},{"name":"A","value":"1"}]},{"name":"side","image":"s"}]}}},{"name":"ps","replicas":2,"template":{"spec":{"containers":[{"name":"c","image":"b"}]}}}]}`},
		"a mistyped field":                            {"{tasks: [{name: ps, replica: 5}]}", `error: unknown field "tasks[0].replica"`},
		"an unknown name with a dollar":               {"{tasks: [{name: ps, $replicas: 5}]}", `error: unknown field "tasks[1].$replicas"`},
		"an unknown name of a field with a directive": {"{tasks: [{name: ps, $patch: replace, replica: 5}]}", `error: unknown field "tasks[0].replica"`},
		"the order of elements":                       {"{$setElementOrder/tasks: [{name: ps}, {name: default0}]}", `{"queue":"research","maxRetry":0,"tasks":[{"name":"ps","replicas":2,"template":{"spec":{"containers":[{"name":"c","image":"b"}]}}},{"name":"default0","replicas":1,"template":{"spec":{"containers":[{"name":"c","image":"a","env":[{"name":"A","value":"1"}]},{"name":"side","image":"s"}]}}}]}`},
		"a value of a kind":                           {"{minAvailable: many}", "error: "},
		"a task of no name":                           {"{tasks: [{replicas: 5}]}", "error: "},
	} {
		t.Run(name, func(t *testing.T) {
			spec, want := &batch.JobSpec{}, &batch.JobSpec{}
			if err := yaml.UnmarshalStrict([]byte(template), spec); err != nil {
				t.Fatal(err)
			}
			patch, err := yaml.YAMLToJSON([]byte(c.patch))
			if err != nil {
				t.Fatal(err)
			}
			got, err := merge(spec, patch)
			if text, bad := strings.CutPrefix(c.want, "error: "); bad {
				if err == nil || !strings.Contains(err.Error(), text) {
					t.Errorf("%+v, error %v", got, err)
				}
				return
			}
			if err := yaml.UnmarshalStrict([]byte(c.want), want); err != nil {
				t.Fatal(err)
			}
			a, _ := yaml.Marshal(got)
			b, _ := yaml.Marshal(want)
			if err != nil || string(a) != string(b) {
				t.Errorf("error %v, spec\n%s\nwant\n%s", err, a, b)
			}
		})
	}
}
