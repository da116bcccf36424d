package usage

import "testing"

func TestBalance(t *testing.T) {
	b := Balance{Low: Levels{CPU: 20, Memory: 20, Pods: 100}, High: Levels{CPU: 50, Memory: 60, Pods: 100}}
	for sentence, tc := range map[string]struct {
		load, pod        Load
		low, high, helps bool
	}{
		"an idle node":                             {low: true},
		"just below":                               {load: Load{CPU: 19.9, Memory: 19.9}, low: true},
		"at the level":                             {load: Load{CPU: 20, Memory: 1}},
		"little CPU, and some memory":              {load: Load{CPU: 1, Memory: 30}},
		"at the upper level":                       {load: Load{CPU: 50, Memory: 60}},
		"much CPU":                                 {load: Load{CPU: 51}, pod: Load{CPU: 1, Pods: 1}, high: true, helps: true},
		"much CPU, and a pod without CPU":          {load: Load{CPU: 51}, pod: Load{Memory: 5, Pods: 1}, high: true},
		"much memory, and a pod with memory":       {load: Load{Memory: 61}, pod: Load{Memory: 5}, high: true, helps: true},
		"many pods do not count at a level of 100": {load: Load{Pods: 99}, pod: Load{Pods: 1}, low: true},
	} {
		t.Run(sentence, func(t *testing.T) {
			if b.IsLow(tc.load) != tc.low || b.IsHigh(tc.load) != tc.high || b.Helps(tc.load, tc.pod) != tc.helps {
				t.Errorf("low %v, high %v, helps %v", b.IsLow(tc.load), b.IsHigh(tc.load), b.Helps(tc.load, tc.pod))
			}
		})
	}
	pods := Balance{Low: Levels{CPU: 100, Memory: 100, Pods: 10}, High: Levels{CPU: 100, Memory: 100, Pods: 30}}
	if l := (Load{CPU: 100, Pods: 31}); !pods.IsHigh(l) || pods.IsLow(l) || !pods.Helps(l, Load{Pods: 1}) {
		t.Error("the number of pods does not count")
	}
}
