package evict

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestARenewedSearchFindsWhatANewOneDoes changes a state step by step. A search that makes use of what the
// one before has, whatever has been asked of it, gives the same plans as one that is new.
func TestARenewedSearchFindsWhatANewOneDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, 4, 6, 4)
		s, dims := w.state(inOrder)
		f := New(s)
		for range 3 {
			if p := f.Find(drawClaim(t, w, 2).claim(dims)); oneIn(t, 3, "accepted") {
				f.Accept(p)
			}
			next := *s
			next.Now, next.Gangs = s.Now.Add(time.Minute), slices.Clone(s.Gangs)
			if n := len(next.Gangs); n > 0 {
				i := rapid.IntRange(0, n-1).Draw(t, "gang")
				g := &next.Gangs[i]
				switch rapid.IntRange(0, 3).Draw(t, "change") {
				case 0:
					next.Gangs = slices.Delete(next.Gangs, i, i+1)
				case 1:
					g.Pods = slices.Clone(g.Pods)
					if len(g.Pods) > 0 {
						g.Pods[0].Leaving = !g.Pods[0].Leaving
					}
				case 2:
					g.Pods = slices.Clone(g.Pods)
					slices.Reverse(g.Pods)
				}
			}
			f = f.Renew(&next)
			c := drawClaim(t, w, 2).claim(dims)
			got, want := f.Find(c), New(&next).Find(c)
			if got.Explain() != want.Explain() || !reflect.DeepEqual(got.Victims, want.Victims) || !reflect.DeepEqual(got.Nodes, want.Nodes) {
				t.Fatalf("%s\n%+v on %v\na new search: %s\n%+v on %v", got.Explain(), got.Victims, got.Nodes, want.Explain(), want.Victims, want.Nodes)
			}
			s = &next
		}
	})
}
