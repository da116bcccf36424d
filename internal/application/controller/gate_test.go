package controller

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// TestApplicationsBeginInTheirOrder checks that never more Applications than the limit are inside
// the gate, that all enter in the end, and that they enter in the order in which they came. Some
// leave while they wait.
func TestApplicationsBeginInTheirOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := &gate{}
		var in, waiting []int
		n := rapid.IntRange(1, 4*beginningMax).Draw(t, "applications")
		name := func(i int) types.NamespacedName { return key("", fmt.Sprint(i)) }
		came, done := 0, 0
		letIn := func(next []types.NamespacedName) {
			for _, k := range next {
				if len(waiting) == 0 || k != name(waiting[0]) {
					t.Fatalf("%s may begin, and %v wait", k.Name, waiting)
				}
				in, waiting = append(in, waiting[0]), waiting[1:]
				if !g.enter(k) {
					t.Fatalf("%s was let in, and may not enter", k.Name)
				}
			}
			if len(in) > beginningMax || len(in) < min(beginningMin, len(in)+len(waiting)) {
				t.Fatalf("%d are in, %d wait", len(in), len(waiting))
			}
		}
		for done < n {
			lag := rapid.SampledFrom([]time.Duration{0, crowded, 2 * crowded}).Draw(t, "lag")
			act := rapid.SampledFrom([]string{"come", "leave", "ask again", "give up"}).Draw(t, "act")
			switch {
			case act == "give up" && len(waiting) > 0:
				at := rapid.IntRange(0, len(waiting)-1).Draw(t, "who")
				gone := waiting[at]
				waiting = append(waiting[:at:at], waiting[at+1:]...)
				letIn(g.leave(name(gone), lag))
				done++
			case act == "ask again" && len(waiting) > 0:
				if g.enter(name(waiting[len(waiting)-1])) {
					t.Fatal("the last one passed by the others")
				}
			case act == "come" && came < n || len(in) == 0:
				i := came
				came++
				if g.enter(name(i)) {
					in = append(in, i)
				} else {
					waiting = append(waiting, i)
				}
				letIn(nil)
			case len(in) > 0:
				at := rapid.IntRange(0, len(in)-1).Draw(t, "who")
				left := in[at]
				in = append(in[:at:at], in[at+1:]...)
				letIn(g.leave(name(left), lag))
				done++
			}
		}
		if len(g.begun) != 0 || len(g.waits) != 0 {
			t.Fatalf("%d are left in, %d wait", len(g.begun), len(g.waits))
		}
	})
}

// TestTheGateIsAsWideAsTheServerBears checks that the gate is wide while writes are quick, and
// narrow while they wait for each other.
func TestTheGateIsAsWideAsTheServerBears(t *testing.T) {
	g := &gate{}
	next := 0
	turn := func(times int, lag time.Duration) {
		for range times {
			for g.enter(key("", fmt.Sprint(next))) {
				next++
			}
			next++ // one that waits
			for k := range g.begun {
				g.leave(k, lag)
				break
			}
		}
	}
	turn(10*beginningMax*beginningMax, crowded/2)
	if n := len(g.begun); n != beginningMax {
		t.Errorf("%d have begun at a server that is quick, of %d", n, beginningMax)
	}
	turn(10*beginningMax*beginningMax, 2*crowded)
	if n := len(g.begun); n != beginningMin {
		t.Errorf("%d have begun at a server that is slow, of %d", n, beginningMin)
	}
}

// TestPlacesAreKeptUntilWhatWasMadeIsTakenUp checks that an Application keeps its place at the gate
// until controllers have observed its objects, for takenUpMax at most, and while its writes are
// under way, unless their cluster does not answer.
func TestPlacesAreKeptUntilWhatWasMadeIsTakenUp(t *testing.T) {
	now := time.Now()
	gvk := schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
	watch := &kindWatch{gvk: gvk, objects: map[types.NamespacedName]*object{}}
	watch.l = &live{watches: map[schema.GroupVersionKind]*kindWatch{gvk: watch}, changed: func(types.NamespacedName) {}}
	far := &target{name: "far", live: &live{}}
	fake := clocktesting.NewFakeClock(now)
	c := &Controller{cfg: Config{Clock: fake}, targets: &targets{local: &target{live: watch.l}, remote: map[string]*target{"far": far}}}
	pass := func(d time.Duration) { now = now.Add(d); fake.SetTime(now) }
	here, there := plan.Ref{GVK: gvk, Namespace: "ns", Name: "web"}, plan.Ref{Cluster: "far", GVK: gvk, Namespace: "ns", Name: "web"}
	a := &record{state: &state{
		owner: &owner{key: key("ns", "shop")}, writes: writes{answered: now, flight: map[string]bool{}},
		plan: &plan.Plan{Resources: []plan.Resource{{Ref: here}, {Ref: there}}},
	}}
	show := func(version, status string) {
		watch.put(&kubeclient.Raw{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "web", UID: "u", ResourceVersion: version,
				Labels: map[string]string{oam.AppNameLabel: "shop", oam.AppNamespaceLabel: "ns"},
			},
			JSON: []byte(`{"metadata":{},"status":` + status + `}`),
		})
	}
	expect := func(when string, keeps bool, again time.Duration) {
		t.Helper()
		if k, w := c.keepsPlace(a); k != keeps || w != again {
			t.Errorf("%s: %v, again after %v, not %v, %v", when, k, w, keeps, again)
		}
	}
	show("1", "{}")
	expect("of one that has not begun", false, 0)
	c.gate.enter(a.key)
	expect("made", true, takenUpMax)
	pass(takenUpMax / 2)
	expect("still not seen", true, takenUpMax/2)
	show("2", `{"observedGeneration":1}`)
	expect("seen", false, 0)
	show("3", "{}")
	pass(takenUpMax)
	expect("for too long", false, 0)
	a.writes.flight["tracker"], a.writes.flight[refKey(there)] = true, true
	expect("writing here and there", true, 0)
	delete(a.writes.flight, "tracker")
	far.pulse.asked(now)
	expect("writing where an answer may still come", true, silenceMax)
	pass(silenceMax / 4)
	expect("a while later", true, silenceMax*3/4)
	far.pulse.asked(now)
	far.pulse.answered(now)
	expect("another has been answered", true, silenceMax)
	pass(silenceMax)
	expect("writing where nobody answers", false, 0)
}
