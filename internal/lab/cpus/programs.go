package cpus

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
)

// Program is a kernel as the scenario runs it: in one pod, or in one for each NUMA node.
type Program struct {
	Name   string `json:"name"`
	Kernel Kernel `json:"kernel"`
	MiB    int    `json:"mib"` // memory of each pod
	CPUs   int    `json:"cpus"`
	Pods   int    `json:"pods"`
	// Neighbours is the number of pods that stream beside it, and NeighbourCPUs their size.
	Neighbours    int `json:"neighbours,omitempty"`
	NeighbourCPUs int `json:"neighbourCPUs,omitempty"`
}

// Ran is the result of a program in one run, all its pods together: the sum of rates, the worst
// latencies.
type Ran struct {
	Program string `json:"program"`
	Result
}

// neighbourMiB is the memory of a neighbour's arrays for each of its CPUs: far more than caches hold.
const neighbourMiB = 64

// programsFor returns the programs for a machine and the pods of its plan. Without room for
// neighbours, programs run alone.
func programsFor(c topologyv1alpha1.Counts, plan Plan) []Program {
	neighbours := 0
	if plan.Together {
		neighbours = plan.PiPods
	}
	beside := func(p Program) Program {
		p.Pods, p.Neighbours = 1, neighbours
		if neighbours > 0 {
			p.NeighbourCPUs = plan.Pi
		}
		return p
	}
	out := []Program{}
	for _, mib := range []int{8, 16, 24} {
		out = append(out, beside(Program{Name: fmt.Sprintf("chase-%d", mib), Kernel: Chase, MiB: mib, CPUs: plan.Server}))
	}
	out = append(out, beside(Program{Name: "hash", Kernel: Hash, MiB: 12, CPUs: plan.Server}),
		beside(Program{Name: "share", Kernel: Share, MiB: 1, CPUs: plan.Server}))
	if numas := int(c.NUMA); numas > 1 && plan.Together {
		each := max(1, min(plan.Server, int(c.CPUs)*2/3/numas))
		out = append(out, Program{Name: "stream", Kernel: Stream, MiB: neighbourMiB * each, CPUs: each, Pods: numas})
	}
	return out
}

// Lacks says what the machine lacks to show what each program is for, or is empty.
func Lacks(c topologyv1alpha1.Counts) []string {
	var out []string
	if c.CPUs < cpusMin {
		out = append(out, fmt.Sprintf("%d CPUs at least, for a program and neighbours (it has %d)", cpusMin, c.CPUs))
	}
	if c.L3 < 2 {
		out = append(out, "several L3 caches (AMD EPYC, or two sockets), so that a neighbour can be kept out of a program's cache")
	}
	if c.NUMA < 2 {
		out = append(out, "several NUMA nodes (two sockets, or NPS4 or sub-NUMA clustering set in the firmware), for local and remote memory")
	}
	return out
}

// programs runs the plan's programs one after the other.
func (t *trial) programs(ctx context.Context, r *Run) error {
	for _, p := range t.plan.Programs {
		ran, err := t.program(ctx, r, p)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		r.Programs = append(r.Programs, ran)
		if err := t.clean(ctx); err != nil {
			return err
		}
	}
	return nil
}

// program runs one program beside its neighbours.
func (t *trial) program(ctx context.Context, r *Run, p Program) (Ran, error) {
	ran := Ran{Program: p.Name}
	//   1. Start the neighbours. They stream for as long as they may, and end with the run.
	for i := range p.Neighbours {
		name := fmt.Sprintf("neighbour-%d", i)
		if err := t.createKernel(ctx, r.Mode, name, Stream, neighbourMiB*p.NeighbourCPUs, p.NeighbourCPUs, t.cfg.Timeout.String()); err != nil {
			return ran, err
		}
	}
	for i := range p.Neighbours {
		if _, err := t.await(ctx, fmt.Sprintf("neighbour-%d", i), corev1.PodRunning); err != nil {
			return ran, err
		}
	}
	//   2. Start the program.
	var names []string
	for i := range p.Pods {
		names = append(names, fmt.Sprintf("%s-%d", p.Name, i))
		if err := t.createKernel(ctx, r.Mode, names[i], p.Kernel, p.MiB, p.CPUs, t.cfg.LoadTime.String()); err != nil {
			return ran, err
		}
	}
	//   3. Collect the results, and check where the pods ran.
	for _, name := range names {
		pod, result, err := t.result(ctx, name)
		if err != nil {
			return ran, err
		}
		ran.join(result)
		t.check(r, pod, result.Allowed)
	}
	return ran, nil
}

func (t *trial) createKernel(ctx context.Context, mode Mode, name string, kernel Kernel, mib, cpus int, duration string) error {
	return t.create(ctx, mode, name, cpus, "kernel", string(kernel), "--bytes="+strconv.Itoa(mib<<20), "--threads="+strconv.Itoa(cpus),
		"--for="+duration)
}

// join adds the result of another pod of the program.
func (r *Ran) join(o Result) {
	if r.Allowed == "" {
		r.Result = o
		return
	}
	r.LLCMisses, r.RemoteLoads = weighted(r.LLCMisses, r.PerSecond, o.LLCMisses, o.PerSecond),
		weighted(r.RemoteLoads, r.PerSecond, o.RemoteLoads, o.PerSecond)
	r.PerSecond += o.PerSecond
	r.P50Ms, r.P99Ms = max(r.P50Ms, o.P50Ms), max(r.P99Ms, o.P99Ms)
	if r.ThrottledMs != nil && o.ThrottledMs != nil {
		sum := *r.ThrottledMs + *o.ThrottledMs
		r.ThrottledMs = &sum
	}
	r.Allowed += "," + o.Allowed
}

// weighted returns the mean of two figures, or nil if one is not known.
func weighted(a *float64, weightA float64, b *float64, weightB float64) *float64 {
	if a == nil || b == nil || weightA+weightB == 0 {
		return nil
	}
	mean := (*a*weightA + *b*weightB) / (weightA + weightB)
	return &mean
}

// ProgramColumns are the titles of ProgramRows. A terminal shows them in capital letters.
var ProgramColumns = []string{"Program", "Mode", "Runs", "Rate", "To unpinned", "p50", "p99", "p99 to unpinned", "Throttled", "LLC misses", "Remote"}

// ProgramRows returns, for each program and mode, the medians over the runs and the ratios to the
// mode unpinned, as text.
func (r *Report) ProgramRows() [][]string {
	var rows [][]string
	for _, p := range r.Plan.Programs {
		var base *Result
		for _, m := range modes {
			var results []Result
			for _, run := range r.Measured() {
				i := slices.IndexFunc(run.Programs, func(ran Ran) bool { return ran.Program == p.Name })
				if run.Mode == m && i >= 0 {
					results = append(results, run.Programs[i].Result)
				}
			}
			if len(results) == 0 {
				continue
			}
			mid := medians(results)
			if m == Unpinned {
				base = &mid
			}
			row := []string{p.Name, string(m), strconv.Itoa(len(results)), p.Kernel.rate(mid.PerSecond), "-",
				microseconds(mid.P50Ms), microseconds(mid.P99Ms), "-", optional(mid.ThrottledMs, "%.0f ms"),
				optional(mid.LLCMisses, "%.3g"), optional(mid.RemoteLoads, "%.3g")}
			if base != nil && m != Unpinned {
				row[4], row[7] = times(ratio(mid.PerSecond, base.PerSecond)), times(ratio(mid.P99Ms, base.P99Ms))
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// medians returns the median of each figure. A figure that is not known of all results is nil.
func medians(results []Result) Result {
	of := func(figure func(Result) float64) float64 {
		var all []float64
		for _, r := range results {
			all = append(all, figure(r))
		}
		return median(all)
	}
	known := func(figure func(Result) *float64) *float64 {
		if slices.ContainsFunc(results, func(r Result) bool { return figure(r) == nil }) {
			return nil
		}
		m := of(func(r Result) float64 { return *figure(r) })
		return &m
	}
	return Result{
		PerSecond: of(func(r Result) float64 { return r.PerSecond }), P50Ms: of(func(r Result) float64 { return r.P50Ms }),
		P99Ms:       of(func(r Result) float64 { return r.P99Ms }),
		ThrottledMs: known(func(r Result) *float64 { return r.ThrottledMs }),
		LLCMisses:   known(func(r Result) *float64 { return r.LLCMisses }),
		RemoteLoads: known(func(r Result) *float64 { return r.RemoteLoads }),
	}
}

// rate formats a rate in the kernel's unit.
func (k Kernel) rate(perSecond float64) string {
	if k == Stream {
		return fmt.Sprintf("%.2f GB/s", perSecond/1e9)
	}
	return fmt.Sprintf("%.2f M/s", perSecond/1e6)
}

func microseconds(ms float64) string { return fmt.Sprintf("%.1f µs", ms*1e3) }

func optional(v *float64, format string) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf(format, *v)
}

// lacks joins what the machine lacks, for the headline.
func (r *Report) lacks() string { return strings.Join(Lacks(r.Topology), "; ") }
