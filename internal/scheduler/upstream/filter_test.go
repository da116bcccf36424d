package upstream_test

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/scheduler/place"
	"lockstep.dev/lockstep/internal/scheduler/upstream"
)

func TestMain(m *testing.M) { localtest.Main(m) }

// world is a filter that uses a real API server, on a model of 6 nodes in 3 zones that the test
// drives.
type world struct {
	t      *testing.T
	model  *cluster.Cluster
	view   *cluster.View
	filter *upstream.Filter
	placer *place.Placer
}

func newWorld(t *testing.T) *world {
	t.Helper()
	cfg := localtest.Shared(t).RESTConfig()
	client, err := kubeclient.Clientset(cfg)
	if err != nil {
		t.Fatal(err)
	}
	informers, err := informer.NewSet(cfg)
	if err != nil {
		t.Fatal(err)
	}
	waits := storagev1.VolumeBindingWaitForFirstConsumer
	for _, create := range []func() error{
		func() error {
			_, err := client.StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{
				ObjectMeta: metav1.ObjectMeta{Name: "late"}, Provisioner: "example.com/none", VolumeBindingMode: &waits,
			}, metav1.CreateOptions{})
			return err
		},
		func() error {
			_, err := client.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), &corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Name: "late"},
				Spec: corev1.PersistentVolumeClaimSpec{
					StorageClassName: ptr.To("late"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
				},
			}, metav1.CreateOptions{})
			return err
		},
	} {
		if err := create(); err != nil {
			t.Fatal(err)
		}
	}
	w := &world{t: t, model: cluster.New(cluster.Config{})}
	if w.filter, err = upstream.New(t.Context(), upstream.Config{Client: client, Informers: informers, Cluster: w.model}); err != nil {
		t.Fatal(err)
	}
	w.filter.Start(t.Context())
	if err := w.filter.WaitForSync(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.reset()
	return w
}

// reset removes all pods from the model.
func (w *world) reset() {
	for i := range 6 {
		for _, p := range w.model.PodsOn(fmt.Sprint("n", i)) {
			w.model.Forget(types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, 0)
		}
		w.model.UpsertNode(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), Labels: map[string]string{
				corev1.LabelHostname: fmt.Sprint("n", i), corev1.LabelTopologyZone: fmt.Sprint("z", i%3),
			}},
			Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourcePods: resource.MustParse("110"),
			}},
		})
	}
	w.view = w.model.NewView()
	w.placer = place.NewPlacer(w.view.Snapshot, place.Options{Rare: w.filter})
}

// place places n pods like p, all of which are required, and returns their nodes or the shortage.
func (w *world) place(p *corev1.Pod, n int) ([]string, *place.Shortage) {
	w.t.Helper()
	class, err := place.NewClass(w.model.Dims(), p)
	if err != nil {
		w.t.Fatal(err)
	}
	w.model.Refresh(w.view)
	w.filter.Refresh(w.view.Snapshot, class.Rare)
	d := w.placer.Place(place.Gang{MinMember: n, Demands: []place.Demand{{Class: class, Count: n, Min: n}}})
	if d.Shortage != nil {
		return nil, d.Shortage
	}
	var names []string
	for i, node := range d.Placed[0] {
		name := w.view.Node(node).Name
		names = append(names, name)
		w.model.Assume(types.NamespacedName{Namespace: p.Namespace, Name: fmt.Sprint(p.Name, "-", i)}, name, "default", "", class, nil)
	}
	slices.Sort(names)
	return names, nil
}

func testPod(name string, change func(*corev1.PodSpec)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
		}}}},
	}
	if change != nil {
		change(&p.Spec)
	}
	return p
}

func term(app, topology string) []corev1.PodAffinityTerm {
	return []corev1.PodAffinityTerm{{
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}, TopologyKey: topology,
	}}
}

func away(app, topology string) func(*corev1.PodSpec) {
	return func(s *corev1.PodSpec) {
		s.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term(app, topology)}}
	}
}

func near(app, topology string) func(*corev1.PodSpec) {
	return func(s *corev1.PodSpec) {
		s.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term(app, topology)}}
	}
}

func TestTheKubeSchedulersPlugins(t *testing.T) {
	w := newWorld(t)
	zones := func(nodes []string) map[string]int {
		count := map[string]int{}
		for _, n := range nodes {
			count[fmt.Sprint("z", int(n[1]-'0')%3)]++
		}
		return count
	}
	for _, tc := range []struct {
		sentence string
		run      func(t *testing.T)
	}{
		{"pods of a gang that keep away from each other get a node each", func(t *testing.T) {
			nodes, short := w.place(testPod("a", away("a", corev1.LabelHostname)), 6)
			if short != nil || len(slices.Compact(nodes)) != 6 {
				t.Fatalf("%v, %+v", nodes, short)
			}
			if _, short := w.place(testPod("b", away("a", corev1.LabelHostname)), 1); short == nil {
				t.Fatal("a pod that keeps away from those was placed")
			}
		}},
		{"a gang that does not fit its own anti-affinity leaves nothing behind", func(t *testing.T) {
			if _, short := w.place(testPod("a", away("a", corev1.LabelTopologyZone)), 4); short == nil {
				t.Fatal("4 pods in 3 zones")
			}
			if nodes, short := w.place(testPod("a", away("a", corev1.LabelTopologyZone)), 3); short != nil {
				t.Fatalf("%v, %+v", nodes, short)
			}
		}},
		{"a plain pod is kept away by those on nodes", func(t *testing.T) {
			if _, short := w.place(testPod("a", away("plain", corev1.LabelTopologyZone)), 1); short != nil {
				t.Fatalf("%+v", short)
			}
			nodes, short := w.place(testPod("plain", nil), 20)
			if short != nil || len(zones(nodes)) != 2 {
				t.Fatalf("%v, %+v", nodes, short)
			}
			if nodes, short = w.place(testPod("other", nil), 20); short != nil || len(zones(nodes)) != 3 {
				t.Fatalf("%v, %+v", nodes, short)
			}
		}},
		{"pods stay near each other, the first choosing where", func(t *testing.T) {
			nodes, short := w.place(testPod("a", near("a", corev1.LabelTopologyZone)), 10)
			if short != nil || len(zones(nodes)) != 1 {
				t.Fatalf("%v, %+v", nodes, short)
			}
		}},
		{"pods go where they prefer to be, and where pods that are there prefer them", func(t *testing.T) {
			prefer := func(app string) func(*corev1.PodSpec) {
				return func(s *corev1.PodSpec) {
					s.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
						{Weight: 100, PodAffinityTerm: term(app, corev1.LabelTopologyZone)[0]},
					}}}
				}
			}
			host, short := w.place(testPod("host", prefer("guest")), 1)
			if short != nil {
				t.Fatalf("%+v", short)
			}
			for name, spec := range map[string]func(*corev1.PodSpec){"guest": away("guest", corev1.LabelHostname), "friend": prefer("host")} {
				nodes, short := w.place(testPod(name, spec), 2)
				if short != nil || len(zones(nodes)) != 1 || zones(nodes)[fmt.Sprint("z", int(host[0][1]-'0')%3)] != 2 {
					t.Errorf("%s: %v, not in the zone of %v, %+v", name, nodes, host, short)
				}
			}
		}},
		{"pods spread over zones", func(t *testing.T) {
			nodes, short := w.place(testPod("a", func(s *corev1.PodSpec) {
				s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
					MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule,
					LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}},
				}}
			}), 9)
			if z := zones(nodes); short != nil || z["z0"] != 3 || z["z1"] != 3 || z["z2"] != 3 {
				t.Fatalf("%v, %+v", nodes, short)
			}
		}},
		{"a claim that waits for its first pod may get its volume on any node", func(t *testing.T) {
			nodes, short := w.place(testPod("a", func(s *corev1.PodSpec) {
				s.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "late"},
				}}}
			}), 2)
			if short != nil || len(nodes) != 2 {
				t.Fatalf("%v, %+v", nodes, short)
			}
		}},
		{"claims that do not exist are waited for", func(t *testing.T) {
			_, short := w.place(testPod("a", func(s *corev1.PodSpec) {
				s.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
			}), 1)
			if short == nil || short.Rejected[`waiting for ephemeral volume controller to create the persistentvolumeclaim "a-v"`] != 6 {
				t.Fatalf("%+v", short)
			}
			_, short = w.place(testPod("a", func(s *corev1.PodSpec) {
				s.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("one")}}
			}), 1)
			if short == nil || short.Rejected[`waiting for kube-controller-manager to create claim "gpu" of template "one"`] != 6 {
				t.Fatalf("%+v", short)
			}
			_, short = w.place(testPod("a", func(s *corev1.PodSpec) {
				s.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "missing"},
				}}}
			}), 1)
			if short == nil || short.Resource != "" {
				t.Fatalf("%+v", short)
			}
			t.Log(short.Detail())
		}},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			w.reset()
			tc.run(t)
		})
	}
}
