package nodecontroller_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	topology "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/nodecontroller"
	"lockstep.dev/lockstep/internal/cputopology/request"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/manager/managertest"
)

// moves matches the manager's writes to the node's pods.
func (e *env) moves(r *http.Request) bool {
	return r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/namespaces/default/pods/"+e.node+"-") && !strings.HasSuffix(r.URL.Path, "/status")
}

// held waits until a write of the manager is held back.
func (e *env) held(there <-chan struct{}) {
	e.Helper()
	select {
	case <-there:
	case <-time.After(time.Minute):
		e.Fatal("the manager writes nothing")
	}
}

// TestALateMoveOverwritesNothing checks a move of a paused manager that reaches the server after
// another manager has moved the pod. The other manager's write stays, and the repack continues from
// there.
func TestALateMoveOverwritesNothing(t *testing.T) {
	e := newEnv(t, localtest.Shared(t), 7)
	e.startManager(nodecontroller.Policy{})
	e.startAgent()
	e.await("the agent", ready)
	e.fragment(2, nil)
	e.atRest()
	e.guard()
	there, release := managertest.Delay(t, e.moves)
	e.ask(topology.RepackRequest{ID: "late"})
	e.held(there)
	// One of two pods is to move next to the other. The other manager has moved both to a third
	// domain.
	const number = 7
	topo := machine.MustTopology()
	var theirs cpuset.Set
	before := e.given()
	idle := topo.Online()
	for _, r := range before {
		idle = idle.Minus(topo.L3[topo.CPUs[r.Containers["c"].CPUs.First()].L3].CPUs)
	}
	for _, l3 := range topo.L3 {
		if l3.CPUs.SubsetOf(idle) && l3.CPUs.Len() >= 8 {
			theirs = l3.CPUs
			break
		}
	}
	all := theirs.IDs()
	for i, name := range slices.Sorted(maps.Keys(before)) {
		r := before[name]
		from, to := r.Containers["c"].CPUs, cpuset.Of(all[4*i:4*i+4]...)
		r.Move = number
		r.Containers = map[string]request.ContainerResult{"c": {CPUs: to, From: &from}}
		e.moved(name, r)
	}
	e.await("the agent has made the other manager's moves", func(n *topology.NodeTopology) bool { return n.Status.Moved >= number })
	release()
	if r := e.ended("late"); r.Phase != topology.RepackDone {
		t.Errorf("the repack whose move came late: %+v", r)
	}
	for name, r := range e.given() {
		if r.Move < number {
			t.Errorf("pod %s has CPUs %s of move %d, which was overtaken by move %d", name, r.Containers["c"].CPUs, r.Move, number)
		}
	}
	e.atRest()
}

// moved writes the CPUs that a pod was given, as another manager does.
func (e *env) moved(name string, r request.Result) {
	e.Helper()
	annotations, err := r.Annotations(request.Lockstep, machine.MustTopology(), nil)
	e.check(err)
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	e.check(err)
	_, err = e.core.CoreV1().Pods("default").Patch(e.Context(), name, types.MergePatchType, data, metav1.PatchOptions{})
	e.check(err)
}

// TestAMoveWhoseAnswerIsLostIsMade checks that a move counts as made if the manager retries the
// write and gets a conflict, because its own first attempt has changed the pod.
func TestAMoveWhoseAnswerIsLostIsMade(t *testing.T) {
	e := newEnv(t, localtest.Shared(t), 8)
	e.startManager(nodecontroller.Policy{})
	e.startAgent()
	e.await("the agent", ready)
	e.fragment(2, nil)
	e.atRest()
	e.guard()
	lost := managertest.Lose(t, e.moves)
	e.ask(topology.RepackRequest{ID: "lost"})
	e.eventually("the answer is lost", func() error {
		if lost() == 0 {
			return fmt.Errorf("no move is written")
		}
		return nil
	})
	if r := e.ended("lost"); r.Phase != topology.RepackDone || r.Moves != 1 || len(r.Freed) != 1 {
		t.Errorf("the repack whose answer was lost: %+v", r)
	}
	moved := 0
	for _, r := range e.given() {
		if r.Move > 0 {
			moved++
		}
	}
	if moved != 1 {
		t.Errorf("%d pods were moved, want 1", moved)
	}
	e.atRest()
}
