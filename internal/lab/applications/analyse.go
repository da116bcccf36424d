package applications

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/observe"
	"lockstep.dev/lockstep/internal/lab/rig"
	"lockstep.dev/lockstep/internal/lab/series"
	"lockstep.dev/lockstep/internal/localcluster"
)

// managed lists the resources of the objects of the load's applications.
var managed = []schema.GroupVersionResource{
	{Group: "apps", Version: "v1", Resource: "deployments"}, {Version: "v1", Resource: "configmaps"}, {Version: "v1", Resource: "secrets"},
}

// count records writes, CPU time and memory.
func (p *Phase) count(t *trial, used series.Usage) {
	p.Writes = analyse.CountWrites(t.Log.Events, func(e *analyse.Event) bool { return e.Actor == observe.Manager && !observe.Heartbeats[e.Resource] })
	n := float64(t.cfg.Applications)
	t.run.OtherCPUs, t.run.Lost = max(t.run.OtherCPUs, used.OtherCPUs), cmp.Or(t.run.Lost, used.Lost)
	if !slices.ContainsFunc(t.run.Phases, func(other Phase) bool { return other.Writes.Total > p.Writes.Total }) {
		t.run.Metrics = used.Metrics // the report has those of the phase with the most writes
	}
	p.WritesEach = round3(float64(p.Writes.Total) / n)
	p.Used = rig.UsedBetween(used.Before, used.After)
	manager := localcluster.Manager
	p.ManagerCPUMs = round3((used.After[manager].CPU - used.Before[manager].CPU).Seconds() * 1e3 / n)
	p.ManagerKiB = round(float64(max(0, used.After[manager].RSSBytes-used.Before[manager].RSSBytes)) / 1024 / n)
}

// held returns the growth of each process's anonymous memory between two phases, in KiB for each of
// n applications. It returns nil if the first phase has applications.
func held(none, all *Phase, n int) map[string]float64 {
	if none.Ran != nil {
		return nil
	}
	out := map[string]float64{}
	for process, mib := range all.AnonMiB {
		if more := round((mib - none.AnonMiB[process]) * 1024 / float64(n)); more > 0 {
			out[process] = more
		}
	}
	return out
}

// timings computes the times from the client's requests with the given verb until the applications
// ran in the given generation.
func (t *trial) timings(p *Phase, generation int64, verb string) {
	asked := map[string]time.Time{}
	ready := map[string]time.Time{} // when the last Deployment of an application became ready
	told := map[string][]time.Time{}
	var first, last time.Time
	for i := range t.Log.Events {
		e := &t.Log.Events[i]
		if e.Namespace != namespace || !e.OK() {
			continue
		}
		switch {
		case e.Resource == "applications.core.oam.dev" && e.Sub == "" && e.Verb == verb && e.Actor == observe.Client:
			asked[e.Name] = e.Time
			if first.IsZero() || e.Received.Before(first) {
				first = e.Received
			}
		case e.Resource == "applications.core.oam.dev" && e.Sub == "status" && e.Actor == observe.Manager:
			told[e.Name] = append(told[e.Name], e.Time)
		case e.Resource == "deployments.apps" && e.Sub == "status":
			if app := appOf(e.Name); e.Time.After(ready[app]) {
				ready[app] = e.Time
			}
		}
	}
	var total, report []float64
	var requests, runs []time.Time
	seen := t.seen.In(namespace)
	for name, at := range asked {
		requests = append(requests, at)
		s := seen[name]
		if s.generation < generation {
			continue
		}
		p.Done++
		runs = append(runs, s.at)
		total = append(total, s.at.Sub(at).Seconds()*1e3)
		if s.at.After(last) {
			last = s.at
		}
		if r, ok := ready[name]; ok {
			for _, w := range told[name] {
				if !w.Before(r) {
					report = append(report, w.Sub(r).Seconds()*1e3)
					break
				}
			}
		}
	}
	p.Seconds = round(analyse.Since(first, last))
	p.rate()
	p.TotalMs, p.ReportMs = analyse.PercentilesOf(total, 2), analyse.PercentilesOf(report, 2)
	curve, ran := analyse.CurveOf(first, requests), analyse.CurveOf(first, runs)
	p.Asked, p.Ran = &curve, &ran
}

func (p *Phase) rate() {
	if p.Seconds > 0 {
		p.PerSecond = round(float64(p.Done) / p.Seconds)
	}
}

// lastWrite returns when the last write of a resource was answered.
func (p *Phase) lastWrite(resource string, t *trial) time.Time {
	var last time.Time
	for i := range t.Log.Events {
		if e := &t.Log.Events[i]; e.Resource == resource && e.Time.After(last) {
			last = e.Time
		}
	}
	return last
}

// appOf returns the name of the application of an object: its prefix, because the load's
// application names have a fixed length.
func appOf(object string) string {
	if n := len(name(0)); len(object) >= n {
		return object[:n]
	}
	return ""
}

// check compares the existing objects and statuses with the expected ones.
func (t *trial) check(ctx context.Context) error {
	list, err := t.objects(ctx)
	if err != nil {
		return err
	}
	count := map[string]int{}
	for _, l := range list {
		_, object, _ := strings.Cut(l, " ")
		count[appOf(object)]++
	}
	for i := range t.cfg.Applications {
		t.run.Checked++
		if got, want := count[name(i)], t.cfg.Shape.objects(); got != want {
			t.run.Bad("%s has %d objects, not %d", name(i), got, want)
		}
	}
	seen := t.seen.In(namespace)
	for i := range t.cfg.Applications {
		t.run.Checked++
		if s := seen[name(i)]; s.phase != oam.PhaseRunning {
			t.run.Bad("%s is %q", name(i), s.phase)
		}
	}
	return nil
}

// objects returns the objects of the load's applications in all clusters, as "resource name".
func (t *trial) objects(ctx context.Context) ([]string, error) {
	out, err := objectsIn(ctx, t.REST, namespace)
	for _, m := range t.far {
		if err != nil {
			break
		}
		var more []string
		if more, err = objectsIn(ctx, m.rest, namespace); err != nil {
			err = fmt.Errorf("cluster %s: %w", m.name, err)
		}
		out = append(out, more...)
	}
	return out, err
}

func objectsIn(ctx context.Context, cfg *rest.Config, namespace string) ([]string, error) {
	client, err := metadata.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, gvr := range managed {
		list := func(o metav1.ListOptions) (runtime.Object, error) {
			return client.Resource(gvr).Namespace(namespace).List(ctx, o)
		}
		err := pager.New(pager.SimplePageFunc(list)).EachListItem(ctx, metav1.ListOptions{LabelSelector: oam.AppNameLabel, Limit: 2500},
			func(o runtime.Object) error {
				out = append(out, gvr.Resource+" "+o.(*metav1.PartialObjectMetadata).Name)
				return nil
			})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func round(x float64) float64  { return analyse.Round(x, 2) }
func round3(x float64) float64 { return analyse.Round(x, 3) }
