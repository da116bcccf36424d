package controller

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// TestSlotsAreBoundedAndNobodyWaitsForEver lets records enter, leave and wake in any order at any
// latency.
func TestSlotsAreBoundedAndNobodyWaitsForEver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(slotsLeast, 8).Draw(t, "most")
		var lag time.Duration
		var s statusSlots
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
			for key := range s.stuck {
				if s.holds[key] || s.waiting[key] {
					t.Fatalf("%s has a slot, or waits for one, and its write is under way", key.Name)
				}
			}
			if len(s.waiting) > 0 && len(s.holds) == 0 {
				t.Fatal("some wait and nobody has a slot")
			}
			for _, r := range records {
				if wants[r] && !s.holds[r.key] && !s.waiting[r.key] && !s.stuck[r.key] {
					t.Fatalf("%s is forgotten", r.key.Name)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"lag":   func(t *rapid.T) { lag = time.Duration(rapid.IntRange(0, 5000).Draw(t, "ms")) * time.Millisecond },
			"enter": func(t *rapid.T) { r := rapid.SampledFrom(records).Draw(t, "who"); wants[r] = true; s.enter(r) },
			"leave": func(t *rapid.T) { r := rapid.SampledFrom(records).Draw(t, "who"); wants[r] = false; s.leave(r) },
			"sweep": func(*rapid.T) { s.sweep() },
			"":      func(*rapid.T) { check() },
		})
		for range records { // every key gets its turn
			for _, r := range records {
				if s.holds[r.key] || s.stuck[r.key] {
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

// TestWritesThatAreNotCarriedOutKeepNoSlots checks that other workflows get slots after workflows
// whose statuses the server does not accept held all of them.
func TestWritesThatAreNotCarriedOutKeepNoSlots(t *testing.T) {
	var s statusSlots
	var woken []string
	s.init(2, func() time.Duration { return 0 }, func(k types.NamespacedName) { woken = append(woken, k.Name) })
	of := func(name string) *record { return &record{key: types.NamespacedName{Name: name}} }
	a, b, other := of("a"), of("b"), of("other")
	if !s.enter(a) || !s.enter(b) || s.enter(other) {
		t.Fatal("there are two slots")
	}
	s.sweep()
	if len(woken) > 0 {
		t.Error("slots were taken that had been given a moment ago")
	}
	s.sweep()
	if len(woken) != 1 || woken[0] != "other" || !s.enter(other) {
		t.Errorf("woken are %v, want the one that waited", woken)
	}
	s.leave(a)
	if !s.enter(a) {
		t.Error("who had lost its slot and is done gets one again")
	}
}
