package engine

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/template"
)

func sequenceOf(count int) *wf.Sequence {
	n := intstr.FromInt32(int32(count))
	return &wf.Sequence{Count: &n}
}

// TestBadWorkflowsEndAtOnce gives invalid manifests to the engine: each must end in the first Step
// with a message that names the faulty field.
func TestBadWorkflowsEndAtOnce(t *testing.T) {
	leaf := "- {name: leaf, inputs: {parameters: [{name: p, default: x}]}, container: {image: a}}\n"
	step := func(s string) string {
		return "entrypoint: main\ntemplates:\n- {name: main, steps: [[" + s + "]]}\n" + leaf
	}
	dag := func(tasks string) string {
		return "entrypoint: main\ntemplates:\n- {name: main, dag: {tasks: [" + tasks + "]}}\n" + leaf
	}
	one := func(fields string) string { return "entrypoint: main\ntemplates:\n- {name: main, " + fields + "}\n" }
	for name, test := range map[string]struct{ spec, want string }{
		"no entrypoint":                             {"templates:\n" + leaf, "entrypoint: is required"},
		"unknown entrypoint":                        {"entrypoint: nope\ntemplates:\n" + leaf, "'nope' undefined"},
		"unknown template":                          {step("{name: a, template: nope}"), "templates.main: template name 'nope' undefined"},
		"unknown library":                           {step("{name: a, templateRef: {name: lib, template: t}}"), "namespaced/lib not found"},
		"unknown exit handler":                      {"onExit: nope\n" + step("{name: a, template: leaf}"), "'nope' undefined"},
		"no name":                                   {"entrypoint: main\ntemplates: [{container: {image: a}}]", "templates[0].name"},
		"templates of one name":                     {"entrypoint: leaf\ntemplates:\n" + leaf + leaf, "templates.leaf: name is not unique"},
		"two kinds":                                 {one("container: {image: a}, suspend: {}"), "main: must have exactly one of"},
		"no kind":                                   {one("inputs: {}"), "must have exactly one of"},
		"steps of one name":                         {step("{name: a, template: leaf}, {name: a, template: leaf}"), "steps[0].a: name is not unique"},
		"a step without template":                   {step("{name: a}"), "exactly one of template"},
		"a step with two":                           {step("{name: a, template: leaf, inline: {suspend: {}}}"), "exactly one of template"},
		"a bad step name":                           {step("{name: a.b, template: leaf}"), "steps[0].a.b.name: must not"},
		"two loops":                                 {step("{name: a, template: leaf, withParam: x, withItems: [1]}"), "only one of withItems"},
		"a sequence without end":                    {step("{name: a, template: leaf, withSequence: {}}"), "either count or end"},
		"a huge sequence":                           {step("{name: a, template: leaf, withSequence: {count: 2000000000}}"), "withSequence.count"},
		"a bad sequence":                            {step("{name: a, template: leaf, withSequence: {count: many}}"), "'many' is not a number"},
		"a bad format":                              {step("{name: a, template: leaf, withSequence: {count: 2, format: '%s'}}"), "withSequence.format"},
		"withParam that is no list":                 {step("{name: a, template: leaf, withParam: '{}'}"), "could not be parsed as a JSON list"},
		"a bad condition":                           {step("{name: a, template: leaf, when: 'a =='}"), "condition 'a =='"},
		"a condition of no boolean":                 {step("{name: a, template: leaf, when: 'a'}"), "not a boolean"},
		"a bad expression":                          {step("{name: a, template: leaf, when: '{{=1 +}}'}"), "steps[0].a.when: in {{=1 +}}"},
		"an unknown step":                           {step("{name: a, template: leaf, arguments: {parameters: [{name: p, value: '{{steps.b.outputs.result}}'}]}}"), "failed to resolve {{steps.b.outputs.result}}"},
		"a step of the same group":                  {step("{name: b, template: leaf}, {name: a, template: leaf, when: '{{steps.b.status}} == x'}"), ""},
		"a missing argument":                        {"entrypoint: main\ntemplates: [{name: main, inputs: {parameters: [{name: q}]}, suspend: {}}]", "inputs.parameters.q was not supplied"},
		"a missing workflow argument":               {"arguments: {parameters: [{name: q}]}\n" + one("suspend: {}"), "spec.arguments.parameters.q"},
		"a missing artifact":                        {one("inputs: {artifacts: [{name: f, path: /f}]}, container: {image: a}"), "inputs.artifacts.f was not supplied"},
		"an unknown parameter":                      {one("container: {image: a, args: ['{{inputs.parameters.no}}']}"), "failed to resolve {{inputs.parameters.no}}"},
		"an unknown global":                         {one("container: {image: a, args: ['{{workflow.parameters.no}}']}"), "failed to resolve {{workflow.parameters.no}}"},
		"parameters of one name":                    {one("inputs: {parameters: [{name: q}, {name: q}]}, suspend: {}"), "inputs.parameters.q: name is not unique"},
		"a cycle":                                   {dag("{name: a, template: leaf, depends: c}, {name: b, template: leaf, depends: a}, {name: c, template: leaf, depends: b}"), "cycle detected"},
		"a task of itself":                          {dag("{name: a, template: leaf, dependencies: [a]}"), "a->a"},
		"an unknown dependency":                     {dag("{name: a, template: leaf, dependencies: [b]}"), "dag.tasks.a: dependency 'b' not defined"},
		"both kinds of dependency":                  {dag("{name: b, template: leaf}, {name: a, template: leaf, dependencies: [b], depends: b}"), "dag.tasks.a.dependencies: cannot be used in a dag with depends"},
		"a bad depends":                             {dag("{name: b, template: leaf}, {name: a, template: leaf, depends: 'b &&'}"), "dag.tasks.a.depends"},
		"an open parenthesis":                       {dag("{name: b, template: leaf}, {name: a, template: leaf, depends: '(b'}"), "missing ')'"},
		"an unknown result":                         {dag("{name: b, template: leaf}, {name: a, template: leaf, depends: b.Fine}"), "'Fine' for task 'b' is invalid"},
		"tasks of one name":                         {dag("{name: a, template: leaf}, {name: a, template: leaf}"), "name is not unique"},
		"an unknown target":                         {"entrypoint: main\ntemplates:\n- {name: main, dag: {target: z, tasks: [{name: a, template: leaf}]}}\n" + leaf, "task 'z' not defined"},
		"endless recursion":                         {"entrypoint: main\ntemplates: [{name: main, steps: [[{name: a, template: main}]]}]", "maximum recursion depth"},
		"recursion that explodes":                   {"entrypoint: main\ntemplates: [{name: main, dag: {tasks: [{name: a, template: main}, {name: b, template: main}]}}]", "more than 3000 nodes"},
		"loops that explode":                        {"entrypoint: main\ntemplates: [{name: main, steps: [[{name: a, template: main, withSequence: {count: 1000}}]]}]", "more than 3000 nodes"},
		"a bad hook":                                {step("{name: a, template: leaf, hooks: {h: {template: leaf, expression: '1 +'}}}"), "hooks.h.expression"},
		"a hook without expression":                 {step("{name: a, template: leaf, hooks: {h: {template: leaf}}}"), "hooks.h.expression: is required"},
		"a bad retry expression":                    {one("retryStrategy: {expression: '('}, container: {image: a}"), "retryStrategy.expression"},
		"a bad pause":                               {one("suspend: {duration: soon}"), "'soon' is neither"},
		"a lock without name":                       {one("synchronization: {mutexes: [{}]}, suspend: {}"), "main.synchronization.mutexes[0].name"},
		"a semaphore in two places":                 {one("synchronization: {semaphores: [{database: {key: k}, configMapKeyRef: {name: c, key: k}}]}, suspend: {}"), "semaphores[0]: must not have both database and configMapKeyRef"},
		"a semaphore of the database without key":   {"synchronization: {semaphores: [{database: {key: ''}}]}\n" + one("suspend: {}"), "synchronization.semaphores[0].database.key: is required"},
		"a semaphore without limit":                 {"synchronization: {semaphores: [{}]}\n" + one("suspend: {}"), "synchronization.semaphores[0].configMapKeyRef"},
		"a cache without name":                      {one("memoize: {key: k}, suspend: {}"), "main.memoize.cache.configMap.name"},
		"a cache with a bad key":                    {one("memoize: {key: 'a b', cache: {configMap: {name: c}}}, suspend: {}"), "memoize.key: 'a b'"},
		"a cache with a bad age":                    {one("memoize: {key: k, maxAge: old, cache: {configMap: {name: c}}}, suspend: {}"), "memoize.maxAge: 'old'"},
		"a metric without name":                     {one("metrics: {prometheus: [{help: h, counter: {value: '1'}}]}, suspend: {}"), "main.metrics.prometheus[0].name"},
		"a metric of no kind":                       {"metrics: {prometheus: [{name: m, help: h}]}\n" + one("suspend: {}"), "metrics.prometheus[0]: must have exactly one"},
		"a gauge that divides":                      {one("metrics: {prometheus: [{name: m, help: h, gauge: {value: '1', operation: Div}}]}, suspend: {}"), "gauge.operation: 'Div'"},
		"executor plugins":                          {"executorPlugins: [{}]\n" + one("suspend: {}"), "executorPlugins[0].name: is required"},
		"a plugin":                                  {one("plugin: {}"), "main.plugin: must be an object that names a plugin"},
		"data":                                      {one("data: {source: {}, transformation: []}"), "main.data.source.artifactPaths: is required"},
		"a condition that no value cures":           {step("{name: a, template: leaf, when: '{{workflow.name}} =='}"), "steps[0].a.when: condition '{{workflow.name}} =='"},
		"a count beside a format with a variable":   {step("{name: a, template: leaf, withSequence: {count: many, format: '{{workflow.name}}'}}"), "steps[0].a: withSequence.count: 'many'"},
		"a start beside an end with a variable":     {step("{name: a, template: leaf, withSequence: {start: x, end: '{{workflow.name}}'}}"), "steps[0].a: withSequence.start: 'x'"},
		"a format beside a count with a variable":   {step("{name: a, template: leaf, withSequence: {count: '{{workflow.name}}', format: '%s'}}"), "steps[0].a: withSequence.format"},
		"a field of an item without a loop":         {step("{name: a, template: leaf, arguments: {parameters: [{name: p, value: '{{item.k}}'}]}}"), "steps[0].a.arguments.parameters[0].value: failed to resolve {{item.k}}"},
		"an argument that the input does not allow": {"entrypoint: main\ntemplates:\n- {name: main, steps: [[{name: a, template: t, arguments: {parameters: [{name: p, value: c}]}}]]}\n- {name: t, inputs: {parameters: [{name: p, enum: [a, b]}]}, suspend: {}}", "main.steps[0].a.arguments.parameters.p.value: 'c' is none of the values in enum: a, b"},
		"a default that the input does not allow":   {one("inputs: {parameters: [{name: p, default: 3, enum: [1, 2]}]}, suspend: {}"), "templates.main.inputs.parameters.p.default: '3' is none"},
		"a task that begins with a digit":           {dag("{name: 1a, template: leaf}, {name: b, template: leaf, depends: 1a}"), "dag.tasks.1a.name: must not begin with a digit"},
		"a task with a digit and dependencies":      {dag("{name: a, template: leaf}, {name: 1b, template: leaf, dependencies: [a]}"), "dag.tasks.1b.name: must not begin with a digit"},
		"depends beside dependencies":               {dag("{name: b, template: leaf}, {name: a, template: leaf, dependencies: [b]}, {name: d, template: leaf, depends: a}"), "dag.tasks.a.dependencies: cannot be used in a dag with depends"},
		"a long name":                               {step("{name: " + strings.Repeat("a", 129) + ", template: leaf}"), "nor be longer than 128"},
		"a name of a template with a space":         {"entrypoint: a b\ntemplates: [{name: a b, suspend: {}}]", "templates.a b.name: must not be empty"},
		"an artifact without name":                  {one("inputs: {artifacts: [{path: /x, raw: {data: x}}]}, container: {image: a}"), "inputs.artifacts[0].name: is required"},
		"an input from a step":                      {one("inputs: {artifacts: [{name: f, path: /x, from: '{{workflow.outputs.artifacts.f}}'}]}, container: {image: a}"), "inputs.artifacts.f.from: belongs to the arguments"},
		"a repository without address":              {one("inputs: {artifacts: [{name: f, path: /x, git: {revision: v1}}]}, container: {image: a}"), "inputs.artifacts.f.git.repo: is required"},
		"an artifact where a volume is":             {one("inputs: {artifacts: [{name: f, path: /x, raw: {data: x}}]}, container: {image: a, volumeMounts: [{name: v, mountPath: /x}]}"), "/x is also the path of the volume v"},
		"two manifests":                             {one("inputs: {artifacts: [{name: f, path: /x, raw: {data: x}}]}, resource: {action: get, manifest: x, manifestFrom: {artifact: {name: f}}}"), "resource: has both manifest and manifestFrom"},
		"a manifest of an unknown artifact":         {one("resource: {action: get, manifestFrom: {artifact: {name: f}}}"), "there is no input artifact 'f'"},
		"an output of a resource from a path":       {one("outputs: {parameters: [{name: o, valueFrom: {path: /o}}]}, resource: {action: get, manifest: 'kind: X'}"), "of resources must have jsonPath or jqFilter"},
		"inputs of a set without main":              {one("inputs: {artifacts: [{name: f, path: /x, raw: {data: x}}]}, containerSet: {containers: [{name: a, image: a}]}"), "input artifacts are in the container named 'main'"},
		"an argument without value":                 {step("{name: a, template: leaf, arguments: {parameters: [{name: p}]}}"), "steps[0].a.arguments.parameters.p: must have value or valueFrom"},
		"an argument from an expression":            {step("{name: a, template: leaf, arguments: {parameters: [{name: p, valueFrom: {expression: '1'}}]}}"), "arguments.parameters.p.valueFrom.expression: belongs to outputs"},
		"an argument from nowhere":                  {dag("{name: a, template: leaf, arguments: {parameters: [{name: p, valueFrom: {default: x}}]}}"), "dag.tasks.a.arguments.parameters.p.valueFrom: of arguments must have configMapKeyRef"},
		"an argument of a hook from a path":         {step("{name: a, template: leaf, hooks: {exit: {template: leaf, arguments: {parameters: [{name: p, valueFrom: {path: /p}}]}}}}"), "hooks.exit.arguments.parameters.p.valueFrom.path: belongs to outputs"},
		"an argument of the workflow from a path":   {"arguments: {parameters: [{name: q, value: x, valueFrom: {path: /q}}]}\n" + one("suspend: {}"), "arguments.parameters.q.valueFrom.path: belongs to outputs"},
		"a sidecar without name":                    {one("container: {image: a}, sidecars: [{image: b}]"), "templates.main.sidecars[0].name: is required"},
		"a container before without name":           {one("container: {image: a}, initContainers: [{image: b}]"), "templates.main.initContainers[0].name: is required"},
		"a selector of pods that selects nothing":   {"podGC: {strategy: OnPodCompletion, labelSelector: {matchExpressions: [{key: k, operator: Like}]}}\n" + one("suspend: {}"), `podGC.labelSelector: "Like" is not a valid`},
		"a bad delay of podGC":                      {"podGC: {strategy: OnPodCompletion, deleteDelayDuration: soon}\n" + one("suspend: {}"), "podGC.deleteDelayDuration: 'soon'"},
		"a label from a bad expression":             {"workflowMetadata: {labelsFrom: {l: {expression: '1 +'}}}\n" + one("suspend: {}"), "workflowMetadata.labelsFrom.l.expression: unexpected token"},
		"a path that leaves its directory":          {one("inputs: {artifacts: [{name: f, path: /x/../y, raw: {data: x}}]}, container: {image: a}"), "inputs.artifacts.f.path: must not contain '..'"},
		"a mode that no file has":                   {one("inputs: {artifacts: [{name: f, path: /x, mode: 512, raw: {data: x}}]}, container: {image: a}"), "inputs.artifacts.f.mode: must be between 0 and 0777"},
		"an artifact in two stores":                 {one("inputs: {artifacts: [{name: f, path: /x, raw: {data: x}, http: {url: u}}]}, container: {image: a}"), "inputs.artifacts.f: must have only one store"},
		"an artifact packed twice":                  {one("outputs: {artifacts: [{name: f, path: /x, archive: {none: {}, zip: {}}}]}, container: {image: a}"), "outputs.artifacts.f.archive: must have only one of"},
		"a patch of an unknown kind":                {one("resource: {action: patch, mergeStrategy: merg, manifest: 'kind: X'}"), "resource.mergeStrategy: 'merg' is none of strategic, merge, json"},
		"a set with a bad delay":                    {one("containerSet: {retryStrategy: {retries: 1, duration: soon}, containers: [{name: a, image: a}]}"), "containerSet.retryStrategy.duration: 'soon' is not a duration"},
		"a set with a bad number of retries":        {one("containerSet: {retryStrategy: {retries: some}, containers: [{name: a, image: a}]}"), "containerSet.retryStrategy.retries: 'some' is not a number"},
		"a path of JSON that cannot be read":        {step("{name: a, template: leaf, when: \"{{=jsonpath(workflow.name, '$[?(@.a')}}\"}"), "steps[0].a.when: in {{=jsonpath("},
		"shutdown of another kind":                  {"shutdown: Now\n" + one("suspend: {}"), "shutdown: 'Now' is not known"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &wf.Workflow{}
			w.Name = "w"
			if err := yaml.UnmarshalStrict([]byte(test.spec), &w.Spec); err != nil {
				t.Fatal(err)
			}
			New(w, Config{MaxNodes: 3000, Evaluate: template.InProcess()}).Step(time.Unix(0, 0))
			if test.want == "" {
				if w.Status.Phase == wf.WorkflowUnknown {
					t.Error("did not start")
				}
				return
			}
			if !w.Status.Phase.Completed() {
				t.Fatalf("is %s", w.Status.Phase)
			}
			messages := []string{w.Status.Message}
			for _, n := range w.Status.Nodes {
				messages = append(messages, n.Message)
			}
			if all := strings.Join(messages, "\n"); !strings.Contains(all, test.want) {
				t.Errorf("want %q, the messages are:\n%s", test.want, all)
			}
		})
	}
}

// TestALongNameEndsAtOnce: the name of a workflow is a label of its pods.
func TestALongNameEndsAtOnce(t *testing.T) {
	for length, want := range map[int]wf.WorkflowPhase{63: wf.WorkflowRunning, 64: wf.WorkflowError} {
		w := &wf.Workflow{}
		w.Name = strings.Repeat("n", length)
		w.Spec.Entrypoint = "main"
		w.Spec.Templates = []wf.Template{{Name: "main", Suspend: &wf.SuspendTemplate{}}}
		New(w, Config{Evaluate: template.InProcess()}).Step(time.Unix(0, 0))
		if s := w.Status; s.Phase != want || want == wf.WorkflowError && s.Message != "metadata.name: is longer than 63" {
			t.Errorf("a name of %d: %s, %s", length, s.Phase, s.Message)
		}
	}
}
