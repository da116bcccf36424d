package realnodes

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cputopology/request"
	"lockstep.dev/lockstep/internal/lab/cpus"
	"lockstep.dev/lockstep/internal/lab/series"
	"lockstep.dev/lockstep/internal/localcluster"
)

// program builds lockstep and its executors as shipped, for programs in pods, and returns the path
// of lockstep.
var program = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("make", "-C", "../..", "bin/lockstep", "bin/lockstep-exec", "bin/lockstep-exec-io").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("make: %w\n%s", err, out)
	}
	return filepath.Abs("../../bin/lockstep")
})

func TestTheScenarioOfPinning(t *testing.T) {
	skipUnlessPossible(t)
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	kube, err := localcluster.FindKube()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	rep, err := cpus.Measure(t.Context(), cpus.Config{
		Config:   series.Config{Repeat: 1, Timeout: patience, OutDir: dir, Lockstep: path, Kube: kube, Version: "test", Progress: func(line string) { t.Log(line) }},
		LoadTime: time.Second, Connections: 4,
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.Runs) != 4 {
		t.Errorf("%d runs, want one of each mode", len(rep.Runs))
	}
	pods := 1 + rep.Plan.PiPods
	for _, p := range rep.Plan.Programs {
		pods += p.Pods + p.Neighbours
	}
	for _, r := range rep.Runs {
		if r.Error != "" || len(r.Violations) > 0 || r.Checked != pods {
			t.Errorf("%s: error %q, violations %q, %d pods checked", r.Mode, r.Error, r.Violations, r.Checked)
		}
		if r.Web.PerSecond <= 0 || r.Pi.PerSecond <= 0 {
			t.Errorf("%s: %v requests and %v computations a second", r.Mode, r.Web.PerSecond, r.Pi.PerSecond)
		}
	}
	page, err := os.ReadFile(filepath.Join(dir, "report.html"))
	if err != nil || !strings.Contains(string(page), "static-burst") {
		t.Errorf("report.html: %d bytes, %v", len(page), err)
	}
}

func TestThePinnedExampleRunsOnItsCPU(t *testing.T) {
	e := pinnable(t)
	ns := e.namespace(t)
	j := e.createExample(t, ns, "pinned.yaml")
	got := e.waitJob(t, j, batch.Completed, batch.Failed, batch.Aborted, batch.Terminated)
	pods := e.podsOf(t, ns)
	if got.Status.State.Phase != batch.Completed || len(pods) != 1 {
		t.Fatalf("the job is %s with %d pods", got.Status.State.Phase, len(pods))
	}
	// The kernel, Lockstep's annotation and ACK's annotation must name the same CPU.
	given, err := request.ParseResult(pods[0].Annotations[request.LockstepResult])
	if err != nil {
		t.Fatal(err)
	}
	ack, err := request.ParseACKResult(pods[0].Annotations[request.ACKResult])
	if err != nil {
		t.Fatal(err)
	}
	its := given.Containers["main"].CPUs
	end := pods[0].Status.ContainerStatuses[0].State.Terminated
	if its.Len() != 1 || !ack["main"].Equal(its) || strings.TrimSpace(end.Message) != "running on CPU "+its.String() {
		t.Errorf("given %s, in ACK's form %s; the pod says %q", its, ack["main"], end.Message)
	}
}

// TestTheAgentAsADaemonSet installs the agent as in real clusters, with only the rights that it has
// there.
func TestTheAgentAsADaemonSet(t *testing.T) {
	skipUnlessPossible(t)
	e, spec := upWithManagerImage(t, "daemonset", "--real-nodes=1", "--nodes=0")
	data, err := os.ReadFile("../../config/agent.yaml")
	if err != nil {
		t.Fatal(err)
	}
	agents := &appsv1.DaemonSet{}
	if err := yaml.UnmarshalStrict(data, agents); err != nil {
		t.Fatal(err)
	}
	// This cluster has no other scheduler.
	agents.Spec.Template.Spec.SchedulerName = "lockstep"
	container := &agents.Spec.Template.Spec.Containers[0]
	container.Image = managerImage
	container.Args = append(container.Args, "--cgroup-root="+spec.Node(1).Cgroup())
	sets := e.client.AppsV1().DaemonSets(agents.Namespace)
	if agents, err = sets.Create(t.Context(), agents, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	// The agent reports through the kubelet, and pins.
	node := e.topology(t)
	if l := node.Status.Liveness; l == nil || !strings.HasPrefix(l.Pod, agents.Namespace+"/"+agents.Name) {
		t.Errorf("it shows that it is there by %+v", l)
	}
	if node.Spec.Counts.CPUs == 0 {
		t.Errorf("the machine: %+v", node.Spec)
	}
	ns := e.namespace(t)
	first := e.asksForACPU(t, ns, "first")
	e.runsWhereItIsTo(t, first)

	// After the agent's death the kubelet restarts it before its absence is noticed.
	at := node.Status.Liveness.Pod
	if err := kill(e.agentPID(t)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the agent to start again", func(ctx context.Context) (bool, error) {
		list, err := e.client.CoreV1().Pods(agents.Namespace).List(ctx, metav1.ListOptions{LabelSelector: topologyv1alpha1.AgentLabel})
		if err != nil || len(list.Items) != 1 || len(list.Items[0].Status.ContainerStatuses) != 1 {
			return false, err
		}
		s := list.Items[0].Status.ContainerStatuses[0]
		return s.RestartCount > 0 && s.Ready, nil
	})
	if now := e.latestTopology(t); now.Status.Liveness.Pod != at || meta.FindStatusCondition(now.Status.Conditions, topologyv1alpha1.AgentAlive) != nil {
		t.Errorf("after a restart of its container: %+v", now.Status)
	}

	// Without an agent, pinned pods stay pinned and no further pod is pinned.
	away := []byte(`{"spec":{"template":{"spec":{"nodeSelector":{"nowhere":"true"}}}}}`)
	if _, err := sets.Patch(t.Context(), agents.Name, types.StrategicMergePatchType, away, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the agent to be missed", func(context.Context) (bool, error) {
		return meta.IsStatusConditionFalse(e.latestTopology(t).Status.Conditions, topologyv1alpha1.AgentAlive), nil
	})
	e.runsWhereItIsTo(t, first)
	e.remove(t, first)
	second := e.asksForACPU(t, ns, "second")
	eventually(t, "why the pod waits", func(ctx context.Context) (bool, error) {
		pod, err := e.client.CoreV1().Pods(ns).Get(ctx, second.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && strings.Contains(c.Message, "an agent at work") {
				return true, nil
			}
		}
		return false, nil
	})
	back := []byte(`{"spec":{"template":{"spec":{"nodeSelector":{"nowhere":null}}}}}`)
	if _, err := sets.Patch(t.Context(), agents.Name, types.StrategicMergePatchType, back, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	e.runsWhereItIsTo(t, second)
}

// latestTopology returns the node's NodeTopology in any state.
func (e *env) latestTopology(t *testing.T) *topologyv1alpha1.NodeTopology {
	t.Helper()
	out := &topologyv1alpha1.NodeTopology{}
	data, err := e.client.CoreV1().RESTClient().Get().AbsPath("/apis/topology.lockstep.dev/v1alpha1/nodetopologies/" + agentNode).DoRaw(t.Context())
	if err == nil {
		err = yaml.Unmarshal(data, out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// asksForACPU creates a pod that requests a CPU of its own.
func (e *env) asksForACPU(t *testing.T, namespace, name string) *corev1.Pod {
	t.Helper()
	spec := onAgentNode("main")
	spec.SchedulerName = "lockstep"
	spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{topologyv1alpha1.RequestAnnotation: "true"}}, Spec: spec}
	pod, err := e.client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.remove(t, pod) })
	return pod
}

// runsWhereItIsTo waits until a pod runs on the CPU that it was given.
func (e *env) runsWhereItIsTo(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	eventually(t, "pod "+pod.Name+" to run", func(ctx context.Context) (bool, error) {
		now, err := e.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		pod = now
		return err == nil && now.Status.Phase == corev1.PodRunning && allStarted(now), err
	})
	result, err := request.ParseResult(pod.Annotations[request.LockstepResult])
	if err != nil {
		t.Fatal(err)
	}
	if its := result.Containers["main"].CPUs; its.Len() != 1 {
		t.Errorf("pod %s was given CPUs %s", pod.Name, its)
	} else {
		e.awaitAllowed(t, pod, "main", its.String())
	}
}
