package manager_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// The crash tests are small by default. LOCKSTEP_CHAOS=full makes them 500 gangs of 20 and 10 kills; LOCKSTEP_SEED
// repeats a run.
type chaos struct {
	jobs, pods, nodes, kills int
	seed                     uint64
}

func newChaos(t *testing.T) chaos {
	c := chaos{jobs: 40, pods: 20, nodes: 50, kills: 4, seed: rand.Uint64()}
	if os.Getenv("LOCKSTEP_CHAOS") == "full" {
		c.jobs, c.nodes, c.kills = 500, 1000, 10
	}
	if s := os.Getenv("LOCKSTEP_SEED"); s != "" {
		var err error
		if c.seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("LOCKSTEP_SEED=%d", c.seed)
	return c
}

// startWithManager starts a cluster whose manager is a process of its own, and only there.
func (c chaos) start(t *testing.T) *env {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cluster := localtest.Start(t, localtest.WithControllerManager(), localtest.WithManager(self, "manager"),
		localtest.WithNodes(localcluster.Nodes{Count: c.nodes}), localtest.WithInstall())
	return newEnv(t, cluster)
}

// submit creates the gangs, several at a time, as a user's script would.
func (c chaos) submit(e *env) (wait func()) {
	var group sync.WaitGroup
	next := make(chan int)
	for range 4 {
		group.Go(func() {
			for i := range next {
				e.create(newJob(fmt.Sprintf("gang-%03d", i), int32(c.pods), "100m"))
			}
		})
	}
	group.Go(func() {
		defer close(next)
		for i := range c.jobs {
			next <- i
		}
	})
	return group.Wait
}

// finished waits until every gang runs, and checks what must hold at rest.
func (c chaos) finished(e *env) {
	e.Helper()
	localtest.Eventually(e, 3*time.Minute, "every gang runs", func() error {
		list, err := e.dyn.Resource(jobs).Namespace(e.ns).List(e.Context(), metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return err
		}
		running := 0
		for i := range list.Items {
			if j := e.asJob(&list.Items[i]); j.Status.State.Phase == batch.Running && int(j.Status.Running) == c.pods {
				running++
			}
		}
		if running != c.jobs {
			return fmt.Errorf("%d of %d", running, c.jobs)
		}
		return nil
	})
	perJob := map[string]int{}
	perNode := map[string]int{}
	for _, p := range e.pods() {
		if p.Status.Phase != corev1.PodRunning || p.Spec.NodeName == "" {
			e.Errorf("pod %s is %s on %q", p.Name, p.Status.Phase, p.Spec.NodeName)
		}
		perJob[p.Labels[batch.JobNameKey]]++
		perNode[p.Spec.NodeName]++
	}
	for name, n := range perJob {
		if n != c.pods {
			e.Errorf("gang %s has %d pods", name, n)
		}
	}
	if len(perJob) != c.jobs {
		e.Errorf("%d gangs have pods", len(perJob))
	}
	for node, n := range perNode {
		if n > 110 {
			e.Errorf("node %s has %d pods", node, n)
		}
	}
}

// restart starts a component that was killed, as soon as its end has been noticed.
func (e *env) restart(name localcluster.Component) {
	e.Helper()
	e.eventually("start "+string(name), func() error { return e.c.StartComponent(e.Context(), name) })
}

// created is how many pods the API server has been asked for so far, which is what moments of a run are told by.
func (e *env) created() int { return managerWrites(e, e.c, e.ns)["pods create"] }

func TestTheManagerIsKilledAgainAndAgain(t *testing.T) {
	c := newChaos(t)
	e := c.start(t)
	random := rand.New(rand.NewPCG(c.seed, 1))
	submitted := c.submit(e)
	total := c.jobs * c.pods
	for i := range c.kills {
		// A moment somewhere in the next part of the run.
		at := (i*total + random.IntN(total)) / c.kills
		localtest.Eventually(e, time.Minute, fmt.Sprintf("%d pods are created", at), func() error {
			if n := e.created(); n < at {
				return fmt.Errorf("%d are", n)
			}
			return nil
		})
		if err := e.c.Kill(localcluster.Manager); err != nil {
			t.Fatal(err)
		}
		e.restart(localcluster.Manager)
	}
	submitted()
	c.finished(e)
	if n := e.created(); n > total+c.kills*1000 {
		t.Errorf("%d creates for %d pods", n, total)
	}
	restartAtRest(t, e)
}

func TestTheAPIServerIsKilled(t *testing.T) {
	c := newChaos(t)
	e := c.start(t)
	random := rand.New(rand.NewPCG(c.seed, 2))
	submitted := c.submit(e)
	submitted()
	at := random.IntN(c.jobs * c.pods)
	localtest.Eventually(e, time.Minute, fmt.Sprintf("%d pods are created", at), func() error {
		if n := e.created(); n < at {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	if err := e.c.Kill(localcluster.APIServer); err != nil {
		t.Fatal(err)
	}
	e.restart(localcluster.APIServer)
	c.finished(e)
	restartAtRest(t, e)
}

// restartAtRest restarts the manager when nothing is left to do: it must find that out without a write, but for its
// lease's.
func restartAtRest(t *testing.T, e *env) {
	t.Helper()
	if err := e.c.StopComponent(t.Context(), localcluster.Manager); err != nil {
		t.Fatal(err)
	}
	// A status whose answer was lost with the API server is written again, possibly by now, by the manager that wrote it.
	before := managerWrites(t, e.c, "")
	e.restart(localcluster.Manager)
	// What a restart would write, it would write before it has taken up a job that comes after it.
	e.create(newJob("after", 1, "100m"))
	e.until("after", inPhase(batch.Running))
	after := managerWrites(t, e.c, "")
	after["pods create"]--
	after["jobs/status update"]--
	for _, w := range []map[string]int{before, after} {
		maps.DeleteFunc(w, func(what string, n int) bool { return n == 0 || strings.HasPrefix(what, "leases ") })
	}
	if !maps.Equal(before, after) {
		t.Errorf("a restart at rest wrote: before %v, after %v (less the two writes of a new job)", before, after)
	}
}
