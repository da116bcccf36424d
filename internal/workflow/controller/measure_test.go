package controller_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/workflow/compress"
)

// TestMeasure prints what workflows cost, with LOCKSTEP_MEASURE=N for N hello-worlds at once. It
// asserts nothing, because figures from a machine that runs other work are no reason to fail.
func TestMeasure(t *testing.T) {
	n, err := strconv.Atoi(os.Getenv("LOCKSTEP_MEASURE"))
	if err != nil {
		t.Skip("LOCKSTEP_MEASURE=N measures N workflows at once")
	}
	cluster := localtest.Start(t, localtest.WithControllerManager(), localtest.WithNodes(localcluster.Nodes{Count: 20, CPU: "64", Pods: 500}), localtest.WithInstall())
	e := newEnv(t, cluster)
	manager := e.startManager()
	ends := e.watchEnds()
	// A fixed pause until the manager has its share of the workflows: there is no condition to wait
	// for.
	time.Sleep(3 * time.Second)

	const pod = 200 * time.Millisecond
	spec := func(steps int) string {
		s := "podGC: {strategy: OnPodSuccess, deleteDelayDuration: 0s}\nentrypoint: main\ntemplates:\n- name: main\n"
		if steps > 1 {
			s += "  steps:\n"
			for i := range steps {
				s += fmt.Sprintf("  - - {name: s%d, template: pod}\n", i)
			}
			s += "- name: pod\n"
		}
		return s + "  metadata: {annotations: {lockstep.dev/sim-duration: " + pod.String() + "}}\n  container: {image: a, command: [c]}\n"
	}
	for _, steps := range []int{1, 5} {
		var beyond []time.Duration
		for i := range 40 {
			name := fmt.Sprintf("lat-%d-%d", steps, i)
			started := time.Now()
			e.submit(name, spec(steps))
			beyond = append(beyond, (ends.of(name).Sub(started)-time.Duration(steps)*pod)/time.Duration(steps))
		}
		slices.Sort(beyond)
		t.Logf("%d steps of %v: beyond the pods' time, per step: p50 %v, p90 %v, most %v", steps, pod,
			beyond[len(beyond)/2].Round(time.Millisecond), beyond[len(beyond)*9/10].Round(time.Millisecond), beyond[len(beyond)-1].Round(time.Millisecond))
	}

	cpu, memory := usage(t, manager.Process.Pid)
	started := time.Now()
	var creators sync.WaitGroup
	for k := range 8 {
		creators.Go(func() {
			for i := k; i < n; i += 8 {
				e.submit(fmt.Sprintf("many-%d", i), strings.Replace(spec(1), pod.String(), "1s", 1))
			}
		})
	}
	creators.Wait()
	created := time.Since(started)
	most := memory
	for i := range n {
		ends.of(fmt.Sprintf("many-%d", i))
		if _, m := usage(t, manager.Process.Pid); m > most {
			most = m
		}
	}
	took := time.Since(started)
	cpuAfter, _ := usage(t, manager.Process.Pid)
	calls := managerCalls(t, cluster, e.ns)
	t.Logf("%d hello-worlds at once: created in %v, all over after %v: %.0f per minute", n, created.Round(time.Millisecond), took.Round(time.Millisecond), float64(n)/took.Minutes())
	t.Logf("manager: %.2f ms of CPU and %.1f KiB of memory per workflow (resident %d MiB before, %d MiB at most)",
		float64(cpuAfter-cpu)/float64(time.Millisecond)/float64(n), float64(most-memory)/1024/float64(n), memory>>20, most>>20)
	t.Logf("the manager's calls: %v, %.2f writes per workflow of one pod or step", calls, float64(sum(calls, writeVerbs...))/float64(n+40+200))
	runtime.KeepAlive(manager)
}

// TestMeasureStatusWrites prints what a status write costs the API server by status size, with
// LOCKSTEP_MEASURE=N for N writes of each size: patches of ten nodes out of many, as a running
// workflow writes them, and all nodes compressed.
func TestMeasureStatusWrites(t *testing.T) {
	writes, err := strconv.Atoi(os.Getenv("LOCKSTEP_MEASURE"))
	if err != nil {
		t.Skip("LOCKSTEP_MEASURE=N measures N writes of each size")
	}
	cluster := localtest.Start(t, localtest.WithControllerManager(), localtest.WithInstall())
	e := newEnv(t, cluster)
	node := func(i, turn int) wf.NodeStatus {
		name := fmt.Sprintf("w[0].step(%d:%d)", i, i)
		return wf.NodeStatus{ID: wf.NodeID("w", name), Name: name, DisplayName: fmt.Sprintf("step(%d:%d)", i, i), Type: wf.NodePod, TemplateName: "leaf",
			TemplateScope: "local/w", Phase: wf.PhaseRunning, BoundaryID: "w", StartedAt: metav1.Now(), Progress: fmt.Sprintf("%d/10", turn%10),
			HostNodeName: fmt.Sprintf("node-%d", turn)}
	}
	patch := func(name string, ops any) {
		body, err := json.Marshal(ops)
		if err == nil {
			err = e.argo.Patch(types.JSONPatchType).Namespace(e.ns).Resource("workflows").Name(name).Body(body).
				SetHeader("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1").Do(t.Context()).Error()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	type op struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	for _, size := range []struct {
		nodes  int
		packed bool
	}{{1, false}, {10, false}, {100, false}, {1000, false}, {3000, false}, {3000, true}, {10_000, true}} {
		name := fmt.Sprintf("n-%d-%t", size.nodes, size.packed)
		e.submit(name, "entrypoint: quick\ntemplates:"+stepTemplates)
		nodes := wf.Nodes{}
		for i := range size.nodes {
			n := node(i, 0)
			nodes[n.ID] = n
		}
		status := func() any {
			data, err := json.Marshal(nodes)
			if err != nil {
				t.Fatal(err)
			}
			if !size.packed {
				return map[string]any{"phase": "Running", "nodes": json.RawMessage(data)}
			}
			text, err := compress.Pack(data)
			if err != nil {
				t.Fatal(err)
			}
			return map[string]any{"phase": "Running", "compressedNodes": text}
		}
		patch(name, []op{{"add", "/status", status()}})
		before, err := cluster.Usage(localcluster.APIServer)
		if err != nil {
			t.Fatal(err)
		}
		for turn := range writes {
			ops := []op{{"add", "/status/progress", fmt.Sprintf("%d/%d", turn, size.nodes)}}
			for i := range min(10, size.nodes) {
				n := node(i, turn)
				nodes[n.ID] = n
				ops = append(ops, op{"add", "/status/nodes/" + n.ID, n})
			}
			if size.packed {
				ops = []op{{"add", "/status", status()}}
			}
			patch(name, ops)
		}
		after, err := cluster.Usage(localcluster.APIServer)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := e.argo.Get().Namespace(e.ns).Resource("workflows").Name(name).Do(t.Context()).Raw()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d nodes, compressed %t: an object of %d KiB, %.1f ms of the server's CPU per write", size.nodes, size.packed, len(raw)>>10,
			float64(after.CPU-before.CPU)/float64(time.Millisecond)/float64(writes))
	}
}

// usage returns a process's CPU time and its resident memory in bytes.
func usage(t testing.TB, pid int) (cpu time.Duration, resident int64) {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+2:]))
	number := func(i int) int64 {
		v, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	return time.Duration(number(11)+number(12)) * 10 * time.Millisecond, number(21) * int64(os.Getpagesize())
}

// ends records when workflows were seen finished.
type ends struct {
	mu   sync.Mutex
	seen map[string]time.Time
	more *sync.Cond
}

func (e *env) watchEnds() *ends {
	e.Helper()
	s := &ends{seen: map[string]time.Time{}}
	s.more = sync.NewCond(&s.mu)
	w, err := e.argo.Get().Namespace(e.ns).Resource("workflows").VersionedParams(&metav1.ListOptions{Watch: true}, metav1.ParameterCodec).Watch(context.Background())
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(w.Stop)
	go func() {
		for event := range w.ResultChan() {
			if o, ok := event.Object.(*wf.Workflow); ok && event.Type == watch.Modified && o.Status.Phase.Completed() {
				s.mu.Lock()
				if _, found := s.seen[o.Name]; !found {
					s.seen[o.Name] = time.Now()
				}
				s.mu.Unlock()
				s.more.Broadcast()
			}
		}
	}()
	return s
}

// of waits until a workflow is over.
func (s *ends) of(name string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.seen[name].IsZero() {
		s.more.Wait()
	}
	return s.seen[name]
}
