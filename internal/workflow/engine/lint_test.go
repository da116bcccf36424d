package engine

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/template"
)

func objects(t *testing.T, text string) []runtime.Object {
	t.Helper()
	var list []runtime.Object
	for doc := range strings.SplitSeq(text, "\n---\n") {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
			t.Fatal(err)
		}
		object, found := map[string]runtime.Object{
			"Workflow": &wf.Workflow{}, "WorkflowTemplate": &wf.WorkflowTemplate{}, "ClusterWorkflowTemplate": &wf.ClusterWorkflowTemplate{},
			"CronWorkflow": &wf.CronWorkflow{},
		}[kind.Kind]
		if !found {
			t.Fatalf("kind %q", kind.Kind)
		}
		if err := yaml.UnmarshalStrict([]byte(doc), object); err != nil {
			t.Fatal(err)
		}
		list = append(list, object)
	}
	return list
}

func TestLintNamesEveryField(t *testing.T) {
	got := Lint(objects(t, `kind: Workflow
metadata: {name: w}
spec:
  entrypoint: main
  onExit: gone
  arguments: {parameters: [{name: a}, {name: b, value: 1}]}
  hooks: {h: {template: leaf}}
  podGC: {strategy: Always}
  artifactGC: {strategy: Sometimes}
  templates:
  - name: main
    steps:
    - - {name: one, template: leaf}
      - {name: one, template: leaf, arguments: {parameters: [{name: p, value: "{{workflow.parameters.b}}"}]}}
    - - name: two
        template: leaf
        when: "{{steps.one.outputs.parameters.o}} == {{steps.one.outputs.parameters.none}}"
        arguments: {parameters: [{name: p, value: "{{workflow.parameters.c}} {{inputs.parameters.x}} {{=steps.three?.outputs}} {{ my text }}"}]}
      - {name: four, templateRef: {name: lib, template: t}}
      - {name: five, templateRef: {name: lib, template: none}}
      - {name: six, templateRef: {name: nolib, template: none}}
      - {name: seven, inline: {container: {image: a, args: ["{{inputs.parameters.no}}"]}}}
  - name: leaf
    inputs: {parameters: [{name: p}]}
    outputs: {parameters: [{name: o, valueFrom: {path: /o}}]}
    timeout: soon
    retryStrategy: {limit: some, backoff: {factor: 2}}
    container: {image: a, args: ["{{inputs.parameters.q}}", "{{=1 +}}"]}
  - name: graph
    dag:
      tasks:
      - {name: a, template: other}
      - {name: b, template: other, depends: "a && c"}
  - name: other
    script: {image: a, source: "{{pod.name}} {{=item}} {{outputs.parameters.z.path}}"}
---
kind: WorkflowTemplate
metadata: {name: lib}
spec:
  arguments: {parameters: [{name: p}]}
  templates:
  - {name: t, container: {image: a, args: ["{{workflow.parameters.any}}"]}}
  - {name: bad}
---
kind: CronWorkflow
metadata: {name: c}
spec:
  schedules: ["* * * *"]
  concurrencyPolicy: Maybe
  stopStrategy: {expression: "1 +"}
  workflowSpec:
    workflowTemplateRef: {name: lib}
`), nil, template.InProcess())
	var lines []string
	for _, p := range got {
		line := p.Kind + "/" + p.Name + " " + p.Field + " | " + p.String()
		if p.Warning {
			line = "warning " + line
		}
		lines = append(lines, line)
	}
	want := strings.Split(strings.TrimSpace(lintWant), "\n")
	if !slices.Equal(lines, want) {
		t.Errorf("got\n%s", strings.Join(lines, "\n"))
	}
}

const lintWant = `
Workflow/w spec.artifactGC.strategy | spec.artifactGC.strategy: 'Sometimes' is none of Never, OnWorkflowCompletion, OnWorkflowDeletion
Workflow/w spec.podGC.strategy | spec.podGC.strategy: 'Always' is none of OnPodCompletion, OnPodSuccess, OnWorkflowCompletion, OnWorkflowSuccess
Workflow/w spec.hooks.h.expression | spec.hooks.h.expression: is required
Workflow/w spec.templates[0].steps[0][1] | spec.templates.main.steps[0].one: name is not unique
Workflow/w spec.templates[1].retryStrategy.limit | spec.templates.leaf.retryStrategy.limit: 'some' is not a number of retries
Workflow/w spec.templates[1].retryStrategy.backoff.duration | spec.templates.leaf.retryStrategy.backoff.duration: is required
Workflow/w spec.templates[1].timeout | spec.templates.leaf.timeout: 'soon' is neither seconds nor a duration
Workflow/w spec.templates[1].container.args[1] | spec.templates.leaf.container.args[1]: in {{=1 +}}: unexpected token EOF (1:3)
Workflow/w spec.templates[2].dag.tasks[1] | spec.templates.graph.dag.tasks.b: dependency 'c' not defined
Workflow/w spec.templates[0].steps[1][2].template | spec.templates.main.steps[1].five.template: template none not found in workflow template namespaced/lib
Workflow/w spec.templates[0].steps[1][3].template | spec.templates.main.steps[1].six.template: workflow template namespaced/nolib not found
Workflow/w spec.templates[0].steps[0][0].arguments | spec.templates.main.steps[0].one.arguments: inputs.parameters.p was not supplied, which template leaf needs
Workflow/w spec.templates[0].steps[1][0].arguments.parameters[0].value | spec.templates.main.steps[1].two.arguments.parameters[0].value: failed to resolve {{workflow.parameters.c}}
Workflow/w spec.templates[0].steps[1][0].arguments.parameters[0].value | spec.templates.main.steps[1].two.arguments.parameters[0].value: failed to resolve {{inputs.parameters.x}}
warning Workflow/w spec.templates[0].steps[1][0].arguments.parameters[0].value | spec.templates.main.steps[1].two.arguments.parameters[0].value: {{my text}} is not a variable here, and stays as it is
Workflow/w spec.templates[0].steps[1][0].when | spec.templates.main.steps[1].two.when: failed to resolve {{steps.one.outputs.parameters.none}}
Workflow/w spec.templates[0].steps[1][4].inline.container.args[0] | spec.templates.main.steps[1].seven.inline.container.args[0]: failed to resolve {{inputs.parameters.no}}
warning Workflow/w spec.templates[3].script.source | spec.templates.other.script.source: {{item}} is not a variable here, and stays as it is
Workflow/w spec.templates[3].script.source | spec.templates.other.script.source: failed to resolve {{outputs.parameters.z.path}}
Workflow/w spec.onExit | spec.onExit: template name 'gone' undefined
Workflow/w spec.hooks.h.arguments | spec.hooks.h.arguments: inputs.parameters.p was not supplied, which template leaf needs
WorkflowTemplate/lib spec.templates[1] | spec.templates.bad: must have exactly one of container, script, steps, dag, suspend, resource, containerSet, http, data, plugin; it has none
CronWorkflow/c spec.schedules | spec.schedules: schedules: "* * * *": expected exactly 5 fields, found 4: [* * * *]
CronWorkflow/c spec.concurrencyPolicy | spec.concurrencyPolicy: 'Maybe' is none of Allow, Forbid, Replace
CronWorkflow/c spec.stopStrategy.expression | spec.stopStrategy.expression: unexpected token EOF (1:3)
CronWorkflow/c spec.workflowSpec.entrypoint | spec.workflowSpec.entrypoint: is required
CronWorkflow/c spec.workflowSpec.workflowTemplateRef | spec.workflowSpec.templates.bad: must have exactly one of container, script, steps, dag, suspend, resource, containerSet, http, data, plugin; it has none
CronWorkflow/c spec.workflowSpec.arguments.parameters[0] | spec.workflowSpec.arguments.parameters.p: has no value
CronWorkflow/c spec.workflowSpec.workflowTemplateRef | spec.workflowSpec.templates.t.container.args[0]: failed to resolve {{workflow.parameters.any}}
`

// TestLintFindsNothingInScripts checks that Lint reports nothing about the manifests of the
// scripts, which run.
func TestLintFindsNothingInScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		manifest, _, _ := strings.Cut(string(content), "\n----")
		var docs []string
		for doc := range strings.SplitSeq(manifest, "\n---\n") {
			switch {
			case strings.Contains(doc, "kind: ConfigMap"):
			case strings.HasPrefix(doc, "kind: "):
				docs = append(docs, doc)
			default:
				docs = append(docs, "kind: Workflow\n"+doc)
			}
		}
		for _, p := range Lint(objects(t, strings.Join(docs, "\n---\n")), nil, template.InProcess()) {
			if !p.Warning {
				t.Errorf("%s: %s", file, p)
			}
		}
	}
}

// TestLintAcceptsWhatIsGivenLater checks that values may come when a workflow is submitted, and
// whole arguments with the workflow that uses a template.
// TestLintChecksNames: an object whose name is too long for a label makes nothing.
func TestLintChecksNames(t *testing.T) {
	long := strings.Repeat("n", 64)
	got := Lint(objects(t, strings.ReplaceAll(`kind: Workflow
metadata: {name: LONG}
spec: {entrypoint: main, templates: [{name: main, suspend: {}}]}
---
kind: WorkflowTemplate
metadata: {name: LONG}
spec: {templates: [{name: main, suspend: {}}]}
---
kind: ClusterWorkflowTemplate
metadata: {name: LONG}
spec: {templates: [{name: main, suspend: {}}]}
---
kind: CronWorkflow
metadata: {name: `+long[:53]+`}
spec:
  schedules: ["* * * * *"]
  when: "1 =="
  workflowSpec: {entrypoint: main, templates: [{name: main, suspend: {}}]}
---
kind: CronWorkflow
metadata: {name: `+long[:52]+`}
spec:
  schedules: ["* * * * *"]
  when: "{{= cronworkflow.lastScheduledTime == nil }}"
  workflowSpec: {entrypoint: main, templates: [{name: main, suspend: {}}]}
`, "LONG", long)), nil, template.InProcess())
	var lines []string
	for _, p := range got {
		lines = append(lines, p.Kind+" "+p.String())
	}
	want := []string{
		"Workflow metadata.name: is longer than 63", "WorkflowTemplate metadata.name: is longer than 63",
		"ClusterWorkflowTemplate metadata.name: is longer than 63", "CronWorkflow metadata.name: is longer than 52",
		"CronWorkflow spec.when: condition '1 ==': unexpected end of expression",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("got\n%s", strings.Join(lines, "\n"))
	}
}

func TestLintAcceptsWhatIsGivenLater(t *testing.T) {
	for _, p := range Lint(objects(t, `kind: Workflow
metadata: {generateName: w-}
spec:
  entrypoint: main
  arguments: {parameters: [{name: date}]}
  templates:
  - {name: main, inputs: {parameters: [{name: date}]}, dag: {target: "run-{{inputs.parameters.date}}", tasks: [{name: "run-{{inputs.parameters.date}}", template: leaf}]}}
  - {name: leaf, container: {image: a}}
---
kind: WorkflowTemplate
metadata: {name: t}
spec:
  entrypoint: main
  onExit: main
  templates:
  - {name: main, inputs: {parameters: [{name: date}], artifacts: [{name: f, path: /f}]}, container: {image: a}}
`), nil, template.InProcess()) {
		t.Error(p)
	}
}

// TestLintOfManifests checks that manifests of resource templates are YAML, whatever their variables.
func TestLintOfManifests(t *testing.T) {
	for manifest, want := range map[string]string{
		`"a: [b"`: "spec.templates.main.resource.manifest",
		`"kind: Job\n---\nkind: {{workflow.name}}\n---\n{{='kind: Job'}}"`: "",
	} {
		problems := Lint(objects(t, "kind: Workflow\nmetadata: {name: w}\nspec: {entrypoint: main, templates: [{name: main, resource: {action: create, manifest: "+manifest+"}}]}"), nil, template.InProcess())
		var got string
		for _, p := range problems {
			got += p.Where
		}
		if got != want {
			t.Errorf("%s: %v", manifest, problems)
		}
	}
}
