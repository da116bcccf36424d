package apiwriter

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// BenchmarkSweep creates bound pods on a real, durable control plane with fixed numbers of requests
// in flight and with the adaptive limit, in turns, and prints a table. One iteration is one round:
//
//	go test ./internal/apiwriter -run '^$' -bench Sweep -benchtime 3x
//
// LOCKSTEP_SWEEP_PODS is the number of pods per turn (default 10,000). LOCKSTEP_SWEEP is the list
// of numbers in flight (default 1,4,16,64,256,1024,0, where 0 is adaptive).
func BenchmarkSweep(b *testing.B) {
	pods, settings := 10_000, []int{1, 4, 16, 64, 256, 1024, 0}
	if s := os.Getenv("LOCKSTEP_SWEEP_PODS"); s != "" {
		pods = atoi(b, s)
	}
	if s := os.Getenv("LOCKSTEP_SWEEP"); s != "" {
		settings = nil
		for _, f := range strings.Split(s, ",") {
			settings = append(settings, atoi(b, f))
		}
	}
	cluster := localtest.Start(b, localtest.WithConfig(func(c *localcluster.Config) { c.NotDurable = false }))
	type turn struct {
		rate, server, own float64 // writes per second, ms of CPU per write
		limit             int
	}
	results := map[int][]turn{}
	round := 0
	for b.Loop() {
		round++
		for i := range settings {
			// Each setting follows another one in each round.
			fixed := settings[(i+round)%len(settings)]
			w := newBenchOn(b, cluster, func(c *Config) { c.Fixed = fixed })
			ended := newOutcomes()
			for n := range pods {
				name := fmt.Sprint("p-", n)
				w.Create(Meta{Owner: fmt.Sprint(n % 20), Reason: "test"}, sweepPod(w.ns, name, n), ended.of(name))
			}
			server, own, start := serverCPU(b, cluster), ownCPU(), time.Now()
			w.run()
			w.flush()
			took := time.Since(start)
			ended.allOnce(b, pods)
			limit := w.Limit()
			w.stop()
			n := float64(pods)
			t := turn{n / took.Seconds(), (serverCPU(b, cluster) - server) * 1000 / n, (ownCPU() - own) * 1000 / n, limit}
			results[fixed] = append(results[fixed], t)
			fmt.Fprintf(os.Stderr, "round %d: %4d in flight: %6.0f/s, CPU per write: server %.2f ms, own %.2f ms; limit at the end %d\n", round, fixed, t.rate, t.server, t.own, limit)
		}
	}
	best := 0.0
	median := map[int]float64{}
	for fixed, turns := range results {
		var rates []float64
		for _, t := range turns {
			rates = append(rates, t.rate)
		}
		slices.Sort(rates)
		median[fixed] = (rates[(len(rates)-1)/2] + rates[len(rates)/2]) / 2
		if fixed > 0 {
			best = max(best, median[fixed])
		}
	}
	var table strings.Builder
	for _, fixed := range settings {
		name := strconv.Itoa(fixed)
		if fixed == 0 {
			name = "adaptive"
		}
		fmt.Fprintf(&table, "\n%8s %6.0f/s  time is %.2f of the best fixed one's", name, median[fixed], best/median[fixed])
	}
	fmt.Fprintf(os.Stderr, "medians of %d rounds of %d pods:%s\n", round, pods, table.String())
	b.ReportMetric(median[0], "adaptive/s")
	b.ReportMetric(best, "best/s")
}

func atoi(b *testing.B, s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

func sweepPod(ns, name string, n int) *corev1.Pod {
	b := bench{ns: ns}
	p := b.pod(name, types.UID("00000000-0000-0000-0000-000000000001"))
	p.Labels = map[string]string{"volcano.sh/job-name": "job", "volcano.sh/task-spec": "task"}
	p.Spec.NodeName = fmt.Sprint("node-", n%1000)
	p.Spec.SchedulerName = "lockstep"
	p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi")}
	return p
}

// serverCPU returns the CPU time of the API server and etcd, in seconds.
func serverCPU(b *testing.B, c *localcluster.Cluster) float64 {
	b.Helper()
	var sum time.Duration
	for _, name := range []localcluster.Component{localcluster.APIServer, localcluster.Etcd} {
		u, err := c.Usage(name)
		if err != nil {
			b.Fatal(err)
		}
		sum += u.CPU
	}
	return sum.Seconds()
}

// ownCPU returns the CPU time of this process, in seconds.
func ownCPU() float64 {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()).Seconds()
}
