package controller_test

import (
	"fmt"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/chart/charttest"
	"lockstep.dev/lockstep/internal/application/controller"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/race"
	"lockstep.dev/lockstep/internal/sandbox"
)

// hostile are programs that take far more than their limits. The Application of each must say why
// it is not deployed.
var hostile = map[string]struct{ template, health, want string }{
	"repeats": {template: `
import "strings"
output: {apiVersion: "v1", kind: "ConfigMap", data: x: strings.Repeat(strings.Repeat(strings.Repeat("x", 4096), 4096), 4096)}`,
		want: "evaluation took more than 256 MiB of memory"},
	"doublings": {template: `
output: {apiVersion: "v1", kind: "ConfigMap", data: x: _a33}
_a0: "xxxxxxxxxxxxxxxx"` + doublings(33), want: "evaluation took more than"},
	"comprehensions": {template: `
import "list"
output: {apiVersion: "v1", kind: "ConfigMap", data: {for a in list.Range(0, 4000, 1) for b in list.Range(0, 4000, 1) {"k\(a)-\(b)": "x"}}}`,
		want: "evaluation took more than"},
	"time": {template: `
import "list"
_n: list.Range(0, 2000, 1)
output: {apiVersion: "v1", kind: "ConfigMap", data: x: "\(len([for a in _n for b in _n for c in _n if a*b == c {a}]))"}`,
		want: "evaluation took more than"},
	"outputs": {template: `
import ("list", "strings")
_text: strings.Repeat("x", 4096)
output: {apiVersion: "v1", kind: "ConfigMap", data: {for a in list.Range(0, 4000, 1) {"k\(a)": _text}}}`,
		want: "evaluation made an output over 8 MiB"},
	"charts": {want: "evaluation took more than"},
	"health": {template: `output: {apiVersion: "v1", kind: "ConfigMap", data: a: "b"}`, health: `
import "list"
_n: list.Range(0, 2000, 1)
isHealth: len([for a in _n for b in _n for c in _n if a*b == c && context.output.data.a == "b" {a}]) > 0`,
		want: "evaluation took more than"},
}

func doublings(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "\n_a%d: _a%d + _a%d", i+1, i, i)
	}
	return b.String()
}

// greedyChart grows to gigabytes: it includes each template twice, and each has text of its own.
var greedyChart = map[string]string{"templates/a.yaml": `{{- $x := list "xxxxxxxxxxxxxxxx" }}
{{- range until 40 }}{{ $x = list (printf "%s%s" (first $x) (first $x)) }}{{ end }}
apiVersion: v1
kind: ConfigMap
metadata: {name: big}
data: {x: {{ first $x }}}
`}

// canaries is the number of harmless Applications that are deployed amid hostile ones.
const canaries = 40

// hostileCount is the number of Applications of each hostile program: one by default, more by
// $LOCKSTEP_HOSTILE.
func hostileCount() int {
	if n, err := strconv.Atoi(os.Getenv("LOCKSTEP_HOSTILE")); err == nil {
		return n
	}
	return 1
}

// hostileApp creates an Application of a hostile program, with its definition, in its own
// namespace.
func (e *env) hostileApp(family, charts string, i int) {
	h := hostile[family]
	name := fmt.Sprintf("%s-%d", family, i)
	if family == "charts" {
		e.app(name, fmt.Sprintf("components:\n- name: c\n  type: helmchart\n  properties: {chart: {source: greedy, repoURL: %s/charts/, version: 1.0.%d}}\n", charts, i))
		return
	}
	manifest := "apiVersion: core.oam.dev/v1beta1\nkind: ComponentDefinition\nmetadata: {name: " + name + "}\nspec:\n  workload: {type: autodetects.core.oam.dev}\n"
	if h.health != "" {
		manifest += "  status:\n    healthPolicy: |\n" + deep(h.health, 6)
	}
	e.apply(manifest + "  schematic:\n    cue:\n      template: |\n" + deep(h.template, 8))
	e.app(name, "components:\n- {name: c, type: "+name+"}\n")
}

func deep(text string, by int) string {
	pad := strings.Repeat(" ", by)
	return pad + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+pad) + "\n"
}

// failedWith returns a check that an Application is not deployed or not healthy, and that its
// status says why.
func failedWith(want string) func(*oam.Application) error {
	return func(a *oam.Application) error {
		for _, c := range a.Status.Conditions {
			if c.Status == "False" && strings.Contains(c.Message, want) {
				return nil
			}
		}
		for _, s := range a.Status.Services {
			if !s.Healthy && strings.Contains(s.Message, want) {
				return nil
			}
		}
		return fmt.Errorf("it does not say %q", want)
	}
}

// resident returns the anonymous resident memory of this process, in MiB.
func resident() int64 {
	data, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kib, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kib >> 10
		}
	}
	return 0
}

// sums returns a registry's metrics of evaluations by name and label values.
func sums(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := strings.TrimPrefix(f.GetName(), "lockstep_")
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			switch {
			case m.Counter != nil:
				out[name] = m.Counter.GetValue()
			case m.Gauge != nil:
				out[name] = m.Gauge.GetValue()
			case m.Histogram != nil:
				out[name] = float64(m.Histogram.GetSampleCount())
			}
		}
	}
	return out
}

// canary creates an Application that resembles no other, and waits until it runs.
func (e *env) canary(i int) time.Duration {
	e.Helper()
	name := fmt.Sprintf("canary-%d", i)
	begin := time.Now()
	e.app(name, fmt.Sprintf("components:\n- name: %[1]s\n  type: k8s-objects\n  properties:\n    objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: %[1]s}, data: {\"%[2]d\": \"%[2]d\"}}]\n", name, i*7919))
	for end := begin.Add(time.Minute); ; time.Sleep(2 * time.Millisecond) {
		if _, err := e.get(configMaps, name); err == nil {
			return time.Since(begin)
		}
		if time.Now().After(end) {
			data, _ := e.get(applications, name)
			e.Fatalf("%s is not deployed after a minute: %v", name, data.Object["status"])
		}
	}
}

func median(of []time.Duration) (middle, most time.Duration) {
	slices.Sort(of)
	return of[len(of)/2], of[len(of)-1]
}

func TestHostileProgramsFailAlone(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector multiplies the memory and the CPU time that are limited here")
	}
	e, bad := connect(t), connect(t)
	for _, x := range []*env{e, bad} {
		elsewhere.Store(x.ns, true)
		defer elsewhere.Delete(x.ns)
	}
	registry := prometheus.NewRegistry()
	pool, err := sandbox.New(sandbox.Config{Metrics: registry})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	stop, err := runWith(e.c, controller.Config{Evaluators: pool, Owns: func(key string) bool { return !notElsewhere(key) }}, func(w apiwriter.Writer) apiwriter.Writer { return w })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	n := hostileCount()
	s := &charttest.Server{}
	for i := range n {
		s.Publish("greedy", fmt.Sprintf("1.0.%d", i), charttest.Pack("greedy", fmt.Sprintf("1.0.%d", i), greedyChart))
	}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)

	// 1. Measure the time of harmless Applications, and the memory, without hostile ones.
	e.canary(0)
	var alone, amid []time.Duration
	for i := range 20 {
		alone = append(alone, e.canary(1+i))
	}
	before := resident()

	// 2. Run all hostile Applications and harmless ones at the same time.
	var most, mostChildren int64
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
				most = max(most, resident())
				mostChildren = max(mostChildren, int64(sums(t, registry)["evaluators_memory_bytes"])>>20)
			}
		}
	})
	for family := range hostile {
		for i := range n {
			bad.hostileApp(family, server.URL, i)
		}
	}
	for i := range canaries {
		amid = append(amid, e.canary(100+i))
	}
	close(done)
	watching.Wait()

	middle, worst := median(alone)
	t.Logf("%d hostile applications in %d families; applications of others took %s (at most %s) alone, and", n*len(hostile), len(hostile), middle, worst)
	middle, worst = median(amid)
	t.Logf("%s (at most %s of %d) meanwhile; memory of this process %d MiB before, at most %d MiB; of its children at most %d MiB; %v",
		middle, worst, len(amid), before, most, mostChildren, sums(t, registry))
	if most > 1<<10 {
		t.Errorf("%d MiB", most)
	}

	// 3. The status of each hostile one says why it failed, and it is not tried again.
	for family, h := range hostile {
		for i := range n {
			name := fmt.Sprintf("%s-%d", family, i)
			localtest.Eventually(bad, name, func() error { return failedWith(h.want)(bad.application(name)) })
		}
	}
	counted := sums(t, registry)
	e.apply("apiVersion: core.oam.dev/v1beta1\nkind: ComponentDefinition\nmetadata: {name: other}\nspec: {workload: {type: autodetects.core.oam.dev}, schematic: {cue: {template: 'output: {}'}}}\n")
	e.canary(1000)
	for name, value := range sums(t, registry) {
		if strings.HasPrefix(name, "evaluations_ended_total") && value != counted[name] {
			t.Errorf("%s is %g, and was %g: something was tried again", name, value, counted[name])
		}
	}
	// 4. An Application whose definition is corrected is deployed.
	bad.apply("apiVersion: core.oam.dev/v1beta1\nkind: ComponentDefinition\nmetadata: {name: repeats-0}\nspec: {workload: {type: autodetects.core.oam.dev}, schematic: {cue: {template: 'output: {apiVersion: \"v1\", kind: \"ConfigMap\", data: a: \"b\"}'}}}\n")
	bad.app("repeats-0", "components:\n- {name: mended, type: repeats-0}\n")
	bad.until("repeats-0", inPhase(oam.PhaseRunning))
}
