package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/api/scheme"
	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/machines"
	"lockstep.dev/lockstep/internal/cputopology/request"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

func TestMain(m *testing.M) { localtest.Main(m, localtest.WithInstall()) }

// harness is a node of a real API server with plain files as cgroups. The kernel's behaviour is
// tested in the packages below, and on real nodes.
type harness struct {
	t      *testing.T
	node   string
	dir    string
	admin  *rest.Config
	client kubernetes.Interface
	own    rest.Interface
	cfg    Config
	stop   func()
}

func newHarness(t *testing.T, m machines.Machine) *harness {
	h := &harness{t: t, admin: localtest.Shared(t).RESTConfig(), dir: t.TempDir(), node: strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-"))}
	var err error
	h.client, err = kubeclient.Clientset(h.admin)
	h.check(err)
	h.own, err = kubeclient.ForGroupVersion(h.admin, nil, topologyv1alpha1.GroupVersion, scheme.Scheme)
	h.check(err)
	_, err = h.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: h.node}}, metav1.CreateOptions{})
	h.check(err)
	all := m.MustTopology().Online().String() + "\n"
	h.cgroup("", all)
	h.cgroup("kubepods", all)
	h.cgroup("kubepods/burstable", all)
	user := rest.CopyConfig(h.admin)
	user.Impersonate = rest.ImpersonationConfig{UserName: "lockstep-agent:" + h.node, Groups: []string{"lockstep:agents", "system:authenticated"}}
	h.cfg = Config{
		Node: h.node, REST: user, Version: "test", Root: m.FS(), CgroupMount: h.dir, KubeletDir: h.dir, Interval: 50 * time.Millisecond, StatusInterval: 50 * time.Millisecond,
		Bundles: []string{}, MetricsAddress: freeAddress(t), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	t.Cleanup(func() { h.end() })
	return h
}

// freeAddress returns an address on which no process listens.
func freeAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (h *harness) check(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// cgroup creates a cgroup of version 1.
func (h *harness) cgroup(dir, cpus string) {
	path := filepath.Join(h.dir, "cpuset", dir)
	h.check(os.MkdirAll(path, 0o755))
	for file, content := range map[string]string{"cpuset.cpus": cpus, "cpuset.mems": "0\n", "cpuset.memory_migrate": "0\n"} {
		h.check(os.WriteFile(filepath.Join(path, file), []byte(content), 0o644))
	}
}

func (h *harness) cpus(dir string) string {
	data, err := os.ReadFile(filepath.Join(h.dir, "cpuset", dir, "cpuset.cpus"))
	h.check(err)
	line, _, _ := strings.Cut(string(data), "\n") // a plain file keeps the end of a longer value
	return line
}

// run starts an agent; end stops it.
func (h *harness) run() {
	h.t.Helper()
	a, err := New(h.cfg)
	h.check(err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	h.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			h.t.Error(err)
		}
	}
}

func (h *harness) end() {
	if h.stop != nil {
		h.stop()
		h.stop = nil
	}
}

func (h *harness) topology() *topologyv1alpha1.NodeTopology {
	t := &topologyv1alpha1.NodeTopology{}
	if err := h.own.Get().Resource("nodetopologies").Name(h.node).Do(context.Background()).Into(t); err != nil {
		return nil
	}
	return t
}

// await waits until the NodeTopology satisfies is.
func (h *harness) await(what string, is func(*topologyv1alpha1.NodeTopology) bool) *topologyv1alpha1.NodeTopology {
	h.t.Helper()
	var last *topologyv1alpha1.NodeTopology
	err := wait.PollUntilContextTimeout(h.t.Context(), 20*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		last = h.topology()
		return last != nil && is(last), nil
	})
	if err != nil {
		h.t.Fatalf("waiting for %s: %v: %+v", what, err, last)
	}
	return last
}

func ready(t *topologyv1alpha1.NodeTopology) bool {
	return meta.IsStatusConditionTrue(t.Status.Conditions, topologyv1alpha1.NodeReady)
}

// pinned creates a pod on the node with CPUs, as the scheduler does.
func (h *harness) pinned(name, cpus string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: h.node + "-" + name},
		Spec: corev1.PodSpec{NodeName: h.node, Containers: []corev1.Container{{Name: "c", Image: "none", Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(int64(cpuset.MustParse(cpus).Len()), resource.DecimalSI)}}}}},
	}
	result, err := json.Marshal(request.Result{Version: 1, Node: h.node, Containers: map[string]request.ContainerResult{
		"c": {CPUs: cpuset.MustParse(cpus), Share: 1}}})
	h.check(err)
	pod.Annotations = map[string]string{request.LockstepResult: string(result)}
	manager := rest.CopyConfig(h.admin)
	manager.Impersonate = rest.ImpersonationConfig{UserName: "lockstep-manager"}
	client, err := kubeclient.Clientset(manager)
	h.check(err)
	pod, err = client.CoreV1().Pods(pod.Namespace).Create(h.t.Context(), pod, metav1.CreateOptions{})
	h.check(err)
	return pod
}

func TestDescribesTheMachineOnce(t *testing.T) {
	h := newHarness(t, machines.AMD256NPS4)
	h.run()
	first := h.await("Ready", ready)
	if diff := cmp.Diff(machines.AMD256NPS4.MustTopology().Encode(), first.Spec); diff != "" {
		t.Error(diff)
	}
	if data, err := json.Marshal(first.Spec); err != nil || len(data) > 4096 {
		t.Errorf("the spec takes %d bytes, %v", len(data), err)
	}
	if first.Status.Shared != "0-255" || first.Status.Cgroups != "v1" || first.Status.AgentVersion != "test" || first.Status.Mode != topologyv1alpha1.ApplyByFiles {
		t.Errorf("status: %+v", first.Status)
	}
	if len(first.OwnerReferences) != 1 || first.OwnerReferences[0].Name != h.node {
		t.Errorf("owners: %v", first.OwnerReferences)
	}
	// Another agent in its place finds everything up to date. Deleting the NodeTopology afterwards
	// shows that the new agent is running and has not written before.
	h.end()
	h.run()
	h.passes(5)
	if now := h.topology(); now.ResourceVersion != first.ResourceVersion {
		t.Errorf("a restart at rest wrote:\n%s", cmp.Diff(first, now))
	}
	h.check(h.own.Delete().Resource("nodetopologies").Name(h.node).Do(t.Context()).Error())
	h.await("another one", func(n *topologyv1alpha1.NodeTopology) bool { return n.UID != first.UID && ready(n) })
}

// passes waits for n passes, by the metrics.
func (h *harness) passes(n int) {
	h.t.Helper()
	before := h.metric("lockstep_agent_passes_total")
	err := wait.PollUntilContextTimeout(h.t.Context(), 20*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		return h.metric("lockstep_agent_passes_total") >= before+float64(n), nil
	})
	h.check(err)
}

// metric returns the sum of a metric over its labels; 0 if it is not served yet.
func (h *harness) metric(name string) (sum float64) {
	resp, err := http.Get("http://" + h.cfg.MetricsAddress + "/metrics")
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	h.check(err)
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			var v float64
			if _, err := fmt.Sscan(rest[strings.LastIndexByte(rest, ' ')+1:], &v); err == nil {
				sum += v
			}
		}
	}
	return sum
}

func TestWhatOthersWriteIsPutRight(t *testing.T) {
	h := newHarness(t, machines.Offlined)
	h.run()
	h.await("Ready", ready)
	patch := func(data string, sub ...string) {
		t.Helper()
		h.check(h.own.Patch(types.MergePatchType).Resource("nodetopologies").Name(h.node).SubResource(sub...).Body([]byte(data)).Do(t.Context()).Error())
	}
	want := machines.Offlined.MustTopology().Encode()
	patch(`{"spec":{"isolated":"0","offline":null}}`)
	h.await("the machine as it is", func(n *topologyv1alpha1.NodeTopology) bool { return cmp.Equal(n.Spec, want) })
	patch(`{"status":{"shared":"0","pinned":7}}`, "status")
	h.await("the status as it is", func(n *topologyv1alpha1.NodeTopology) bool { return n.Status.Shared != "0" && n.Status.Pinned == 0 })
}

func TestPodsAreNarrowedBeforeTheirContainersAreMade(t *testing.T) {
	h := newHarness(t, machines.NoL3)
	h.run()
	h.await("Ready", ready)
	pod := h.pinned("a", "2-3")
	dir := "kubepods/burstable/pod" + string(pod.UID)
	h.cgroup(dir, "0-7\n")
	h.eventually("the pod's cgroup to be narrowed", func() bool { return h.cpus(dir) == "2-3" })
	h.cgroup(dir+"/0123456789abcdef", "0-7\n")
	h.eventually("the container's, too", func() bool { return h.cpus(dir+"/0123456789abcdef") == "2-3" })
	h.await("the pool without its CPUs", func(n *topologyv1alpha1.NodeTopology) bool { return n.Status.Shared == "0-1,4-7" })
	// Once the API says which container it is, it counts.
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "c", ContainerID: "containerd://0123456789abcdef"}}}
	_, err := h.client.CoreV1().Pods(pod.Namespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	h.check(err)
	h.await("it to be counted", func(n *topologyv1alpha1.NodeTopology) bool { return n.Status.Pinned == 1 })
}

func (h *harness) eventually(what string, is func() bool) {
	h.t.Helper()
	err := wait.PollUntilContextTimeout(h.t.Context(), 5*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) { return is(), nil })
	if err != nil {
		h.t.Fatalf("waiting for %s: %v", what, err)
	}
}

func TestProblemsAreReported(t *testing.T) {
	h := newHarness(t, machines.NoL3)
	h.run()
	// Of two pods created in the same second either may have lost.
	pods := map[string]*corev1.Pod{}
	for name, cpus := range map[string]string{"one": "0-1", "other": "1-2"} {
		pod := h.pinned(name, cpus)
		pods["default/"+pod.Name] = pod
	}
	got := h.await("the problem", func(n *topologyv1alpha1.NodeTopology) bool { return len(n.Status.Problems) == 1 })
	pod := pods[got.Status.Problems[0].Pod]
	if pod == nil || got.Status.Problems[0].Message == "" {
		t.Fatalf("%+v", got.Status.Problems)
	}
	h.eventually("an event", func() bool {
		list, err := h.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(pod.UID)})
		h.check(err)
		return len(list.Items) == 1 && list.Items[0].Reason == "CPUSetNotApplied"
	})
	// The agent reports that the kubelet's cgroup is gone.
	h.check(os.RemoveAll(filepath.Join(h.dir, "cpuset", "kubepods")))
	got = h.await("not Ready", func(n *topologyv1alpha1.NodeTopology) bool { return !ready(n) })
	if c := got.Status.Conditions[0]; c.Reason != "Failed" || !strings.Contains(c.Message, "kubepods") {
		t.Errorf("%+v", c)
	}
}

func TestKubeletsReservedAndPinnedCPUsAreReported(t *testing.T) {
	h := newHarness(t, machines.NoL3)
	h.check(os.WriteFile(filepath.Join(h.dir, "config.yaml"), []byte("kind: KubeletConfiguration\nreservedSystemCPUs: 0-1\n"), 0o600))
	h.check(os.WriteFile(filepath.Join(h.dir, "cpu_manager_state"), []byte(`{"policyName":"static","defaultCpuSet":"0-5","entries":{"u":{"c":"6-7"}},"checksum":1}`), 0o600))
	h.run()
	got := h.await("Ready", ready)
	want := []topologyv1alpha1.KubeletPin{{PodUID: "u", Container: "c", CPUs: "6-7"}}
	if diff := cmp.Diff(want, got.Status.KubeletPins); diff != "" || got.Status.Reserved != "0-1" || got.Status.Shared != "0-5" {
		t.Errorf("reserved %q, shared %q, pins:\n%s", got.Status.Reserved, got.Status.Shared, diff)
	}
	h.check(os.WriteFile(filepath.Join(h.dir, "cpu_manager_state"), []byte(`{"policyName":"none"}`), 0o600))
	h.await("no pins", func(n *topologyv1alpha1.NodeTopology) bool {
		return len(n.Status.KubeletPins) == 0 && n.Status.Shared == "0-7"
	})
}

// file writes one of the kubelet's files.
func (h *harness) file(name, content string) {
	h.t.Helper()
	h.check(os.WriteFile(filepath.Join(h.dir, name), []byte(content), 0o600))
}

// problem reports whether the NodeTopology has a problem of a pod that contains a text.
func problem(n *topologyv1alpha1.NodeTopology, pod, text string) bool {
	return slices.ContainsFunc(n.Status.Problems, func(p topologyv1alpha1.Problem) bool { return p.Pod == pod && strings.Contains(p.Message, text) })
}

// TestCPUsForTheSystemAreKeptFree follows the CPUs that the kubelet, a share and the node's annotation
// reserve, while the agent runs.
func TestCPUsForTheSystemAreKeptFree(t *testing.T) {
	h := newHarness(t, machines.AMD256NPS4)
	h.file("config.yaml", "kubeReserved: {cpu: 1500m}\nsystemReserved: {cpu: 500m}\n")
	reserved := func(want topologyv1alpha1.CPUList) {
		t.Helper()
		h.await("reserved CPUs "+string(want), func(n *topologyv1alpha1.NodeTopology) bool { return ready(n) && n.Status.Reserved == want })
	}
	annotate := func(value string) {
		t.Helper()
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{topologyv1alpha1.KoordinatorReservationAnnotation: value}}})
		h.check(err)
		_, err = h.client.CoreV1().Nodes().Patch(t.Context(), h.node, types.MergePatchType, patch, metav1.PatchOptions{})
		h.check(err)
	}
	h.run()
	reserved("0,128")
	h.file("config.yaml", "kubeReserved: {cpu: '4'}\n")
	reserved("0-1,128-129")
	annotate(`{"reservedCPUs":"8-9"}`)
	reserved("0,8-9,128")
	annotate(`{"resources":{"cpu":"6"}}`)
	reserved("0-2,128-130")
	annotate("{")
	n := h.await("a problem", func(n *topologyv1alpha1.NodeTopology) bool {
		return problem(n, "", topologyv1alpha1.KoordinatorReservationAnnotation)
	})
	if n.Status.Reserved != "0-1,128-129" || !ready(n) {
		t.Errorf("with a wrong annotation: %+v", n.Status)
	}
	annotate("")
	h.await("no problem", func(n *topologyv1alpha1.NodeTopology) bool { return len(n.Status.Problems) == 0 })
	h.end()
	h.cfg.ReservedPercent = 3
	h.run()
	reserved("0-3,128-131")
}

// TestThePoolIsAtItsFloor gives pods all CPUs but the reserved ones.
func TestThePoolIsAtItsFloor(t *testing.T) {
	h := newHarness(t, machines.NoL3)
	h.file("config.yaml", "reservedSystemCPUs: 0-1\n")
	pod := h.pinned("a", "2-7")
	h.cgroup("kubepods/burstable/pod"+string(pod.UID), "0-7\n")
	h.run()
	h.await("the problem", func(n *topologyv1alpha1.NodeTopology) bool {
		return problem(n, "", "at its floor") && n.Status.Shared == "0-1" && ready(n)
	})
	h.eventually("an event of the node's topology", func() bool {
		events, err := h.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=NodeTopology,involvedObject.name=" + h.node})
		return err == nil && slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.Reason == "NodeProblem" && strings.Contains(e.Message, "at its floor")
		})
	})
}

// TestBesideTheKubeletsOwnPins covers a pod that the kubelet has pinned, too: its pin stands, or is
// taken over if the kubelet does not refuse pods.
func TestBesideTheKubeletsOwnPins(t *testing.T) {
	h := newHarness(t, machines.NoL3)
	pod := h.pinned("a", "2-3")
	dir := "kubepods/burstable/pod" + string(pod.UID)
	h.cgroup(dir, "0-7\n")
	id := strings.Repeat("a", 64)
	h.cgroup(dir+"/"+id, "4-5\n")
	name := "default/" + pod.Name
	h.file("config.yaml", "cpuManagerPolicy: static\ncpuManagerPolicyOptions: {strict-cpu-reservation: 'true'}\ntopologyManagerPolicy: best-effort\n")
	h.file("cpu_manager_state", `{"policyName":"static","defaultCpuSet":"0-3","entries":{"`+string(pod.UID)+`":{"c":"4-5"},"other":{"c":"6-7"}},"checksum":1}`)
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", ContainerID: "containerd://" + id}}
	_, err := h.client.CoreV1().Pods("default").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	h.check(err)
	h.run()
	n := h.await("the problem", func(n *topologyv1alpha1.NodeTopology) bool {
		return ready(n) && problem(n, name, "static CPU manager has pinned it to CPUs 4-5, and not to its CPUs 2-3")
	})
	want := &topologyv1alpha1.KubeletStatus{CPUManagerPolicy: "static", Options: []string{"strict-cpu-reservation=true"}, TopologyManagerPolicy: "best-effort",
		Pins: topologyv1alpha1.PinsRespected}
	if diff := cmp.Diff(want, n.Status.Kubelet); diff != "" {
		t.Error(diff)
	}
	if got := h.cpus(dir + "/" + id); got != "4-5" {
		t.Errorf("the container has CPUs %s", got)
	}
	h.end()

	// Taken over, unless the kubelet may refuse pods.
	h.cfg.TakeOver = true
	h.file("cpu_manager_state", `{"policyName":"static","defaultCpuSet":"0-4","entries":{"`+string(pod.UID)+`":{"c":"5"},"other":{"c":"6-7"}},"checksum":1}`)
	h.file("config.yaml", "cpuManagerPolicy: static\ntopologyManagerPolicy: single-numa-node\n")
	h.run()
	n = h.await("the refusal", func(n *topologyv1alpha1.NodeTopology) bool {
		return problem(n, "", "not taken over, because it may refuse pods: its topologyManagerPolicy is single-numa-node")
	})
	if n.Status.Kubelet.Pins != topologyv1alpha1.PinsRespected || len(n.Status.KubeletPins) != 2 {
		t.Errorf("the status is %+v", n.Status)
	}
	h.file("config.yaml", "cpuManagerPolicy: static\n")
	n = h.await("no problem", func(n *topologyv1alpha1.NodeTopology) bool { return ready(n) && len(n.Status.Problems) == 0 })
	pins := []topologyv1alpha1.KubeletPin{{PodUID: "other", Container: "c", CPUs: "6-7"}}
	if diff := cmp.Diff(pins, n.Status.KubeletPins); diff != "" || n.Status.Kubelet.Pins != topologyv1alpha1.PinsTakenOver {
		t.Errorf("the pins are %v, %s", n.Status.Kubelet, diff)
	}
	h.eventually("the container has its CPUs", func() bool { return h.cpus(dir+"/"+id) == "2-3" })
}

func TestReleaseOnExit(t *testing.T) {
	h := newHarness(t, machines.NoL3)
	h.cfg.ReleaseOnExit = true
	pod := h.pinned("a", "2-3")
	dir := "kubepods/burstable/pod" + string(pod.UID)
	h.cgroup(dir, "0-7\n")
	h.run()
	h.eventually("the pod's cgroup to be narrowed", func() bool { return h.cpus(dir) == "2-3" })
	h.await("Ready", ready)
	h.end()
	if got := h.cpus(dir); got != "0-7" {
		t.Errorf("the pod's cgroup has %s", got)
	}
	if c := h.topology().Status.Conditions[0]; c.Reason != "Released" || c.Status != metav1.ConditionFalse {
		t.Errorf("%+v", c)
	}
}

// TestExclusiveContainersHaveNoQuota follows the quotas of a pinned pod from the API's limits to the
// files, and back when the agent ends; and a kubelet that makes no quotas.
func TestExclusiveContainersHaveNoQuota(t *testing.T) {
	for name, off := range map[string]bool{"on": false, "off": true} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, machines.NoL3)
			h.cfg.ReleaseOnExit = true
			if off {
				h.check(os.WriteFile(filepath.Join(h.dir, "config.yaml"), []byte("cpuCFSQuota: false\n"), 0o644))
			}
			pod := h.pinned("a", "2-3")
			dir := "kubepods/burstable/pod" + string(pod.UID)
			leaf := dir + "/0123456789abcdef"
			for _, dir := range []string{"", dir, leaf} {
				h.cgroup(dir, "0-7\n")
				path := filepath.Join(h.dir, "cpu", dir)
				h.check(os.MkdirAll(path, 0o755))
				for file, content := range map[string]string{"cpu.shares": "1024\n", "cpu.cfs_period_us": "100000\n", "cpu.cfs_quota_us": "200000\n"} {
					h.check(os.WriteFile(filepath.Join(path, file), []byte(content), 0o644))
				}
			}
			pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "c", ContainerID: "containerd://0123456789abcdef"}}}
			_, err := h.client.CoreV1().Pods(pod.Namespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
			h.check(err)
			quotas := func() string {
				var all []string
				for _, dir := range []string{dir, leaf} {
					data, err := os.ReadFile(filepath.Join(h.dir, "cpu", dir, "cpu.cfs_quota_us"))
					h.check(err)
					line, _, _ := strings.Cut(string(data), "\n") // a plain file keeps the end of a longer value
					all = append(all, line)
				}
				return strings.Join(all, " ")
			}
			h.run()
			h.await("it to be pinned", func(n *topologyv1alpha1.NodeTopology) bool { return n.Status.Pinned == 1 })
			want := "-1 -1"
			if off {
				want = "200000 200000"
			}
			h.eventually("the quotas "+want, func() bool { return quotas() == want })
			h.end()
			if got := quotas(); got != "200000 200000" {
				t.Errorf("after the release the quotas are %s", got)
			}
		})
	}
}

func TestAnotherNodesAgentMayNot(t *testing.T) {
	h := newHarness(t, machines.NoL3)
	h.cfg.REST.Impersonate.UserName = "lockstep-agent:other"
	h.run()
	h.passes(3)
	if h.topology() != nil {
		t.Error("it has written another node's NodeTopology")
	}
}

// TestTheDaemonSetIsOne lets the API server validate every field of the manifest.
func TestTheDaemonSetIsOne(t *testing.T) {
	data, err := os.ReadFile("../../../config/agent.yaml")
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubeclient.Clientset(localtest.Shared(t).RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	err = client.AppsV1().RESTClient().Post().Namespace("lockstep-system").Resource("daemonsets").
		VersionedParams(&metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict}, metav1.ParameterCodec).
		SetHeader("Content-Type", "application/yaml").Body(data).Do(t.Context()).Error()
	if err != nil {
		t.Error(err)
	}
}
