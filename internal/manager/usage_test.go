package manager_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/internal/manager"
	"lockstep.dev/lockstep/internal/scheduler/config"
)

// measured is the use of nodes that the servers of these tests report, in percent.
type measured struct {
	mu          sync.Mutex
	cpu, memory map[string]float64 // by node
	at          time.Time          // zero: the time of the request
	broken      bool
	requests    int
}

func (m *measured) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

// metricsAPI serves metrics.k8s.io like the metrics server, for nodes of 8 CPUs and 16 GiB.
func (m *measured) metricsAPI(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if !strings.HasSuffix(r.URL.Path, "/nodes") {
		fmt.Fprint(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"metrics.k8s.io/v1beta1",
			"resources":[{"name":"nodes","namespaced":false,"kind":"NodeMetrics","verbs":["get","list"]}]}`)
		return
	}
	m.requests++
	if m.broken {
		http.Error(w, "out of order", http.StatusServiceUnavailable)
		return
	}
	at := m.at
	if at.IsZero() {
		at = time.Now()
	}
	var items []any
	for node, cpu := range m.cpu {
		items = append(items, map[string]any{
			"metadata": map[string]any{"name": node}, "timestamp": at.UTC().Format(time.RFC3339), "window": "20s",
			"usage": map[string]any{"cpu": fmt.Sprintf("%dm", int(80*cpu)), "memory": fmt.Sprintf("%dKi", int(m.memory[node]*16*1024*1024/100))},
		})
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "NodeMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "items": items})
}

// prometheus serves the queries of the package nodeusage like a Prometheus server with the metrics of
// node exporters.
func (m *measured) prometheus(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests++
	of := m.cpu
	if query := r.FormValue("query"); strings.Contains(query, "node_memory_MemAvailable_bytes") {
		of = m.memory
	} else if !strings.Contains(query, "node_cpu_seconds_total") {
		http.Error(w, "an unknown query: "+query, http.StatusBadRequest)
		return
	}
	var result []any
	for node, percent := range of {
		result = append(result, map[string]any{
			"metric": map[string]string{"instance": node + ":9100"}, "value": []any{float64(time.Now().Unix()), fmt.Sprint(percent)},
		})
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"status": "success", "data": map[string]any{"resultType": "vector", "result": result}})
}

// serveMetricsAPI makes the API server serve metrics.k8s.io through a server of the test.
func (e *env) serveMetricsAPI(m *measured) {
	e.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(m.metricsAPI))
	e.Cleanup(server.Close)
	address, err := url.Parse(server.URL)
	if err != nil {
		e.Fatal(err)
	}
	e.apply(fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: metrics}
spec: {type: ExternalName, externalName: localhost}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io}
spec:
  group: metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {namespace: %s, name: metrics, port: %s}
`, e.ns, address.Port()))
	services := schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
	e.Cleanup(func() {
		if err := e.dyn.Resource(services).Delete(context.Background(), "v1beta1.metrics.k8s.io", metav1.DeleteOptions{}); err != nil {
			e.Error(err)
		}
	})
	e.eventually("the API server serves metrics.k8s.io", func() error {
		_, err := e.core.Discovery().RESTClient().Get().AbsPath("/apis/metrics.k8s.io/v1beta1/nodes").DoRaw(e.Context())
		return err
	})
}

// nodeNames returns the names of the nodes.
func (e *env) nodeNames() (names []string) {
	e.Helper()
	list, err := e.core.CoreV1().Nodes().List(e.Context(), metav1.ListOptions{})
	if err != nil {
		e.Fatal(err)
	}
	for _, n := range list.Items {
		names = append(names, n.Name)
	}
	return names
}

// smallJob returns a job of one pod of 1 CPU.
func smallJob(name string) string {
	return strings.Replace(jobYAML(name, 1, "", ""), `cpu: "4"`, `cpu: "1"`, 1)
}

// TestPodsGoToNodesThatAreLittleUsed reads the use of nodes from metrics.k8s.io: nodes above a
// threshold take no pods, and of the others those are preferred that are used least, whatever pods
// request. Old measurements, and nodes without any, hold nobody up.
func TestPodsGoToNodesThatAreLittleUsed(t *testing.T) {
	e := startUnmanaged(t)
	t.Cleanup(e.letAllGo)
	nodes := e.nodeNames()
	m := &measured{
		cpu:    map[string]float64{nodes[0]: 95, nodes[1]: 10, nodes[2]: 70, nodes[3]: 60},
		memory: map[string]float64{nodes[0]: 10, nodes[1]: 10, nodes[2]: 10, nodes[3]: 92},
	}
	e.serveMetricsAPI(m)
	const text = `
tiers:
- plugins:
  - name: usage
    arguments:
      usage.weight: 50
      thresholds: {cpu: 80, mem: 90}
metrics: {type: metrics.k8s.io, interval: 1s}
`
	stop := e.using(text, m)
	placed := func(name string) string {
		t.Helper()
		e.apply(smallJob(name))
		e.runs(name, 1)
		return e.podsOf(name)[0].Spec.NodeName
	}

	//   1. The node that is used least gets pod after pod, until its use is measured.
	for i := range 3 {
		if node := placed(fmt.Sprintf("a%d", i)); node != nodes[1] {
			t.Errorf("a pod is on %s, not on the node that is used least", node)
		}
	}

	//   2. A gang that only fits on all nodes waits, and says why no node takes it.
	m.set(func() { m.cpu = map[string]float64{nodes[0]: 95, nodes[1]: 85, nodes[2]: 81, nodes[3]: 90} })
	e.eventually("no node takes pods", func() error {
		name := fmt.Sprintf("probe%d", time.Now().UnixNano())
		e.apply(smallJob(name))
		defer e.deleteJob(name)
		if c := e.until(name, decided).Status; c.Running > 0 {
			return fmt.Errorf("it runs")
		}
		return nil
	})
	e.apply(smallJob("waits"))
	e.waits("waits", "used above the threshold")

	//   3. It starts when a node is used less.
	m.set(func() { m.cpu[nodes[2]] = 20 })
	e.runs("waits", 1)
	if node := e.podsOf("waits")[0].Spec.NodeName; node != nodes[2] {
		t.Errorf("the pod is on %s", node)
	}

	//   4. A node without measurements takes pods; so do all when the measurements are too old.
	m.set(func() {
		m.cpu = map[string]float64{nodes[0]: 95, nodes[1]: 95, nodes[2]: 95}
	})
	e.eventually("the node without measurements gets the pod", func() error {
		name := fmt.Sprintf("unmeasured%d", time.Now().UnixNano())
		e.apply(smallJob(name))
		defer e.deleteJob(name)
		if j := e.until(name, decided); j.Status.Running == 0 || e.podsOf(name)[0].Spec.NodeName != nodes[3] {
			return fmt.Errorf("%s", asJSON(j.Status))
		}
		return nil
	})
	m.set(func() {
		m.cpu, m.at = map[string]float64{nodes[0]: 95, nodes[1]: 95, nodes[2]: 95, nodes[3]: 95}, time.Now().Add(-time.Hour)
	})
	e.apply(smallJob("stale"))
	e.runs("stale", 1)

	//   5. A server that answers with errors holds nobody up.
	m.set(func() { m.broken = true })
	stop()
	e.using(text, m)
	e.apply(smallJob("broken"))
	e.runs("broken", 1)
}

// TestTheUseOfNodesIsReadFromPrometheus does the same with a Prometheus server, whose series name the
// nodes' addresses with ports.
func TestTheUseOfNodesIsReadFromPrometheus(t *testing.T) {
	e := startUnmanaged(t)
	t.Cleanup(e.letAllGo)
	nodes := e.nodeNames()
	m := &measured{
		cpu:    map[string]float64{nodes[0]: 90, nodes[1]: 90, nodes[2]: 30, nodes[3]: 90},
		memory: map[string]float64{nodes[0]: 10, nodes[1]: 10, nodes[2]: 10, nodes[3]: 10},
	}
	server := httptest.NewTLSServer(http.HandlerFunc(m.prometheus))
	t.Cleanup(server.Close)
	stop := e.using(`
tiers: [{plugins: [{name: usage}]}]
metrics: {type: prometheus, address: "`+server.URL+`", interval: 1s, tls: {insecureSkipVerify: "true"}}
`, m)
	e.apply(smallJob("a"))
	e.runs("a", 1)
	if node := e.podsOf("a")[0].Spec.NodeName; node != nodes[2] {
		t.Errorf("the pod is on %s", node)
	}
	stop()

	// Scores only: a node that is used much takes pods if it has to.
	e.using(`
tiers: [{plugins: [{name: usage, enablePredicate: false}]}]
metrics: {address: "`+server.URL+`", interval: 1s, tls: {insecureSkipVerify: "true"}}
`, m)
	e.apply(jobYAML("b", 7, "", ""))
	e.runs("b", 7)
}

// decided returns nil for a job that runs, or says why it waits.
func decided(j *batch.Job) error {
	if j.Status.Running == 0 && j.Status.Condition(batch.JobScheduled) == nil {
		return errors.New("it neither runs nor waits")
	}
	return nil
}

// using runs a manager with a configuration, and returns when it has read the use of nodes twice.
func (e *env) using(text string, m *measured) (stop func()) {
	e.Helper()
	settings, _, err := config.Parse([]byte(text))
	if err != nil {
		e.Fatal(err)
	}
	before := 0
	m.set(func() { before = m.requests })
	stop = e.run(func(c *manager.Config) { c.Usage = settings.Usage })
	e.eventually("the use of nodes is read", func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.requests < before+4 { // two for each reading from Prometheus
			return fmt.Errorf("%d requests", m.requests-before)
		}
		return nil
	})
	return stop
}

// TestPodsAreMovedToNodesThatAreLittleUsed fills one node, whose use is then measured as high. Pods
// above the minimum of the job leave it, and get the node that is used least.
func TestPodsAreMovedToNodesThatAreLittleUsed(t *testing.T) {
	e := startUnmanaged(t)
	t.Cleanup(e.letAllGo)
	nodes := e.nodeNames()
	m := &measured{cpu: map[string]float64{}, memory: map[string]float64{}}
	use := func(percent ...float64) {
		m.set(func() {
			for i, node := range nodes {
				m.cpu[node], m.memory[node] = percent[i], 10
			}
		})
	}
	e.serveMetricsAPI(m)
	use(1, 30, 30, 30)
	e.using(`
actions: "enqueue, allocate, backfill, shuffle"
tiers:
- plugins:
  - name: rescheduling
    arguments:
      interval: 1s
      strategies:
      - name: offlineOnly
      - name: lowNodeUtilization
        params: {thresholds: {cpu: 20}, targetThresholds: {cpu: 50}}
metrics: {type: metrics.k8s.io, interval: 1s}
`, m)
	job := func(name, preemptable string) {
		t.Helper()
		e.apply(fmt.Sprintf(`
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: %s, annotations: {volcano.sh/preemptable: %q}}
spec:
  minAvailable: 1
  tasks:
  - name: main
    replicas: 3
    template:
      spec:
        restartPolicy: Never
        containers: [{name: main, image: busybox, resources: {requests: {cpu: "1"}}}]`, name, preemptable))
		e.runs(name, 3)
		for _, p := range e.podsOf(name) {
			if p.Spec.NodeName != nodes[0] {
				t.Fatalf("%s is on %s", p.Name, p.Spec.NodeName)
			}
		}
	}
	job("mobile", "true")
	job("fixed", "false")
	fixed := e.uids("fixed")

	// One pod is 12.5% of a node's 8 CPUs: two pods bring the node to 45%. The time of the measurement
	// stands still, so that no more pods are moved because of it.
	use(70, 30, 5, 30)
	m.set(func() { m.at = time.Now() })
	e.until("mobile", func(j *batch.Job) error {
		on := map[string]int{}
		for _, p := range e.podsOf("mobile") {
			on[p.Spec.NodeName]++
		}
		if on[nodes[0]] != 1 || on[nodes[2]] != 2 || j.Status.Running != 3 {
			return fmt.Errorf("pods by node: %v", on)
		}
		return nil
	})
	if after := e.uids("fixed"); fmt.Sprint(after) != fmt.Sprint(fixed) {
		t.Errorf("pods that are not preemptable were moved: %v, before %v", after, fixed)
	}
	if j := e.job("mobile"); j.Status.RetryCount != 0 {
		t.Errorf("%d retries", j.Status.RetryCount)
	}
}
