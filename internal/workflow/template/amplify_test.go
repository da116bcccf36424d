package template

import (
	"runtime"
	"slices"
	"strings"
	"testing"
)

// TestALargeValueInManyPlacesIsStopped checks that the total size of resolved texts is bounded: a
// workflow of 1 MiB can refer to a large value in many places.
func TestALargeValueInManyPlacesIsStopped(t *testing.T) {
	type args struct {
		Args []string `json:"args"`
	}
	scope := []Scope{Map{"v": strings.Repeat("a", 100<<10)}}
	// the texts would have ten times the bound
	value := &args{slices.Repeat([]string{"x{{v}}"}, 20_000)}
	p, err := Compile(value)
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err = p.Apply(value, scope)
	runtime.ReadMemStats(&after)
	if err == nil || !strings.Contains(err.Error(), "together") {
		t.Errorf("got %v", err)
	}
	if made := after.TotalAlloc - before.TotalAlloc; made > 256<<20 {
		t.Errorf("%d MiB were allocated", made>>20)
	}
}
