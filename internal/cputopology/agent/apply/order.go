package apply

import "lockstep.dev/lockstep/internal/cputopology/cpuset"

// change is the sets of CPUs that a pod or container takes and gives up.
type change struct{ take, give cpuset.Set }

// order returns the indices of n changes in an order in which CPUs are given up before they are
// taken, as far as possible: in a cycle of changes the first one goes first. Otherwise the given
// order is kept.
func order(n int, of func(int) change) []int {
	changes := make([]change, n)
	givers := map[int]int{} // number of waiting changes that give up each CPU
	for i := range changes {
		changes[i] = of(i)
		for cpu := range changes[i].give.All() {
			givers[cpu]++
		}
	}
	out := make([]int, 0, n)
	waiting := make([]bool, n)
	for i := range waiting {
		waiting[i] = true
	}
	free := func(c change) bool {
		for cpu := range c.take.All() {
			others := givers[cpu]
			if c.give.Contains(cpu) {
				others--
			}
			if others > 0 {
				return false
			}
		}
		return true
	}
	goNow := func(i int) {
		out, waiting[i] = append(out, i), false
		for cpu := range changes[i].give.All() {
			givers[cpu]--
		}
	}
	for len(out) < n {
		before, first := len(out), -1
		for i := range changes {
			switch {
			case !waiting[i]:
			case free(changes[i]):
				goNow(i)
			case first < 0:
				first = i
			}
		}
		if len(out) == before {
			goNow(first)
		}
	}
	return out
}
