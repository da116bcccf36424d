package controller

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// TestApplicationsBeginInTheirOrder: never more than the limit at a time, all in the end, and those that wait in the order in
// which they came.
func TestApplicationsBeginInTheirOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := &gate{}
		var queue, in []int // those that look at the gate next; those that are in
		n := rapid.IntRange(1, 4*beginningMax).Draw(t, "applications")
		for i := range n {
			queue = append(queue, i)
		}
		last, done := -1, 0
		for len(queue) > 0 || len(in) > 0 {
			if len(queue) > 0 && (len(in) == 0 || rapid.Bool().Draw(t, "enter")) {
				i := queue[0]
				queue = queue[1:]
				if !g.enter(key("", fmt.Sprint(i))) {
					continue
				}
				in = append(in, i)
				if len(in) > beginningMax {
					t.Fatalf("%d are in", len(in))
				}
				continue
			}
			at := rapid.IntRange(0, len(in)-1).Draw(t, "leave")
			next, ok := g.leave(key("", fmt.Sprint(in[at])))
			in = append(in[:at], in[at+1:]...)
			done++
			if ok {
				var i int
				if _, err := fmt.Sscan(next.Name, &i); err != nil || i < last {
					t.Fatalf("%q may begin after %d: %v", next.Name, last, err)
				}
				last = i
				queue = append([]int{i}, queue...)
			}
		}
		if done != n {
			t.Fatalf("%d of %d were let in", done, n)
		}
	})
}
