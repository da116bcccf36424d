package template

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
)

// TestNoFunctionIsBoundless calls every function with all that makes functions of its like expensive: none may take memory
// beyond what its budget stands for.
func TestNoFunctionIsBoundless(t *testing.T) {
	const allocatedMax = 512 << 20 // in bytes, over a call; what sprig.until(2000000000) would take is thirty times as much
	values := []string{"2000000000", "repeat('ab ', 2000)", "(1..1000)"}
	var names []string
	for name := range sprigFuncs {
		names = append(names, "sprig."+name)
	}
	for name := range ownFuncs {
		names = append(names, name)
	}
	slices.Sort(names)
	call := func(source string) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if e, err := CompileExpr(source); err == nil {
			_, _ = e.Text(Map{})
		}
		if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > allocatedMax {
			t.Errorf("%s takes %d MiB", source, (after.TotalAlloc-before.TotalAlloc)>>20)
		}
	}
	for _, name := range names {
		for _, a := range values {
			call(fmt.Sprintf("%s(%s)", name, a))
			for _, b := range values {
				call(fmt.Sprintf("%s(%s, %s)", name, a, b))
				for _, c := range values[:2] {
					call(fmt.Sprintf("%s(%s, %s, %s)", name, a, b, c))
				}
			}
		}
	}
}
