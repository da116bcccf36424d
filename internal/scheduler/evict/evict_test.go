package evict

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/scheduler/place"
	"lockstep.dev/lockstep/internal/scheduler/share"
)

// cluster builds a world by hand.
type cluster struct{ world }

func newCluster(nodes int, pairs ...string) *cluster {
	c := &cluster{world{rules: Rules{Preempt: true, PreemptAcross: true, Reclaim: true},
		queues: []testQueue{{name: share.Root}, {name: "q"}}}}
	for i := range nodes {
		c.nodes = append(c.nodes, newNode(fmt.Sprint("node-", i), pairs...))
	}
	return c
}

// gang adds a gang with equal pods of one hour, on the given nodes.
func (c *cluster) gang(key, queue string, priority int32, tpl *corev1.Pod, nodes ...int) *testGang {
	g := testGang{Gang: Gang{Key: key, Queue: queue, Priority: priority, MinMember: len(nodes)}}
	for k, n := range nodes {
		g.Pods = append(g.Pods, Pod{Name: types.NamespacedName{Namespace: "ns", Name: fmt.Sprint(key, "-", k)},
			Node: c.nodes[n].Name, Priority: priority, Started: now.Add(-time.Hour)})
		g.templates = append(g.templates, tpl)
	}
	c.gangs = append(c.gangs, g)
	return &c.gangs[len(c.gangs)-1]
}

func claimOf(queue string, priority int32, pods int, tpl *corev1.Pod) *testClaim {
	return &testClaim{Claim: Claim{Gang: place.Gang{Key: "claimant", Queue: queue}, Priority: priority},
		templates: []*corev1.Pod{tpl}, count: []int{pods}, min: []int{pods}}
}

// victimsOf lists the victims of a plan: gangs that go whole, and pods that go singly.
func victimsOf(p *Plan) []string {
	var out []string
	for _, v := range p.Victims {
		if v.Whole {
			out = append(out, v.Gang)
			continue
		}
		for _, pod := range v.Pods {
			out = append(out, pod.Name)
		}
	}
	return out
}

var cpu1, cpu2 = template("cpu", "1"), template("cpu", "2")

func TestFind(t *testing.T) {
	for name, x := range map[string]struct {
		build   func(c *cluster) *testClaim
		want    []string
		refusal string
	}{
		"one gang of two is better than two gangs of one": {func(c *cluster) *testClaim {
			c.gang("small-1", "q", 0, cpu1, 0)
			c.gang("small-2", "q", 0, cpu1, 0)
			c.gang("large", "q", 5, cpu1, 1, 1)
			return claimOf("q", 10, 1, cpu2)
		}, []string{"large"}, ""},
		"of equal gangs the one of lowest priority goes": {func(c *cluster) *testClaim {
			c.gang("a", "q", 5, cpu2, 0)
			c.gang("b", "q", 0, cpu2, 1)
			return claimOf("q", 10, 1, cpu2)
		}, []string{"b"}, ""},
		"of equal priority the one with least work goes": {func(c *cluster) *testClaim {
			c.gang("a", "q", 0, cpu2, 0)
			c.gang("b", "q", 0, cpu2, 1).Pods[0].Started = now.Add(-time.Minute)
			return claimOf("q", 10, 1, cpu2)
		}, []string{"b"}, ""},
		"surplus goes before whole gangs, whatever its priority": {func(c *cluster) *testClaim {
			c.gang("a", "q", 0, cpu2, 0)
			c.gang("b", "q", 5, cpu1, 1, 1).MinMember = 0
			return claimOf("q", 10, 1, cpu2)
		}, []string{"b-0", "b-1"}, ""},
		"a gang that is left below its minimum goes whole": {func(c *cluster) *testClaim {
			c.gang("a", "q", 0, cpu1, 0, 0, 1, 1)
			return claimOf("q", 10, 1, cpu1)
		}, []string{"a"}, ""},
		"priorities must be lower": {func(c *cluster) *testClaim {
			c.gang("a", "q", 10, cpu2, 0)
			c.gang("b", "q", 11, cpu2, 1)
			return claimOf("q", 10, 1, cpu2)
		}, nil, NoVictims},
		"nobody is evicted if that is not enough": {func(c *cluster) *testClaim {
			c.gang("a", "q", 0, cpu2, 0)
			c.gang("b", "q", 20, cpu2, 1)
			return claimOf("q", 10, 2, cpu2)
		}, nil, NotEnough},
		"a protected pod protects its gang": {func(c *cluster) *testClaim {
			c.gang("a", "q", 0, cpu1, 0, 0).Pods[1].Protected = true
			c.gang("b", "q", 20, cpu2, 1)
			return claimOf("q", 10, 1, cpu1)
		}, nil, NoVictims},
		"a gang evicted often is left alone": {func(c *cluster) *testClaim {
			c.rules.EvictionsMax, c.rules.Window = 1, time.Hour
			c.gang("a", "q", 0, cpu2, 0).Evicted = []time.Time{now.Add(-time.Minute)}
			c.gang("b", "q", 5, cpu2, 1).Evicted = []time.Time{now.Add(-2 * time.Hour)}
			return claimOf("q", 10, 1, cpu2)
		}, []string{"b"}, ""},
		"a pod beyond its budget goes last": {func(c *cluster) *testClaim {
			c.budgets = []int{0}
			c.gang("a", "q", 0, cpu2, 0).Pods[0].Budgets = []int{0}
			c.gang("b", "q", 5, cpu2, 1)
			return claimOf("q", 10, 1, cpu2)
		}, []string{"b"}, ""},
		"pods that are leaving are enough": {func(c *cluster) *testClaim {
			c.gang("a", "q", 0, cpu2, 0)
			c.gang("b", "q", 5, cpu2, 1).Pods[0].Leaving = true
			return claimOf("q", 10, 1, cpu2)
		}, nil, ""},
		"a full queue makes room for itself": {func(c *cluster) *testClaim {
			c.queues[1].capability = list("cpu", "2")
			c.gang("a", "q", 0, cpu2, 0)
			return claimOf("q", 10, 1, cpu1)
		}, []string{"a"}, ""},
		"a queue gets what it deserves from one that has more": {func(c *cluster) *testClaim {
			c.queues = append(c.queues, testQueue{name: "p", deserved: list("cpu", "2")})
			c.queues[1].deserved = list("cpu", "2")
			c.gang("a", "p", 20, cpu2, 0)
			c.gang("b", "p", 30, cpu2, 1)
			return claimOf("q", 0, 1, cpu2)
		}, []string{"a"}, ""},
		"and no more than that": {func(c *cluster) *testClaim {
			c.queues = append(c.queues, testQueue{name: "p", deserved: list("cpu", "2")})
			c.queues[1].deserved = list("cpu", "1")
			c.gang("a", "p", 20, cpu2, 0)
			c.gang("b", "p", 20, cpu2, 1)
			return claimOf("q", 0, 1, cpu2)
		}, nil, NoVictims},
		"a queue keeps what it deserves, whoever of its gangs leaves": {func(c *cluster) *testClaim {
			c.queues = append(c.queues, testQueue{name: "p", deserved: list("cpu", "3")})
			c.queues[1].deserved = list("cpu", "4")
			c.gang("a", "p", 20, cpu2, 0)
			c.gang("b", "p", 30, cpu2, 1)
			return claimOf("q", 0, 2, cpu2)
		}, nil, NotFound},
		"a guarantee counts even against a queue that is not reclaimable": {func(c *cluster) *testClaim {
			c.queues = append(c.queues, testQueue{name: "p", kept: true})
			c.queues[1].guarantee = list("cpu", "2")
			c.gang("a", "p", 20, cpu2, 0)
			c.gang("b", "p", 30, cpu2, 1)
			return claimOf("q", 0, 1, cpu2)
		}, []string{"a"}, ""},
		"a high priority takes nothing that another queue deserves": {func(c *cluster) *testClaim {
			c.queues = append(c.queues, testQueue{name: "p", deserved: list("cpu", "4")})
			c.gang("a", "p", 0, cpu2, 0)
			c.gang("b", "p", 0, cpu2, 1)
			return claimOf("q", 10, 1, cpu2)
		}, nil, NoVictims},
		"a high priority takes nothing that is guaranteed to another queue": {func(c *cluster) *testClaim {
			c.queues = append(c.queues, testQueue{name: "p", guarantee: list("cpu", "4")})
			c.gang("a", "p", 0, cpu2, 0)
			c.gang("b", "p", 0, cpu2, 1)
			return claimOf("q", 10, 1, cpu2)
		}, nil, NoVictims},
		"a task of high priority takes surplus of its own job": {func(c *cluster) *testClaim {
			g := c.gang("claimant", "q", 0, cpu2, 0, 1)
			g.MinMember = 2
			claim := claimOf("q", 0, 1, cpu1)
			claim.TaskPriority, claim.Surplus = 1, true
			return claim
		}, []string{"claimant-0"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(2, "cpu", "2")
			claim := x.build(c)
			p := c.find(claim)
			code := ""
			if p.Refusal != nil {
				code = p.Refusal.Code
			}
			if diff := cmp.Diff(x.want, victimsOf(p)); diff != "" || code != x.refusal {
				t.Errorf("refusal %q, victims (-want +got): %s\n%s", code, diff, p.Explain())
			}
		})
	}
}

// TestEqualGangsHaveAnOrder checks that the order of the state does not decide among equal victims.
func TestEqualGangsHaveAnOrder(t *testing.T) {
	c := newCluster(2, "cpu", "2")
	c.gang("a", "q", 0, cpu2, 0)
	c.gang("b", "q", 0, cpu2, 1)
	s, dims := c.state(func(n int) []int {
		order := inOrder(n)
		slices.Reverse(order)
		return order
	})
	claim := claimOf("q", 10, 1, cpu2)
	if a, b := c.find(claim), New(s).Find(claim.claim(dims)); !slices.Equal(victimsOf(a), victimsOf(b)) {
		t.Error(victimsOf(a), "and in another order", victimsOf(b))
	}
}

// TestVictimsOfEarlierStepsAreDropped checks that surplus stays that was chosen before a whole gang
// had to go that frees enough alone, also without an exhaustive search.
func TestVictimsOfEarlierStepsAreDropped(t *testing.T) {
	c := newCluster(2, "cpu", "3")
	c.gang("elastic", "q", 0, cpu1, 0, 0, 0).MinMember = 2
	c.gang("whole", "q", 0, cpu1, 1, 1, 1)
	s, dims := c.state(inOrder)
	f := New(s)
	f.exactPods = 0
	p := f.Find(claimOf("q", 10, 3, cpu1).claim(dims))
	if diff := cmp.Diff([]string{"whole"}, victimsOf(p)); diff != "" {
		t.Error("(-want +got):", diff)
	}
}

func TestExplain(t *testing.T) {
	c := newCluster(3, "cpu", "2")
	c.gang("elastic", "q", 5, cpu1, 0, 0).MinMember = 1
	c.gang("batch", "q", 0, cpu1, 1, 1)
	c.gang("critical", "q", 20, cpu2, 2)
	want := `claimant needs 3 pods to leave:
  batch (queue "q", priority 0): whole, 2 pods; it has lower priority
  elastic (queue "q", priority 5): surplus, 1 pod; it has lower priority
cost: 1 gang, highest priority 5, 30m0s of work of the whole cluster (no cheaper victims exist)
allowed as victims: 4 pods of 2 gangs
not allowed: 1 pod not of lower priority
`
	if diff := cmp.Diff(want, c.find(claimOf("q", 10, 3, cpu1)).Explain()); diff != "" {
		t.Error("(-want +got):", diff)
	}
	got := c.find(claimOf("q", 10, 5, cpu1)).Explain()
	for _, part := range []string{
		"nothing is evicted for claimant: it would not fit even if all pods were evicted that may be",
		"4 of 5 pods would fit"} {
		if !strings.Contains(got, part) {
			t.Errorf("%q is missing in:\n%s", part, got)
		}
	}
}
