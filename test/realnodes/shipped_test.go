package realnodes

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/realnodes"
)

// managerImage and executorImage are the names of the Dockerfile's images in the tests' clusters.
const (
	managerImage  = "localhost/lockstep:1"
	executorImage = "localhost/shipped-exec:1"
)

// shipped returns the path from which the Dockerfile copies a program.
func shipped(name string) (string, error) {
	path, err := program()
	return filepath.Join(filepath.Dir(path), name), err
}

// upWithManagerImage starts a cluster for one test and loads the Dockerfile's image of the manager
// into its nodes.
func upWithManagerImage(t *testing.T, name string, flags ...string) (*env, realnodes.Spec) {
	t.Helper()
	e, err := up(name, flags...)
	t.Cleanup(func() {
		if _, err := lockstep("down", "--name", name); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	spec, err := realnodes.Read(filepath.Join(e.dir, "real"))
	if err != nil {
		t.Fatal(err)
	}
	if err := localcluster.ManagerImage().Load(t.Context(), spec, managerImage, shipped); err != nil {
		t.Fatal(err)
	}
	return e, spec
}

// TestWhatIsShippedRuns installs Lockstep as users do, from images with the Dockerfile's content
// and nothing else: two managers, one of which leads, agents, and the executor of workflows.
func TestWhatIsShippedRuns(t *testing.T) {
	skipUnlessPossible(t)
	e, spec := upWithManagerImage(t, "shipped", "--real-nodes=2", "--nodes=0", "--without-manager", "--with-kube-scheduler")
	if err := localcluster.ExecutorImage().Load(t.Context(), spec, executorImage, shipped); err != nil {
		t.Fatal(err)
	}
	if out, err := lockstep("install", "--kubeconfig", filepath.Join(e.dir, "admin.kubeconfig"),
		"--image="+managerImage, "--executor-image="+executorImage, "--with-agent"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// The nodes of this machine share its cgroups, so each agent gets a part of them.
	cgroup := strings.TrimSuffix(spec.Node(1).Cgroup(), spec.Node(1).Name()) + "$(NODE_NAME)"
	patch := fmt.Sprintf(`[{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--cgroup-root=%s"}]`, cgroup)
	if _, err := e.client.AppsV1().DaemonSets(system).Patch(t.Context(), "lockstep-agent", types.JSONPatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}

	// All must start and stay.
	leader := e.shippedLeader(t, "")
	on := map[string]bool{}
	for _, p := range e.readyPods(t, "app.kubernetes.io/name=lockstep-manager", 2) {
		on[p.Spec.NodeName] = true
	}
	if len(on) != 2 {
		t.Errorf("the managers are on nodes %v", on)
	}
	e.readyPods(t, "app.kubernetes.io/name=lockstep-agent", 2)
	for _, n := range spec.Nodes() {
		eventually(t, "the agent's report of "+n.Name(), func(ctx context.Context) (bool, error) {
			out := &topologyv1alpha1.NodeTopology{}
			data, err := e.client.CoreV1().RESTClient().Get().AbsPath("/apis/topology.lockstep.dev/v1alpha1/nodetopologies/" + n.Name()).DoRaw(ctx)
			if err != nil {
				return false, nil
			}
			err = yaml.Unmarshal(data, out)
			return meta.IsStatusConditionTrue(out.Status.Conditions, topologyv1alpha1.NodeReady), err
		})
	}

	// They must work: a gang, a workflow that needs its executor, a schedule in a time zone.
	// (Beside the managers a node of this test has no whole CPU free for pinning;
	// TestTheAgentAsADaemonSet tests pinning.)
	ns := e.namespace(t)
	e.workflowsNamespace(t, ns)
	client := e.workflows(t)
	nightly := &wf.CronWorkflow{}
	manifest := `
apiVersion: argoproj.io/v1alpha1
kind: CronWorkflow
metadata: {name: minutely}
spec:
  schedules: ["* * * * *"]
  timezone: Asia/Kathmandu
  workflowSpec:
    entrypoint: main
    templates: [{name: main, suspend: {}}]
`
	if err := yaml.UnmarshalStrict([]byte(manifest), nightly); err != nil {
		t.Fatal(err)
	}
	if err := client.Post().Namespace(ns).Resource("cronworkflows").Body(nightly).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	first := job(ns, "first", 2, podSpec("hostname"))
	e.create(t, first)
	e.waitJob(t, first, batch.Completed)
	w := &wf.Workflow{}
	manifest = `
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: passes-on}
spec:
  entrypoint: main
  templates:
  - name: main
    steps:
    - - {name: a, template: say}
    - - name: b
        template: hear
        when: "'{{steps.a.outputs.parameters.out}}' =~ '^s'"
        arguments: {parameters: [{name: in, value: "{{=sprig.upper(steps.a.outputs.parameters.out)}}"}]}
  - name: say
    container: {image: "localhost/busybox:1", command: [sh, -c, "echo -n said > /tmp/out"]}
    outputs: {parameters: [{name: out, valueFrom: {path: /tmp/out}}]}
  - name: hear
    inputs: {parameters: [{name: in}]}
    container: {image: "localhost/busybox:1", command: [test, SAID, "=", "{{inputs.parameters.in}}"]}
`
	if err := yaml.UnmarshalStrict([]byte(manifest), w); err != nil {
		t.Fatal(err)
	}
	if err := client.Post().Namespace(ns).Resource("workflows").Body(w).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the workflow's end", func(ctx context.Context) (bool, error) {
		err := client.Get().Namespace(ns).Resource("workflows").Name(w.Name).Do(ctx).Into(w)
		return w.Status.Phase.Completed(), err
	})
	if w.Status.Phase != wf.WorkflowSucceeded {
		t.Errorf("the workflow: %s %s %+v", w.Status.Phase, w.Status.Message, w.Status.Nodes)
	}

	if n := w.Status.Nodes[wf.NodeID(w.Name, "passes-on[1].b")]; n.Phase != wf.PhaseSucceeded {
		t.Errorf("the second step: %s", n.Phase)
	}
	// Users' programs run in child processes of the managers with all limits set. For these limits
	// it is enough that a manager has no privileges, no files and the runtime's filter of system
	// calls.
	e.deploy(t, ns, &applicationCase{Name: "shipped", Components: []any{map[string]any{
		"name": "c", "type": "k8s-objects", "properties": map[string]any{"objects": []any{map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "shipped"}, "data": map[string]any{"a": "b"},
		}}},
	}}})
	if _, err := e.client.CoreV1().ConfigMaps(ns).Get(t.Context(), "shipped", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	for _, p := range e.readyPods(t, "app.kubernetes.io/name=lockstep-manager", 2) {
		log, err := e.client.CoreV1().Pods(system).GetLogs(p.Name, &corev1.PodLogOptions{}).DoRaw(t.Context())
		if err != nil || strings.Contains(string(log), "without some of their limits") || strings.Contains(string(log), "cannot be started") {
			t.Errorf("%s: %v\n%s", p.Name, err, log)
		}
	}

	// When the leader goes, the other manager takes over.
	if err := e.client.CoreV1().Pods(system).Delete(t.Context(), leader, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	e.shippedLeader(t, leader)
	second := job(ns, "second", 2, podSpec("hostname"))
	e.create(t, second)
	e.waitJob(t, second, batch.Completed)
	eventually(t, "the schedule's first workflow", func(ctx context.Context) (bool, error) {
		err := client.Get().Namespace(ns).Resource("cronworkflows").Name("minutely").Do(ctx).Into(nightly)
		if len(nightly.Status.Conditions) > 0 {
			return false, fmt.Errorf("conditions: %+v", nightly.Status.Conditions)
		}
		return nightly.Status.LastScheduledTime != nil, err
	})
	for _, p := range e.readyPods(t, "app.kubernetes.io/name=lockstep-manager", 2) {
		if n := p.Status.ContainerStatuses[0].RestartCount; n > 0 {
			t.Errorf("pod %s was started again %d times", p.Name, n)
		}
	}
}

// system is the namespace of the manager.
const system = "lockstep-system"

// shippedLeader waits for a leader other than the pod before, and returns its pod.
func (e *env) shippedLeader(t *testing.T, before string) string {
	t.Helper()
	leader := ""
	eventually(t, "a leader", func(ctx context.Context) (bool, error) {
		leases, err := e.client.CoordinationV1().Leases(system).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		managers, err := e.client.CoreV1().Pods(system).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=lockstep-manager"})
		if err != nil {
			return false, err
		}
		for _, l := range leases.Items {
			for _, p := range managers.Items {
				if holder := l.Spec.HolderIdentity; holder != nil && strings.HasPrefix(*holder, p.Name) && p.Name != before {
					leader = p.Name
					return true, nil
				}
			}
		}
		return false, nil
	})
	return leader
}

// readyPods waits until count pods with a label are ready. If they do not become ready, it reports
// why.
func (e *env) readyPods(t *testing.T, label string, count int) []corev1.Pod {
	t.Helper()
	var ready []corev1.Pod
	states := map[string]string{}
	t.Cleanup(func() {
		if len(ready) != count {
			t.Logf("pods with %s: %v", label, states)
		}
	})
	eventually(t, fmt.Sprintf("%d ready pods with %s", count, label), func(ctx context.Context) (bool, error) {
		list, err := e.client.CoreV1().Pods(system).List(ctx, metav1.ListOptions{LabelSelector: label})
		if err != nil {
			return false, err
		}
		ready = nil
		maps.DeleteFunc(states, func(string, string) bool { return true })
		for _, p := range list.Items {
			states[p.Name] = string(p.Status.Phase)
			for _, s := range p.Status.ContainerStatuses {
				states[p.Name] = fmt.Sprintf("%s %+v %+v", p.Status.Phase, s.State, s.LastTerminationState)
				if s.Ready && p.DeletionTimestamp == nil {
					ready = append(ready, p)
				}
			}
		}
		return len(ready) == count, nil
	})
	return ready
}
