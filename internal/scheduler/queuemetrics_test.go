package scheduler

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestMetricsOfQueues(t *testing.T) {
	registry := prometheus.NewRegistry()
	gold := queue("gold", corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2500m")})
	gold.Spec.Weight = 3
	w := worldOf(t, Config{Metrics: registry, UsageHalfLife: 10 * time.Second}, gold)
	w.writes = true
	w.node("n", "4")
	expect := func(want string) {
		t.Helper()
		err := testutil.GatherAndCompare(registry, strings.NewReader(want), "lockstep_queue_allocated", "lockstep_queue_capability",
			"lockstep_queue_weight", "lockstep_queue_waiting_gangs")
		if err != nil {
			t.Error(err)
		}
	}
	submit := func(key string, pods int) {
		g := w.gang("job/ns/"+key, pods, "1")
		g.Queue = "gold"
		w.Submit(g)
		w.run()
	}
	submit("a", 1)
	submit("b", 2) // above the capability
	submit("c", 2)
	const weights = `
# HELP lockstep_queue_weight The weight of a queue among its siblings.
# TYPE lockstep_queue_weight gauge
lockstep_queue_weight{queue="default"} 1
lockstep_queue_weight{queue="gold"} 3
# HELP lockstep_queue_capability The most that a queue and the queues below it may have.
# TYPE lockstep_queue_capability gauge
lockstep_queue_capability{queue="gold",resource="cpu"} 2.5
# HELP lockstep_queue_allocated Requests of the pods of a queue that have nodes: cores, bytes or numbers.
# TYPE lockstep_queue_allocated gauge
lockstep_queue_allocated{queue="gold",resource="count/jobs.batch.volcano.sh"} 1
lockstep_queue_allocated{queue="gold",resource="cpu"} 1
lockstep_queue_allocated{queue="gold",resource="memory"} 1.048576e+06
lockstep_queue_allocated{queue="gold",resource="pods"} 1
`
	expect(weights + `
# HELP lockstep_queue_waiting_gangs Gangs of a queue that wait for nodes.
# TYPE lockstep_queue_waiting_gangs gauge
lockstep_queue_waiting_gangs{queue="gold"} 2
`)
	w.Withdraw("job/ns/b")
	w.Withdraw("job/ns/c")
	w.run()
	expect(weights)
	w.clock.Step(10 * time.Second) // a half-life
	w.Submit(w.gang("job/ns/d", 1, "1"))
	w.run()
	const usage = `
# HELP lockstep_queue_usage What a queue has used: a mean in which the past counts less (--usage-half-life).
# TYPE lockstep_queue_usage gauge
lockstep_queue_usage{queue="gold",resource="cpu"} 0.5
lockstep_queue_usage{queue="gold",resource="memory"} 524288
lockstep_queue_usage{queue="gold",resource="pods"} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(usage), "lockstep_queue_usage"); err != nil {
		t.Error(err)
	}
}
