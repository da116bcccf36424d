package upstream

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	kubeplugins "k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	"pgregory.net/rapid"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

// TestFastPathAgreesWithTheKubeScheduler checks that the fast path of package place filters and
// scores nodes exactly as the kube-scheduler's own plugins do, with their default weights. Two
// differences are intended. First, the scores of the kube-scheduler 1.36 ignore pod-level requests
// of the pod to be placed (but not of pods on nodes), and place does not; the test draws no such
// pods. Second, place normalises preferences among all nodes that pass the filters on the node's
// object; the kube-scheduler normalises among the nodes that also have room. So the nodes drawn
// here have room, or are refused by a filter on their object, or are drawn without preferences.
func TestFastPathAgreesWithTheKubeScheduler(t *testing.T) {
	metrics.Register() // the plugins record metrics
	rapid.Check(t, func(t *rapid.T) {
		nodes, running := drawNodes(t)
		pod := drawPod(t)
		if diff := cmp.Diff(kubeScheduler(t, nodes, running, pod), fastPath(t, nodes, running, pod)); diff != "" {
			t.Fatal("nodes and scores (-kube-scheduler +place):", diff)
		}
	})
}

// kubeScheduler returns the scores of the kube-scheduler's plugins.
func kubeScheduler(t *rapid.T, nodes []*corev1.Node, running []*corev1.Pod, pod *corev1.Pod) map[string]int64 {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	enabled := []config.Plugin{
		{Name: names.PrioritySort}, {Name: names.DefaultBinder}, {Name: names.NodeUnschedulable}, {Name: names.NodeName},
		{Name: names.TaintToleration, Weight: 3}, {Name: names.NodeAffinity, Weight: 2}, {Name: names.NodePorts},
		{Name: names.NodeResourcesFit, Weight: 1}, {Name: names.NodeResourcesBalancedAllocation, Weight: 1},
	}
	defaults, err := latest.Default()
	if err != nil {
		t.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(&rest.Config{}) // never called
	snapshot := cache.NewSnapshot(running, nodes)
	fw, err := runtime.NewFramework(ctx, kubeplugins.NewInTreeRegistry(),
		&config.KubeSchedulerProfile{
			SchedulerName: "default", PluginConfig: defaults.Profiles[0].PluginConfig,
			Plugins: &config.Plugins{MultiPoint: config.PluginSet{Enabled: enabled}},
		},
		runtime.WithSnapshotSharedLister(snapshot), runtime.WithClientSet(client), runtime.WithInformerFactory(informers.NewSharedInformerFactory(client, 0)))
	if err != nil {
		t.Fatal(err)
	}
	state := framework.NewCycleState()
	scores := map[string]int64{}
	allowed, status, _ := fw.RunPreFilterPlugins(ctx, state, pod)
	if status.IsRejected() {
		return scores
	}
	if !status.IsSuccess() {
		t.Fatal(status)
	}
	var fitting []fwk.NodeInfo
	infos, err := snapshot.NodeInfos().List()
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		if allowed.AllNodes() || allowed.NodeNames.Has(info.Node().Name) {
			if status := fw.RunFilterPlugins(ctx, state, pod, info); status.IsSuccess() {
				fitting = append(fitting, info)
			}
		}
	}
	if len(fitting) == 0 {
		return scores
	}
	if status := fw.RunPreScorePlugins(ctx, state, pod, fitting); !status.IsSuccess() {
		t.Fatal(status)
	}
	all, status := fw.RunScorePlugins(ctx, state, pod, fitting)
	if !status.IsSuccess() {
		t.Fatal(status)
	}
	for _, s := range all {
		scores[s.Name] = s.TotalScore
	}
	return relative(scores)
}

// fastPath returns the scores of package place.
func fastPath(t *rapid.T, nodes []*corev1.Node, running []*corev1.Pod, pod *corev1.Pod) map[string]int64 {
	dims := place.NewDims()
	snapshot := place.NewSnapshot(dims)
	for _, o := range nodes {
		n := place.Node{
			Name: o.Name, Labels: o.Labels, Taints: o.Spec.Taints, Unschedulable: o.Spec.Unschedulable, Object: o,
			Allocatable: dims.Vector(o.Status.Allocatable), Ports: place.PortSet{},
		}
		for _, p := range running {
			if p.Spec.NodeName == o.Name {
				request, nonZero := dims.PodVector(p)
				n.Used, n.UsedNonZero = n.Used.Plus(request, 1), n.UsedNonZero.Plus(nonZero, 1)
				for _, port := range place.PodPorts(p) {
					n.Ports[port]++
				}
			}
		}
		snapshot.Set(n)
	}
	class, err := place.NewClass(dims, pod)
	if err != nil {
		t.Fatal(err)
	}
	scores := map[string]int64{}
	for n, score := range place.NewPlacer(snapshot, place.Options{}).Candidates(class) {
		scores[n.Name] = score
	}
	return relative(scores)
}

// relative returns the differences between scores: what is equal for all nodes decides nothing.
func relative(scores map[string]int64) map[string]int64 {
	least := int64(math.MaxInt64)
	for _, s := range scores {
		least = min(least, s)
	}
	for n := range scores {
		scores[n] -= least
	}
	return scores
}

func drawNodes(t *rapid.T) (nodes []*corev1.Node, running []*corev1.Pod) {
	for i := range rapid.IntRange(1, 5).Draw(t, "nodes") {
		n := &corev1.Node{}
		n.Name = fmt.Sprint("node-", i)
		n.Labels = map[string]string{"zone": zone(t), "cores": fmt.Sprint(rapid.IntRange(0, 9).Draw(t, "cores"))}
		n.Spec.Unschedulable = rapid.IntRange(0, 5).Draw(t, "cordoned") == 0
		for range rapid.IntRange(0, 2).Draw(t, "taints") {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: zone(t), Value: zone(t), Effect: effect(t)})
		}
		// The nodes have room for everything that is drawn, except for pods without preferences.
		n.Status.Allocatable = corev1.ResourceList{
			"pods": resource.MustParse("110"), "ephemeral-storage": resource.MustParse("100Gi"),
			"cpu":    *resource.NewMilliQuantity(rapid.Int64Range(20_000, 64_000).Draw(t, "cpu"), resource.DecimalSI),
			"memory": *resource.NewQuantity(rapid.Int64Range(20<<30, 256<<30).Draw(t, "memory"), resource.BinarySI),
		}
		for k := range rapid.IntRange(0, 3).Draw(t, "pods") {
			p := &corev1.Pod{}
			p.Name, p.UID, p.Spec.NodeName = fmt.Sprint(n.Name, "-", k), types.UID(fmt.Sprint(n.Name, "-", k)), n.Name
			p.Spec.Containers = drawContainers(t)
			running = append(running, p)
		}
		nodes = append(nodes, n)
	}
	return nodes, running
}

func drawPod(t *rapid.T) *corev1.Pod {
	p := &corev1.Pod{}
	p.Name, p.UID = "pod", "pod"
	s := &p.Spec
	s.Containers = drawContainers(t)
	if rapid.IntRange(0, 2).Draw(t, "init") == 0 {
		s.InitContainers = drawContainers(t)
		if rapid.Bool().Draw(t, "sidecar") {
			always := corev1.ContainerRestartPolicyAlways
			s.InitContainers[0].RestartPolicy = &always
		}
	}
	if rapid.IntRange(0, 3).Draw(t, "overhead") == 0 {
		s.Overhead = requests(t)
	}
	if rapid.IntRange(0, 5).Draw(t, "named") == 0 {
		s.NodeName = "node-1"
	}
	if rapid.IntRange(0, 3).Draw(t, "selector") == 0 {
		s.NodeSelector = map[string]string{"zone": zone(t)}
	}
	for range rapid.IntRange(0, 2).Draw(t, "tolerations") {
		s.Tolerations = append(s.Tolerations, corev1.Toleration{
			Key: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "key"), Value: zone(t), Effect: effect(t),
			Operator: rapid.SampledFrom([]corev1.TolerationOperator{"", "Equal", "Exists"}).Draw(t, "operator"),
		})
		if last := &s.Tolerations[len(s.Tolerations)-1]; last.Key == "" || rapid.Bool().Draw(t, "any effect") {
			last.Effect = ""
		}
	}
	// A port may be occupied, which is a kind of full.
	if ports := s.Containers[0].Ports; len(ports) == 0 {
		s.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}
		for range rapid.IntRange(0, 2).Draw(t, "preferences") {
			s.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(s.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution,
				corev1.PreferredSchedulingTerm{Weight: rapid.Int32Range(1, 100).Draw(t, "weight"), Preference: term(t)})
		}
		if n := rapid.IntRange(0, 2).Draw(t, "terms"); n > 0 {
			required := &corev1.NodeSelector{}
			for range n {
				required.NodeSelectorTerms = append(required.NodeSelectorTerms, term(t))
			}
			s.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = required
		}
	} else {
		// Tolerating every PreferNoSchedule taint keeps taints out of the scores.
		s.Tolerations = append(s.Tolerations, corev1.Toleration{Operator: "Exists", Effect: corev1.TaintEffectPreferNoSchedule})
	}
	return p
}

func term(t *rapid.T) corev1.NodeSelectorTerm {
	switch rapid.IntRange(0, 4).Draw(t, "term") {
	case 0:
		return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: "In", Values: []string{"node-0"}}}}
	case 1:
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "cores", Operator: "Gt", Values: []string{"4"}}}}
	case 2:
		return corev1.NodeSelectorTerm{}
	}
	return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{
		Key: "zone", Operator: rapid.SampledFrom([]corev1.NodeSelectorOperator{"In", "NotIn"}).Draw(t, "operator"), Values: []string{zone(t)}}}}
}

func drawContainers(t *rapid.T) (containers []corev1.Container) {
	for i := range rapid.IntRange(1, 2).Draw(t, "containers") {
		c := corev1.Container{Name: fmt.Sprint("c", i), Resources: corev1.ResourceRequirements{Requests: requests(t)}}
		if rapid.IntRange(0, 7).Draw(t, "port") == 0 {
			c.Ports = []corev1.ContainerPort{{Protocol: "TCP", HostPort: rapid.Int32Range(1, 2).Draw(t, "number"), HostIP: rapid.SampledFrom([]string{"", "0.0.0.0", "10.0.0.1", "10.0.0.2"}).Draw(t, "ip")}}
		}
		containers = append(containers, c)
	}
	return containers
}

func requests(t *rapid.T) corev1.ResourceList {
	l := corev1.ResourceList{}
	if rapid.IntRange(0, 3).Draw(t, "asks cpu") > 0 {
		l["cpu"] = *resource.NewMilliQuantity(rapid.Int64Range(0, 900).Draw(t, "cpu"), resource.DecimalSI)
	}
	if rapid.IntRange(0, 3).Draw(t, "asks memory") > 0 {
		l["memory"] = *resource.NewQuantity(rapid.Int64Range(0, 1<<30).Draw(t, "memory"), resource.BinarySI)
	}
	return l
}

func zone(t *rapid.T) string { return rapid.SampledFrom([]string{"a", "b"}).Draw(t, "zone") }

func effect(t *rapid.T) corev1.TaintEffect {
	return rapid.SampledFrom([]corev1.TaintEffect{"NoSchedule", "NoExecute", "PreferNoSchedule"}).Draw(t, "effect")
}
