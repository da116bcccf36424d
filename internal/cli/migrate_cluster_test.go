package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"lockstep.dev/lockstep/internal/install"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// inUse are objects of clusters that other controllers serve, one of each verdict and kind of check.
const inUse = `
apiVersion: v1
kind: Namespace
metadata: {name: migrating}
---
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: plain, namespace: migrating}
spec:
  tasks: [{name: w, replicas: 2, template: {spec: {restartPolicy: Never, containers: [{name: c, image: x}]}}}]
---
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: numa, namespace: migrating}
spec:
  maxRetry: 0
  tasks:
  - {name: w, replicas: 2, topologyPolicy: best-effort, template: {spec: {restartPolicy: Never, containers: [{name: c, image: x, resources: {requests: {cpu: 1}}}]}}}
---
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: near, namespace: migrating}
spec:
  networkTopology: {mode: hard}
  tasks: [{name: w, replicas: 2, template: {spec: {restartPolicy: Never, containers: [{name: c, image: x}]}}}]
---
apiVersion: topology.volcano.sh/v1alpha1
kind: HyperNode
metadata: {name: rack}
spec: {tier: 1, members: [{type: Node, selector: {regexMatch: {pattern: ^node}}}]}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: gold}
spec: {weight: 1, deserved: {cpu: 8}, guarantee: {resource: {cpu: 4}}}
---
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: wrong, namespace: migrating}
spec:
  entrypoint: mian
  templates: [{name: main, container: {image: x, command: [a]}}]
---
apiVersion: core.oam.dev/v1beta1
kind: Application
metadata: {name: shop, namespace: migrating}
spec:
  components: [{name: web, type: webservice, properties: {image: nginx}}, {name: x, type: gpu, properties: {}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: volcano-scheduler-configmap, namespace: migrating}
data:
  volcano-scheduler.conf: |
    actions: "enqueue, allocate, preempt, shuffle"
    tiers:
    - plugins: [{name: priority}, {name: extender}, {name: sla, arguments: {sla-waiting-time: 5m}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: unconcerned, namespace: migrating}
data: {a: b}
`

// becomes are the lines that 'migrate check' prints of inUse, with single spaces.
var becomes = []string{
	"Job migrating/plain works",
	"Job migrating/numa missing spec.tasks[].topologyPolicy (of pods that are not of the QoS class Guaranteed) has no effect",
	"Job migrating/numa differs spec.maxRetry 0 means no retries; Volcano makes it 3",
	"Job migrating/near differs spec.networkTopology hard without a tier means one domain of any tier",
	"HyperNode rack works",
	"Queue gold differs spec.guarantee it is lent",
	"Workflow migrating/wrong missing spec.entrypoint template name 'mian' undefined",
	"Application migrating/shop missing application shop: component x: there is no ComponentDefinition gpu",
	"ConfigMap migrating/volcano-scheduler-configmap differs actions shuffle pods leave revocable zones",
	"ConfigMap migrating/volcano-scheduler-configmap missing tiers[0].plugins[1] extender the scheduler makes no requests to other programs",
}

// TestMigrateCheck checks manifests, and the same objects in a cluster.
func TestMigrateCheck(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	c := localtest.Shared(t)
	if err := install.Apply(t.Context(), c.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	says := func(args ...string) string {
		t.Helper()
		code, out, errOut := run(c, append([]string{"migrate", "check"}, args...)...)
		if code != 1 || !strings.Contains(errOut, "have parts that are missing") {
			t.Errorf("%v: exit code %d: %s", args, code, errOut)
		}
		var lines []string
		for line := range strings.Lines(out) {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		return strings.Join(lines, "\n")
	}
	expect := func(got string) {
		t.Helper()
		for _, want := range becomes {
			if !strings.Contains(got, want) {
				t.Errorf("%q is not in\n%s", want, got)
			}
		}
		if strings.Contains(got, "unconcerned") || strings.Contains(got, "priority") {
			t.Errorf("a line too many:\n%s", got)
		}
	}

	// Manifests need no cluster, and may have what the API server would refuse.
	folder := t.TempDir()
	for name, text := range map[string]string{
		"all.yaml": inUse,
		"refused.yaml": `{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, metadata: {name: typo}, spec: {minAvaliable: 3, tasks: []}}
---
{apiVersion: nodeinfo.volcano.sh/v1alpha1, kind: Numatopology, metadata: {name: n1}}
---
{apiVersion: batch.volcano.sh/v1beta7, kind: Job, metadata: {name: future}}
---
{apiVersion: scheduling.volcano.sh/v1beta1, kind: Queue, metadata: {name: greedy}, spec: {deserved: {cpu: 1}, guarantee: {resource: {cpu: 2}}}}
---
{apiVersion: batch.volcano.sh/v1alpha1, kind: CronJob, metadata: {name: never}, spec: {schedule: "0 0 31 2 *", jobTemplate: {spec: {tasks: [{name: w, replicas: 1, template: {spec: {containers: [{name: c, image: i}]}}}]}}}}
`,
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := says("--kubeconfig=/does/not/exist", "--all", "-f", folder)
	expect(got)
	for _, want := range []string{
		`Job typo missing unknown field "spec.minAvaliable"`, "Numatopology n1 missing Lockstep does not serve this kind",
		"Job future missing apiVersion Lockstep does not serve batch.volcano.sh/v1beta7",
		"Queue greedy missing spec.guarantee.resource the API server refuses it: must not be greater than deserved: cpu",
		`CronJob never missing spec.schedule "0 0 31 2 *": is a date that never comes`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}

	// The same objects in a cluster.
	group := func(g, v, r string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: g, Version: v, Resource: r}
	}
	create(t, c, map[string]schema.GroupVersionResource{
		"Job": group("batch.volcano.sh", "v1alpha1", "jobs"), "Queue": group("scheduling.volcano.sh", "v1beta1", "queues"),
		"Workflow": group("argoproj.io", "v1alpha1", "workflows"), "Application": group("core.oam.dev", "v1beta1", "applications"),
		"ConfigMap": group("", "v1", "configmaps"), "Namespace": group("", "v1", "namespaces"),
		"HyperNode": group("topology.volcano.sh", "v1alpha1", "hypernodes"),
	}, inUse)
	expect(says("--all"))
	if got := says("-o", "json"); !strings.Contains(got, `"verdict": "differs"`) || !strings.Contains(got, `"schemaVersion": "migrate/v1"`) {
		t.Errorf("as JSON:\n%s", got)
	}
}

// TestMigrateCheckOfNothing checks a folder in which there is nothing to check.
func TestMigrateCheckOfNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	if err := os.WriteFile(file, []byte("{apiVersion: v1, kind: Service, metadata: {name: a}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := localtest.Shared(t)
	if code, _, errOut := run(c, "migrate", "check", "-f", file); code != 1 || !strings.Contains(errOut, "there was nothing to check among 1 objects") {
		t.Errorf("exit code %d: %s", code, errOut)
	}
}
