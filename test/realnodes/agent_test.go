package realnodes

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/request"
	"lockstep.dev/lockstep/internal/localcluster/realnodes"
)

// agentNode is the node whose agent the tests check and kill.
const agentNode = "real-1"

// pinnable returns the shared cluster. It skips the test if the machine has fewer than two
// distinguishable CPUs.
func pinnable(t *testing.T) *env {
	t.Helper()
	e := shared.get(t)
	topology := e.topology(t)
	if cpus, err := cpuset.Parse(string(topology.Spec.Cores[0][0])); err != nil || topology.Spec.Counts.CPUs < 2 || cpus.First() != 0 {
		t.Skipf("CPUs 0 and 1 are needed: %v, %+v", err, topology.Spec)
	}
	return e
}

func (e *env) topology(t *testing.T) *topologyv1alpha1.NodeTopology {
	t.Helper()
	out := &topologyv1alpha1.NodeTopology{}
	eventually(t, "the agent to be ready", func(ctx context.Context) (bool, error) {
		data, err := e.client.CoreV1().RESTClient().Get().AbsPath("/apis/topology.lockstep.dev/v1alpha1/nodetopologies/" + agentNode).DoRaw(ctx)
		if err != nil {
			return false, nil
		}
		err = json.Unmarshal(data, out)
		return meta.IsStatusConditionTrue(out.Status.Conditions, topologyv1alpha1.NodeReady), err
	})
	return out
}

// where is a script that prints the CPUs on which it may run, and then sleeps.
const where = "grep Cpus_allowed_list /proc/self/status; exec sleep 10000"

// onAgentNode returns the spec of a pod on agentNode. Each container requests very little CPU.
func onAgentNode(names ...string) corev1.PodSpec {
	spec := podSpec(where)
	spec.NodeSelector = map[string]string{corev1.LabelHostname: agentNode}
	spec.TerminationGracePeriodSeconds = new(int64)
	spec.RestartPolicy = corev1.RestartPolicyAlways
	main := spec.Containers[0]
	spec.Containers = nil
	for _, name := range names {
		c := *main.DeepCopy()
		c.Name = name
		c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m")}
		spec.Containers = append(spec.Containers, c)
	}
	return spec
}

// as returns a client that impersonates a user.
func (e *env) as(t *testing.T, user string) kubernetes.Interface {
	t.Helper()
	config := rest.CopyConfig(e.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// initName is the name of init containers.
const initName = "first"

// resultOf returns the annotation that the scheduler would write: CPUs by container.
func resultOf(t *testing.T, cpus map[string]string) string {
	t.Helper()
	r := request.Result{Version: 1, Node: agentNode, Containers: map[string]request.ContainerResult{}}
	for name, list := range cpus {
		// An init container has the CPUs of the other containers.
		r.Containers[name] = request.ContainerResult{CPUs: cpuset.MustParse(list), Share: 1, Init: name == initName, Shadow: name == initName}
	}
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// runPinned creates a pod on the node with CPUs already chosen, as the scheduler would, and waits
// until it runs.
func (e *env) runPinned(t *testing.T, namespace, name string, cpus map[string]string, spec corev1.PodSpec) *corev1.Pod {
	t.Helper()
	spec.NodeName, spec.SchedulerName = agentNode, "lockstep"
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: spec}
	if len(cpus) > 0 {
		pod.Annotations = map[string]string{request.LockstepResult: resultOf(t, cpus)}
	}
	if _, err := e.as(t, "lockstep-manager").CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.remove(t, pod) })
	eventually(t, "pod "+name+" to run", func(ctx context.Context) (bool, error) {
		var err error
		pod, err = e.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		return err == nil && pod.Status.Phase == corev1.PodRunning && len(pod.Status.ContainerStatuses) == len(spec.Containers) && allStarted(pod), err
	})
	return pod
}

// remove deletes a pod and waits until its CPUs are free.
func (e *env) remove(t *testing.T, pod *corev1.Pod) {
	ctx := context.Background()
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		err := e.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
	if err != nil {
		t.Errorf("removing pod %s: %v", pod.Name, err)
	}
}

func allStarted(pod *corev1.Pod) bool {
	for _, s := range pod.Status.ContainerStatuses {
		if s.State.Running == nil {
			return false
		}
	}
	return true
}

// choose changes a pod's CPUs, as moves within a node do.
func (e *env) choose(t *testing.T, pod *corev1.Pod, cpus map[string]string) {
	t.Helper()
	e.annotate(t, pod, resultOf(t, cpus))
}

func (e *env) annotate(t *testing.T, pod *corev1.Pod, result string) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{request.LockstepResult: result}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.as(t, "lockstep-manager").CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// cgroupOf returns the directory of a pod's cgroup, or of the cgroup of one of its containers.
func (e *env) cgroupOf(t *testing.T, pod *corev1.Pod, container string) string {
	t.Helper()
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cpuset")); err == nil {
		root = filepath.Join(root, "cpuset")
	}
	spec, err := realnodes.Read(filepath.Join(e.dir, "real"))
	if err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(root, spec.Node(1).Cgroup(), "kubepods", "*", "pod"+string(pod.UID)))
	if err != nil || len(found) != 1 {
		t.Fatalf("the cgroup of pod %s: %v, %v", pod.Name, found, err)
	}
	if container == "" {
		return found[0]
	}
	for _, s := range pod.Status.ContainerStatuses {
		if s.Name == container {
			return filepath.Join(found[0], strings.TrimPrefix(s.ContainerID, "containerd://"))
		}
	}
	t.Fatalf("pod %s has no container %s", pod.Name, container)
	return ""
}

// allowed returns the CPUs on which the processes of a container may run, according to the kernel.
func (e *env) allowed(t *testing.T, pod *corev1.Pod, container string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(e.cgroupOf(t, pod, container), "cgroup.procs"))
	if err != nil {
		t.Fatal(err)
	}
	lists := map[string]bool{}
	for _, pid := range strings.Fields(string(data)) {
		status, err := os.ReadFile("/proc/" + pid + "/status")
		if err != nil {
			continue // the process has ended
		}
		_, rest, _ := strings.Cut(string(status), "Cpus_allowed_list:")
		line, _, _ := strings.Cut(rest, "\n")
		lists[strings.TrimSpace(line)] = true
	}
	if len(lists) != 1 {
		return fmt.Sprint(lists)
	}
	for list := range lists {
		return list
	}
	return ""
}

func (e *env) awaitAllowed(t *testing.T, pod *corev1.Pod, container, cpus string) time.Duration {
	t.Helper()
	began := time.Now()
	for e.allowed(t, pod, container) != cpus {
		if time.Since(began) > patience {
			t.Fatalf("container %s of pod %s runs on %s, want %s", container, pod.Name, e.allowed(t, pod, container), cpus)
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(began)
}

// firstWords returns the output of a container's first command.
func (e *env) firstWords(t *testing.T, pod *corev1.Pod, container string) string {
	t.Helper()
	var log []byte
	eventually(t, "the container's first line", func(ctx context.Context) (bool, error) {
		var err error
		log, err = e.client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: container}).DoRaw(ctx)
		return err == nil && strings.Contains(string(log), "\n"), nil
	})
	return strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(string(log)), "Cpus_allowed_list:"))
}

// agentPID returns the PID of the node's agent.
func (e *env) agentPID(t *testing.T) int {
	t.Helper()
	spec, err := realnodes.Read(filepath.Join(e.dir, "real"))
	if err != nil {
		t.Fatal(err)
	}
	pid := 0
	eventually(t, "the agent's process", func(context.Context) (bool, error) {
		lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, name := range lines {
			line, _ := os.ReadFile(name)
			if strings.Contains(string(line), "\x00agent\x00") && strings.Contains(string(line), "\x00--cgroup-root="+spec.Node(1).Cgroup()+"\x00") {
				pid, err = strconv.Atoi(filepath.Base(filepath.Dir(name)))
				return true, err
			}
		}
		return false, err
	})
	return pid
}

func TestAgentPinsFromTheFirstInstruction(t *testing.T) {
	e := pinnable(t)
	ns := e.namespace(t)
	// The scheduler chooses the CPU, the agent applies it.
	spec := onAgentNode("main")
	spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	spec.SchedulerName = "lockstep"
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "chosen", Annotations: map[string]string{"cpu.lockstep.dev/request": "true"}}, Spec: spec}
	if _, err := e.client.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.remove(t, pod) })
	eventually(t, "the pod to run", func(ctx context.Context) (bool, error) {
		var err error
		pod, err = e.client.CoreV1().Pods(ns).Get(ctx, "chosen", metav1.GetOptions{})
		return err == nil && pod.Status.Phase == corev1.PodRunning, err
	})
	result, err := request.ParseResult(pod.Annotations[request.LockstepResult])
	if err != nil {
		t.Fatal(err)
	}
	its := result.Containers["main"].CPUs
	if its.Len() != 1 {
		t.Fatalf("it was given CPUs %s", its)
	}
	free := e.runPinned(t, ns, "free", nil, onAgentNode("main"))
	all, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		t.Fatal(err)
	}
	others := cpuset.MustParse(strings.TrimSpace(string(all))).Minus(its).String()
	for _, c := range []struct {
		pod  *corev1.Pod
		want string
	}{{pod, its.String()}, {free, others}} {
		if got := e.firstWords(t, c.pod, "main"); got != c.want {
			t.Errorf("the first command of pod %s ran on CPUs %s, want %s", c.pod.Name, got, c.want)
		}
		if got := e.allowed(t, c.pod, "main"); got != c.want {
			t.Errorf("pod %s runs on CPUs %s, want %s", c.pod.Name, got, c.want)
		}
	}
	// After a restart the new container runs where the first one did.
	old := pod.Status.ContainerStatuses[0].ContainerID
	killContainer(t, e, pod, "main")
	eventually(t, "the container to start again", func(ctx context.Context) (bool, error) {
		pod, err = e.client.CoreV1().Pods(ns).Get(ctx, "chosen", metav1.GetOptions{})
		return err == nil && pod.Status.ContainerStatuses[0].ContainerID != old && allStarted(pod), err
	})
	if got := e.firstWords(t, pod, "main"); got != its.String() {
		t.Errorf("the first command after a restart ran on CPUs %s, want %s", got, its)
	}
	// When the pod has gone, its CPU is free for all.
	if err := e.client.CoreV1().Pods(ns).Delete(t.Context(), "chosen", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	e.awaitAllowed(t, free, "main", strings.TrimSpace(string(all)))
}

// killContainer kills a container's processes.
func killContainer(t *testing.T, e *env, pod *corev1.Pod, container string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(e.cgroupOf(t, pod, container), "cgroup.procs"))
	if err != nil {
		return // the container has ended
	}
	for _, pid := range strings.Fields(string(data)) {
		if n, err := strconv.Atoi(pid); err == nil {
			_ = syscall.Kill(n, syscall.SIGKILL)
		}
	}
}

func TestAgentFollowsTheAnnotation(t *testing.T) {
	e := pinnable(t)
	ns := e.namespace(t)
	a := e.runPinned(t, ns, "a", map[string]string{"main": "0"}, onAgentNode("main"))
	b := e.runPinned(t, ns, "b", map[string]string{"main": "1"}, onAgentNode("main"))
	for _, step := range []struct{ what, a, b string }{
		{"each on its own", "0", "1"}, {"swapped", "1", "0"}, {"and again", "0", "1"}, {"b in the pool", "0", ""}, {"a wide", "0-1", ""}, {"a narrow", "1", ""},
	} {
		want := step.b
		if step.b != "" {
			e.choose(t, b, map[string]string{"main": step.b})
		} else {
			e.unchoose(t, b)
			if want = cpuset.MustParse("0-1").Minus(cpuset.MustParse(step.a)).String(); want == "" {
				want = "0-1" // the pool is empty
			}
		}
		e.choose(t, a, map[string]string{"main": step.a})
		e.awaitAllowed(t, a, "main", step.a)
		took := e.awaitAllowed(t, b, "main", want)
		t.Logf("%s: a on %s, b on %s; the last after %v", step.what, step.a, want, took.Round(time.Millisecond))
	}
}

// unchoose removes a pod's CPUs.
func (e *env) unchoose(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, request.LockstepResult)
	if _, err := e.as(t, "lockstep-manager").CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestAgentGivesEachContainerOfAPodItsOwn(t *testing.T) {
	e := pinnable(t)
	ns := e.namespace(t)
	spec := onAgentNode("x", "y")
	first := *spec.Containers[0].DeepCopy()
	first.Name, first.Command = initName, []string{"/bin/sh", "-c", "grep Cpus_allowed_list /proc/self/status"}
	spec.InitContainers = []corev1.Container{first}
	pod := e.runPinned(t, ns, "two", map[string]string{"x": "0", "y": "1", initName: "0-1"}, spec)
	e.awaitAllowed(t, pod, "x", "0")
	e.awaitAllowed(t, pod, "y", "1")
	if got := e.firstWords(t, pod, initName); got != "0-1" {
		t.Errorf("the init container ran on %s", got)
	}
}

func TestAgentRepairsWhatOthersWrite(t *testing.T) {
	e := pinnable(t)
	ns := e.namespace(t)
	pod := e.runPinned(t, ns, "a", map[string]string{"main": "0"}, onAgentNode("main"))
	e.awaitAllowed(t, pod, "main", "0")
	var slowest time.Duration
	for range 20 {
		began := time.Now()
		for _, dir := range []string{e.cgroupOf(t, pod, ""), e.cgroupOf(t, pod, "main")} {
			// The second write may come too late to be permitted: the agent is quick.
			if err := os.WriteFile(filepath.Join(dir, "cpuset.cpus"), []byte("0-1\n"), 0); err != nil {
				t.Logf("after %v: %v", time.Since(began), err)
			}
		}
		e.awaitAllowed(t, pod, "main", "0")
		slowest = max(slowest, time.Since(began))
	}
	t.Logf("the slowest of 20 repairs took %v", slowest.Round(10*time.Microsecond))
}

// TestAgentKilledAtAnyMoment kills the agent at random moments while pods swap their CPUs, and
// checks that the next agent completes the swap.
func TestAgentKilledAtAnyMoment(t *testing.T) {
	e := pinnable(t)
	ns := e.namespace(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	a := e.runPinned(t, ns, "a", map[string]string{"main": "0"}, onAgentNode("main"))
	b := e.runPinned(t, ns, "b", map[string]string{"main": "1"}, onAgentNode("main"))
	const rounds = 6
	for i := range rounds {
		cpus := []string{"0", "1"}
		if i%2 == 0 {
			cpus = []string{"1", "0"}
		}
		pid := e.agentPID(t)
		e.choose(t, a, map[string]string{"main": cpus[0]})
		e.choose(t, b, map[string]string{"main": cpus[1]})
		time.Sleep(time.Duration(random.IntN(4000)) * time.Microsecond)
		if err := kill(pid); err != nil {
			t.Fatal(err)
		}
		e.awaitAllowed(t, a, "main", cpus[0])
		e.awaitAllowed(t, b, "main", cpus[1])
	}
}

// TestAgentTellsWhenAMoveIsComplete moves a pod back and forth as the manager does, and kills the
// agent in between.
func TestAgentTellsWhenAMoveIsComplete(t *testing.T) {
	e := pinnable(t)
	ns := e.namespace(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	pod := e.runPinned(t, ns, "moved", map[string]string{"main": "0"}, onAgentNode("main"))
	free := e.runPinned(t, ns, "free", nil, onAgentNode("main"))
	e.awaitAllowed(t, pod, "main", "0")
	number := e.topology(t).Status.Moved
	for i := range 4 {
		from, to := "0", "1"
		if i%2 == 1 {
			from, to = to, from
		}
		number++
		result, err := request.ParseResult(resultOf(t, map[string]string{"main": to}))
		if err != nil {
			t.Fatal(err)
		}
		c, away := result.Containers["main"], cpuset.MustParse(from)
		c.From, result.Move = &away, number
		result.Containers["main"] = c
		data, err := json.Marshal(result)
		if err != nil {
			t.Fatal(err)
		}
		pid := e.agentPID(t)
		e.annotate(t, pod, string(data))
		if i >= 2 {
			time.Sleep(time.Duration(random.IntN(4000)) * time.Microsecond)
			if err := kill(pid); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		eventually(t, "the move to be complete", func(context.Context) (bool, error) {
			return e.topology(t).Status.Moved >= number, nil
		})
		// By then the moved pod no longer runs on its former CPUs; pods of the pool may.
		if got := e.allowed(t, pod, "main"); got != to {
			t.Errorf("move %d is complete and the pod runs on %s", number, got)
		}
		e.awaitAllowed(t, free, "main", from)
		t.Logf("move %d, from %s to %s: complete after %v", number, from, to, time.Since(began).Round(time.Millisecond))
	}
}

func TestAgentReleases(t *testing.T) {
	e := pinnable(t)
	ns := e.namespace(t)
	pod := e.runPinned(t, ns, "a", map[string]string{"main": "0"}, onAgentNode("main"))
	e.awaitAllowed(t, pod, "main", "0")
	spec, err := realnodes.Read(filepath.Join(e.dir, "real"))
	if err != nil {
		t.Fatal(err)
	}
	// The agent is stopped while another call of the program releases all pods.
	pid := e.agentPID(t)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	_, err = lockstep("agent", "--node-name="+agentNode, "--cgroup-root="+spec.Node(1).Cgroup(), "--release", "--offline")
	got := e.allowed(t, pod, "main")
	if contErr := syscall.Kill(pid, syscall.SIGCONT); contErr != nil {
		t.Fatal(contErr)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got != "0-1" {
		t.Errorf("after the release the pod runs on %s", got)
	}
	e.awaitAllowed(t, pod, "main", "0")
}

// quotas returns the first words of the CFS quotas of a container and of its pod: microseconds, or none.
func (e *env) quotas(t *testing.T, pod *corev1.Pod, container string) string {
	t.Helper()
	var out []string
	for _, dir := range []string{e.cgroupOf(t, pod, container), e.cgroupOf(t, pod, "")} {
		data, err := os.ReadFile(filepath.Join(dir, "cpu.max"))
		if os.IsNotExist(err) { // version 1: another hierarchy
			data, err = os.ReadFile(filepath.Join(strings.Replace(dir, "/sys/fs/cgroup/cpuset/", "/sys/fs/cgroup/cpu/", 1), "cpu.cfs_quota_us"))
		}
		if err != nil {
			t.Fatal(err)
		}
		word, _, _ := strings.Cut(strings.TrimSpace(string(data)), " ")
		out = append(out, strings.NewReplacer("max", "none", "-1", "none").Replace(word))
	}
	return strings.Join(out, ", ")
}

// TestAgentSetsQuotasThatFit checks the quotas that a real kubelet and runtime have set for a limit of
// one CPU: an exclusive container has none, and gets its own back when it has no CPUs of its own.
func TestAgentSetsQuotasThatFit(t *testing.T) {
	e := pinnable(t)
	ns := e.namespace(t)
	spec := onAgentNode("main")
	spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	free := e.runPinned(t, ns, "free", nil, spec)
	pod := e.runPinned(t, ns, "a", map[string]string{"main": "0"}, spec)
	is := func(what, want string) {
		t.Helper()
		eventually(t, "the quotas "+want+" "+what, func(context.Context) (bool, error) { return e.quotas(t, pod, "main") == want, nil })
	}
	is("while it is pinned", "none, none")
	if got := e.quotas(t, free, "main"); got != "100000, 100000" {
		t.Errorf("a pod without CPUs of its own has the quotas %s", got)
	}
	e.unchoose(t, pod)
	is("when it is not", "100000, 100000")
	e.choose(t, pod, map[string]string{"main": "0"})
	is("when it is pinned again", "none, none")
}
