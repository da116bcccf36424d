package kubeclient

import (
	"bytes"
	"math/rand"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/equality"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// without clears the fields that TrimmedCore drops.
func without(p *corev1.Pod) {
	//lint:ignore SA1019 an old API server may still fill SelfLink in
	p.ManagedFields, p.SelfLink, p.GenerateName = nil, "", "" //nolint:staticcheck // likewise
	s := &p.Spec
	*s = corev1.PodSpec{
		NodeName: s.NodeName, SchedulerName: s.SchedulerName, PriorityClassName: s.PriorityClassName, Priority: s.Priority,
		PreemptionPolicy: s.PreemptionPolicy, Containers: s.Containers, InitContainers: s.InitContainers, Resources: s.Resources,
		Overhead: s.Overhead, NodeSelector: s.NodeSelector, Affinity: s.Affinity, Tolerations: s.Tolerations,
		TopologySpreadConstraints: s.TopologySpreadConstraints, SchedulingGates: s.SchedulingGates, ResourceClaims: s.ResourceClaims,
		Volumes: s.Volumes, HostNetwork: s.HostNetwork, RuntimeClassName: s.RuntimeClassName, SchedulingGroup: s.SchedulingGroup,
	}
	for _, list := range [][]corev1.Container{s.Containers, s.InitContainers} {
		for i, c := range list {
			list[i] = corev1.Container{Name: c.Name, Image: c.Image, Ports: c.Ports, Resources: c.Resources, RestartPolicy: c.RestartPolicy}
		}
	}
	for i := range s.Volumes {
		v := &s.Volumes[i]
		v.HostPath, v.EmptyDir, v.Secret, v.DownwardAPI, v.ConfigMap, v.Projected = nil, nil, nil, nil, nil, nil
	}
	s.Volumes = slices.DeleteFunc(s.Volumes, func(v corev1.Volume) bool { return v.VolumeSource == corev1.VolumeSource{} })
	t := &p.Status
	*t = corev1.PodStatus{
		Phase: t.Phase, Conditions: t.Conditions, Message: t.Message, Reason: t.Reason, NominatedNodeName: t.NominatedNodeName,
		PodIP: t.PodIP, StartTime: t.StartTime, ContainerStatuses: t.ContainerStatuses, InitContainerStatuses: t.InitContainerStatuses,
		ResourceClaimStatuses: t.ResourceClaimStatuses, ExtendedResourceClaimStatus: t.ExtendedResourceClaimStatus,
		AllocatedResources: t.AllocatedResources, Resources: t.Resources, NodeAllocatableResourceClaimStatuses: t.NodeAllocatableResourceClaimStatuses,
	}
	for _, list := range [][]corev1.ContainerStatus{t.ContainerStatuses, t.InitContainerStatuses} {
		for i, c := range list {
			list[i] = corev1.ContainerStatus{Name: c.Name, State: c.State, Ready: c.Ready, RestartCount: c.RestartCount,
				AllocatedResources: c.AllocatedResources, Resources: c.Resources}
		}
	}
}

// TestLeanPodsAreTheWholeOnesInPart compares pods of random content with the result of the default
// decoder, without the dropped fields.
func TestLeanPodsAreTheWholeOnesInPart(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	fill := fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(seed), scheme.Codecs).NilChance(0.3).NumElements(0, 3)
	for range 300 {
		pod := &corev1.Pod{}
		fill.Fill(pod)
		raw, err := pod.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		whole := &corev1.Pod{}
		if err := whole.Unmarshal(raw); err != nil {
			t.Fatal(err)
		}
		without(whole)
		before := slices.Clone(raw)
		lean, err := DecodeTrimmedPod(raw)
		if err != nil || !slices.Equal(before, raw) {
			t.Fatalf("%v; the input changed: %t", err, !slices.Equal(before, raw))
		}
		if !equality.Semantic.DeepEqual(whole, lean) {
			t.Fatalf("got\n%v\nwant\n%v", lean, whole)
		}
		again, err := DecodeTrimmedPod(raw)
		if err != nil || !equality.Semantic.DeepEqual(whole, again) {
			t.Fatalf("the second time %v:\n%v\nwant\n%v", err, again, whole)
		}
	}
}

func TestPodsOfOneOriginShareTheirSpec(t *testing.T) {
	pod := func(name, node, image string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
			NodeName: node, Containers: []corev1.Container{{Name: "main", Image: image, Args: []string{name}}},
			Volumes: []corev1.Volume{{Name: "token-" + name, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}}},
		}}
		raw, err := p.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		lean, err := DecodeTrimmedPod(raw)
		if err != nil {
			t.Fatal(err)
		}
		return lean
	}
	a, b, c := pod("a", "node-1", "one"), pod("b", "node-2", "one"), pod("c", "node-2", "two")
	if &a.Spec.Containers[0] != &b.Spec.Containers[0] || a.Spec.NodeName != "node-1" || b.Spec.NodeName != "node-2" {
		t.Errorf("two pods that are alike do not share what they have in common:\n%v\n%v", a.Spec, b.Spec)
	}
	if c.Spec.Containers[0].Image != "two" || c.Name != "c" || len(c.Spec.Volumes) != 0 {
		t.Errorf("another pod: %v", c)
	}
	for i := range 3 * specsMax {
		image := strconv.Itoa(i)
		if p := pod("x", "n", image); p.Spec.Containers[0].Image != image {
			t.Fatalf("%d: %v", i, p)
		}
	}
	if n := len(specs.specs); n > specsMax {
		t.Errorf("%d specs are known", n)
	}
}

func TestLeanDecodingOfWhatIsNoPod(t *testing.T) {
	whole := codecsOf(scheme.Scheme)
	media := whole.media[slices.IndexFunc(whole.media, func(i kruntime.SerializerInfo) bool { return i.MediaType == protobufType })].Serializer
	lean := trimmedPods{media}
	encoded := func(o kruntime.Object) []byte {
		var b bytes.Buffer
		if err := media.Encode(o, &b); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "p", GenerateName: "x"}}
	node := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "n", GenerateName: "x"}}
	status := &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Reason: metav1.StatusReasonConflict}
	cut := encoded(pod)
	for name, data := range map[string][]byte{
		"a node": encoded(node), "a refusal": encoded(status), "nothing": nil, "only an envelope": envelope, "JSON": []byte(`{"kind":"Pod","apiVersion":"v1"}`),
		"a pod that is cut off": cut[:len(cut)-9], "a pod that is cut off in its envelope": cut[:7],
	} {
		want, wantKind, wantErr := media.Decode(data, nil, nil)
		got, kind, err := lean.Decode(data, nil, nil)
		if (err == nil) != (wantErr == nil) || !reflect.DeepEqual(kind, wantKind) || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v %v %v; want %v %v %v", name, got, kind, err, want, wantKind, wantErr)
		}
	}
	got, kind, err := lean.Decode(encoded(pod), nil, nil)
	if p, ok := got.(*corev1.Pod); err != nil || !ok || p.Name != "p" || p.GenerateName != "" || *kind != (schema.GroupVersionKind{Version: "v1", Kind: "Pod"}) {
		t.Errorf("a pod: %v %v %v", got, kind, err)
	}
	into := &corev1.Pod{}
	if _, _, err := lean.Decode(encoded(pod), nil, into); err != nil || into.GenerateName != "x" {
		t.Errorf("a pod to be decoded into one that is given is not whole: %v %v", into, err)
	}
}

// FuzzLeanPod checks that input that no server sends causes an error and nothing worse.
func FuzzLeanPod(f *testing.F) {
	f.Add([]byte{0x0a, 0x03, 0x0a, 0x01, 'p'})
	f.Fuzz(func(t *testing.T, raw []byte) {
		lean, err := DecodeTrimmedPod(raw)
		if whole := new(corev1.Pod); err == nil && whole.Unmarshal(raw) == nil && lean.Name != whole.Name {
			t.Errorf("%q is %q", whole.Name, lean.Name)
		}
	})
}

func BenchmarkLeanPod(b *testing.B) {
	raw, err := typicalPod().Marshal()
	if err != nil {
		b.Fatal(err)
	}
	for name, decode := range map[string]func() error{
		"lean":  func() error { _, err := DecodeTrimmedPod(raw); return err },
		"whole": func() error { return new(corev1.Pod).Unmarshal(raw) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := decode(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// typicalPod returns a running pod of a workflow, as a server has it.
func typicalPod() *corev1.Pod {
	now := metav1.Unix(1e9, 0)
	managed := metav1.ManagedFieldsEntry{Manager: "lockstep", Operation: "Update", APIVersion: "v1", Time: &now, FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(strings.Repeat(`{"f:metadata":{"f:annotations":{".":{}}}}`, 20))}
	mount := corev1.VolumeMount{Name: "kube-api-access-abcde", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "hello-1234567890", Namespace: "bench", UID: "01234567-89ab-cdef-0123-456789abcdef", ResourceVersion: "123456",
			CreationTimestamp: now, Labels: map[string]string{"workflows.argoproj.io/workflow": "hello", "workflows.argoproj.io/completed": "false"},
			Annotations:     map[string]string{"workflows.argoproj.io/node-id": "hello", "workflows.argoproj.io/node-name": "hello", "lockstep.dev/sim-duration": "1s"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "argoproj.io/v1alpha1", Kind: "Workflow", Name: "hello", UID: "fedcba98-89ab-cdef-0123-456789abcdef"}},
			ManagedFields:   []metav1.ManagedFieldsEntry{managed, managed}},
		Spec: corev1.PodSpec{NodeName: "node-1", RestartPolicy: "Never", ServiceAccountName: "default", DeprecatedServiceAccount: "default", SchedulerName: "lockstep",
			SecurityContext: &corev1.PodSecurityContext{}, DNSPolicy: "ClusterFirst",
			Tolerations: []corev1.Toleration{{Key: "node.kubernetes.io/not-ready", Operator: "Exists", Effect: "NoExecute"}, {Key: "node.kubernetes.io/unreachable", Operator: "Exists", Effect: "NoExecute"}},
			Volumes: []corev1.Volume{{Name: mount.Name, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
				{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}, Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}}},
			}}}}},
			Containers: []corev1.Container{{Name: "main", Image: "busybox", Command: []string{"/lockstep/exec", "run"}, Args: []string{"echo", "hello"},
				Env: []corev1.EnvVar{{Name: "A", Value: "b"}, {Name: "C", Value: "d"}}, VolumeMounts: []corev1.VolumeMount{mount},
				TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: "File", ImagePullPolicy: "Always"}},
		},
		Status: corev1.PodStatus{Phase: "Running", StartTime: &now, HostIP: "10.0.0.1", PodIP: "10.64.0.1", QOSClass: "BestEffort",
			PodIPs: []corev1.PodIP{{IP: "10.64.0.1"}}, HostIPs: []corev1.HostIP{{IP: "10.0.0.1"}},
			Conditions: []corev1.PodCondition{{Type: "Initialized", Status: "True", LastTransitionTime: now}, {Type: "Ready", Status: "True", LastTransitionTime: now},
				{Type: "ContainersReady", Status: "True", LastTransitionTime: now}, {Type: "PodScheduled", Status: "True", LastTransitionTime: now}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "main", Ready: true, Image: "busybox", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}}}},
	}
}

func TestEventsOfWatchesInProtobuf(t *testing.T) {
	info, _ := kruntime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), kruntime.ContentTypeProtobuf)
	usual := info.StreamSerializer.Serializer
	for about, want := range map[string]*metav1.WatchEvent{
		"an event":        {Type: "ADDED", Object: kruntime.RawExtension{Raw: []byte("k8s\x00 and what follows")}},
		"without objects": {Type: "BOOKMARK"},
		"empty":           {},
	} {
		var data bytes.Buffer
		if err := usual.Encode(want, &data); err != nil {
			t.Fatal(err)
		}
		got := &metav1.WatchEvent{Type: "old", Object: kruntime.RawExtension{Raw: []byte("old")}}
		out, _, err := protobufEvents{usual}.Decode(data.Bytes(), nil, got)
		if err != nil || out != kruntime.Object(got) || got.Type != want.Type || !bytes.Equal(got.Object.Raw, want.Object.Raw) {
			t.Errorf("%s: %+v, %v", about, got, err)
		}
	}
	if _, _, err := (protobufEvents{usual}).Decode([]byte{0xff}, nil, &metav1.WatchEvent{}); err == nil {
		t.Error("what is no message is decoded")
	}
}
