package workflows

import (
	"maps"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/drive"
	"lockstep.dev/lockstep/internal/lab/observe"
	"lockstep.dev/lockstep/internal/lab/rig"
	"lockstep.dev/lockstep/internal/lab/series"
	"lockstep.dev/lockstep/internal/localcluster"
)

const workflowResource = "workflows.argoproj.io"

func newList() runtime.Object { return &wf.WorkflowList{} }

// timeline has the times at which a workflow and its pods were under way.
type timeline struct {
	created, ended time.Time
	firstPod       time.Time
	pods           map[string]*span
}

type span struct {
	from, to time.Time
	creates  int
}

// analyse computes the results of the run.
func (t *trial) analyse(used series.Usage, list []drive.Object) {
	r := &t.run
	r.TimedOut, r.OtherCPUs, r.Metrics, r.Lost = t.TimedOut, used.OtherCPUs, used.Metrics, used.Lost
	timelines := map[string]*timeline{}
	r.Writes = analyse.CountWrites(t.Log.Events, func(e *analyse.Event) bool {
		return e.Actor == observe.Manager && !observe.Heartbeats[e.Resource] && (e.Namespace == namespace || e.Namespace == "")
	})
	var start, lastCreated, lastEnded time.Time
	slices.SortStableFunc(t.Log.Events, func(a, b analyse.Event) int { return a.Time.Compare(b.Time) })
	patches := 0
	// Workflows first: the answer to a workflow's create may come later than the answer to its
	// pod's create.
	for i := range t.Log.Events {
		if e := &t.Log.Events[i]; e.Namespace == namespace && e.OK() && e.Resource == workflowResource && e.Verb == "create" {
			timelines[e.Name] = &timeline{created: e.Time, pods: map[string]*span{}}
			if start.IsZero() || e.Received.Before(start) {
				start = e.Received
			}
			lastCreated = e.Time
		}
	}
	for i := range t.Log.Events {
		e := &t.Log.Events[i]
		if e.Namespace != namespace || !e.OK() {
			continue
		}
		switch {
		case e.Resource == workflowResource && e.Actor == observe.Manager:
			patches++
		case e.Resource == "pods" && e.Sub == "" && e.Verb == "create":
			if c := timelines[workflowOf(e.Name)]; c != nil {
				if c.firstPod.IsZero() {
					c.firstPod = e.Time
				}
				p := c.pods[e.Name]
				if p == nil {
					p = &span{from: e.Time}
					c.pods[e.Name] = p
				}
				p.creates++
			}
		case e.Resource == "pods" && e.Sub == "status" && e.Actor == observe.Nodes:
			if c := timelines[workflowOf(e.Name)]; c != nil && c.pods[e.Name] != nil {
				c.pods[e.Name].to = e.Time // the last one says how the pod ended
			}
		}
	}
	var queued, beyond, total []float64
	var created, ended []time.Time
	for name, at := range t.ended.In(namespace) {
		if timelines[name] != nil {
			timelines[name].ended = at
		}
	}
	for _, o := range list {
		w := o.(*wf.Workflow)
		r.Checked++
		if w.Status.Phase != wf.WorkflowSucceeded {
			if t.TimedOut != "" && !w.Status.Phase.Completed() {
				continue
			}
			r.Bad("%s is %q: %s", w.Name, w.Status.Phase, w.Status.Message)
			continue
		}
		r.Succeeded++
	}
	if left := t.podsLeft(); t.cfg.PodGC != "" && t.TimedOut == "" && len(left) > 0 {
		r.Bad("%d pods were not collected, %s among them", len(left), slices.Min(slices.Collect(maps.Keys(left))))
	}
	if len(list) != r.Workflows {
		r.Bad("%d workflows of %d are there at the end", len(list), r.Workflows)
	}
	for name, c := range timelines {
		created = append(created, c.created)
		if len(c.pods) != t.shape.Pods && (t.TimedOut == "" || !c.ended.IsZero()) {
			r.Bad("%s had %d pods, not %d", name, len(c.pods), t.shape.Pods)
		}
		for pod, p := range c.pods {
			r.Checked++
			if p.creates > 1 {
				r.Bad("%s of %s was created %d times: a step ran twice", pod, name, p.creates)
			}
		}
		if c.ended.IsZero() || c.firstPod.IsZero() {
			continue
		}
		ended = append(ended, c.ended)
		if c.ended.After(lastEnded) {
			lastEnded = c.ended
		}
		queued = append(queued, c.firstPod.Sub(c.created).Seconds()*1e3)
		total = append(total, c.ended.Sub(c.created).Seconds()*1e3)
		beyond = append(beyond, max(0, c.ended.Sub(c.created).Seconds()-c.covered().Seconds())*1e3)
	}
	slices.SortFunc(created, time.Time.Compare)
	slices.SortFunc(ended, time.Time.Compare)
	if start.IsZero() {
		start = used.Began
	}
	r.SubmitSeconds, r.Seconds = round(analyse.Since(start, lastCreated)), round(analyse.Since(start, lastEnded))
	if r.Seconds > 0 {
		r.PerMinute = round(float64(len(ended)) / r.Seconds * 60)
	}
	r.QueueMs, r.BeyondMs, r.TotalMs = analyse.PercentilesOf(queued, 2), analyse.PercentilesOf(beyond, 2), analyse.PercentilesOf(total, 2)
	if critical := int(math.Round(t.criticalSeconds() / t.cfg.PodTime.Seconds())); critical > 0 {
		r.BeyondPerStepMs = round(r.BeyondMs.P50 / float64(critical))
	}
	n := float64(max(1, r.Workflows))
	r.WritesPerWorkflow = analyse.Round(float64(r.Writes.Total)/n, 3)
	r.Created, r.Ended = analyse.CurveOf(start, created), analyse.CurveOf(start, ended)
	r.DepthMax = depth(created, ended)
	r.Used = rig.UsedBetween(used.Before, used.After)
	r.ManagerCPUMs = round(r.CPUSeconds[string(localcluster.Manager)] * 1e3 / n)
	r.ManagerKiB = round(float64(max(0, used.After[localcluster.Manager].PeakRSSBytes-used.Before[localcluster.Manager].RSSBytes)) / 1024 / n)
}

// workflowOf returns the name of the workflow of a pod: its prefix, because the load's workflow
// names have a fixed length.
func workflowOf(pod string) string {
	if n := len(name(0)); len(pod) >= n {
		return pod[:n]
	}
	return ""
}

// covered returns how long at least one of the workflow's pods was under way.
func (c *timeline) covered() time.Duration {
	var spans []span
	for _, p := range c.pods {
		if !p.to.IsZero() {
			spans = append(spans, *p)
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return a.from.Compare(b.from) })
	var sum time.Duration
	var until time.Time
	for _, s := range spans {
		from := s.from
		if from.Before(until) {
			from = until
		}
		if s.to.After(from) {
			sum += s.to.Sub(from)
			until = s.to
		}
	}
	return sum
}

// depth returns the maximum number of workflows under way at the same time.
func depth(created, ended []time.Time) int {
	most, i := 0, 0
	for n, at := range created {
		for i < len(ended) && ended[i].Before(at) {
			i++
		}
		most = max(most, n+1-i)
	}
	return most
}

func round(x float64) float64 { return analyse.Round(x, 2) }
