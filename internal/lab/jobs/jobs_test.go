package jobs

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/lab/admission"
	"lockstep.dev/lockstep/internal/lab/capacity"
	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/lab/series"
	"lockstep.dev/lockstep/internal/lab/system"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// TestMeasureBothSystems measures a small load on real control planes and checks every part of the
// result that does not depend on the machine's speed.
func TestMeasureBothSystems(t *testing.T) {
	kube, err := localcluster.FindKube()
	if err != nil {
		t.Fatal(err)
	}
	lockstep := buildLockstep(t)
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	shape := scenario.Shape{Jobs: 8, PodsPerJob: 5}
	cfg := Config{
		Shapes: []scenario.Shape{shape}, Gangs: []bool{true}, Systems: []string{"lockstep", "kubernetes"}, WarmUpPods: 10,
		Config: series.Config{Repeat: 1, Nodes: localcluster.Nodes{Count: 10}, ClientConcurrency: 4, FloorConcurrency: []int{8, 16},
			Timeout: time.Minute, OutDir: t.TempDir(), Lockstep: lockstep, Kube: kube, Version: "test", Progress: func(line string) { t.Log(line) }},
		OnStep: func(s Step) {
			if s.Done == 0 {
				t.Logf("%s: %s", s.Case, s.Stage)
			}
		},
	}
	rep, err := Measure(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.Runs) != 2 {
		t.Fatalf("%d runs", len(rep.Runs))
	}
	for i := range rep.Runs {
		r := rep.Runs[i]
		if r.Error != "" {
			t.Fatalf("%s: %s", r.System, r.Error)
		}
		if r.Scheduled != shape.Pods() || r.Created != shape.Pods() || r.Failed != 0 {
			t.Errorf("%s: %d created, %d scheduled, %d failed", r.System, r.Created, r.Scheduled, r.Failed)
		}
		if len(r.Invariants.Violations) > 0 || r.Invariants.Checked < 2*shape.Pods() {
			t.Errorf("%s: %d checks, violations %q", r.System, r.Invariants.Checked, r.Invariants.Violations)
		}
		if r.Floor == nil || r.Floor.Pods != shape.Pods() || len(r.Floor.Calibration) != 2 || len(r.Floor.Tries) != defaultFloorTries {
			t.Fatalf("%s: floor %+v", r.System, r.Floor)
		}
		if none := r.Floor.None != ""; none != (r.RatioToFloor == nil) || none != (r.FloorSeconds == nil) || !none && *r.RatioToFloor < 0.995 {
			t.Errorf("%s: ratio %v, floor %+v", r.System, r.RatioToFloor, r.Floor)
		}
		for _, component := range []string{"apiserver", "etcd", "controllerManager", "nodes"} {
			if r.PeakRSSMiB[component] <= 0 {
				t.Errorf("%s: no memory of %s", r.System, component)
			}
		}
		if n := r.WritesByActor["client"]; !cmp.Equal(n, map[string]int{jobKind[r.System] + "/create": shape.Jobs}) {
			t.Errorf("%s: writes of the client: %v", r.System, n)
		}
		checkEvents(t, cfg.OutDir, i+1, shape.Pods())
		checkMetrics(t, r)
	}
	lock, kubernetes := rep.Runs[0], rep.Runs[1]
	if n := lock.Writes["pods/create"]; n != shape.Pods() {
		t.Errorf("lockstep: %d pods/create", n)
	}
	if n := lock.Writes["pods/binding"]; n != 0 {
		t.Errorf("lockstep: %d pods/binding", n)
	}
	if n := kubernetes.Writes["pods/binding"]; n < shape.Pods() {
		t.Errorf("kubernetes: %d pods/binding", n)
	}
	if !lock.Gang || kubernetes.Gang {
		t.Errorf("gang: lockstep %v, kubernetes %v", lock.Gang, kubernetes.Gang)
	}
	saved, err := os.ReadFile(filepath.Join(cfg.OutDir, "run.json"))
	if err != nil {
		t.Fatal(err)
	}
	var again Report
	if err := json.Unmarshal(saved, &again); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(rep.Runs, again.Runs); diff != "" {
		t.Errorf("run.json is not what was returned (-returned +saved):\n%s", diff)
	}
	if left, err := os.ReadDir(filepath.Join(os.Getenv("XDG_STATE_HOME"), "lockstep", "bench")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// checkMetrics checks what the processes reported about a run on a fresh control plane.
func checkMetrics(t *testing.T, r *Run) {
	t.Helper()
	m := r.Metrics
	if m == nil || m.Server == nil || m.Etcd == nil || len(m.Missing) > 0 || len(m.Samples) == 0 {
		t.Fatalf("%s: metrics %+v", r.System, m)
	}
	if n := m.Server.Requests["post pods"]; n < r.Pods {
		t.Errorf("%s: %d pods created by the server's count: %v", r.System, n, m.Server.Requests)
	}
	if m.Server.Etcd.Count < r.Pods || m.Etcd.DatabaseMiB <= 0 || len(m.Server.Levels) == 0 || r.Lost != "" {
		t.Errorf("%s: server %+v, etcd %+v, lost %q", r.System, m.Server, m.Etcd, r.Lost)
	}
	queue := map[string][2]string{"lockstep": {"manager", "writes"}, "kubernetes": {"kube-controller-manager", "job"}}[r.System]
	if c := m.Controllers[queue[0]]; c == nil || c.Queues[queue[1]].Adds == 0 || c.Queues[queue[1]].Work.Count == 0 || c.Goroutines == 0 {
		t.Errorf("%s: queue %s of %+v", r.System, queue[1], c)
	}
	if c := m.Controllers["kube-controller-manager"]; c == nil || c.Throttled == nil {
		t.Errorf("%s: no throttling of %+v", r.System, c)
	}
	for _, process := range []string{"kube-apiserver", "etcd", "client"} {
		if s := m.Samples[len(m.Samples)-1]; s.CPU[process] < 0 || process != "client" && s.RSSMiB[process] <= 0 {
			t.Errorf("%s: sample %+v", r.System, s)
		}
	}
}

func buildLockstep(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lockstep")
	if out, err := exec.Command("go", "build", "-o", path, "lockstep.dev/lockstep/cmd/lockstep").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return path
}

// TestMeasureAnExistingClusterTwice runs in a cluster where a neighbour never stops writing, and
// where the first run's namespace is still being deleted when the second run begins.
func TestMeasureAnExistingClusterTwice(t *testing.T) {
	cluster := localtest.Start(t, localtest.WithControllerManager(), localtest.WithInstall(), localtest.WithNodes(localcluster.Nodes{Count: 10}),
		localtest.WithManager(buildLockstep(t), "manager"))
	client, err := kubeclient.Clientset(cluster.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	neighbour := localtest.Namespace(t, client)
	ctx, cancel := context.WithCancel(t.Context())
	var others sync.WaitGroup
	others.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c-", i)}}
			if _, err := client.CoreV1().ConfigMaps(neighbour).Create(ctx, configMap, metav1.CreateOptions{}); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
	})
	defer others.Wait()
	defer cancel()

	shape := scenario.Shape{Jobs: 4, PodsPerJob: 25}
	for _, audit := range []string{cluster.AuditLogPath(), ""} {
		rep, err := Measure(t.Context(), Config{
			Shapes: []scenario.Shape{shape}, Gangs: []bool{true}, Systems: []string{"lockstep"},
			Config: series.Config{Repeat: 2, ClientConcurrency: 4, Timeout: time.Minute, OutDir: t.TempDir(),
				Progress: func(line string) { t.Log(line) }},
			Kubeconfig: cluster.Kubeconfig(), AuditLog: audit,
		})
		if err != nil || len(rep.Runs) != 2 {
			t.Fatalf("%d runs: %v", len(rep.Runs), err)
		}
		for i := range rep.Runs {
			r := rep.Runs[i]
			if r.Error != "" || r.Scheduled != shape.Pods() || len(r.Invariants.Violations) > 0 {
				t.Errorf("audit log %q, run %d: error %q, %d scheduled, violations %q", audit, i+1, r.Error, r.Scheduled, r.Invariants.Violations)
			}
			if audit == "" {
				continue
			}
			if n := r.Writes["pods/create"]; n != shape.Pods() {
				t.Errorf("run %d: %d pods/create", i+1, n)
			}
			if n := r.WritesByActor["client"]; !cmp.Equal(n, map[string]int{"jobs.batch.volcano.sh/create": shape.Jobs}) {
				t.Errorf("run %d: writes of the client: %v", i+1, n)
			}
		}
		namespaces, err := client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range namespaces.Items {
			ns := &namespaces.Items[i]
			if !strings.HasPrefix(ns.Name, "lockstep-bench-") {
				continue
			}
			pods, err := client.CoreV1().Pods(ns.Name).List(t.Context(), metav1.ListOptions{})
			if err != nil || len(pods.Items) > 0 || ns.DeletionTimestamp == nil {
				t.Errorf("namespace %s is left, with %d pods, deleted %v: %v", ns.Name, len(pods.Items), ns.DeletionTimestamp, err)
			}
		}
	}
}

func checkEvents(t *testing.T, dir string, run, pods int) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "0"+string(rune('0'+run))+"-*", "events.csv.gz"))
	if err != nil || len(paths) != 1 {
		t.Fatalf("events of run %d: %v, %v", run, paths, err)
	}
	f, err := os.Open(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(data), "\n"); n < 2*pods {
		t.Errorf("run %d: %d events saved", run, n)
	}
}

func TestPlanAlternatesSystems(t *testing.T) {
	cfg := Config{
		Shapes: []scenario.Shape{{Jobs: 1, PodsPerJob: 2}, {Jobs: 2, PodsPerJob: 1}}, Gangs: []bool{true, false},
		Systems: []string{"lockstep", "kubernetes"}, JobSyncs: []int{0, 50},
		Config: series.Config{Repeat: 2, WriterConcurrency: []int{0, 16}},
	}
	cfg.Admissions = []admission.Admission{{Kind: admission.None}}
	plan, err := cfg.plan()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range plan[:10] {
		run := e.result()
		got = append(got, run.Title())
	}
	want := []string{
		"lockstep 1x2 gang", "lockstep w=16 1x2 gang", "kubernetes 1x2", "kubernetes syncs=50 1x2", "lockstep 1x2", "lockstep w=16 1x2",
		"lockstep #2 1x2 gang", "lockstep w=16 #2 1x2 gang", "kubernetes #2 1x2", "kubernetes syncs=50 #2 1x2",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if len(plan) != 2*2*6 {
		t.Errorf("%d runs", len(plan))
	}
}

func TestASystemIsComparedWithItself(t *testing.T) {
	cfg := Config{Shapes: []scenario.Shape{{Jobs: 1, PodsPerJob: 2}}, Gangs: []bool{true}, Systems: []string{"lockstep", "lockstep"},
		Admissions: []admission.Admission{{Kind: admission.None}}, Config: series.Config{Repeat: 2}}
	plan, err := cfg.plan()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range plan {
		run := e.result()
		got = append(got, run.Title())
	}
	want := []string{"lockstep 1x2 gang", "lockstep (2) 1x2 gang", "lockstep #2 1x2 gang", "lockstep (2) #2 1x2 gang"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestBadConfigurationsAreRefused(t *testing.T) {
	good := func() Config {
		return Config{Shapes: []scenario.Shape{{Jobs: 1, PodsPerJob: 1}}, Gangs: []bool{true}, Systems: []string{"lockstep"},
			Config: series.Config{Repeat: 1, ClientConcurrency: 1, Timeout: time.Second, Nodes: localcluster.Nodes{Count: 1}}}
	}
	if c := good(); c.Complete() != nil {
		t.Fatal(c.Complete())
	}
	for name, spoil := range map[string]func(*Config){
		"no shape":                    func(c *Config) { c.Shapes = nil },
		"no system":                   func(c *Config) { c.Systems = nil },
		"an unknown system":           func(c *Config) { c.Systems = []string{"x"} },
		"repeat 0":                    func(c *Config) { c.Repeat = 0 },
		"a client that sends nothing": func(c *Config) { c.ClientConcurrency = 0 },
		"a negative writer":           func(c *Config) { c.WriterConcurrency = []int{-1} },
		"negative job syncs":          func(c *Config) { c.JobSyncs = []int{-1} },
		"a floor of 0 in flight":      func(c *Config) { c.FloorConcurrency = []int{0} },
		"two systems in one cluster":  func(c *Config) { c.Systems, c.Kubeconfig = []string{"lockstep", "kubernetes"}, "x" },
		"rules for an existing cluster": func(c *Config) {
			c.Kubeconfig, c.Admissions = "x", []admission.Admission{{Kind: admission.CEL}}
		},
		"one queue":                  func(c *Config) { c.Weights, c.PodTime = []int{1}, time.Second },
		"a queue without weight":     func(c *Config) { c.Weights, c.PodTime = []int{1, 0}, time.Second },
		"queues of pods without end": func(c *Config) { c.Weights = []int{1, 2} },
		"a floor of pods that end":   func(c *Config) { c.PodTime, c.FloorConcurrency = time.Second, []int{1} },
		"pods that end in a cluster": func(c *Config) { c.PodTime, c.Kubeconfig = time.Second, "x" },
		"a rate that does not grow":  func(c *Config) { c.Pace = &Pace{Search: capacity.Search{Start: 1, Growth: 1}, StepTime: time.Second} },
		"a rate of ten jobs": func(c *Config) {
			c.Pace, c.Shapes[0].Jobs = &Pace{Search: capacity.Search{Start: 1, Growth: 2}, StepTime: time.Second}, 10
		},
		"limits of a system not there": func(c *Config) { c.ClientLimits = []*system.Limit{nil} },
		"unknown creators of pods":     func(c *Config) { c.Foreign = []string{"statefulsets"} },
		"a floor of foreign pods":      func(c *Config) { c.Foreign, c.FloorConcurrency = []string{"pods"}, []int{1} },
		"no time":                      func(c *Config) { c.Timeout = 0 },
		"no nodes":                     func(c *Config) { c.Nodes.Count = 0 },
		"more pods than fit":           func(c *Config) { c.Shapes[0].PodsPerJob = 111 },
		"a file that does not exist":   func(c *Config) { c.Systems = []string{"./none.yaml"} },
	} {
		c := good()
		spoil(&c)
		if c.Complete() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

var jobKind = map[string]string{"lockstep": "jobs.batch.volcano.sh", "kubernetes": "jobs.batch"}
