package hostile

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/config"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// ourGroups are the API groups of the CRDs.
var ourGroups = []string{
	"batch.volcano.sh", "flow.volcano.sh", "bus.volcano.sh", "scheduling.volcano.sh", "argoproj.io", "core.oam.dev", "topology.lockstep.dev",
}

var crds = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

var bindings = schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings"}

// openSchemas makes the API server accept any object, as before there were schemas and policies.
func (w *world) openSchemas() {
	w.Helper()
	policies, err := w.dyn.Resource(bindings).List(w.Context(), metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	for _, p := range policies.Items {
		if p.GetName() == config.AuthorsPolicy || p.GetName() == config.AccountsPolicy {
			continue // without these policies applications are off
		}
		if err := w.dyn.Resource(bindings).Delete(w.Context(), p.GetName(), metav1.DeleteOptions{}); err != nil {
			w.Fatal(err)
		}
	}
	list, err := w.dyn.Resource(crds).List(w.Context(), metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	for _, crd := range list.Items {
		group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
		ours := false
		for _, g := range ourGroups {
			ours = ours || g == group
		}
		if !ours {
			continue
		}
		patch := `[{"op":"replace","path":"/spec/versions/0/schema","value":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]`
		if _, err := w.dyn.Resource(crds).Patch(w.Context(), crd.GetName(), types.JSONPatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			w.Fatalf("%s: %v", crd.GetName(), err)
		}
	}
	// The server uses the new schemas a moment later.
	for _, c := range malformedObjects {
		u := w.parse(c.manifest)
		w.eventually("the schema of "+u.GetKind()+" is open", func() error {
			_, err := w.in(u.GroupVersionKind(), w.ns).Create(w.Context(), u, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		})
	}
}

// malformedObjects are objects that do not decode. fault is the text that must be reported about
// them, and mend is the patch that corrects them.
var malformedObjects = []struct{ name, manifest, fault, mend string }{
	{"a job's estimate", `
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: estimate}
spec:
  runningEstimate: abc
  tasks: [{name: main, replicas: 1, template: {metadata: {annotations: {lockstep.dev/sim-duration: 100ms}},
    spec: {restartPolicy: Never, containers: [{name: main, image: busybox}]}}}]
`, `spec.runningEstimate: "abc" is no duration`, `{spec: {runningEstimate: 90s}}`},
	{"a policy's timeout", `
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: timeout}
spec:
  policies: [{action: AbortJob, event: PodPending, timeout: abc}]
  tasks: [{name: main, replicas: 1, template: {metadata: {annotations: {lockstep.dev/sim-duration: 100ms}},
    spec: {restartPolicy: Never, containers: [{name: main, image: busybox}]}}}]
`, `spec.policies[0].timeout: "abc" is no duration`, `{spec: {policies: null}}`},
	{"a job's request", `
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: request}
spec:
  tasks: [{name: main, replicas: 1, template: {spec: {containers: [{name: main, image: busybox, resources: {requests: {cpu: 1e1.5}}}]}}}]
`, `spec.tasks[0].template.spec.containers[0].resources.requests[cpu]: "1e1.5" is no quantity`, ""},
	{"the size of a job's volume", `
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: size}
spec:
  tasks: [{name: main, replicas: 1, template: {spec: {containers: [{name: main, image: busybox}],
    volumes: [{name: scratch, emptyDir: {sizeLimit: 1e1.5}}]}}}]
`, `spec.tasks[0].template.spec.volumes[0].emptyDir.sizeLimit: "1e1.5" is no quantity`, ""},
	{"the estimate of a CronJob's jobs", `
apiVersion: batch.volcano.sh/v1alpha1
kind: CronJob
metadata: {name: estimate}
spec:
  schedule: "0 0 1 1 *"
  jobTemplate: {spec: {runningEstimate: abc, tasks: [{name: main, replicas: 1, template: {spec: {containers: [{name: main, image: busybox}]}}}]}}
`, `spec.jobTemplate.spec.runningEstimate: "abc" is no duration`, `{spec: {jobTemplate: {spec: {runningEstimate: 90s}}}}`},
	{"a JobFlow's names", `
apiVersion: flow.volcano.sh/v1alpha1
kind: JobFlow
metadata: {name: names}
spec: {flows: [{name: {}}]}
`, `spec.flows[0].name: {} is no string`, ""},
	{"a JobTemplate's estimate", `
apiVersion: flow.volcano.sh/v1alpha1
kind: JobTemplate
metadata: {name: estimate}
spec: {runningEstimate: abc, tasks: [{name: main, replicas: 1, template: {spec: {containers: [{name: main, image: busybox}]}}}]}
`, `spec.runningEstimate: "abc" is no duration`, `{spec: {runningEstimate: 90s}}`},
	{"a workflow's request", `
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: request}
spec:
  entrypoint: main
  templates: [{name: main, container: {image: busybox, resources: {requests: {cpu: abc}}}}]
`, `spec.templates[0].container.resources.requests[cpu]: "abc" is no quantity`,
		`{spec: {templates: [{name: main, metadata: {annotations: {lockstep.dev/sim-duration: 100ms}}, container: {image: busybox, command: [echo]}}]}}`},
	{"a workflow's image", `
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: image}
spec:
  entrypoint: main
  templates: [{name: main, container: {image: {}}}]
`, `spec.templates[0].container.image: {} is no string`, ""},
	{"a workflow's volumes", `
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: volumes}
spec:
  entrypoint: main
  volumes: [{name: scratch, emptyDir: []}]
  templates: [{name: main, container: {image: busybox}}]
`, `spec.volumes[0].emptyDir: [] is no object`, ""},
	{"a workflow's claims", `
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: claims}
spec:
  entrypoint: main
  volumeClaimTemplates: [{metadata: {name: work}, spec: {resources: {requests: {storage: 1e1.5}}}}]
  templates: [{name: main, container: {image: busybox}}]
`, `spec.volumeClaimTemplates[0].spec.resources.requests[storage]: "1e1.5" is no quantity`, ""},
	{"a workflow's nodes", `
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: nodes}
spec:
  entrypoint: main
  templates: [{name: main, metadata: {annotations: {lockstep.dev/sim-duration: 100ms}}, container: {image: busybox, command: [echo]}}]
status: {nodes: [1]}
`, `status.nodes: [1] is no object`, `{status: null}`},
	{"a template", `
apiVersion: argoproj.io/v1alpha1
kind: WorkflowTemplate
metadata: {name: malformed}
spec: {templates: [{name: main, container: {image: {}}}]}
`, `spec.templates[0].container.image: {} is no string`, `{spec: {templates: [{name: main, metadata: {annotations: {lockstep.dev/sim-duration: 100ms}}, container: {image: busybox, command: [echo]}}]}}`},
	{"a template of the cluster", `
apiVersion: argoproj.io/v1alpha1
kind: ClusterWorkflowTemplate
metadata: {name: malformed}
spec: {templates: [{name: main, container: {image: {}}}]}
`, `spec.templates[0].container.image: {} is no string`, ""},
	{"a cron", `
apiVersion: argoproj.io/v1alpha1
kind: CronWorkflow
metadata: {name: malformed}
spec:
  schedules: ["* * * * *"]
  suspend: true
  startingDeadlineSeconds: soon
  workflowSpec: {entrypoint: main, templates: [{name: main, container: {image: busybox}}]}
`, `spec.startingDeadlineSeconds: "soon" is no integer of 64 bits`, `{spec: {startingDeadlineSeconds: 60}}`},
	{"a result of a step", `
apiVersion: argoproj.io/v1alpha1
kind: WorkflowTaskResult
metadata: {name: malformed, labels: {workflows.argoproj.io/workflow: nodes}}
outputs: {parameters: {a: b}}
`, `outputs.parameters: {"a":"b"} is no list`, ""},
	{"a queue", `
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: malformed}
spec: {weight: 1, capability: {cpu: 1e1.5}}
`, `spec.capability[cpu]: "1e1.5" is no quantity`, `{spec: {capability: {cpu: 4}}}`},
	{"a PodGroup", `
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: malformed}
spec: {minMember: two}
`, `spec.minMember: "two" is no integer of 32 bits`, `{spec: {minMember: 1}}`},
	{"a command", `
apiVersion: bus.volcano.sh/v1alpha1
kind: Command
metadata: {name: malformed}
action: AbortJob
target: [Job]
`, `target: ["Job"] is no object`, ""},
	{"a node's topology", `
apiVersion: topology.lockstep.dev/v1alpha1
kind: NodeTopology
metadata: {name: malformed}
spec: {cores: many}
`, `spec.cores: "many" is no list`, ""},
	{"an application", `
apiVersion: core.oam.dev/v1beta1
kind: Application
metadata: {name: malformed}
spec: {components: [{name: {}, type: worker}]}
`, `spec.components[0].name: {} is no string`, `{spec: {components: [{name: settings, type: k8s-objects, properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}}]}}]}}`},
	{"an application's status", `
apiVersion: core.oam.dev/v1beta1
kind: Application
metadata: {name: malformed-status}
spec: {components: [{name: settings, type: k8s-objects, properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: others}}]}}]}
status: {services: 5}
`, "", ""},
	{"a tracker", `
apiVersion: core.oam.dev/v1beta1
kind: ResourceTracker
metadata: {name: malformed, labels: {app.oam.dev/name: malformed, app.oam.dev/namespace: default}}
spec: {managedResources: 5}
`, "", ""},
	{"a component's definition", `
apiVersion: core.oam.dev/v1beta1
kind: ComponentDefinition
metadata: {name: malformed}
spec: {workload: worker}
`, `spec.workload: "worker" is no object`, ""},
	{"a trait's definition", `
apiVersion: core.oam.dev/v1beta1
kind: TraitDefinition
metadata: {name: malformed}
spec: {podDisruptive: perhaps}
`, `spec.podDisruptive: "perhaps" is no boolean`, ""},
	{"a policy's definition", `
apiVersion: core.oam.dev/v1beta1
kind: PolicyDefinition
metadata: {name: malformed}
spec: {schematic: []}
`, `spec.schematic: [] is no object`, ""},
	{"a step's definition", `
apiVersion: core.oam.dev/v1beta1
kind: WorkflowStepDefinition
metadata: {name: malformed}
spec: {schematic: []}
`, `spec.schematic: [] is no object`, ""},
	{"a revision of a definition", `
apiVersion: core.oam.dev/v1beta1
kind: DefinitionRevision
metadata: {name: malformed}
spec: {revision: first}
`, `spec.revision: "first" is no integer of 64 bits`, ""},
	{"a revision of an application", `
apiVersion: core.oam.dev/v1beta1
kind: ApplicationRevision
metadata: {name: malformed}
spec: {application: 5}
`, "", ""},
	{"a shared policy", `
apiVersion: core.oam.dev/v1alpha1
kind: Policy
metadata: {name: malformed}
type: {}
`, `type: {} is no string`, ""},
	{"a shared workflow", `
apiVersion: core.oam.dev/v1alpha1
kind: Workflow
metadata: {name: malformed}
steps: 5
`, `steps: 5 is no list`, ""},
}

// TestMalformedObjects checks that the manager ignores objects that do not decode, and no others.
// The manager reports each once to its user and to the users of objects that refer to it. After its
// correction the object runs.
func TestMalformedObjects(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs a cluster")
	}
	w := newWorld(t)
	w.openSchemas()
	w.startManager()
	if err := w.canariesLive(time.Minute); err != nil {
		t.Fatalf("before there is a malformed object: %v", err)
	}
	running := w.create(w.ns, becomesMalformed)
	w.awaitPhase(running, "Running", "status", "state", "phase")
	before := w.podsOf(running.GetName())
	w.merge(running, `{spec: {runningEstimate: abc}}`)

	var objects []*unstructured.Unstructured
	for _, c := range malformedObjects {
		objects = append(objects, w.create(w.ns, c.manifest))
		if err := w.canariesLive(20 * time.Second); err != nil {
			t.Fatalf("with %s: %v", c.name, err)
		}
	}
	waiting := w.create(w.ns, refersToTemplate)
	queued := w.create(w.ns, refersToQueue)
	for i, c := range malformedObjects {
		if c.fault != "" {
			w.awaitSaid(objects[i], c.fault)
		}
	}
	w.awaitSaid(running, `spec.runningEstimate: "abc" is no duration`)
	w.awaitSaid(waiting, `WorkflowTemplate `+w.ns+`/malformed is malformed: spec.templates[0].container.image: {} is no string`)
	w.awaitSaid(queued, `Queue malformed is malformed: spec.capability[cpu]: "1e1.5" is no quantity`)
	if after := w.podsOf(running.GetName()); !maps.Equal(before, after) {
		t.Errorf("the pods of a job that became malformed were %v, and are %v", before, after)
	}

	writes := w.written()
	w.restart()
	if err := w.canariesLive(time.Minute); err != nil {
		t.Fatalf("after a restart: %v", err)
	}
	if after := w.podsOf(running.GetName()); !maps.Equal(before, after) {
		t.Errorf("the pods of a malformed job were %v, and after a restart are %v", before, after)
	}
	if again := w.written()[len(writes):]; len(again) > 0 {
		t.Errorf("after a restart the manager wrote about malformed objects again: %v", again)
	}

	w.merge(running, `{spec: {runningEstimate: 90s}}`)
	for i, c := range malformedObjects {
		if c.mend != "" {
			w.merge(objects[i], c.mend)
		}
	}
	for i, u := range append(objects, waiting, queued) {
		if i < len(malformedObjects) && malformedObjects[i].mend == "" {
			continue
		}
		switch u.GetKind() {
		case "Job":
			w.awaitPhase(u, "Completed", "status", "state", "phase")
		case "Workflow":
			w.awaitPhase(u, "Succeeded", "status", "phase")
		case "Application":
			w.awaitPhase(u, "running", "status", "status")
		}
		w.eventually("the condition of "+u.GetKind()+" "+u.GetName()+", which was mended, is gone", func() error {
			if said := w.conditionsOf(u); strings.Contains(said, "is malformed: ") {
				return errors.New(said)
			}
			return nil
		})
	}
	if after := w.podsOf(running.GetName()); !maps.Equal(before, after) {
		t.Errorf("the pods of a malformed job were %v, and when it is mended are %v", before, after)
	}
	for _, u := range append(objects, running) {
		w.delete(u)
	}
	if err := w.canariesLive(time.Minute); err != nil {
		t.Fatalf("when the objects are gone: %v", err)
	}
}

const becomesMalformed = `
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: becomes-malformed}
spec: {tasks: [{name: main, replicas: 3, template: {spec: {containers: [{name: main, image: busybox}]}}}]}
`

const refersToTemplate = `
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: refers}
spec:
  entrypoint: main
  templates: [{name: main, steps: [[{name: a, templateRef: {name: malformed, template: main}}]]}]
`

const refersToQueue = `
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: queued}
spec:
  queue: malformed
  tasks: [{name: main, replicas: 1, template: {metadata: {annotations: {lockstep.dev/sim-duration: 100ms}},
    spec: {restartPolicy: Never, containers: [{name: main, image: busybox}]}}}]
`

// podsOf returns the UIDs of a job's pods by the pods' names.
func (w *world) podsOf(job string) map[string]string {
	w.Helper()
	list, err := w.core.CoreV1().Pods(w.ns).List(w.Context(), metav1.ListOptions{LabelSelector: "volcano.sh/job-name=" + job})
	if err != nil {
		w.Fatal(err)
	}
	out := map[string]string{}
	for _, p := range list.Items {
		out[p.Name] = string(p.UID)
	}
	return out
}

func (w *world) conditionsOf(u *unstructured.Unstructured) string {
	w.Helper()
	status, _, _ := unstructured.NestedFieldNoCopy(w.get(u).Object, "status")
	data, err := json.Marshal(status)
	if err != nil {
		w.Fatal(err)
	}
	return strings.ReplaceAll(string(data), `\"`, `"`)
}

// awaitSaid waits until an object's conditions, or an event about it, contain text.
func (w *world) awaitSaid(u *unstructured.Unstructured, text string) {
	w.Helper()
	w.eventually(fmt.Sprintf("%s %s is told %s", u.GetKind(), u.GetName(), text), func() error {
		said := w.conditionsOf(u)
		if strings.Contains(said, text) {
			return nil
		}
		events, err := w.core.CoreV1().Events("").List(w.Context(), metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(u.GetUID())})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if strings.Contains(e.Message, text) {
				return nil
			}
			said += "; " + e.Message
		}
		return fmt.Errorf("all that is said is %s", said)
	})
}

// written returns the manager's writes in the namespace of the hostile user, about cluster-scoped
// objects called malformed, and in the default namespace, which has the events about cluster-scoped
// objects.
func (w *world) written() []localtest.Call {
	w.Helper()
	return slices.DeleteFunc(localtest.ManagerCalls(w, w.c), func(c localtest.Call) bool {
		return !c.Write() || c.Namespace != w.ns && (c.Namespace != "" || c.Name != "malformed") && c.Namespace != metav1.NamespaceDefault
	})
}

func (w *world) awaitPhase(u *unstructured.Unstructured, phase string, path ...string) {
	w.Helper()
	w.eventually(fmt.Sprintf("%s %s is %s", u.GetKind(), u.GetName(), phase), func() error {
		now := w.get(u)
		if field(now, path...) != phase {
			status, _ := json.Marshal(now.Object["status"])
			return fmt.Errorf("its status is %s", status)
		}
		return nil
	})
}
