package request

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/machines"
)

// pod builds a pod from "key=value" annotations (a key with prefix "label:" is a label) and
// containers "name:limit", "name::request" or "init/name:limit".
func pod(marks []string, containers ...string) *corev1.Pod {
	p := &corev1.Pod{}
	p.Annotations, p.Labels = map[string]string{}, map[string]string{}
	for _, m := range marks {
		k, v, _ := strings.Cut(m, "=")
		if l, ok := strings.CutPrefix(k, "label:"); ok {
			p.Labels[l] = v
		} else {
			p.Annotations[k] = v
		}
	}
	for _, s := range containers {
		f := append(strings.Split(s, ":"), "", "")
		name, init := strings.CutPrefix(f[0], "init/")
		c := corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{}, Requests: corev1.ResourceList{}}}
		if f[1] != "" {
			c.Resources.Limits[corev1.ResourceCPU] = resource.MustParse(f[1])
		}
		if f[2] != "" {
			c.Resources.Requests[corev1.ResourceCPU] = resource.MustParse(f[2])
		}
		if init {
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		} else {
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
	}
	return p
}

var koordProd = []string{"label:koordinator.sh/qosClass=LSR", "label:koordinator.sh/priority-class=koord-prod"}

// guaranteedPod returns a Guaranteed pod with a policy of Volcano.
func guaranteedPod(policy string, containers ...string) *corev1.Pod {
	p := pod([]string{VolcanoNUMA + "=" + policy}, containers...)
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			r := &list[i].Resources
			r.Limits[corev1.ResourceMemory] = resource.MustParse("1Mi")
			r.Requests = r.Limits
		}
	}
	return p
}

func TestParse(t *testing.T) {
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want *Pod
	}{
		"a pod that asks for nothing": {pod(nil, "a:4"), nil},
		"ACK binds limits.cpu CPUs, not requests.cpu": {pod([]string{"cpuset-scheduler=true"}, "a:4:1"),
			&Pod{Language: ACK, Containers: []Container{{Name: "a", CPUs: 4}}}},
		"ACK's static-burst": {pod([]string{"cpuset-scheduler=true", "cpu-policy=static-burst"}, "a:4000m"),
			&Pod{Language: ACK, Containers: []Container{{Name: "a", CPUs: 4, Policy: Policy{Burst: true}}}}},
		"ACK leaves containers without a limit alone": {pod([]string{"cpuset-scheduler=true"}, "init/i:2", "a:4", "side"),
			&Pod{Language: ACK, Containers: []Container{{Name: "i", CPUs: 2, Init: true}, {Name: "a", CPUs: 4}}}},
		"ACK leaves a sidecar without a whole limit alone": {pod([]string{"cpuset-scheduler=true"}, "init/i:250m", "a:4", "log:500m", "idle:0"),
			&Pod{Language: ACK, Containers: []Container{{Name: "a", CPUs: 4}}}},
		"ACK switched off": {pod([]string{"cpuset-scheduler=false"}, "a:4"), nil},
		"Koordinator's LSR prefers full cores": {pod(koordProd, "a:8:4"),
			&Pod{Language: Koordinator, PodWide: true, Containers: []Container{{Name: "a", CPUs: 4, Policy: Policy{Share: 1, Bind: FullCore, Prefer: BindField}}}}},
		"Koordinator's required spread and exclusive cores": {
			pod(append(koordProd, `scheduling.koordinator.sh/resource-spec={"requiredCPUBindPolicy":"SpreadByPCPUs","preferredCPUExclusivePolicy":"PCPULevel"}`,
				`scheduling.koordinator.sh/numa-topology-spec={"numaTopologyPolicy":"SingleNUMANode"}`), "a::4"),
			&Pod{Language: Koordinator, PodWide: true, NUMAPolicy: "SingleNUMANode", Containers: []Container{{Name: "a", CPUs: 4,
				Policy: Policy{Share: 1, Bind: Spread, Isolation: IsolateCore, Span: SingleNUMA, Prefer: IsolationField}}}}},
		"Volcano's policies": {guaranteedPod("single-numa-node", "init/i:2", "a:4", "log:500m"),
			&Pod{Language: Volcano, Containers: []Container{
				{Name: "i", CPUs: 2, Init: true, MemoryBytes: 1 << 20, Policy: Policy{Share: 1, Span: SingleNUMA}},
				{Name: "a", CPUs: 4, MemoryBytes: 1 << 20, Policy: Policy{Share: 1, Span: SingleNUMA}}}}},
		"Volcano's restricted": {guaranteedPod("restricted", "a:4"), &Pod{Language: Volcano,
			Containers: []Container{{Name: "a", CPUs: 4, MemoryBytes: 1 << 20, Policy: Policy{Share: 1, Span: FewestNUMA}}}}},
		"Volcano's best-effort": {guaranteedPod("best-effort", "a:4"), &Pod{Language: Volcano,
			Containers: []Container{{Name: "a", CPUs: 4, MemoryBytes: 1 << 20, Policy: Policy{Share: 1}}}}},
		"Volcano's none": {guaranteedPod("none", "a:4"), nil},
		"Volcano pins no pods that are Burstable":   {pod([]string{VolcanoNUMA + "=restricted"}, "a:4"), nil},
		"Volcano pins no containers with fractions": {guaranteedPod("restricted", "a:500m"), nil},
		"Koordinator's LS class is not pinned":      {pod([]string{"label:koordinator.sh/qosClass=LS"}, "a:4"), nil},
		"Lockstep's short form": {pod([]string{"cpu.lockstep.dev/request=true"}, "a:4"),
			&Pod{Language: Lockstep, Containers: []Container{{Name: "a", CPUs: 4, Policy: Policy{Share: 1}}}}},
		"Lockstep's performance cores": {pod([]string{"cpu.lockstep.dev/request={cores: performance, prefer: [cores], containers: {b: {cores: efficient, prefer: []}}}"}, "a:4", "b:1"),
			&Pod{Language: Lockstep, Containers: []Container{{Name: "a", CPUs: 4, Policy: Policy{Share: 1, Cores: PerformanceCores, Prefer: CoresField}},
				{Name: "b", CPUs: 1, Policy: Policy{Share: 1, Cores: EfficientCores}}}}},
		"Lockstep's long form, per container": {
			pod([]string{`cpu.lockstep.dev/request={bind: full-core, span: single-numa, memory: prefer, prefer: [span], containers: {log: {pin: false}, web: {burst: true, bind: any}}}`}, "a:4", "log:100m", "web:2"),
			&Pod{Language: Lockstep, Containers: []Container{
				{Name: "a", CPUs: 4, Policy: Policy{Share: 1, Bind: FullCore, Span: SingleNUMA, Memory: PreferLocalMemory, Prefer: SpanField | MemoryField}},
				{Name: "web", CPUs: 2, Policy: Policy{Burst: true, Span: SingleNUMA, Memory: PreferLocalMemory, Prefer: SpanField | MemoryField}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(c.pod)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Fatal(diff)
			}
		})
	}
}

func TestWrongRequestsNameAnnotationAndField(t *testing.T) {
	req := func(s string) []string { return []string{LockstepRequest + "=" + s} }
	for name, c := range map[string]struct {
		pod                      *corev1.Pod
		annotation, field, about string
	}{
		"fractional CPUs only":           {pod([]string{"cpuset-scheduler=true"}, "a:1500m", "b:0"), ACKScheduler, "spec.containers", "whole limits.cpu"},
		"fractional CPUs in our form":    {pod(req("true"), "a:1500m"), LockstepRequest, "spec.containers[a].resources.limits.cpu", "whole number"},
		"zero CPUs":                      {pod(req("true"), "a:0"), LockstepRequest, "spec.containers[a].resources.limits.cpu", "from 1"},
		"no limit anywhere":              {pod([]string{"cpuset-scheduler=true"}, "a::1"), ACKScheduler, "spec.containers", "limits.cpu"},
		"a value that ACK does not know": {pod([]string{"cpuset-scheduler=yes"}, "a:1"), ACKScheduler, "", "unknown"},
		"ACK's CPU and GPU feature":      {pod([]string{"cpuset-scheduler=required"}, "a:1"), ACKScheduler, "", "GPU"},
		"a policy without the switch":    {pod([]string{"cpu-policy=static-burst"}, "a:1"), ACKPolicy, "", "needs the annotation"},
		"an unknown policy":              {pod([]string{"cpuset-scheduler=true", "cpu-policy=burst"}, "a:1"), ACKPolicy, "", "unknown"},
		"two languages":                  {pod([]string{"cpuset-scheduler=true", LockstepRequest + "=true"}, "a:1"), LockstepRequest, "", "combined"},
		"a policy that Volcano lacks":    {guaranteedPod("strict", "a:1"), VolcanoNUMA, "", "it is none, best-effort, restricted or single-numa-node"},
		"two languages, one Volcano's":   {pod([]string{VolcanoNUMA + "=restricted", LockstepRequest + "=true"}, "a:1"), VolcanoNUMA, "", LockstepRequest},
		"LSR without the priority":       {pod(koordProd[:1], "a::1"), KoordinatorQoS, "", "koord-prod"},
		"Koordinator fractional":         {pod(koordProd, "a::1.5"), KoordinatorQoS, "spec.containers[a].resources.requests.cpu", "whole"},
		"Koordinator ConstrainedBurst":   {pod(append(koordProd, KoordinatorSpec+`={"preferredCPUBindPolicy":"ConstrainedBurst"}`), "a::1"), KoordinatorSpec, "preferredCPUBindPolicy", "not implemented"},
		"Koordinator broken JSON":        {pod(append(koordProd, KoordinatorSpec+`={`), "a::1"), KoordinatorSpec, "", "JSON"},
		"an unknown field":               {pod(req("{bnd: l3}"), "a:1"), LockstepRequest, "", "bnd"},
		"an unknown value":               {pod(req("{bind: cores}"), "a:1"), LockstepRequest, "bind", "one of any, threads"},
		"an unknown container":           {pod(req("{containers: {b: {bind: l3}}}"), "a:1"), LockstepRequest, "containers.b", "no such container"},
		"isolation that is shared":       {pod(req("{isolation: l3, share: 2}"), "a:1"), LockstepRequest, "isolation", "share: 1"},
		"burst that is exclusive":        {pod(req("{burst: true, share: 1}"), "a:1"), LockstepRequest, "burst", "contradicts"},
		"burst on one kind of cores":     {pod(req("{burst: true, cores: performance}"), "a:1"), LockstepRequest, "burst", "all kinds of cores"},
		"an unknown kind of cores":       {pod(req("{cores: big}"), "a:1"), LockstepRequest, "cores", "one of any, performance, efficient"},
		"a share out of bounds":          {pod(req("{share: -1}"), "a:1"), LockstepRequest, "share", "outside"},
		"a container without a count":    {pod(req("{}"), "a"), LockstepRequest, "spec.containers[a].resources.limits.cpu", "missing"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(c.pod)
			var errs Errors
			if !errors.As(err, &errs) {
				t.Fatalf("got %v, want Errors", err)
			}
			if e := errs[0]; e.Annotation != c.annotation || e.Field != c.field || !strings.Contains(e.Problem, c.about) {
				t.Fatalf("got %q, want %s: %s: …%s…", e.Error(), c.annotation, c.field, c.about)
			}
		})
	}
}

func TestResultInEachLanguage(t *testing.T) {
	topo := machines.AMD256NPS4.MustTopology()
	r := Result{Node: "n1", Topology: topo.Hash(), Containers: map[string]ContainerResult{
		"nginx": {CPUs: cpuset.MustParse("0-1,16"), Share: 1},
		"init":  {CPUs: cpuset.MustParse("0"), Init: true, Shadow: true},
	}}
	ack, err := r.Annotations(ACK, topo, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"nginx":{"0":{"elems":{"0":{},"1":{}}},"1":{"elems":{"16":{}}}}}`; ack[ACKResult] != want {
		t.Errorf("ACK's form is %s, want %s", ack[ACKResult], want)
	}
	if back, err := ParseACKResult(ack[ACKResult]); err != nil || back["nginx"].String() != "0-1,16" {
		t.Errorf("ACK's form reads back as %v, %v", back, err)
	}
	koord, err := r.Annotations(Koordinator, topo, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"cpuset":"0-1,16"}`; koord[KoordinatorResult] != want {
		t.Errorf("Koordinator's form is %s, want %s", koord[KoordinatorResult], want)
	}
	back, err := ParseResult(ack[LockstepResult])
	if err != nil {
		t.Fatal(err)
	}
	r.Version = 1
	if diff := cmp.Diff(r, back, cmp.Comparer(func(a, b cpuset.Set) bool { return a.Equal(b) })); diff != "" {
		t.Error(diff)
	}
	for _, bad := range []string{"", "{", `{"v":2}`, `{"v":1,"containers":{"a":{"cpus":""}}}`, `{"v":1,"containers":{"a":{"cpus":"0-99999"}}}`} {
		if _, err := ParseResult(bad); err == nil {
			t.Errorf("ParseResult(%q) succeeded", bad)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("true", "static-burst", `{bind: l3}`, "LSR", `{"requiredCPUBindPolicy":"FullPCPUs"}`, "4")
	f.Fuzz(func(t *testing.T, scheduler, policy, own, qos, spec, limit string) {
		p := &corev1.Pod{}
		p.Annotations = map[string]string{}
		for k, v := range map[string]string{ACKScheduler: scheduler, ACKPolicy: policy, LockstepRequest: own, KoordinatorSpec: spec} {
			if v != "" {
				p.Annotations[k] = v
			}
		}
		p.Labels = map[string]string{KoordinatorQoS: qos, "koordinator.sh/priority-class": "koord-prod"}
		q, err := resource.ParseQuantity(limit)
		if err != nil {
			return
		}
		p.Spec.Containers = []corev1.Container{{Name: "a", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: q}}}}
		got, err := Parse(p)
		if err == nil && got != nil && got.Containers[0].CPUs < 1 {
			t.Fatalf("%+v has no CPUs", got)
		}
	})
}

// FuzzResults checks that arbitrary result annotations, which any user may write on a pod, are
// rejected, or survive being written and parsed again.
func FuzzResults(f *testing.F) {
	f.Add(`{"v":1,"node":"n","topology":"h","containers":{"a":{"cpus":"0-3","held":"0-7","mems":"0","share":1},"b":{"cpus":"8","init":true,"shadow":true}},"memory":{"0":1024}}`)
	f.Add(`{"nginx":{"0":{"elems":{"0":{},"1":{}}},"1":{"elems":{"64":{}}}}}`)
	f.Fuzz(func(t *testing.T, value string) {
		if r, err := ParseResult(value); err == nil {
			data, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			if len(data) > annotationBytesMax {
				return // accepted, and longer than the limit when written out in full
			}
			back, err := ParseResult(string(data))
			if err != nil {
				t.Fatalf("%q reads as %+v, and that not at all: %v", value, r, err)
			}
			if diff := cmp.Diff(r, back, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b cpuset.Set) bool { return a.Equal(b) })); diff != "" {
				t.Fatal(diff)
			}
		}
		if sets, err := ParseACKResult(value); err == nil {
			for _, s := range sets {
				if s.First() < -1 || s.Len() > cpuset.Max {
					t.Fatalf("%q gives %s", value, s)
				}
			}
		}
	})
}
