package place

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func always() *corev1.ContainerRestartPolicy {
	p := corev1.ContainerRestartPolicyAlways
	return &p
}

func TestPodVector(t *testing.T) {
	cpus := func(n string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Requests: list("cpu", n, "memory", "1Gi")}
	}
	for name, tc := range map[string]struct {
		change            func(*corev1.PodSpec)
		request, nonZeros string
	}{
		"containers add up": {func(s *corev1.PodSpec) {
			s.Containers = []corev1.Container{{Resources: cpus("1")}, {Resources: cpus("500m")}}
		}, "1500m", "1500m"},
		"an init container counts when it asks for more than the containers": {func(s *corev1.PodSpec) {
			s.Containers = []corev1.Container{{Resources: cpus("1")}}
			s.InitContainers = []corev1.Container{{Resources: cpus("3")}, {Resources: cpus("2")}}
		}, "3", "3"},
		"a sidecar runs beside the containers": {func(s *corev1.PodSpec) {
			s.Containers = []corev1.Container{{Resources: cpus("1")}}
			s.InitContainers = []corev1.Container{{Resources: cpus("2"), RestartPolicy: always()}}
		}, "3", "3"},
		"a sidecar runs beside the init containers after it": {func(s *corev1.PodSpec) {
			s.Containers = []corev1.Container{{Resources: cpus("1")}}
			s.InitContainers = []corev1.Container{{Resources: cpus("2"), RestartPolicy: always()}, {Resources: cpus("4")}}
		}, "6", "6"},
		"overhead is added": {func(s *corev1.PodSpec) {
			s.Containers = []corev1.Container{{Resources: cpus("1")}}
			s.Overhead = list("cpu", "250m")
		}, "1250m", "1250m"},
		"a request of the pod replaces those of its containers": {func(s *corev1.PodSpec) {
			s.Containers = []corev1.Container{{Resources: cpus("1")}}
			s.Resources = &corev1.ResourceRequirements{Requests: list("cpu", "5")}
		}, "5", "5"},
		"no request counts as a default in scores": {func(s *corev1.PodSpec) {
			s.Containers = []corev1.Container{{}, {Resources: cpus("1")}}
		}, "1", "1100m"},
		"an explicit zero is not a missing request": {func(s *corev1.PodSpec) {
			s.Containers = []corev1.Container{{Resources: cpus("0")}}
		}, "0", "0"},
	} {
		t.Run(name, func(t *testing.T) {
			p := &corev1.Pod{}
			tc.change(&p.Spec)
			request, nonZero := NewDims().PodVector(p)
			want, wantNonZero := resource.MustParse(tc.request), resource.MustParse(tc.nonZeros)
			if request[CPU] != want.MilliValue() || nonZero[CPU] != wantNonZero.MilliValue() || request[Pods] != 1 {
				t.Errorf("request %v, nonzero %v; want cpu %s and %s", request, nonZero, tc.request, tc.nonZeros)
			}
		})
	}
}

func TestDimsNumberResources(t *testing.T) {
	d := NewDims()
	v := d.Vector(list("example.com/gpu", "2", "cpu", "1500m", "memory", "1Ki", "hugepages-2Mi", "4Mi", "storage", "1Gi"))
	if diff := cmp.Diff(Vector{1500, 1024, 0, 0, 2, 4 << 20}, v); diff != "" {
		t.Error("vector (-want +got):", diff)
	}
	if diff := cmp.Diff(list("example.com/gpu", "2", "cpu", "1500m", "memory", "1Ki", "hugepages-2Mi", "4Mi"), d.List(v)); diff != "" {
		t.Error("list (-want +got):", diff)
	}
	if _, ok := d.Lookup("storage"); ok {
		t.Error("storage is a volume's, not a node's")
	}
}

// TestStandings checks which nodes take a pod by their zones and their use.
func TestStandings(t *testing.T) {
	for sentence, tc := range map[string]struct {
		annotations map[string]string
		standing    Standing
		refused     string
	}{
		"an ordinary node":                     {},
		"a zone and a pod that says nothing":   {standing: Standing{Zone: "a"}, refused: RefusedZone},
		"a zone and a pod that allows it":      {zone("a"), Standing{Zone: "a"}, ""},
		"a zone and a pod that allows all":     {zone("*"), Standing{Zone: "a"}, ""},
		"a zone and a pod of several":          {zone("b,a"), Standing{Zone: "a"}, ""},
		"a zone and a pod of another":          {zone("ab"), Standing{Zone: "a"}, RefusedZone},
		"a closed zone":                        {zone("a"), Standing{Zone: "a", Closed: true}, RefusedClosed},
		"a node that is used too much":         {nil, Standing{Overused: true}, RefusedOverused},
		"a pod that allows zones, on any node": {zone("a"), Standing{}, ""},
	} {
		t.Run(sentence, func(t *testing.T) {
			p := pod("cpu", "1")
			p.Annotations = tc.annotations
			dims := NewDims()
			s := NewSnapshot(dims)
			s.Set(Node{Name: "n", Allocatable: dims.Vector(list("cpu", "4", "pods", "10")), Standing: tc.standing})
			class, err := NewClass(dims, p)
			if err != nil {
				t.Fatal(err)
			}
			d := NewPlacer(s, Options{}).Place(Gang{Key: "g", MinMember: 1, Demands: []Demand{{Class: class, Count: 1}}})
			switch {
			case tc.refused == "" && d.Shortage != nil:
				t.Errorf("refused: %v", d.Shortage.Rejected)
			case tc.refused != "" && (d.Shortage == nil || d.Shortage.Rejected[tc.refused] != 1):
				t.Errorf("%+v, want %q", d.Shortage, tc.refused)
			}
		})
	}
}

func zone(value string) map[string]string {
	return map[string]string{"volcano.sh/revocable-zone": value}
}

// TestStandingsCount checks that nodes of zones and nodes with points are preferred, and that a change
// of a standing alone is followed.
func TestStandingsCount(t *testing.T) {
	dims := NewDims()
	s := NewSnapshot(dims)
	node := func(name string, standing Standing) {
		s.Set(Node{Name: name, Allocatable: dims.Vector(list("cpu", "4", "memory", "4Gi", "pods", "10")), Standing: standing})
	}
	p := pod("cpu", "1")
	p.Annotations = zone("a")
	class, err := NewClass(dims, p)
	if err != nil {
		t.Fatal(err)
	}
	placer := NewPlacer(s, Options{})
	for _, tc := range []struct {
		a, b Standing
		want string
	}{
		{Standing{Zone: "a"}, Standing{}, "a"},
		{Standing{}, Standing{Zone: "a"}, "b"},
		{Standing{Score: 300}, Standing{Score: 200}, "a"},
		{Standing{Score: 100}, Standing{Score: 200}, "b"},
		{Standing{Score: 100, Overused: true}, Standing{}, "b"},
	} {
		node("a", tc.a)
		node("b", tc.b)
		gang := Gang{Key: "g", MinMember: 1, Demands: []Demand{{Class: class, Count: 1}}}
		d := placer.Place(gang)
		if d.Shortage != nil {
			t.Fatal(d.Shortage)
		}
		if got := s.Node(d.Placed[0][0]).Name; got != tc.want {
			t.Errorf("%+v, %+v: the pod is on %s", tc.a, tc.b, got)
		}
		placer.Undo(gang, d)
	}
}

// TestFilters checks whether one pod goes to one node and, if not, which filter refuses it.
func TestFilters(t *testing.T) {
	taint := func(effect corev1.TaintEffect) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "team", Value: "a", Effect: effect}} }
	}
	tolerate := func(ts ...corev1.Toleration) func(*corev1.PodSpec) {
		return func(s *corev1.PodSpec) { s.Tolerations = ts }
	}
	cordon := func(n *corev1.Node) { n.Spec.Unschedulable = true }
	label := func(n *corev1.Node) { n.Labels = map[string]string{"zone": "z1", "cores": "8"} }
	require := func(terms ...corev1.NodeSelectorTerm) func(*corev1.PodSpec) {
		return func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
		}
	}
	match := func(key string, op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: op, Values: values}}}
	}
	field := func(op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: op, Values: values}}}
	}
	ask := func(pairs ...string) func(*corev1.PodSpec) {
		return func(s *corev1.PodSpec) { s.Containers[0].Resources.Requests = list(pairs...) }
	}
	for name, tc := range map[string]struct {
		node    func(*corev1.Node)
		pod     func(*corev1.PodSpec)
		refused string
	}{
		"a pod that asks for nothing fits":                  {},
		"all of a node may be asked for":                    {pod: ask("cpu", "4", "memory", "8Gi")},
		"more cpu than there is":                            {pod: ask("cpu", "4001m"), refused: "Insufficient cpu"},
		"more memory than there is":                         {pod: ask("memory", "8193Mi"), refused: "Insufficient memory"},
		"ephemeral storage that the node does not report":   {pod: ask("ephemeral-storage", "1"), refused: "Insufficient ephemeral-storage"},
		"an extended resource that the node has":            {pod: ask("example.com/gpu", "2")},
		"more of an extended resource than there is":        {pod: ask("example.com/gpu", "3"), refused: "Insufficient example.com/gpu"},
		"an extended resource no node has":                  {pod: ask("example.com/fpga", "1"), refused: "Insufficient example.com/fpga"},
		"none of an extended resource no node has":          {pod: ask("example.com/fpga", "0")},
		"huge pages that the node does not have":            {pod: ask("hugepages-2Mi", "2Mi"), refused: "Insufficient hugepages-2Mi"},
		"a node that takes no pods":                         {node: func(n *corev1.Node) { n.Status.Allocatable["pods"] = resource.MustParse("0") }, refused: "Too many pods"},
		"a cordoned node":                                   {node: cordon, refused: RefusedUnschedulable},
		"a cordoned node, tolerated":                        {node: cordon, pod: tolerate(corev1.Toleration{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists})},
		"a cordoned node, everything tolerated":             {node: cordon, pod: tolerate(corev1.Toleration{Operator: corev1.TolerationOpExists})},
		"the node that the template names":                  {pod: func(s *corev1.PodSpec) { s.NodeName = "n" }},
		"another node than the template names":              {pod: func(s *corev1.PodSpec) { s.NodeName = "m" }, refused: RefusedName},
		"taint NoSchedule":                                  {node: taint("NoSchedule"), refused: RefusedTaint},
		"taint NoExecute":                                   {node: taint("NoExecute"), refused: RefusedTaint},
		"taint PreferNoSchedule does not refuse":            {node: taint("PreferNoSchedule")},
		"a toleration of key and value":                     {node: taint("NoSchedule"), pod: tolerate(corev1.Toleration{Key: "team", Value: "a"})},
		"a toleration of another value":                     {node: taint("NoSchedule"), pod: tolerate(corev1.Toleration{Key: "team", Value: "b"}), refused: RefusedTaint},
		"a toleration of another effect":                    {node: taint("NoExecute"), pod: tolerate(corev1.Toleration{Key: "team", Value: "a", Effect: "NoSchedule"}), refused: RefusedTaint},
		"a toleration that the key exists":                  {node: taint("NoExecute"), pod: tolerate(corev1.Toleration{Key: "team", Operator: "Exists", Effect: "NoExecute"})},
		"a toleration by comparison is off by default":      {node: taint("NoSchedule"), pod: tolerate(corev1.Toleration{Key: "team", Operator: "Gt", Value: "1"}), refused: RefusedTaint},
		"a selector that matches":                           {node: label, pod: func(s *corev1.PodSpec) { s.NodeSelector = map[string]string{"zone": "z1"} }},
		"a selector that does not match":                    {node: label, pod: func(s *corev1.PodSpec) { s.NodeSelector = map[string]string{"zone": "z1", "disk": "ssd"} }, refused: RefusedAffinity},
		"affinity: value in set":                            {node: label, pod: require(match("zone", "In", "z0", "z1"))},
		"affinity: value not in set":                        {node: label, pod: require(match("zone", "NotIn", "z1")), refused: RefusedAffinity},
		"affinity: a label that is missing is not in set":   {node: label, pod: require(match("disk", "NotIn", "ssd"))},
		"affinity: numbers compare":                         {node: label, pod: require(match("cores", "Gt", "7"))},
		"affinity: one of several terms suffices":           {node: label, pod: require(match("zone", "In", "z9"), match("cores", "Exists"))},
		"affinity: an empty term matches nothing":           {node: label, pod: require(corev1.NodeSelectorTerm{}), refused: RefusedAffinity},
		"affinity: a term that does not parse matches none": {node: label, pod: require(match("zone", "Like", "z1")), refused: RefusedAffinity},
		"affinity: by the node's name":                      {pod: require(field("In", "n"))},
		"affinity: by another node's name":                  {pod: require(field("In", "m")), refused: RefusedAffinity},
		"affinity: not by the node's name":                  {pod: require(field("NotIn", "n")), refused: RefusedAffinity},
		"the first filter that refuses is told: cordon":     {node: cordon, pod: func(s *corev1.PodSpec) { s.NodeName = "m" }, refused: RefusedUnschedulable},
		"the first filter that refuses is told: taint":      {node: taint("NoSchedule"), pod: require(field("In", "m")), refused: RefusedTaint},
		"selector and affinity must both match": {node: label, pod: func(s *corev1.PodSpec) {
			require(match("cores", "Exists"))(s)
			s.NodeSelector = map[string]string{"zone": "z2"}
		}, refused: RefusedAffinity},
		"pod affinity without a filter for it fits nowhere": {pod: func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: make([]corev1.PodAffinityTerm, 1)}}
		}, refused: RefusedUnsupported},
		"preferred pod affinity refuses no node": {pod: func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
				PreferredDuringSchedulingIgnoredDuringExecution: make([]corev1.WeightedPodAffinityTerm, 1)}}
		}},
		"topology spread without a filter for it fits none": {pod: func(s *corev1.PodSpec) { s.TopologySpreadConstraints = make([]corev1.TopologySpreadConstraint, 1) }, refused: RefusedUnsupported},
		"a volume claim without a filter for it fits none":  {pod: volume(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}), refused: RefusedUnsupported},
		"volumes that any node can mount need no filter":    {pod: volume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			o := c.node("n", "cpu", "4", "memory", "8Gi", "example.com/gpu", "2")
			if tc.node != nil {
				tc.node(o)
				c.set(o)
			}
			p := pod()
			if tc.pod != nil {
				tc.pod(&p.Spec)
			}
			d := Place(c.Snapshot, c.gang(1, p), Options{})
			switch {
			case tc.refused == "" && d.Shortage != nil:
				t.Errorf("refused: %s", d.Shortage.Detail())
			case tc.refused == "":
			case d.Shortage == nil:
				t.Errorf("placed, though %s", tc.refused)
			default:
				if diff := cmp.Diff(map[string]int{tc.refused: 1}, d.Shortage.Rejected); diff != "" {
					t.Error("rejected (-want +got):", diff)
				}
			}
		})
	}
}

func volume(v corev1.VolumeSource) func(*corev1.PodSpec) {
	return func(s *corev1.PodSpec) { s.Volumes = []corev1.Volume{{VolumeSource: v}} }
}

func TestHostPorts(t *testing.T) {
	port := func(ip string, protocol corev1.Protocol, n int32) HostPort {
		return HostPort{IP: ip, Protocol: protocol, Port: n}
	}
	for name, tc := range map[string]struct {
		taken, wanted HostPort
		conflict      bool
	}{
		"the same port":                    {port("", "TCP", 80), port("", "TCP", 80), true},
		"another port":                     {port("", "TCP", 80), port("", "TCP", 81), false},
		"another protocol":                 {port("", "TCP", 53), port("", "UDP", 53), false},
		"no protocol is TCP":               {port("", "TCP", 80), port("", "", 80), true},
		"0.0.0.0 is all addresses":         {port("0.0.0.0", "TCP", 80), port("", "TCP", 80), true},
		"all addresses overlap with one":   {port("", "TCP", 80), port("10.0.0.1", "TCP", 80), true},
		"one address overlaps with all":    {port("10.0.0.1", "TCP", 80), port("0.0.0.0", "TCP", 80), true},
		"two addresses do not overlap":     {port("10.0.0.1", "TCP", 80), port("10.0.0.2", "TCP", 80), false},
		"one address overlaps with itself": {port("10.0.0.1", "TCP", 80), port("10.0.0.1", "TCP", 80), true},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster().uniform(1, "cpu", "4")
			place := func(p HostPort) Decision {
				o := pod()
				o.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostIP: p.IP, Protocol: p.Protocol, HostPort: p.Port}}
				return Place(c.Snapshot, c.gang(1, o), Options{})
			}
			if d := place(tc.taken); d.Shortage != nil {
				t.Fatal(d.Shortage.Detail())
			}
			d := place(tc.wanted)
			if got := d.Shortage != nil; got != tc.conflict {
				t.Errorf("conflict %v, want %v", got, tc.conflict)
			}
			if tc.conflict && d.Shortage.Rejected[RefusedPorts] != 1 {
				t.Errorf("rejected %v", d.Shortage.Rejected)
			}
		})
	}
}

func TestPodsWithAHostPortGoToDifferentNodes(t *testing.T) {
	c := newCluster().uniform(3, "cpu", "4")
	p := pod("cpu", "1")
	p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}}
	placer := NewPlacer(c.Snapshot, Options{Strategy: MostAllocated})
	if d := placer.Place(c.gang(4, p)); d.Shortage == nil || d.Shortage.Fit != 3 {
		t.Errorf("4 pods on 3 nodes: %+v", d)
	}
	d := placer.Place(c.gang(3, p))
	if d.Shortage != nil || d.Placed[0][0] == d.Placed[0][1] || d.Placed[0][1] == d.Placed[0][2] || d.Placed[0][0] == d.Placed[0][2] {
		t.Errorf("3 pods on 3 nodes: %+v", d)
	}
	if err := placer.AssertConsistent(); err != nil {
		t.Error(err)
	}
	placer.Undo(c.gang(3, p), d)
	if c.Node(0).Ports != nil {
		t.Error("ports held after undo:", c.Node(0).Ports)
	}
}

func TestOnlyPortsHeldWhileRunningCount(t *testing.T) {
	port := []corev1.ContainerPort{{HostPort: 80}, {ContainerPort: 8080}}
	p := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Ports: []corev1.ContainerPort{{HostPort: 1}}}, {Ports: []corev1.ContainerPort{{HostPort: 2}}, RestartPolicy: always()}},
		Containers:     []corev1.Container{{Ports: port}},
	}}
	want := []HostPort{{Protocol: "TCP", Port: 2}, {Protocol: "TCP", Port: 80}}
	if diff := cmp.Diff(want, PodPorts(p)); diff != "" {
		t.Error("ports (-want +got):", diff)
	}
}

func TestAPreferenceThatDoesNotParseIsAnError(t *testing.T) {
	p := pod()
	p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{
		{Weight: 1, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "a", Operator: "Like"}}}}}}}
	if _, err := NewClass(NewDims(), p); err == nil {
		t.Error("no error")
	}
}

func TestEqualTemplatesShareAClassKey(t *testing.T) {
	d := NewDims()
	key := func(change func(*corev1.Pod)) string {
		p := pod("cpu", "1")
		p.ObjectMeta = metav1.ObjectMeta{Labels: map[string]string{"job": "a"}}
		p.Spec.NodeSelector = map[string]string{"a": "1", "b": "2"}
		change(p)
		c, err := NewClass(d, p)
		if err != nil {
			t.Fatal(err)
		}
		return c.key
	}
	same := key(func(*corev1.Pod) {})
	d.Vector(list("example.com/late", "1")) // a longer vector is the same request
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		equal  bool
	}{
		"labels and image do not matter": {func(p *corev1.Pod) { p.Labels = nil; p.Spec.Containers[0].Image = "x" }, true},
		"the request matters":            {func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = list("cpu", "2") }, false},
		"the selector matters":           {func(p *corev1.Pod) { p.Spec.NodeSelector["b"] = "3" }, false},
		"tolerations matter":             {func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Key: "x"}} }, false},
		"host ports matter":              {func(p *corev1.Pod) { p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 1}} }, false},
		"the node name matters":          {func(p *corev1.Pod) { p.Spec.NodeName = "n" }, false},
	} {
		if got := key(tc.change) == same; got != tc.equal {
			t.Errorf("%s: equal %v", name, got)
		}
	}
}
