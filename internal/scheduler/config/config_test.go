package config

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lockstep.dev/lockstep/internal/scheduler/place"
	"lockstep.dev/lockstep/internal/scheduler/usage"
	"lockstep.dev/lockstep/internal/scheduler/zones"
)

func TestSettings(t *testing.T) {
	for sentence, tc := range map[string]struct {
		text string
		want Settings
	}{
		"a configuration without actions changes nothing": {`
tiers: [{plugins: [{name: gang}]}]`, Settings{}},
		"actions that do not evict switch evictions off": {`
actions: "enqueue, allocate, backfill"`, Settings{NoPreemption: true, NoReclaim: true}},
		"preempt alone reclaims nothing": {`actions: "allocate, preempt"`, Settings{NoReclaim: true}},
		"reclaim alone preempts nothing": {`actions: "allocate, reclaim"`, Settings{NoPreemption: true}},
		"reclaim goes by weights with proportion": {`
actions: "allocate, reclaim"
tiers: [{plugins: [{name: proportion}]}]`, Settings{NoPreemption: true, ReclaimByWeight: true}},
		"proportion without reclaim evicts nobody": {`
actions: "allocate"
tiers: [{plugins: [{name: proportion}]}]`, Settings{NoPreemption: true, NoReclaim: true}},
		"proportion without actions evicts nobody": {`tiers: [{plugins: [{name: proportion}]}]`, Settings{}},
		"fairshare remembers for four hours":       {`tiers: [{plugins: [{name: fairshare}]}]`, Settings{UsageHalfLife: 4 * time.Hour}},
		"or as long as it says": {`
tiers: [{plugins: [{name: fairshare, arguments: {fairshare.halfLifeMinutes: "30", fairshare.resourceKey.gpus: cpu}}]}]`,
			Settings{UsageHalfLife: 30 * time.Minute}},
		"the actions for whole gangs count like them": {`actions: "allocate, gangpreempt, gangreclaim"`, Settings{}},
		"sla says when gangs are overdue": {`
tiers:
- plugins:
  - name: sla
    arguments: {sla-waiting-time: 1h2m}`, Settings{OverdueAfter: 62 * time.Minute}},
		"proportion says the half-life of usage, and drf may say the same": {`
tiers:
- plugins:
  - {name: drf, arguments: {lockstep.usage-half-life: 168h}}
  - {name: proportion, arguments: {lockstep.usage-half-life: 168h}}`, Settings{UsageHalfLife: 168 * time.Hour}},
		"preempt may act across queues": {`
actions: "allocate, preempt"
configurations:
- {name: preempt, arguments: {lockstep.across-queues: true}}`, Settings{NoReclaim: true, PreemptAcross: true}},
		"nodeorder gives weights, and keeps those that it does not name": {`
tiers:
- plugins:
  - name: nodeorder
    arguments: {leastrequested.weight: 3, nodeaffinity.weight: "7"}`,
			Settings{Place: place.Options{Weights: place.Weights{Resources: 3, Balanced: 1, NodeAffinity: 7, Taints: 3}}}},
		"nodeorder may prefer full nodes": {`
tiers:
- plugins:
  - name: nodeorder
    arguments: {leastrequested.weight: 0, mostrequested.weight: 2}`,
			Settings{Place: place.Options{
				Strategy: place.MostAllocated, Weights: place.Weights{Resources: 2, Balanced: 1, NodeAffinity: 2, Taints: 3},
			}}},
		"binpack fills nodes, with the weights of its resources": {`
tiers:
- plugins:
  - name: binpack
    arguments:
      binpack.weight: 10
      binpack.cpu: 5
      binpack.resources: nvidia.com/gpu, example.com/foo
      binpack.resources.nvidia.com/gpu: 2
- plugins: [{name: nodeorder, arguments: {balancedresource.weight: 0}}]`,
			Settings{Place: place.Options{
				Strategy: place.MostAllocated, Weights: place.Weights{Resources: 10, NodeAffinity: 2, Taints: 3},
				Resources: []place.ResourceWeight{{Name: "memory", Weight: 1}, {Name: "cpu", Weight: 5}, {Name: "nvidia.com/gpu", Weight: 2}, {Name: "example.com/foo", Weight: 1}},
			}}},
		"resource-strategy-fit has a strategy for each resource": {`
tiers:
- plugins:
  - name: resource-strategy-fit
    arguments:
      resourceStrategyFitWeight: 10
      resources:
        nvidia.com/gpu: {type: MostAllocated, weight: 2}
        cpu: {type: LeastAllocated}
- plugins: [{name: binpack}]`,
			Settings{Place: place.Options{
				Weights:   place.Weights{Resources: 10, Balanced: 1, NodeAffinity: 2, Taints: 3},
				Resources: []place.ResourceWeight{{Name: "cpu", Weight: 1}, {Name: "nvidia.com/gpu", Weight: 2, Opposite: true}},
			}}},
		"binpack with the weight 0 does nothing": {`
tiers: [{plugins: [{name: binpack, arguments: {binpack.weight: 0}}]}]`, Settings{}},
		"the configuration may be in a ConfigMap": {`
apiVersion: v1
kind: ConfigMap
metadata: {name: volcano-scheduler-configmap}
data:
  volcano-scheduler.conf: |
    actions: "allocate, preempt"`, Settings{NoReclaim: true}},
	} {
		t.Run(sentence, func(t *testing.T) {
			got, _, err := Parse([]byte(tc.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
		})
	}
}

// TestFindings reads the configuration that installations of Volcano begin with, and more.
func TestFindings(t *testing.T) {
	_, findings, err := Parse([]byte(`kind: ConfigMap
data:
  volcano-scheduler.conf: |
    actions: "enqueue, allocate, backfill, shuffle"
    tiers:
    - plugins:
      - name: priority
      - name: gang
        enablePreemptable: false
      - name: conformance
        enablePreemptable: true
    - plugins:
      - name: overcommit
        arguments:
          overcommit-factor: 1.5
      - name: predicates
        arguments:
          predicate.NodePortsEnable: false
          predicate.CacheEnable: true
          predicate.Unheard: 1
      - name: ours
        arguments: {x: y}
      - name: tdm
        arguments: {tdm.revocable-zone.a: "1:00-2:00"}
    configurations:
    - name: allocate
      arguments: {predicateErrorCacheEnable: true}
    metrics: {type: prometheus, address: "http://x"}
`))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range findings {
		if f.Verdict != Works && f.Text == "" {
			t.Errorf("%s says nothing", f.Path)
		}
		got = append(got, fmt.Sprintf("%d %s %s %s", f.Line, f.Path, f.Name, f.Verdict))
	}
	want := []string{
		"4 actions enqueue differs", "4 actions allocate works", "4 actions backfill works", "4 actions shuffle differs",
		"7 tiers[0].plugins[0] priority works",
		"8 tiers[0].plugins[1] gang works", "9 tiers[0].plugins[1].enablePreemptable enablePreemptable differs",
		"10 tiers[0].plugins[2] conformance works",
		"13 tiers[1].plugins[0] overcommit differs",
		"15 tiers[1].plugins[0].arguments[overcommit-factor] overcommit-factor missing",
		"16 tiers[1].plugins[1] predicates works",
		"19 tiers[1].plugins[1].arguments[predicate.CacheEnable] predicate.CacheEnable needless",
		"18 tiers[1].plugins[1].arguments[predicate.NodePortsEnable] predicate.NodePortsEnable differs",
		"20 tiers[1].plugins[1].arguments[predicate.Unheard] predicate.Unheard missing",
		"21 tiers[1].plugins[2] ours missing",
		"23 tiers[1].plugins[3] tdm differs",
		"24 tiers[1].plugins[3].arguments[tdm.revocable-zone.a] tdm.revocable-zone.a works",
		"27 configurations[0].arguments[predicateErrorCacheEnable] predicateErrorCacheEnable needless",
		"28 metrics metrics needless",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

// TestZones checks the hours of revocable zones, and which actions have pods leave zones.
func TestZones(t *testing.T) {
	const tdm = `
tiers: [{plugins: [{name: tdm, arguments: {tdm.revocable-zone.a: "10:00-21:00", tdm.revocable-zone.b: "22:00-06:00 UTC", tdm.evict.period: 2m}}]}]`
	for actions, stay := range map[string]bool{
		"": false, "actions: allocate": true, "actions: 'allocate, preempt'": false, "actions: 'allocate, shuffle'": false,
	} {
		settings, _, err := Parse([]byte(actions + tdm))
		if err != nil {
			t.Fatal(err)
		}
		want := &zones.Config{
			Windows:    map[string]zones.Window{"a": {From: 600, To: 1260}, "b": {From: 1320, To: 360, In: time.UTC}},
			EvictEvery: 2 * time.Minute, NoEvictions: stay,
		}
		if diff := cmp.Diff(want, settings.Zones, cmp.Comparer(func(a, b *time.Location) bool { return a == b })); diff != "" {
			t.Errorf("%q (-want +got):\n%s", actions, diff)
		}
	}
	settings, _, err := Parse([]byte("tiers: [{plugins: [{name: tdm}]}]"))
	if err != nil || settings.Zones == nil || settings.Zones.EvictEvery != time.Minute {
		t.Errorf("without arguments: %+v, %v", settings.Zones, err)
	}
	if settings, _, err = Parse([]byte("tiers: [{plugins: [{name: gang}]}]")); err != nil || settings.Zones != nil {
		t.Errorf("without the plugin: %+v, %v", settings.Zones, err)
	}
}

func TestErrors(t *testing.T) {
	for sentence, tc := range map[string]struct{ text, want string }{
		"no configuration":            {"", "the configuration is empty"},
		"no YAML":                     {"actions: [", "yaml:"},
		"a field that does not exist": {"actions: allocate\ntires: []\n", "line 2: field tires not found"},
		"an action that is misspelt":  {"\nactions: allocate, premept", `line 2: actions: there is no action "premept"`},
		"a plugin without a name": {"tiers:\n- plugins:\n  - arguments: {a: b}\n",
			"line 3: tiers[0].plugins[0].name: a plugin needs a name"},
		"a switch that is misspelt": {"tiers:\n- plugins:\n  - name: gang\n    disablePreemptable: true\n",
			"line 4: tiers[0].plugins[0].disablePreemptable: a plugin has"},
		"a switch that is no boolean": {"tiers:\n- plugins:\n  - name: gang\n    enablePreemptable: maybe\n",
			`line 4: tiers[0].plugins[0].enablePreemptable: "maybe" is neither true nor false`},
		"a half-life that is no number of minutes": {"tiers: [{plugins: [{name: fairshare, arguments: {fairshare.halfLifeMinutes: 4h}}]}]",
			`"4h" is no positive number of minutes`},
		"a weight that is no number": {"tiers:\n- plugins:\n  - name: nodeorder\n    arguments:\n      nodeaffinity.weight: much\n",
			`line 5: tiers[0].plugins[0].arguments[nodeaffinity.weight]: "much" is not a whole number from 0 to 1000`},
		"a weight that is too large": {"tiers: [{plugins: [{name: binpack, arguments: {binpack.cpu: 1001}}]}]", "from 0 to 1000"},
		"a duration without a unit": {"tiers: [{plugins: [{name: sla, arguments: {sla-waiting-time: 5}}]}]",
			`"5" is no positive duration`},
		"hours that are none": {"tiers: [{plugins: [{name: tdm, arguments: {tdm.revocable-zone.a: 10-11}}]}]",
			`arguments[tdm.revocable-zone.a]: "10" is no time of the day`},
		"a zone that is no value of a label": {"tiers: [{plugins: [{name: tdm, arguments: {tdm.revocable-zone.a/b: 1:00-2:00}}]}]",
			`"a/b" is no name of a zone`},
		"a period that is too short": {"tiers: [{plugins: [{name: tdm, arguments: {tdm.evict.period: 1ms}}]}]",
			`"1ms" is no duration of a second or more`},
		"arguments of an action that does not exist": {"configurations: [{name: alocate, arguments: {a: b}}]",
			`configurations[0].name: there is no action "alocate"`},
		"a ConfigMap of something else": {"kind: ConfigMap\ndata: {a: b}", "data: want one key that ends in .conf, found 0"},
		"another kind":                  {"kind: Secret\ndata: {a.conf: b}", "kind: Secret: want a ConfigMap"},
	} {
		t.Run(sentence, func(t *testing.T) {
			_, _, err := Parse([]byte(tc.text))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("the error is %v, want %q in it", err, tc.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add("actions: \"allocate\"\ntiers: [{plugins: [{name: gang, arguments: {a: [b]}}]}]")
	f.Add("kind: ConfigMap\ndata: {a.conf: 'actions: x'}")
	f.Fuzz(func(t *testing.T, text string) {
		settings, findings, err := Parse([]byte(text))
		if err == nil && (settings.OverdueAfter < 0 || settings.Place.Weights.Resources > weightMax) {
			t.Errorf("settings %+v, %d findings", settings, len(findings))
		}
	})
}

func TestUsage(t *testing.T) {
	settings, findings, err := Parse([]byte(`
tiers:
- plugins:
  - name: usage
    enablePredicate: false
    arguments: {usage.weight: 7, cpu.weight: 2, memory.weight: 3, thresholds: {cpu: 60, mem: "70.5"}}
metrics: {type: prometheus, address: "https://prometheus:9090", interval: 10s, tls: {insecureSkipVerify: "true"}}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := &usage.Config{
		Source: usage.Source{Prometheus: "https://prometheus:9090", Insecure: true}, Interval: 10 * time.Second,
		Weight: 7, CPUWeight: 2, MemoryWeight: 3, CPUMax: 60, MemoryMax: 70.5, ScoresOnly: true,
	}
	if diff := cmp.Diff(want, settings.Usage); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, f := range findings {
		if f.Verdict != Works && f.Name != "usage" {
			t.Errorf("%+v", f)
		}
	}
	for text, verdict := range map[string]Verdict{
		"metrics: {type: elasticsearch, address: 'http://x'}": Differs,
		"metrics: {interval: 10s, type: metrics.k8s.io}":      Works,
		"metrics: {type: metrics.k8s.io, elasticsearch: {}}":  Missing,
	} {
		settings, findings, err := Parse([]byte("tiers: [{plugins: [{name: usage}]}]\n" + text))
		if err != nil || settings.Usage.Source != (usage.Source{}) {
			t.Errorf("%s: %v, %+v", text, err, settings.Usage)
		}
		worst := Works
		for _, f := range findings[1:] {
			if f.Verdict == Missing || worst != Missing && f.Verdict == Differs {
				worst = f.Verdict
			}
		}
		if worst != verdict {
			t.Errorf("%s: %+v", text, findings)
		}
	}
	for text, want := range map[string]string{
		"metrics: {interval: 10s}":                    "line 2: metrics: prometheus needs an address",
		"metrics: {type: graphite}":                   `metrics.type: "graphite": want prometheus or metrics.k8s.io`,
		"metrics: {address: 'prometheus:9090'}":       "is no URL with http or https",
		"metrics: {address: 'http://x', interval: 1}": `metrics.interval: "1" is no duration`,
		"metrics: {address: 'http://x', tls: 7}":      "metrics.tls: insecureSkipVerify:",
	} {
		if _, _, err := Parse([]byte("tiers: [{plugins: [{name: usage}]}]\n" + text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, _, err := Parse([]byte("tiers: [{plugins: [{name: usage, arguments: {thresholds: {cpu: 101}}}]}]")); err == nil {
		t.Error("a threshold of 101%")
	}
}

func TestRescheduling(t *testing.T) {
	const plugin = `
tiers:
- plugins:
  - name: rescheduling
    arguments:
      interval: 10m
      metricsPeriod: 5m
      queueSelector: [default, test]
      labelSelector: {business: offline}
      strategies:
      - name: offlineOnly
      - name: lowPriorityFirst
      - name: lowNodeUtilization
        params: {thresholds: {cpu: 20, memory: 25}, targetThresholds: {cpu: 50, memory: 60, pods: 70}}
metrics: {type: metrics.k8s.io}
`
	settings, findings, err := Parse([]byte("actions: 'allocate, shuffle'" + plugin))
	if err != nil {
		t.Fatal(err)
	}
	want := &usage.Config{
		Interval: 30 * time.Second, Weight: 5, CPUWeight: 1, MemoryWeight: 1, ScoresOnly: true,
		Balance: &usage.Balance{
			Every: 10 * time.Minute, OnlyPreemptable: true, Queues: []string{"default", "test"}, Labels: map[string]string{"business": "offline"},
			Low: usage.Levels{CPU: 20, Memory: 25, Pods: 100}, High: usage.Levels{CPU: 50, Memory: 60, Pods: 70},
		},
	}
	if diff := cmp.Diff(want, settings.Usage); diff != "" {
		t.Errorf("(-want +got):\n%s\n%+v", diff, findings)
	}
	// Without the action, and without a strategy that has levels, nothing is moved.
	for _, text := range []string{"actions: allocate" + plugin, "tiers: [{plugins: [{name: rescheduling, arguments: {strategies: [{name: offlineOnly}]}}]}]"} {
		settings, findings, err := Parse([]byte(text))
		if err != nil || settings.Usage.Balance != nil {
			t.Errorf("%s: %v", text, err)
		}
		if last := findings[len(findings)-1]; last.Verdict != Needless || !strings.Contains(last.Text, "no pods are moved") {
			t.Errorf("%s: %+v", text, last)
		}
	}
	// Both plugins in any order, and levels as older configurations have them.
	for _, order := range []string{"{name: usage}, {name: rescheduling, ARGUMENTS}", "{name: rescheduling, ARGUMENTS}, {name: usage}"} {
		const arguments = "arguments: {strategies: [{name: lowNodeUtilization, params: {nodeResourceUtilizationThresholds: " +
			"{thresholds: {cpu: 1}, targetThresholds: {cpu: 2}}}}]}"
		settings, _, err := Parse([]byte("tiers: [{plugins: [" + strings.Replace(order, "ARGUMENTS", arguments, 1) + "]}]"))
		if err != nil {
			t.Fatal(err)
		}
		if u := settings.Usage; u.ScoresOnly || u.CPUMax != 80 || u.Balance == nil || u.Balance.Low.CPU != 1 || u.Balance.High.CPU != 2 {
			t.Errorf("%s: %+v", order, u)
		}
	}
	for arguments, want := range map[string]string{
		"strategies: [{name: everything}]": `there is no strategy "everything"`,
		"strategies: 7":                    "arguments[strategies]: ",
		"interval: 5":                      `"5" is no duration`,
		"strategies: [{name: lowNodeUtilization, params: {thresholds: {cpu: 60}, targetThresholds: {cpu: 50}}}]": "thresholds must not be above targetThresholds",
		"strategies: [{name: lowNodeUtilization, params: {thresholds: {cpu: -1}}}]":                              `"-1" is no percentage`,
	} {
		if _, _, err := Parse([]byte("tiers: [{plugins: [{name: rescheduling, arguments: {" + arguments + "}}]}]")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", arguments, err)
		}
	}
}
