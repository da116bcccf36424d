package controller

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// TestSlotsAreBoundedAndNobodyWaitsForEver lets records enter, leave and be woken in any order under any lag.
func TestSlotsAreBoundedAndNobodyWaitsForEver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(slotsLeast, 8).Draw(t, "most")
		var lag time.Duration
		var s slots
		woken := map[types.NamespacedName]bool{}
		s.init(most, func() time.Duration { return lag }, func(k types.NamespacedName) { woken[k] = true })
		records := make([]*record, rapid.IntRange(1, 20).Draw(t, "records"))
		wants := map[*record]bool{}
		for i := range records {
			records[i] = &record{key: types.NamespacedName{Name: fmt.Sprint(i)}}
		}
		check := func() {
			if len(s.holds) > most {
				t.Fatalf("%d slots are taken, of %d", len(s.holds), most)
			}
			if len(s.waiting) > 0 && len(s.holds) == 0 {
				t.Fatal("some wait and nobody has a slot")
			}
			for _, r := range records {
				if wants[r] && !s.holds[r.key] && !s.waiting[r.key] {
					t.Fatalf("%s is forgotten", r.key.Name)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"lag":   func(t *rapid.T) { lag = time.Duration(rapid.IntRange(0, 5000).Draw(t, "ms")) * time.Millisecond },
			"enter": func(t *rapid.T) { r := rapid.SampledFrom(records).Draw(t, "who"); wants[r] = true; s.enter(r) },
			"leave": func(t *rapid.T) { r := rapid.SampledFrom(records).Draw(t, "who"); wants[r] = false; s.leave(r) },
			"":      func(*rapid.T) { check() },
		})
		for range records { // all come to their turn
			for _, r := range records {
				if s.holds[r.key] {
					wants[r] = false
					s.leave(r)
				}
			}
		}
		for _, r := range records {
			if wants[r] {
				t.Fatalf("%s never had its turn", r.key.Name)
			}
		}
	})
}
