package bottleneck

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"lockstep.dev/lockstep/internal/lab/metrics"
)

// Kind is what limits a system.
type Kind string

// The kinds.
const (
	ClientLimit  Kind = "client limit"
	Webhook      Kind = "webhook"
	Workers      Kind = "controller workers"
	APIServerCPU Kind = "API server CPU"
	MachineCPU   Kind = "CPU of the machine"
	Fsync        Kind = "etcd fsync"
	FlowControl  Kind = "API server flow control"
	Scheduler    Kind = "scheduler"
	LoadClient   Kind = "client of the load"
)

// Run are the figures of the run that is examined.
type Run struct {
	Pods int
	// Seconds is the time until the last pod had a node, CreateSeconds that until the last pod was
	// created, JobsSeconds that until the last job was.
	Seconds, CreateSeconds, JobsSeconds float64
	// CPUs is the number of CPUs that all processes share; 0 if each has a machine of its own.
	CPUs int
	// CPUSeconds is the CPU time of each process; OtherCPUs what other work used on average.
	CPUSeconds map[string]float64
	OtherCPUs  float64
	Metrics    *metrics.Figures
	// Settings are the settings that the system can be given, by name, with their present values.
	Settings map[string]string
}

// Experiment is a run with one thing changed.
type Experiment struct {
	// Change says what was changed; Tests is the kind that it tests, or empty.
	Change string
	Tests  Kind
	// Setting is the setting of Run.Settings that was changed to Value; empty if it was none of them.
	Setting, Value string
	// Seconds is its time, and Base that of an unchanged run.
	Seconds, Base float64
}

// Gain is the part of the time that the change saves; negative if it costs time.
func (e Experiment) Gain() float64 {
	if e.Base <= 0 {
		return 0
	}
	return 1 - e.Seconds/e.Base
}

// Finding is something that limits a system.
type Finding struct {
	Kind Kind `json:"kind"`
	// Share is about the part of the run's time that it explains, from 0 to 1.
	Share    float64  `json:"share"`
	Evidence []string `json:"evidence"`
	// Advice are the settings to use.
	Advice []string `json:"advice"`
	// words are parts of the names of settings that may help.
	words []string
	// elsewhere says that the cause is other work on the machine and not the system, so that it is the
	// last.
	elsewhere bool
}

// shareMin is the share from which a cause is a finding, and gainMin the gain from which an
// experiment confirms one: twice what equal runs differ by on a quiet machine.
const (
	shareMin = 0.15
	gainMin  = 0.15
)

// Find returns what limits a system, the most important first. It is empty if nothing explains a
// noticeable part of the time.
func Find(r Run, experiments []Experiment) (out []Finding) {
	if r.Seconds <= 0 {
		return nil
	}
	for _, find := range []func(Run) []Finding{clientLimits, webhooks, workers, cpu, fsync, flowControl, scheduler, loadClient} {
		for _, f := range find(r) {
			f.Share = max(0, min(1, f.Share))
			if f.Share >= shareMin {
				out = append(out, f)
			}
		}
	}
	byShare := func(a, b Finding) int {
		if a.elsewhere != b.elsewhere {
			return map[bool]int{true: 1, false: -1}[a.elsewhere]
		}
		return cmp.Compare(b.Share, a.Share)
	}
	slices.SortStableFunc(out, byShare)
	tested := map[Kind][]Experiment{}
	for _, e := range experiments {
		if e.Tests != "" {
			tested[e.Tests] = append(tested[e.Tests], e)
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(tested)) {
		out = judge(out, kind, tested[kind], r.Settings)
	}
	for i := range out {
		out[i].Advice = append(out[i].Advice, out[i].doubled(r.Settings, experiments)...)
	}
	slices.SortStableFunc(out, byShare)
	return out
}

// judge applies the experiments on one kind to the most important finding of that kind: they are
// better evidence than what the metrics suggest, and the one that gained the most counts. Without a
// finding it makes one if an experiment gained enough.
func judge(findings []Finding, kind Kind, experiments []Experiment, settings map[string]string) []Finding {
	best := slices.MaxFunc(experiments, func(a, b Experiment) int { return cmp.Compare(a.Gain(), b.Gain()) })
	i := slices.IndexFunc(findings, func(f Finding) bool { return f.Kind == kind })
	if best.Gain() < gainMin {
		if i >= 0 {
			findings = slices.Delete(findings, i, i+1)
		}
		return findings
	}
	fresh := i < 0
	if fresh {
		findings, i = append(findings, Finding{Kind: kind}), len(findings)
	}
	f := &findings[i]
	f.Share = min(1, best.Gain())
	for _, e := range experiments {
		gained := e.Gain() >= gainMin
		if gained || !fresh {
			f.Evidence = append(f.Evidence, fmt.Sprintf("%s: %.2f s instead of %.2f s", e.Change, e.Seconds, e.Base))
		}
		switch {
		case gained && e.Setting != "":
			f.Advice = append(f.Advice, fmt.Sprintf("%s: %s, now %s", e.Setting, e.Value, settings[e.Setting]))
		case gained && fresh:
			f.Advice = append(f.Advice, "use "+e.Change)
		}
	}
	return findings
}

// clientLimits finds clients that waited for their own QPS and burst. While a client is at its limit
// at least one of its requests waits at every moment.
func clientLimits(r Run) (out []Finding) {
	for process, c := range controllers(r) {
		t := c.Throttled
		if t == nil || t.Count == 0 || t.MeanMs < 5 {
			continue
		}
		out = append(out, Finding{Kind: ClientLimit, Share: t.Seconds / r.Seconds,
			Evidence: []string{fmt.Sprintf("%s: %d requests waited %.0f ms on average for the client's own limit, %.1f s in all, in a run of %.1f s",
				process, t.Count, t.MeanMs, t.Seconds, r.Seconds)},
			Advice: []string{"raise the QPS and burst of " + process + ", or lift them and leave the pace to the server's flow control"},
			words:  []string{"qps", "burst"},
		})
	}
	return out
}

// webhooks finds webhooks that take a large part of the time of a pod's create.
func webhooks(r Run) (out []Finding) {
	if r.Metrics == nil || r.Metrics.Server == nil || r.Metrics.Server.PodCreates.MeanMs <= 0 {
		return nil
	}
	s := r.Metrics.Server
	for _, name := range slices.Sorted(maps.Keys(s.Webhooks)) {
		h := s.Webhooks[name]
		if h.MeanMs < 2 {
			continue
		}
		out = append(out, Finding{Kind: Webhook, Share: h.MeanMs / s.PodCreates.MeanMs,
			Evidence: []string{fmt.Sprintf("webhook %s takes %.0f ms (p99 %.0f ms) of the %.0f ms of a pod's create", name, h.MeanMs, h.P99Ms, s.PodCreates.MeanMs)},
			Advice: []string{"replace " + name + " by a ValidatingAdmissionPolicy or MutatingAdmissionPolicy, or narrow its rules and matchConditions",
				"give the webhook more CPU, and a timeoutSeconds above its time under load"},
		})
	}
	return out
}

// workers finds work queues whose items wait much longer than their work takes, while the server has
// time. If all items come at once and leave evenly, their mean wait is half the run.
func workers(r Run) (out []Finding) {
	for process, c := range controllers(r) {
		for _, name := range slices.Sorted(maps.Keys(c.Queues)) {
			q := c.Queues[name]
			if name == metrics.Writes || name == metrics.Gangs || name == metrics.Pods || q.Wait.Count == 0 || q.Wait.MeanMs < 3*q.Work.MeanMs ||
				q.Work.Seconds < shareMin*r.Seconds {
				continue
			}
			evidence := []string{fmt.Sprintf("queue %s of %s: up to %d items waited, %.1f s on average; the work on one takes %.0f ms; on average %.1f workers were busy",
				name, process, q.DepthMax, q.Wait.MeanMs/1e3, q.Work.MeanMs, q.Work.Seconds/r.Seconds)}
			for controller, w := range c.Workers {
				if w.Max > 0 && w.Active >= w.Max {
					evidence = append(evidence, fmt.Sprintf("all %d workers of %s were busy", w.Max, controller))
				}
			}
			out = append(out, Finding{Kind: Workers, Share: 2 * q.Wait.MeanMs / 1e3 / r.Seconds, Evidence: evidence,
				Advice: []string{fmt.Sprintf("give %s more workers for %s, as long as the time falls: bench sweep finds the valley", process, name)},
				words:  []string{"workers", "syncs"}})
		}
	}
	return out
}

// cpu finds a machine, or an API server, without idle CPUs.
func cpu(r Run) []Finding {
	largest, sum := "", 0.0
	for _, process := range slices.Sorted(maps.Keys(r.CPUSeconds)) {
		sum += r.CPUSeconds[process]
		if largest == "" || r.CPUSeconds[process] > r.CPUSeconds[largest] {
			largest = process
		}
	}
	if r.Metrics != nil && r.Metrics.Server != nil && r.CPUs == 0 {
		s := r.Metrics.Server
		if s.CPUs == 0 {
			return nil
		}
		busy := s.CPUSeconds / r.Seconds
		return full(Finding{Kind: APIServerCPU, Share: busy / float64(s.CPUs),
			Evidence: []string{fmt.Sprintf("the API server used %.1f of its %d CPUs", busy, s.CPUs)}, Advice: serverAdvice})
	}
	if r.CPUs == 0 || largest == "" {
		return nil
	}
	busy := min(sum/r.Seconds+r.OtherCPUs, float64(r.CPUs)) // both are measured with errors
	var parts []string
	for _, process := range slices.SortedFunc(maps.Keys(r.CPUSeconds), func(a, b string) int {
		return cmp.Or(cmp.Compare(r.CPUSeconds[b], r.CPUSeconds[a]), cmp.Compare(a, b))
	}) {
		if used := r.CPUSeconds[process] / r.Seconds; used >= 0.05 {
			parts = append(parts, fmt.Sprintf("%s %.2f", process, used))
		}
	}
	if r.OtherCPUs >= 0.05 {
		parts = append(parts, fmt.Sprintf("other work %.2f", r.OtherCPUs))
	}
	f := Finding{Kind: MachineCPU, Share: busy / float64(r.CPUs),
		Evidence: []string{fmt.Sprintf("%.1f of %d CPUs were busy: %s", busy, r.CPUs, strings.Join(parts, ", "))},
		Advice:   []string{"give " + largest + " more CPU: it uses the most"}}
	switch {
	case r.OtherCPUs > r.CPUSeconds[largest]/r.Seconds:
		f.Advice, f.elsewhere = []string{"measure again while the machine has no other work: it uses the most"}, true
	case largest == metrics.APIServer:
		f.Kind, f.Advice = APIServerCPU, serverAdvice
	}
	return full(f)
}

var serverAdvice = []string{"give the API server more CPU, or make fewer writes for each pod: writesPerPod of the report counts them",
	"move webhooks, agents and monitoring off the API server's machine"}

// fullFrom is the part of CPUs from which they limit: scheduling and waits take the rest.
const fullFrom = 0.8

func full(f Finding) []Finding {
	if f.Share < fullFrom {
		return nil
	}
	return []Finding{f}
}

// fsync finds disks that etcd waits for: it syncs one batch of its log after the other.
func fsync(r Run) []Finding {
	if r.Metrics == nil || r.Metrics.Etcd == nil {
		return nil
	}
	h := r.Metrics.Etcd.Fsync
	return []Finding{{Kind: Fsync, Share: h.Seconds / r.Seconds,
		Evidence: []string{fmt.Sprintf("etcd waited %.1f s of %.1f s for the disk: %d syncs of %.1f ms (p99 %.1f ms)", h.Seconds, r.Seconds, h.Count, h.MeanMs, h.P99Ms)},
		Advice:   []string{"put etcd's data on a disk of its own whose fsync takes less than 2 ms (p99 below 10 ms)"}}}
}

// flowControl finds priority levels in which requests wait for their turn.
func flowControl(r Run) (out []Finding) {
	if r.Metrics == nil || r.Metrics.Server == nil {
		return nil
	}
	s := r.Metrics.Server
	for _, name := range slices.Sorted(maps.Keys(s.Levels)) {
		l := s.Levels[name]
		share := 0.0
		if s.PodCreates.MeanMs > 0 && l.Wait.MeanMs >= 5 {
			share = l.Wait.MeanMs / s.PodCreates.MeanMs
		}
		if l.Rejected > 0 {
			share = max(share, float64(l.Rejected)/float64(l.Requests+l.Rejected))
		}
		if share == 0 {
			continue
		}
		out = append(out, Finding{Kind: FlowControl, Share: share,
			Evidence: []string{fmt.Sprintf("priority level %s: %d requests waited %.0f ms on average (p99 %.0f ms), %d were rejected", name, l.Requests, l.Wait.MeanMs, l.Wait.P99Ms, l.Rejected)},
			Advice: []string{"give the controller a FlowSchema and a PriorityLevelConfiguration of its own, with more nominalConcurrencyShares than " + name,
				"raise --max-mutating-requests-inflight of the API server if its CPU is not busy"}})
	}
	return out
}

// scheduler finds schedulers that place one pod after the other all the time.
func scheduler(r Run) (out []Finding) {
	for process, c := range controllers(r) {
		for _, name := range []string{metrics.Pods, metrics.Gangs} {
			q := c.Queues[name]
			if q.Work.Count == 0 {
				continue
			}
			evidence := []string{fmt.Sprintf("%s: %d attempts of %.1f ms take %.1f s of %.1f s, one after the other", process, q.Work.Count, q.Work.MeanMs, q.Work.Seconds, r.Seconds)}
			if q.DepthMax > 0 {
				evidence = append(evidence, fmt.Sprintf("up to %d waited for it", q.DepthMax))
			}
			out = append(out, Finding{Kind: Scheduler, Share: q.Work.Seconds / r.Seconds, Evidence: evidence,
				Advice: []string{"lower percentageOfNodesToScore of " + process + ", or leave plugins out that the pods do not need", "divide the pods among several schedulers"}})
		}
	}
	return out
}

// loadClient finds runs in which the system waits for its load.
func loadClient(r Run) []Finding {
	if r.JobsSeconds < 0.9*r.Seconds {
		return nil
	}
	return []Finding{{Kind: LoadClient, Share: 0.9 * r.JobsSeconds / r.Seconds,
		Evidence: []string{fmt.Sprintf("the last job was created after %.2f s, the last pod had a node after %.2f s: the system waits for the client", r.JobsSeconds, r.Seconds)},
		Advice:   []string{"submit fewer, larger jobs, or more at once (--client-concurrency)"}}}
}

// controllers iterates over the processes other than the API server and etcd, in the order of names.
func controllers(r Run) func(func(string, *metrics.Controller) bool) {
	return func(yield func(string, *metrics.Controller) bool) {
		if r.Metrics == nil {
			return
		}
		for _, name := range slices.Sorted(maps.Keys(r.Metrics.Controllers)) {
			if !yield(name, r.Metrics.Controllers[name]) {
				return
			}
		}
	}
}

// doubled returns the advice to double the settings that may help and that no experiment has
// changed: of the others it is known which value helps.
func (f *Finding) doubled(settings map[string]string, experiments []Experiment) (out []string) {
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		n, err := strconv.Atoi(settings[name])
		if err == nil && n > 0 && slices.ContainsFunc(f.words, func(w string) bool { return strings.Contains(strings.ToLower(name), w) }) &&
			!slices.ContainsFunc(experiments, func(e Experiment) bool { return e.Setting == name }) {
			out = append(out, fmt.Sprintf("%s: %d, now %d", name, 2*n, n))
		}
	}
	return out
}

// Need is what a controller needs with a number of pods.
type Need struct {
	Pods int `json:"pods"`
	// MemoryMiB and MilliCPU are the requests to give it.
	MemoryMiB int `json:"memoryMiB"`
	MilliCPU  int `json:"milliCPU"`
}

// Sample is the most memory of a controller, and its CPU time, in a run with so many pods.
type Sample struct {
	Pods       int
	MemoryMiB  float64
	CPUSeconds float64
	Seconds    float64
}

// Sizes are the numbers of pods for which Size computes needs.
var Sizes = []int{1_000, 5_000, 10_000, 50_000, 100_000}

const (
	// reserve is the part that requests are above what was measured.
	reserve = 1.25
	// memoryStep and cpuStep are what requests are rounded up to.
	memoryStep, cpuStep = 32, 50
)

// Size extrapolates what a controller needs from samples of at least two sizes: memory grows
// linearly with the pods from a base. The CPU is what the controller used while it worked at its full
// pace, which does not depend on the size.
func Size(samples []Sample) (out []Need) {
	if len(samples) < 2 {
		return nil
	}
	small := slices.MinFunc(samples, func(a, b Sample) int { return cmp.Compare(a.Pods, b.Pods) })
	large := slices.MaxFunc(samples, func(a, b Sample) int { return cmp.Compare(a.Pods, b.Pods) })
	if small.Pods == large.Pods {
		return nil
	}
	each := max(0, (large.MemoryMiB-small.MemoryMiB)/float64(large.Pods-small.Pods))
	base := max(0, small.MemoryMiB-each*float64(small.Pods))
	busy := 0.0
	for _, s := range samples {
		if s.Seconds > 0 {
			busy = max(busy, s.CPUSeconds/s.Seconds)
		}
	}
	up := func(x float64, step int) int { return (int(x) + step) / step * step }
	for _, pods := range Sizes {
		out = append(out, Need{Pods: pods, MemoryMiB: up(reserve*(base+each*float64(pods)), memoryStep), MilliCPU: up(reserve*1e3*busy, cpuStep)})
	}
	return out
}
