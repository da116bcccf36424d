package request

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNodesOfKoordinatorHavePolicies(t *testing.T) {
	const bind, numa = "node.koordinator.sh/cpu-bind-policy", "node.koordinator.sh/numa-topology-policy"
	spec := func(value string) []string { return append(koordProd[:2:2], KoordinatorSpec+"="+value) }
	full := Policy{Share: 1, Bind: FullCore}
	for name, c := range map[string]struct {
		marks  []string
		labels map[string]string
		want   Policy
		why    string
	}{
		"no label":                  {koordProd, nil, Policy{Share: 1, Bind: FullCore, Prefer: BindField}, ""},
		"whole cores only":          {koordProd, map[string]string{bind: "FullPCPUsOnly"}, full, ""},
		"spread":                    {koordProd, map[string]string{bind: "SpreadByPCPUs"}, Policy{Share: 1, Bind: Spread}, ""},
		"a label without effect":    {koordProd, map[string]string{bind: "None", numa: "BestEffort"}, Policy{Share: 1, Bind: FullCore, Prefer: BindField}, ""},
		"over what the pod prefers": {spec(`{"preferredCPUBindPolicy":"SpreadByPCPUs"}`), map[string]string{bind: "FullPCPUsOnly"}, full, ""},
		"as the pod requires":       {spec(`{"requiredCPUBindPolicy":"FullPCPUs"}`), map[string]string{bind: "FullPCPUsOnly"}, full, ""},
		"not as the pod requires":   {spec(`{"requiredCPUBindPolicy":"SpreadByPCPUs"}`), map[string]string{bind: "FullPCPUsOnly"}, Policy{}, "cpu-bind-policy"},
		"one NUMA node":             {koordProd, map[string]string{numa: "SingleNUMANode"}, Policy{Share: 1, Bind: FullCore, Prefer: BindField, Span: SingleNUMA}, ""},
		"another policy than the pod": {append(koordProd[:2:2], KoordinatorNUMASpec+`={"numaTopologyPolicy":"Restricted"}`),
			map[string]string{numa: "SingleNUMANode"}, Policy{}, "numa-topology-policy"},
		"a policy for the pod alone": {append(koordProd[:2:2], KoordinatorNUMASpec+`={"numaTopologyPolicy":"SingleNUMANode"}`), nil,
			Policy{Share: 1, Bind: FullCore, Prefer: BindField, Span: SingleNUMA}, ""},
		"pods of other languages": {[]string{LockstepRequest + "={bind: threads}"}, map[string]string{bind: "FullPCPUsOnly", numa: "SingleNUMANode"},
			Policy{Share: 1, Bind: Threads}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			asked, err := Parse(pod(c.marks, "a:4:4"))
			if err != nil {
				t.Fatal(err)
			}
			got, why := asked.On(PolicyOf(c.labels))
			if !strings.Contains(why, c.why) || (why == "") != (c.why == "") {
				t.Fatalf("refused because of %q, want %q", why, c.why)
			}
			if got == nil {
				return
			}
			if diff := cmp.Diff(c.want, got.Containers[0].Policy); diff != "" {
				t.Error(diff)
			}
			again, err := Parse(pod(c.marks, "a:4:4"))
			if diff := cmp.Diff(again, asked); diff != "" || err != nil {
				t.Errorf("On has changed the request: %s %v", diff, err)
			}
		})
	}
}

func TestWhatOnlyTheOriginalsRead(t *testing.T) {
	for name, c := range map[string]struct {
		marks []string
		want  string
	}{
		"a pod of ACK that is read completely": {[]string{"cpuset-scheduler=true", "cpu-policy=static-burst", "example.com/x=y"}, ""},
		"a pod of Koordinator":                 {append(koordProd[:2:2], KoordinatorSpec+`={}`, KoordinatorNUMASpec+`={"numaTopologyPolicy":"Restricted"}`), ""},
		"a pod that asks nobody":               {[]string{"koordinator.sh/cpuBurst={}"}, ""},
		"ACK's bursts and memory": {[]string{"cpuset-scheduler=true", "koordinator.sh/cpuBurst={}", "koordinator.sh/memoryLocality={}",
			"scheduling.alibabacloud.com/numa-topology-spec={}", "alibabacloud.com/cpuBurst={}"},
			"alibabacloud.com/cpuBurst, koordinator.sh/cpuBurst, koordinator.sh/memoryLocality, scheduling.alibabacloud.com/numa-topology-spec"},
		"Koordinator's form on a pod of ACK": {[]string{"cpuset-scheduler=true", KoordinatorSpec + "={}"}, KoordinatorSpec},
		"Koordinator's gangs and quotas": {append(koordProd[:2:2], "gang.scheduling.koordinator.sh/name=g", "label:quota.scheduling.koordinator.sh/name=q"),
			"gang.scheduling.koordinator.sh/name, quota.scheduling.koordinator.sh/name"},
		"a field": {append(koordProd[:2:2], KoordinatorNUMASpec+`={"numaTopologyPolicy":"SingleNUMANode","singleNUMANodeExclusive":"Required"}`),
			KoordinatorNUMASpec + ": singleNUMANodeExclusive"},
		"Volcano's policy of a Burstable pod": {[]string{VolcanoNUMA + "=best-effort"}, VolcanoNUMA + " (the pod is not of the QoS class Guaranteed)"},
		"Volcano's none":                      {[]string{VolcanoNUMA + "=none"}, ""},
		"a BE pod":                            {[]string{"label:koordinator.sh/qosClass=BE"}, KoordinatorQoS + "=BE (the pod runs on the shared pool, which is not narrowed for it)"},
	} {
		t.Run(name, func(t *testing.T) {
			p := pod(c.marks, "a:4:4")
			if got := strings.Join(Unread(p), ", "); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if c.want != "" && !Marked(p) {
				t.Error("the pod is not marked")
			}
		})
	}
}
