package manager_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
	topology "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cputopology/machines"
	"lockstep.dev/lockstep/internal/install"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/manager/managertest"
)

var podGroupResource = scheduling.GroupVersion.WithResource("podgroups")

// forbidden checks that a user may write none of these manifests.
func (m *tenant) forbidden(manifests ...string) {
	m.Helper()
	for _, manifest := range manifests {
		if err := m.try(manifest); !apierrors.IsForbidden(err) {
			m.Errorf("the answer is %v; want that it is forbidden: %s", err, manifest)
		}
	}
}

// deletesWorkflows deletes workflows at the end of a test.
func (e *env) deletesWorkflows() {
	e.Cleanup(func() {
		_ = e.dyn.Resource(workflowResource).Namespace(e.ns).DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{})
	})
}

// TestWorkflowsReadAndWriteConfigMapsOfTheirNamespace checks that parameters and caches name
// ConfigMaps without a namespace, and only those with the label for that purpose.
func TestWorkflowsReadAndWriteConfigMapsOfTheirNamespace(t *testing.T) {
	e := start(t)
	e.deletesWorkflows()
	other := e.other()
	e.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: plain, namespace: " + other + ", labels: {workflows.argoproj.io/configmap-type: Parameter}}\ndata: {value: " + hiddenValue + "}")
	e.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cache, namespace: " + other + ", labels: {workflows.argoproj.io/configmap-type: Cache}}\ndata: {untouched: \"yes\"}")
	e.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {untouched: \"yes\"}")
	mallory := e.tenant("mallory", "edit")
	for i, name := range []string{"plain", other + "/plain", "../" + other + "/plain"} {
		workflow := fmt.Sprintf("parameter-%d", i)
		mallory.apply(fmt.Sprintf(`apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: %s}
spec:
  entrypoint: main
  templates:
  - name: main
    inputs: {parameters: [{name: p, valueFrom: {configMapKeyRef: {name: %q, key: value}}}]}
    container: {image: busybox, args: ["{{inputs.parameters.p}}"]}
`, workflow, name))
		e.hides(e.says(workflowResource, workflow, "inputs.parameters.p", "plain"))
	}
	caching := func(name, configMap string) string {
		return fmt.Sprintf(`apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: %s}
spec:
  entrypoint: main
  templates:
  - name: main
    metadata: {annotations: {lockstep.dev/sim-duration: 100ms}}
    memoize: {key: k, maxAge: 1h, cache: {configMap: {name: %s, key: k}}}
    container: {image: busybox}
`, name, configMap)
	}
	mallory.apply(caching("keeps", "cache"))
	e.present(configMapResource, e.ns, "cache")
	mallory.apply(caching("overwrites", "settings"))
	e.says(workflowResource, "overwrites", `"phase":"Succeeded"`)
	e.eventually("an event says that it is not a cache", func() error {
		events, err := e.core.CoreV1().Events(e.ns).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=overwrites,reason=OutputsNotKept"})
		if err == nil && (len(events.Items) == 0 || !strings.Contains(events.Items[0].Message, "settings") || !strings.Contains(events.Items[0].Message, "not a cache")) {
			err = fmt.Errorf("the events are %v", events.Items)
		}
		return err
	})
	for _, at := range [][2]string{{other, "cache"}, {e.ns, "settings"}} {
		cm, err := e.core.CoreV1().ConfigMaps(at[0]).Get(t.Context(), at[1], metav1.GetOptions{})
		if err != nil || len(cm.Data) != 1 {
			t.Errorf("ConfigMap %s/%s is %v, error %v; want it as it was", at[0], at[1], cm.Data, err)
		}
	}
	if pods := len(e.pods()); pods > 2 {
		t.Errorf("%d pods; want those of the two workflows that run", pods)
	}
}

// TestWorkflowsOfCronsAndTemplatesStayInTheirNamespace checks that workflows are created in the
// namespace of the CronWorkflow, from templates of that namespace or of the cluster.
func TestWorkflowsOfCronsAndTemplatesStayInTheirNamespace(t *testing.T) {
	t.Parallel() // it waits for a full minute
	e := start(t)
	e.deletesWorkflows()
	other := e.other()
	theirs := `apiVersion: argoproj.io/v1alpha1
kind: WorkflowTemplate
metadata: {name: theirs, namespace: ` + other + `}
spec: {entrypoint: main, templates: [{name: main, container: {image: busybox, args: [` + hiddenValue + `]}}]}
`
	e.apply(theirs)
	mallory := e.tenant("mallory", "edit")
	cron := `apiVersion: argoproj.io/v1alpha1
kind: CronWorkflow
metadata: {name: every-minute}
spec:
  schedules: ["* * * * *"]
  workflowMetadata: {namespace: ` + other + `, labels: {from: mallory}}
  workflowSpec: {entrypoint: main, templates: [{name: main, container: {image: busybox}}]}
`
	// The schema has no such namespace field; the API server reports fields that it drops.
	mallory.apply(cron)
	mallory.forbidden(theirs,
		strings.Replace(cron, "every-minute}", "every-minute, namespace: "+other+"}", 1),
		strings.Replace(strings.Replace(theirs, ", namespace: "+other, "", 1), "kind: Workflow", "kind: ClusterWorkflow", 1))
	for i, name := range []string{"theirs", other + "/theirs", "../" + other + "/theirs"} {
		workflow := fmt.Sprintf("borrowed-%d", i)
		err := mallory.try(fmt.Sprintf("apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata: {name: %s}\nspec: {workflowTemplateRef: {name: %q}}\n", workflow, name))
		if err == nil {
			e.hides(e.says(workflowResource, workflow, "theirs", "not found"))
		} else if !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Names and labels that the API server does not accept are reported, and do not prevent the
	// status from being written.
	mallory.apply("apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata: {name: labelled}\nspec: {entrypoint: main, workflowMetadata: {labels: {from: \"a b\"}}, templates: [{name: main, container: {image: busybox}}]}\n")
	e.says(workflowResource, "labelled", `workflowMetadata.labels[from]: "a b" is no label`)
	localtest.Eventually(e, "a workflow of the CronWorkflow", func() error {
		list, err := e.dyn.Resource(workflowResource).List(t.Context(), metav1.ListOptions{LabelSelector: "from=mallory"})
		if err != nil || len(list.Items) == 0 {
			return fmt.Errorf("%d workflows, error %v", len(list.Items), err)
		}
		for i := range list.Items {
			if ns := list.Items[i].GetNamespace(); ns != e.ns {
				t.Errorf("it is in namespace %s", ns)
			}
		}
		return nil
	})
}

// TestPodGroupsGatherPodsOfTheirNamespace checks that a pod that names a group of another namespace
// neither counts towards that group's minimum nor is scheduled with it.
func TestPodGroupsGatherPodsOfTheirNamespace(t *testing.T) {
	e := start(t)
	victim := newEnv(t, e.c)
	for _, x := range []*env{e, victim} {
		t.Cleanup(func() {
			now := int64(0)
			_ = x.core.CoreV1().Pods(x.ns).DeleteCollection(context.Background(), metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{})
		})
	}
	pod := func(name, group string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, annotations: {scheduling.k8s.io/group-name: %q}}\nspec: {schedulerName: lockstep, containers: [{name: c, image: busybox}]}\n", name, group)
	}
	gang := "apiVersion: scheduling.volcano.sh/v1beta1\nkind: PodGroup\nmetadata: {name: gang, namespace: " + victim.ns + "}\nspec: {minMember: 2}\n"
	victim.apply(gang)
	victim.apply(pod("one", "gang"))
	mallory := e.tenant("mallory", "edit")
	mallory.forbidden(gang)
	mallory.apply(pod("joins", "gang"))
	mallory.apply(pod("joins-by-path", victim.ns+"/gang"))
	e.says(podResource, "joins", "gang")
	e.says(podResource, "joins-by-path", "gang")
	victim.says(podGroupResource, "gang", "fewer pods exist than minMember")
	node := func(e *env, name string) string {
		e.Helper()
		p, err := e.core.CoreV1().Pods(e.ns).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return p.Spec.NodeName
	}
	if n := node(victim, "one"); n != "" {
		t.Errorf("the victim's pod is on %s although its group is not complete", n)
	}
	victim.apply(pod("two", "gang"))
	victim.eventually("the group is complete", func() error {
		if node(victim, "one") == "" || node(victim, "two") == "" {
			return fmt.Errorf("a pod has no node")
		}
		return nil
	})
	for _, name := range []string{"joins", "joins-by-path"} {
		if n := node(e, name); n != "" {
			t.Errorf("pod %s is on %s, with the group of another namespace", name, n)
		}
	}
}

// TestQueuesAndPriorityClassesHaveTheirLimits checks that users who may submit jobs may name any
// queue and priority class, but get no more of a queue than it has, get no pod that a quota on the
// class forbids, and may change neither.
func TestQueuesAndPriorityClassesHaveTheirLimits(t *testing.T) {
	e := start(t)
	high, small, closed := "high-"+e.ns, "small-"+e.ns, "closed-"+e.ns
	classes := e.core.SchedulingV1().PriorityClasses()
	if _, err := classes.Create(t.Context(), &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: high}, Value: 1000}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = classes.Delete(context.Background(), high, metav1.DeleteOptions{}) })
	e.apply("apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: no-high}\nspec: {hard: {pods: \"0\"}, scopeSelector: {matchExpressions: [{operator: In, scopeName: PriorityClass, values: [" + high + "]}]}}")
	e.says(corev1.SchemeGroupVersion.WithResource("resourcequotas"), "no-high", `"used"`)
	e.queue(small, func(s *scheduling.QueueSpec) { s.Capability = corev1.ResourceList{"cpu": resource.MustParse("1")} })
	e.queue(closed, func(*scheduling.QueueSpec) {})
	e.command("CloseQueue", "Queue", closed)
	e.eventually("the queue is closed", func() error {
		q, err := e.dyn.Resource(queues).Get(t.Context(), closed, metav1.GetOptions{})
		if state, _, _ := unstructured.NestedString(q.Object, "status", "state"); err == nil && state != "Closed" {
			err = fmt.Errorf("it is %s", state)
		}
		return err
	})

	mallory := e.tenant("mallory", "edit")
	job := func(name, spec, pod string) string {
		return "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: " + name + "}\nspec: {" + spec +
			"tasks: [{name: main, replicas: 1, template: {spec: {" + pod + "containers: [{name: c, image: busybox, resources: {requests: {cpu: 2}}}]}}}]}\n"
	}
	mallory.apply(job("by-job", "priorityClassName: "+high+", ", ""))
	mallory.apply(job("by-pod", "", "priorityClassName: "+high+", "))
	mallory.apply(job("too-large", "queue: "+small+", ", ""))
	mallory.apply(job("too-late", "queue: "+closed+", ", ""))
	mallory.apply(job("usual", "", ""))
	e.says(jobs, "by-job", "exceeded quota")
	e.says(jobs, "by-pod", "exceeded quota")
	e.says(jobs, "too-large", small)
	e.says(jobs, "too-late", closed)
	e.says(jobs, "usual", `"phase":"Running"`)
	for _, p := range e.pods() {
		if !strings.HasPrefix(p.Name, "usual-") {
			t.Errorf("there is a pod %s", p.Name)
		}
	}
	mallory.forbidden("apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: "+small+"}\nspec: {weight: 1, capability: {cpu: 100}}\n",
		"apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: mine-"+e.ns+"}\nspec: {weight: 1}\n")
	for _, gvr := range []schema.GroupVersionResource{queues, schedulingv1.SchemeGroupVersion.WithResource("priorityclasses")} {
		name := map[string]string{"queues": small, "priorityclasses": high}[gvr.Resource]
		if err := mallory.dyn.Resource(gvr).Delete(t.Context(), name, metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("deleting %s %s: %v; want that it is forbidden", gvr.Resource, name, err)
		}
	}
}

// TestNobodyTakesCPUsByAnAnnotation checks that only the manager says which CPUs a pod was
// assigned. A user can neither name the CPUs of others nor return CPUs that are in use.
func TestNobodyTakesCPUsByAnAnnotation(t *testing.T) {
	c := localtest.Start(t, localtest.WithControllerManager(), localtest.WithConfig(func(c *localcluster.Config) {
		c.Install = install.With(install.Options{CPUs: true})
	}), localtest.WithNodes(localcluster.Nodes{Count: 1, Topology: machines.AMD256NPS4.Name, Pods: 50}))
	managertest.Start(t, c)
	e := newEnv(t, c)
	victim := newEnv(t, c)
	pinnedJob := func(name string) string {
		return "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: " + name + "}\nspec: {tasks: [{name: main, replicas: 1, template: {metadata: {annotations: {cpu.lockstep.dev/request: \"true\"}}," +
			" spec: {containers: [{name: c, image: busybox, resources: {requests: {cpu: 4}, limits: {cpu: 4}}}]}}}]}\n"
	}
	result := func(e *env, job string) string {
		e.Helper()
		e.says(jobs, job, `"phase":"Running"`)
		r := e.podsOf(job)[0].Annotations[topology.ResultAnnotation]
		if r == "" {
			t.Fatalf("the pod of %s was given no CPUs", job)
		}
		return r
	}
	victim.apply(pinnedJob("victim"))
	theirs := result(victim, "victim")
	mallory := e.tenant("mallory", "edit")
	mallory.apply(pinnedJob("mine"))
	mine := result(e, "mine")
	if mine == theirs {
		t.Fatalf("both have %s", mine)
	}

	note := fmt.Sprintf("annotations: {cpu.lockstep.dev/result: %q}", theirs)
	spec := "containers: [{name: c, image: busybox, resources: {requests: {cpu: 4}, limits: {cpu: 4}}}]"
	refusedBy := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), topology.ResultAnnotation) {
			t.Errorf("%s: %v; want a refusal that names the annotation", what, err)
		}
	}
	refusedBy("a pod", mallory.try("apiVersion: v1\nkind: Pod\nmetadata: {name: taken, "+note+"}\nspec: {schedulerName: lockstep, "+spec+"}\n"))
	refusedBy("a job", mallory.try("apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: taken}\nspec: {tasks: [{name: main, replicas: 1, template: {metadata: {"+note+"}, spec: {"+spec+"}}}]}\n"))
	pod := e.podsOf("mine")[0].Name
	at := mallory.dyn.Resource(podResource).Namespace(e.ns)
	for what, value := range map[string]any{"the CPUs of others": theirs, "none": nil} {
		patch := asJSON(map[string]any{"metadata": map[string]any{"annotations": map[string]any{topology.ResultAnnotation: value}}})
		_, err := at.Patch(t.Context(), pod, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		refusedBy("a pod that is changed to "+what, err)
	}
	if _, err := mallory.dyn.Resource(topologies).Patch(t.Context(), "kwok-node-0", types.MergePatchType, []byte(`{"spec":{}}`), metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("changing the NodeTopology: %v; want that it is forbidden", err)
	}
	// The manager, which may set the annotation, creates the pods of workflows: it ignores the
	// annotation in a template.
	mallory.apply("apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata: {name: taken}\nspec: {entrypoint: main, podMetadata: {" + note + "}, templates: [{name: main, metadata: {" + note +
		"}, container: {image: busybox, resources: {requests: {cpu: 4}, limits: {cpu: 4}}}}]}\n")
	e.eventually("the pod of the workflow", func() error {
		for _, p := range e.pods() {
			if p.Labels["workflows.argoproj.io/workflow"] == "taken" && p.Spec.NodeName != "" {
				if r, given := p.Annotations[topology.ResultAnnotation]; given {
					t.Errorf("the pod of the workflow has %s", r)
				}
				return nil
			}
		}
		return fmt.Errorf("there is none on a node")
	})
	if now := result(victim, "victim"); now != theirs {
		t.Errorf("the victim has %s, and had %s", now, theirs)
	}
}
