package deploy

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// TestApplicationsBeginInTheirOrder checks that never more Applications than the limit have a
// place, that all enter in the end, and that they enter in the order in which they came. Some leave
// while they wait.
func TestApplicationsBeginInTheirOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := &StartLimiter{}
		var in, waiting []int
		n := rapid.IntRange(1, 4*beginningMax).Draw(t, "applications")
		name := func(i int) types.NamespacedName { return types.NamespacedName{Name: fmt.Sprint(i)} }
		came, done := 0, 0
		letIn := func(next []types.NamespacedName) {
			for _, k := range next {
				if len(waiting) == 0 || k != name(waiting[0]) {
					t.Fatalf("%s may begin, and %v wait", k.Name, waiting)
				}
				in, waiting = append(in, waiting[0]), waiting[1:]
				if !g.Enter(k) {
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
				letIn(g.Leave(name(gone), lag))
				done++
			case act == "ask again" && len(waiting) > 0:
				if g.Enter(name(waiting[len(waiting)-1])) {
					t.Fatal("the last one passed by the others")
				}
			case act == "come" && came < n || len(in) == 0:
				i := came
				came++
				if g.Enter(name(i)) {
					in = append(in, i)
				} else {
					waiting = append(waiting, i)
				}
				letIn(nil)
			case len(in) > 0:
				at := rapid.IntRange(0, len(in)-1).Draw(t, "who")
				left := in[at]
				in = append(in[:at:at], in[at+1:]...)
				letIn(g.Leave(name(left), lag))
				done++
			}
		}
		if len(g.begun) != 0 || len(g.waits) != 0 {
			t.Fatalf("%d are left in, %d wait", len(g.begun), len(g.waits))
		}
	})
}

// TestTheGateIsAsWideAsTheServerBears checks that there are many places while writes are quick, and
// few while they wait for each other.
func TestTheGateIsAsWideAsTheServerBears(t *testing.T) {
	g := &StartLimiter{}
	next := 0
	turn := func(times int, lag time.Duration) {
		for range times {
			for g.Enter(types.NamespacedName{Name: fmt.Sprint(next)}) {
				next++
			}
			next++ // an Application that waits
			for k := range g.begun {
				g.Leave(k, lag)
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
