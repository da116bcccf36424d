package evict

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// onNode wants the pods of one node to leave.
func onNode(name string) Departure {
	return Departure{Rule: Revoked, Wanted: func(_ *Gang, p *Pod) bool { return p.Node == name }}
}

// said renders victims as GANG: PODS.
func said(victims []Victim) string {
	var out []string
	for _, v := range victims {
		var pods []string
		for _, p := range v.Pods {
			pods = append(pods, p.Name)
		}
		text := v.Gang + ": " + strings.Join(pods, " ")
		if v.Whole {
			text += " (whole)"
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}

func TestDepart(t *testing.T) {
	// gang returns a gang whose pods are on these nodes, oldest first.
	gang := func(key string, minMember int, nodes ...string) Gang {
		g := Gang{Key: key, MinMember: minMember}
		for i, node := range nodes {
			g.Pods = append(g.Pods, Pod{
				Name: types.NamespacedName{Name: fmt.Sprint(key, i)}, Node: node,
				Started: now.Add(time.Duration(i-100) * time.Minute),
			})
		}
		return g
	}
	for sentence, tc := range map[string]struct {
		change  func(*State)
		gangs   []Gang
		budgets []int
		want    string
	}{
		"pods on other nodes stay":                 {gangs: []Gang{gang("a", 1, "b", "c")}},
		"pods above the minimum leave":             {gangs: []Gang{gang("a", 2, "b", "x", "x", "c")}, want: "a: a1 a2"},
		"a gang below its minimum leaves whole":    {gangs: []Gang{gang("a", 3, "b", "x", "x", "c")}, want: "a: a0 a1 a2 a3 (whole)"},
		"a gang of one pod":                        {gangs: []Gang{gang("a", 1, "x")}, want: "a: a0 (whole)"},
		"several gangs, in the order of their key": {gangs: []Gang{gang("b", 0, "x"), gang("a", 0, "x")}, want: "a: a0; b: b0"},
		"a task below its minimum": {
			gangs:  []Gang{gang("a", 1, "b", "x")},
			change: func(s *State) { s.Gangs[0].Pods[1].Task = "ps"; s.Gangs[0].Min = map[string]int{"ps": 1} },
			want:   "a: a0 a1 (whole)",
		},
		"a pod that is leaving does not count": {
			gangs:  []Gang{gang("a", 2, "x", "b", "c")},
			change: func(s *State) { s.Gangs[0].Pods[1].Leaving = true },
			want:   "a: a0 a2 (whole)",
		},
		"protected pods stay": {
			gangs:  []Gang{gang("a", 0, "x", "x")},
			change: func(s *State) { s.Gangs[0].Pods[0].Protected = true },
			want:   "a: a1",
		},
		"a gang with a pod that must stay loses only those that are to leave": {
			gangs:  []Gang{gang("a", 3, "b", "x", "c")},
			change: func(s *State) { s.Gangs[0].Pods[0].Protected = true },
			want:   "a: a1",
		},
		"system-critical pods stay": {
			gangs:  []Gang{gang("a", 0, "x"), gang("b", 0, "x")},
			change: func(s *State) { s.Gangs[0].Priority, s.Gangs[1].Pods[0].Priority = SystemCritical, SystemCritical },
		},
		"pods stay while they cool down": {
			gangs:  []Gang{gang("a", 0, "x", "x")},
			change: func(s *State) { s.Gangs[0].Pods[1].Cooldown = 99*time.Minute + 1 },
			want:   "a: a0",
		},
		"a budget holds pods back; the youngest leave first": {
			gangs: []Gang{gang("a", 0, "x", "x", "x")}, budgets: []int{1},
			want: "a: a2",
		},
		"a pod of lower priority leaves before a younger one": {
			gangs: []Gang{gang("a", 0, "x", "x", "x")}, budgets: []int{1},
			change: func(s *State) {
				for i, priority := range []int32{5, 3, 5} {
					s.Gangs[0].Pods[i].Priority = priority
				}
			},
			want: "a: a1",
		},
		"a budget lets a gang leave pod by pod": {
			gangs: []Gang{gang("a", 3, "x", "x", "b")}, budgets: []int{1},
			want: "a: a1",
		},
		"a budget that is used up keeps all pods": {gangs: []Gang{gang("a", 3, "x", "x", "b")}, budgets: []int{-1}},
		"a budget that allows all lets the gang leave whole": {
			gangs: []Gang{gang("a", 3, "x", "x", "b")}, budgets: []int{3},
			want: "a: a0 a1 a2 (whole)",
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			s := &State{Now: now, Gangs: tc.gangs}
			for i, allowed := range tc.budgets {
				s.Budgets = append(s.Budgets, Budget{Allowed: allowed})
				for k := range s.Gangs[0].Pods {
					s.Gangs[0].Pods[k].Budgets = append(s.Gangs[0].Pods[k].Budgets, i)
				}
			}
			if tc.change != nil {
				tc.change(s)
			}
			if got := said(Depart(s, onNode("x"))); got != tc.want {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
		})
	}
}

// TestDeparturesKeepTheRules checks random clusters: only pods leave that may; a pod that nobody wants
// to leave does so only with its whole gang; budgets hold; a pod that stays although it is wanted is
// kept by a rule; and the order in which the state is listed does not matter.
func TestDeparturesKeepTheRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, 4, 6, 5)
		node := w.nodes[0].Name
		s, _ := w.state(inOrder)
		victims := Depart(s, onNode(node))
		gone := map[types.NamespacedName]bool{}
		whole := map[string]bool{}
		for _, v := range victims {
			whole[v.Gang] = v.Whole
			for _, name := range v.Pods {
				gone[name] = true
			}
		}
		used := make([]int, len(s.Budgets))
		for i := range s.Gangs {
			g := &s.Gangs[i]
			for k := range g.Pods {
				p := &g.Pods[k]
				may := g.Priority < SystemCritical && p.mayLeave(s) && !p.Leaving
				if gone[p.Name] {
					for _, b := range p.Budgets {
						used[b]++
					}
				}
				switch {
				case gone[p.Name] && !may:
					t.Fatalf("%v may not leave", p.Name)
				case gone[p.Name] && p.Node != node && !whole[g.Key]:
					t.Fatalf("%v leaves another node", p.Name)
				case !gone[p.Name] && whole[g.Key] && !p.Leaving:
					t.Fatalf("%v stays, and its gang leaves whole", p.Name)
				}
			}
		}
		for i, n := range used {
			if n > max(0, s.Budgets[i].Allowed) {
				t.Fatalf("%d pods leave, the budget allows %d", n, s.Budgets[i].Allowed)
			}
		}
		for i := range s.Gangs {
			g := &s.Gangs[i]
			for k := range g.Pods {
				p := &g.Pods[k]
				if p.Node == node && g.Priority < SystemCritical && p.mayLeave(s) && !p.Leaving && !gone[p.Name] &&
					!slices.ContainsFunc(p.Budgets, func(b int) bool { return used[b] >= s.Budgets[b].Allowed }) {
					t.Fatalf("%v stays without a reason", p.Name)
				}
			}
		}
		other, _ := w.state(func(n int) []int { list := inOrder(n); slices.Reverse(list); return list })
		if a, b := said(victims), said(Depart(other, onNode(node))); a != b {
			t.Fatalf("%s, and in another order %s", a, b)
		}
	})
}

func TestSpare(t *testing.T) {
	gang := func(key string, minMember int, priorities ...int32) Gang {
		g := Gang{Key: key, MinMember: minMember}
		for i, priority := range priorities {
			g.Pods = append(g.Pods, Pod{
				Name: types.NamespacedName{Name: fmt.Sprint(key, i)}, Node: "x", Priority: priority,
				Started: now.Add(time.Duration(i-100) * time.Minute),
			})
		}
		return g
	}
	for sentence, tc := range map[string]struct {
		change func(*State)
		gangs  []Gang
		most   int
		want   string
	}{
		"pods above the minimum, the youngest first": {gangs: []Gang{gang("a", 2, 0, 0, 0, 0)}, most: 9, want: "a: a2 a3"},
		"a gang at its minimum stays":                {gangs: []Gang{gang("a", 2, 0, 0)}, most: 9},
		"a gang of one pod may leave":                {gangs: []Gang{gang("a", 1, 0)}, most: 9, want: "a: a0 (whole)"},
		"no more than a number":                      {gangs: []Gang{gang("a", 0, 0, 0, 0)}, most: 2, want: "a: a1 a2"},
		"low priority first, in all gangs":           {gangs: []Gang{gang("a", 0, 5, 1), gang("b", 0, 3, 9)}, most: 2, want: "a: a1; b: b0"},
		"a task at its minimum stays": {
			gangs:  []Gang{gang("a", 0, 0, 0)},
			change: func(s *State) { s.Gangs[0].Pods[1].Task = "ps"; s.Gangs[0].Min = map[string]int{"ps": 1} },
			most:   9, want: "a: a0",
		},
		"pods that are leaving are not spared again": {
			gangs:  []Gang{gang("a", 1, 0, 0, 0)},
			change: func(s *State) { s.Gangs[0].Pods[2].Leaving = true },
			most:   9, want: "a: a1",
		},
		"protected pods stay": {
			gangs:  []Gang{gang("a", 0, 0, 0)},
			change: func(s *State) { s.Gangs[0].Pods[1].Protected = true },
			most:   9, want: "a: a0",
		},
		"budgets hold": {
			gangs: []Gang{gang("a", 0, 0, 0, 0)},
			change: func(s *State) {
				s.Budgets = []Budget{{Allowed: 1}}
				for i := range s.Gangs[0].Pods {
					s.Gangs[0].Pods[i].Budgets = []int{0}
				}
			},
			most: 9, want: "a: a2",
		},
		"system-critical gangs stay": {
			gangs:  []Gang{gang("a", 0, 0)},
			change: func(s *State) { s.Gangs[0].Priority = SystemCritical },
			most:   9,
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			s := &State{Now: now, Gangs: tc.gangs}
			if tc.change != nil {
				tc.change(s)
			}
			if got := said(Spare(s, Moved, tc.most, func(*Gang, *Pod) bool { return true })); got != tc.want {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
		})
	}
	if got := Spare(&State{Now: now, Gangs: []Gang{gang("a", 0, 0)}}, Moved, 9, func(*Gang, *Pod) bool { return false }); len(got) > 0 {
		t.Errorf("nobody is wanted, and %v leaves", got)
	}
}

// TestNoGangIsHarmedBySpare checks random clusters: no gang of several pods ends below its minimum,
// budgets hold, and no more pods leave than may.
func TestNoGangIsHarmedBySpare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, 4, 6, 5)
		s, _ := w.state(inOrder)
		most := rapid.IntRange(0, 6).Draw(t, "most")
		victims := Spare(s, Moved, most, func(*Gang, *Pod) bool { return true })
		gone := map[types.NamespacedName]bool{}
		for _, v := range victims {
			for _, name := range v.Pods {
				gone[name] = true
			}
		}
		if len(gone) > most {
			t.Fatalf("%d pods leave, at most %d may", len(gone), most)
		}
		used := make([]int, len(s.Budgets))
		for i := range s.Gangs {
			g := &s.Gangs[i]
			var before, after []*Pod
			for k := range g.Pods {
				p := &g.Pods[k]
				if p.Leaving {
					continue
				}
				before = append(before, p)
				if !gone[p.Name] {
					after = append(after, p)
					continue
				}
				for _, b := range p.Budgets {
					used[b]++
				}
				if !p.mayLeave(s) {
					t.Fatalf("%v may not leave", p.Name)
				}
			}
			if len(g.Pods) > 1 && len(after) < len(before) && !g.worksWith(after) {
				t.Fatalf("gang %s is below its minimum", g.Key)
			}
		}
		for i, n := range used {
			if n > max(0, s.Budgets[i].Allowed) {
				t.Fatalf("%d pods leave, the budget allows %d", n, s.Budgets[i].Allowed)
			}
		}
	})
}
