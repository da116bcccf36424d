package nodecontroller_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/api/scheme"
	topology "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cli"
	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/agent"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/machines"
	"lockstep.dev/lockstep/internal/cputopology/nodecontroller"
	"lockstep.dev/lockstep/internal/cputopology/request"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/manager"
	"lockstep.dev/lockstep/internal/manager/managertest"
)

// TestMain runs the test binary as the manager if it is called as "TESTBINARY manager ...", for the
// test that kills the manager.
func TestMain(m *testing.M) {
	managertest.Main(m, localtest.WithNodes(nodes), localtest.WithInstall())
}

// nodes are simulated, one for each test. Their agents are real, with plain files as cgroups.
var nodes = localcluster.Nodes{Count: 11, CPU: "256", Memory: "1Ti", Pods: 250}

// env is a cluster, and one of its nodes with the cgroups of its kubelet.
type env struct {
	*testing.T
	cluster *localcluster.Cluster
	node    string
	dir     string
	core    kubernetes.Interface
	own     rest.Interface
	pulse   time.Duration
	stop    func() // ends the agent
}

func newEnv(t *testing.T, c *localcluster.Cluster, index int) *env {
	e := &env{T: t, cluster: c, node: localcluster.NodeName(index), dir: t.TempDir(), pulse: 300 * time.Millisecond}
	var err error
	e.core, err = kubeclient.Clientset(c.RESTConfig())
	e.check(err)
	e.own, err = kubeclient.ForGroupVersion(c.RESTConfig(), nil, topology.GroupVersion, scheme.Scheme)
	e.check(err)
	for _, dir := range []string{"", "kubepods", "kubepods/burstable"} {
		e.cgroup(dir)
	}
	e.kubelet()
	t.Cleanup(func() { e.stopAgent() })
	return e
}

func (e *env) check(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

var machine = machines.AMD256NPS4

func (e *env) cgroup(dir string) {
	path := filepath.Join(e.dir, "cpuset", dir)
	e.check(os.MkdirAll(path, 0o755))
	for file, content := range map[string]string{"cpuset.cpus": "0-255\n", "cpuset.mems": "0-7\n", "cpuset.memory_migrate": "0\n"} {
		e.check(os.WriteFile(filepath.Join(path, file), []byte(content), 0o644))
	}
}

// kubelet creates a cgroup for each pod of the node, and removes it after the pod.
func (e *env) kubelet() {
	ctx, end := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			list, err := e.core.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + e.node})
			if err != nil {
				continue
			}
			there := map[string]bool{}
			for _, p := range list.Items {
				dir := e.podDir(&p)
				there[filepath.Base(dir)] = true
				if _, err := os.Stat(filepath.Join(e.dir, "cpuset", dir)); err != nil {
					e.cgroup(dir)
				}
			}
			found, _ := filepath.Glob(filepath.Join(e.dir, "cpuset/kubepods/burstable/pod*"))
			for _, dir := range found {
				if !there[filepath.Base(dir)] {
					_ = os.RemoveAll(dir)
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	e.Cleanup(func() { end(); running.Wait() })
}

func (e *env) podDir(p *corev1.Pod) string { return "kubepods/burstable/pod" + string(p.UID) }

// applied returns the CPUs of a pod's cgroup.
func (e *env) applied(p *corev1.Pod) string {
	data, err := os.ReadFile(filepath.Join(e.dir, "cpuset", e.podDir(p), "cpuset.cpus"))
	if err != nil {
		return err.Error()
	}
	line, _, _ := strings.Cut(string(data), "\n")
	return line
}

// startAgent runs the node's agent.
func (e *env) startAgent() {
	user := rest.CopyConfig(e.cluster.RESTConfig())
	user.Impersonate = rest.ImpersonationConfig{UserName: "lockstep-agent:" + e.node, Groups: []string{"lockstep:agents", "system:authenticated"}}
	a, err := agent.New(agent.Config{
		Node: e.node, REST: user, Version: "test", Root: machine.FS(), CgroupMount: e.dir, KubeletDir: e.dir, Bundles: []string{},
		Interval: 50 * time.Millisecond, StatusInterval: 50 * time.Millisecond, PulseInterval: e.pulse, Log: localtest.Log(),
	})
	e.check(err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	e.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			e.Error(err)
		}
	}
}

func (e *env) stopAgent() {
	if e.stop != nil {
		e.stop()
		e.stop = nil
	}
}

// startManager runs a manager until the test ends.
func (e *env) startManager(policy nodecontroller.Policy) {
	managertest.Start(e, e.cluster, func(cfg *manager.Config) { cfg.Repack = policy })
}

func (e *env) eventually(what string, is func() error) {
	e.Helper()
	localtest.Eventually(e, what, is)
}

func (e *env) topology() (*topology.NodeTopology, error) {
	t := &topology.NodeTopology{}
	return t, e.own.Get().Resource("nodetopologies").Name(e.node).Do(context.Background()).Into(t)
}

// await waits until the NodeTopology satisfies is.
func (e *env) await(what string, is func(*topology.NodeTopology) bool) *topology.NodeTopology {
	e.Helper()
	var last *topology.NodeTopology
	e.eventually(what, func() (err error) {
		if last, err = e.topology(); err == nil && !is(last) {
			err = fmt.Errorf("it says %+v", last.Status)
		}
		return err
	})
	return last
}

func ready(t *topology.NodeTopology) bool {
	return meta.IsStatusConditionTrue(t.Status.Conditions, topology.NodeReady)
}

// ask requests a repack.
func (e *env) ask(r topology.RepackRequest) {
	e.Helper()
	data, err := json.Marshal(map[string]any{"repack": r})
	e.check(err)
	e.check(e.own.Patch(types.MergePatchType).Resource("nodetopologies").Name(e.node).Body(data).Do(e.Context()).Error())
}

// ended waits until a repack has ended.
func (e *env) ended(id string) *topology.RepackStatus {
	e.Helper()
	return e.await("the end of repack "+id, func(t *topology.NodeTopology) bool {
		r := t.Status.Repack
		return r != nil && r.ID == id && r.Finished != nil
	}).Status.Repack
}

// create creates a pod on the node that asks for CPUs.
func (e *env) create(name string, cpus int, annotations map[string]string) {
	e.Helper()
	amount := corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(int64(cpus), resource.DecimalSI)}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{topology.RequestAnnotation: "true"}}, Spec: corev1.PodSpec{
		SchedulerName: scheduling.SchedulerLockstep, NodeSelector: map[string]string{corev1.LabelHostname: e.node},
		Containers: []corev1.Container{{Name: "c", Image: "none", Resources: corev1.ResourceRequirements{Requests: amount, Limits: amount}}},
	}}
	maps.Copy(p.Annotations, annotations)
	_, err := e.core.CoreV1().Pods("default").Create(e.Context(), p, metav1.CreateOptions{})
	e.check(err)
	e.Cleanup(func() {
		_ = e.core.CoreV1().Pods("default").Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	})
}

// given returns the results of the node's pods that have been given CPUs.
func (e *env) given() map[string]request.Result {
	e.Helper()
	out := map[string]request.Result{}
	for _, p := range e.pods() {
		if value := p.Annotations[topology.ResultAnnotation]; value != "" {
			r, err := request.ParseResult(value)
			e.check(err)
			out[p.Name] = r
		}
	}
	return out
}

func (e *env) pods() []corev1.Pod {
	e.Helper()
	list, err := e.core.CoreV1().Pods("default").List(e.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + e.node})
	e.check(err)
	return list.Items
}

// fragment leaves that many L3 domains half used, each by a pod of 4 CPUs.
func (e *env) fragment(domains int, annotations map[string]string) {
	e.Helper()
	for i := range 2 * domains {
		e.create(fmt.Sprintf("%s-%02d", e.node, i), 4, annotations)
	}
	e.eventually("the pods have CPUs", func() error {
		if n := len(e.given()); n != 2*domains {
			return fmt.Errorf("%d have", n)
		}
		return nil
	})
	kept := map[int]bool{}
	topo := machine.MustTopology()
	for _, name := range slices.Sorted(maps.Keys(e.given())) {
		l3 := slices.IndexFunc(topo.CPUs, func(c cputopology.CPU) bool { return e.given()[name].Containers["c"].CPUs.Contains(c.ID) })
		if d := topo.CPUs[l3].L3; !kept[d] {
			kept[d] = true
			continue
		}
		e.check(e.core.CoreV1().Pods("default").Delete(e.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	}
	e.eventually("the others are gone", func() error {
		if n := len(e.given()); n != domains {
			return fmt.Errorf("%d are there", n)
		}
		return nil
	})
}

// atRest checks that all pods have the CPUs of their annotations, and that no two share a CPU.
func (e *env) atRest() {
	e.Helper()
	e.eventually("all is applied", func() error {
		var all cpuset.Set
		for _, p := range e.pods() {
			r, err := request.ParseResult(p.Annotations[topology.ResultAnnotation])
			if err != nil {
				return err
			}
			its := r.Containers["c"].CPUs
			if its.Overlaps(all) {
				return fmt.Errorf("pod %s has CPUs %s, of which others have some", p.Name, its)
			}
			all = all.Union(its)
			if got := e.applied(&p); got != its.String() {
				return fmt.Errorf("pod %s runs on %s, and was given %s", p.Name, got, its)
			}
		}
		return nil
	})
}

// replace writes a cgroup's value as a kernel does: no reader sees it empty or in part. The
// remainder of a longer previous value, after the new line, does not count.
func (e *env) replace(file, value string) {
	e.Helper()
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o644)
	e.check(err)
	_, err = f.Write([]byte(value + "\n"))
	e.check(errors.Join(err, f.Close()))
}

// guard checks the cgroups continuously until the test ends: no two pods have a CPU in common.
func (e *env) guard() {
	ctx, end := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			first, second := e.sets(), e.sets()
			// Sets that are equal before and after were the same in between.
			for a, its := range first {
				for b, other := range second {
					if a < b && first[a].Equal(second[a]) && first[b].Equal(other) && its.Len() <= 8 && other.Len() <= 8 && its.Overlaps(other) {
						e.Errorf("pods %s and %s both run on CPUs %s", a, b, its.Intersect(other))
						return
					}
				}
			}
		}
	})
	e.Cleanup(func() { end(); running.Wait() })
}

func (e *env) sets() map[string]cpuset.Set {
	out := map[string]cpuset.Set{}
	found, _ := filepath.Glob(filepath.Join(e.dir, "cpuset/kubepods/burstable/pod*/cpuset.cpus"))
	for _, file := range found {
		data, err := os.ReadFile(file)
		line, _, whole := strings.Cut(string(data), "\n")
		if set, parseErr := cpuset.Parse(line); err == nil && whole && parseErr == nil {
			out[file] = set
		}
	}
	return out
}

func TestRepackOnRequest(t *testing.T) {
	e := newEnv(t, localtest.Shared(t), 0)
	e.startManager(nodecontroller.Policy{})
	e.startAgent()
	e.await("the agent", ready)
	e.fragment(6, nil)
	e.atRest()
	e.guard()
	before := e.given()

	e.ask(topology.RepackRequest{ID: "one"})
	r := e.ended("one")
	if r.Phase != topology.RepackDone || r.Moves != 3 || len(r.Freed) != 3 {
		t.Errorf("6 half-used L3 domains: %+v, want 3 freed by 3 moves", r)
	}
	e.atRest()
	moved := 0
	for name, now := range e.given() {
		if now.Move > 0 {
			moved++
			if from := now.Containers["c"].From; from == nil || !from.Equal(before[name].Containers["c"].CPUs) {
				t.Errorf("pod %s was moved from %v, and had %s", name, from, before[name].Containers["c"].CPUs)
			}
		} else if !now.Containers["c"].CPUs.Equal(before[name].Containers["c"].CPUs) {
			t.Errorf("pod %s has other CPUs and was not moved", name)
		}
	}
	if moved != 3 {
		t.Errorf("%d pods were moved", moved)
	}

	// No gain is left. The pods that go next no longer hold the CPUs that they were moved away
	// from.
	e.ask(topology.RepackRequest{ID: "two"})
	if r := e.ended("two"); r.Phase != topology.RepackDone || r.Moves != 0 || len(r.Freed) != 0 {
		t.Errorf("when nothing is left: %+v", r)
	}
	var out, errOut strings.Builder
	if code := cli.Run([]string{"topology", "repack", e.node, "--wait", "--kubeconfig", e.cluster.Kubeconfig()}, strings.NewReader(""), &out, &errOut); code != 0 ||
		!strings.Contains(out.String(), e.node+"  Done   0      -") {
		t.Errorf("exit code %d:\n%s%s", code, out.String(), errOut.String())
	}
	at := e.await("all moves", func(n *topology.NodeTopology) bool { return n.Status.Moved > 0 && ready(n) })
	e.create(e.node+"-whole", 200, nil) // 256 minus 3 L3 domains is 232
	e.eventually("a large pod", func() error {
		if _, found := e.given()[e.node+"-whole"]; !found {
			return fmt.Errorf("has no CPUs")
		}
		return nil
	})
	// An agent that starts later knows which moves are complete.
	e.stopAgent()
	e.startAgent()
	e.atRest()
	if now, err := e.topology(); err != nil || now.Status.Moved != at.Status.Moved {
		t.Errorf("moved: %d, then %d (%v)", at.Status.Moved, now.Status.Moved, err)
	}
}

// TestAStatusThatTheServerRefusesIsWrittenLater checks that a refused write is retried, but not at
// once.
func TestAStatusThatTheServerRefusesIsWrittenLater(t *testing.T) {
	e := newEnv(t, localtest.Shared(t), 6)
	refused, release := managertest.Refuse(t, func(r *http.Request) bool {
		return r.Method != http.MethodGet && strings.HasSuffix(r.URL.Path, "/nodetopologies/"+e.node+"/status")
	})
	e.startManager(nodecontroller.Policy{})
	e.startAgent()
	e.await("the agent", ready)
	e.ask(topology.RepackRequest{ID: "one"})
	e.eventually("a status is refused", func() error {
		if refused() == 0 {
			return fmt.Errorf("none is")
		}
		return nil
	})
	e.create(e.node+"-pinned", 4, nil)
	e.eventually("a pod has CPUs", func() error {
		if len(e.given()) == 0 {
			return fmt.Errorf("it has none")
		}
		return nil
	})
	if n := refused(); n > 20 { // immediate retries would be thousands by now
		t.Errorf("it was tried %d times", n)
	}
	release()
	if r := e.ended("one"); r.Phase != topology.RepackDone {
		t.Errorf("%+v", r)
	}
}

func TestRepackKeepsToItsBoundsAndLeavesAloneWhoSaysSo(t *testing.T) {
	e := newEnv(t, localtest.Shared(t), 1)
	e.startManager(nodecontroller.Policy{})
	e.startAgent()
	e.await("the agent", ready)
	e.fragment(4, map[string]string{topology.MoveAnnotation: "false"})
	e.ask(topology.RepackRequest{ID: "stay"})
	if r := e.ended("stay"); r.Phase != topology.RepackDone || r.Moves != 0 {
		t.Errorf("pods that are to stay: %+v", r)
	}
	for _, p := range e.pods() {
		_, err := e.core.CoreV1().Pods("default").Patch(t.Context(), p.Name, types.MergePatchType,
			[]byte(fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, topology.MoveAnnotation)), metav1.PatchOptions{})
		e.check(err)
	}
	e.ask(topology.RepackRequest{ID: "bounded", MovesMax: 1})
	if r := e.ended("bounded"); r.Phase != topology.RepackDone || r.Moves != 1 || len(r.Freed) != 1 {
		t.Errorf("with one move: %+v", r)
	}
	e.atRest()
}

func TestRepackWaitsForTheAgent(t *testing.T) {
	e := newEnv(t, localtest.Shared(t), 2)
	e.startManager(nodecontroller.Policy{})
	e.startAgent()
	e.await("the agent", ready)
	e.fragment(2, nil)
	e.atRest()
	e.stopAgent()
	e.ask(topology.RepackRequest{ID: "late"})
	var moved string
	e.eventually("the pod's annotation", func() error {
		for name, r := range e.given() {
			if r.Move > 0 {
				moved = name
				return nil
			}
		}
		return fmt.Errorf("no pod has another")
	})
	from := *e.given()[moved].Containers["c"].From
	to := e.given()[moved].Containers["c"].CPUs
	// The agent is gone, and comes back.
	e.await("the agent to be missed", func(n *topology.NodeTopology) bool {
		return meta.IsStatusConditionFalse(n.Status.Conditions, topology.AgentAlive)
	})
	if r := e.ended("late"); r.Phase != topology.RepackFailed || !strings.Contains(r.Message, "agent") {
		t.Errorf("without an agent: %+v", r)
	}
	// The pod gets its previous CPUs back, which it never left, and holds the others until an agent
	// has checked.
	if r := e.given()[moved]; !r.Back || !r.Containers["c"].CPUs.Equal(from) || !r.Containers["c"].From.Equal(to) {
		t.Errorf("the move is not taken back: %+v", r)
	}
	e.create(e.node+"-waits", 4, nil)
	e.eventually("why a pod waits", func() error {
		p, err := e.core.CoreV1().Pods("default").Get(t.Context(), e.node+"-waits", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && strings.Contains(c.Message, "an agent at work") {
				return nil
			}
		}
		return fmt.Errorf("it says %+v", p.Status.Conditions)
	})
	e.guard()
	e.startAgent()
	e.await("the agent to be heard again", func(n *topology.NodeTopology) bool {
		return meta.IsStatusConditionTrue(n.Status.Conditions, topology.AgentAlive) && ready(n) && n.Status.Moved > 0
	})
	e.eventually("the pod that waited", func() error {
		if _, found := e.given()[e.node+"-waits"]; !found {
			return fmt.Errorf("has no CPUs; %s were freed", to)
		}
		return nil
	})
	e.atRest()
}

func TestRepackByPolicy(t *testing.T) {
	e := newEnv(t, localtest.Shared(t), 3)
	e.startManager(nodecontroller.Policy{MovesPerHour: 2, Quiet: 300 * time.Millisecond})
	e.startAgent()
	e.await("the agent", ready)
	e.fragment(6, nil)
	r := e.ended("policy")
	if r.Phase != topology.RepackDone || r.Moves < 1 || r.Moves > 2 {
		t.Errorf("by policy: %+v, want one or two moves", r)
	}
	e.atRest()
	moved := 0
	for _, r := range e.given() {
		if r.Move > 0 {
			moved++
		}
	}
	if moved > 2 {
		t.Errorf("%d pods were moved, with 2 an hour", moved)
	}
}

// TestAMoveToCPUsThatTheNodeLacksIsTakenBack uses a kubelet whose cgroup has fewer CPUs than the
// machine.
func TestAMoveToCPUsThatTheNodeLacksIsTakenBack(t *testing.T) {
	e := newEnv(t, localtest.Shared(t), 4)
	e.startManager(nodecontroller.Policy{Patience: 3 * time.Second})
	e.startAgent()
	e.await("the agent", ready)
	e.fragment(2, nil)
	e.atRest()
	before := e.given()
	topo := machine.MustTopology()
	var gaps cpuset.Set
	for _, r := range before {
		its := r.Containers["c"].CPUs
		gaps = gaps.Union(topo.L3[topo.CPUs[its.First()].L3].CPUs.Minus(its))
	}
	whole := topo.Online()
	kubepods := filepath.Join(e.dir, "cpuset/kubepods/cpuset.cpus")
	e.replace(kubepods, whole.Minus(gaps).String())
	e.ask(topology.RepackRequest{ID: "lacking"})
	if r := e.ended("lacking"); r.Phase != topology.RepackFailed || r.Moves != 0 || !strings.Contains(r.Message, "not in the kubelet's cgroup") {
		t.Errorf("to CPUs that cannot be had: %+v", r)
	}
	moved := e.backWhereTheyWere(before)
	// No move is left half-way: the next move has nothing to wait for, and is made once the CPUs
	// are available.
	e.await("the way back", func(n *topology.NodeTopology) bool { return n.Status.Moved >= e.given()[moved].Move })
	e.replace(kubepods, whole.String())
	e.await("no problem", func(n *topology.NodeTopology) bool { return len(n.Status.Problems) == 0 })
	e.guard()
	e.ask(topology.RepackRequest{ID: "again"})
	if r := e.ended("again"); r.Phase != topology.RepackDone || r.Moves != 1 {
		t.Errorf("when the CPUs can be had: %+v", r)
	}
	e.atRest()
}

// TestAMoveThatTheKernelRefusesIsTakenBack uses pods whose CPU sets cannot be written once their
// move is known.
func TestAMoveThatTheKernelRefusesIsTakenBack(t *testing.T) {
	e := newEnv(t, localtest.Shared(t), 5)
	e.pulse = time.Minute
	e.startManager(nodecontroller.Policy{Patience: 3 * time.Second})
	e.startAgent()
	e.await("the agent", ready)
	e.fragment(2, nil)
	e.atRest()
	before := e.given()
	files := map[string]string{}
	for _, p := range e.pods() {
		files[filepath.Join(e.dir, "cpuset", e.podDir(&p), "cpuset.cpus")] = e.applied(&p)
	}
	e.stopAgent()
	e.ask(topology.RepackRequest{ID: "refused"})
	e.eventually("the pod's annotation", func() error {
		for _, r := range e.given() {
			if r.Move > 0 {
				return nil
			}
		}
		return fmt.Errorf("no pod has another")
	})
	for file := range files { // a directory can be neither read nor written as a file
		e.check(os.Remove(file))
		e.check(os.Mkdir(file, 0o755))
	}
	e.startAgent()
	if r := e.ended("refused"); r.Phase != topology.RepackFailed || r.Moves != 0 || !strings.Contains(r.Message, "cpuset.cpus") {
		t.Errorf("refused: %+v", r)
	}
	moved := e.backWhereTheyWere(before)
	for file, cpus := range files {
		e.check(os.Remove(file))
		e.replace(file, cpus)
	}
	e.await("the way back", func(n *topology.NodeTopology) bool {
		return n.Status.Moved >= e.given()[moved].Move && len(n.Status.Problems) == 0
	})
	e.atRest()
}

// backWhereTheyWere checks that one pod's move was reversed, and that all pods have their previous
// CPUs in their annotations. It returns the name of the moved pod.
func (e *env) backWhereTheyWere(before map[string]request.Result) (moved string) {
	e.Helper()
	for name, r := range e.given() {
		if !r.Containers["c"].CPUs.Equal(before[name].Containers["c"].CPUs) {
			e.Errorf("pod %s has %s, and had %s", name, r.Containers["c"].CPUs, before[name].Containers["c"].CPUs)
		}
		if r.Back {
			moved = name
		}
	}
	if moved == "" {
		e.Fatal("no move was taken back")
	}
	return moved
}

// TestTheManagerIsKilledAmidARepack interrupts a repack of several waves.
func TestTheManagerIsKilledAmidARepack(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := localtest.Start(t, localtest.WithManager(self, "manager"), localtest.WithNodes(nodes), localtest.WithInstall())
	e := newEnv(t, c, 0)
	e.startAgent()
	e.await("the agent", ready)
	e.fragment(20, nil)
	e.atRest()
	e.guard()
	e.stopAgent() // so that moves are incomplete
	e.ask(topology.RepackRequest{ID: "killed"})
	e.eventually("the first move", func() error {
		for _, r := range e.given() {
			if r.Move > 0 {
				return nil
			}
		}
		return fmt.Errorf("none yet")
	})
	e.check(c.Kill(localcluster.Manager))
	e.startAgent()
	e.eventually("the manager starts again", func() error { return c.StartComponent(t.Context(), localcluster.Manager) })
	if r := e.ended("killed"); r.Phase != topology.RepackDone {
		t.Errorf("%+v", r)
	}
	e.atRest()
	e.ask(topology.RepackRequest{ID: "after"})
	if r := e.ended("after"); r.Phase != topology.RepackDone || r.Moves != 0 {
		t.Errorf("something was left: %+v", r)
	}
}
