package controller

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// TestThrottle checks with random workflows, ends and limits that never more run than may, that a
// free place is taken, and that no workflow begins before one of its namespace that comes first.
func TestThrottle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, own := rapid.IntRange(0, 4).Draw(t, "all"), rapid.IntRange(0, 3).Draw(t, "own")
		x := newThrottle(func(string) (int, int) { return all, own })
		existing, begun := map[types.NamespacedName]*wf.Workflow{}, map[types.NamespacedName]bool{}
		begin := func(keys []types.NamespacedName) {
			for _, key := range keys {
				if begun[key] || existing[key] == nil {
					t.Fatalf("%v begins, begun %v", key, begun[key])
				}
				for other, w := range existing {
					if other.Namespace == key.Namespace && !begun[other] && !slices.Contains(keys, other) &&
						waiterOf(w).before(waiterOf(existing[key])) < 0 {
						t.Fatalf("%v begins before %v", key, other)
					}
				}
			}
			for _, key := range keys {
				begun[key] = true
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"enter": func(t *rapid.T) {
				key := types.NamespacedName{Namespace: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "namespace"), Name: fmt.Sprint(len(existing))}
				if existing[key] != nil {
					return
				}
				priority := rapid.Int32Range(0, 2).Draw(t, "priority")
				w := &wf.Workflow{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: types.UID(key.String()),
					CreationTimestamp: metav1.NewTime(time.Unix(rapid.Int64Range(0, 3).Draw(t, "created"), 0))}}
				w.Spec.Priority = &priority
				existing[key] = w
				may, others := x.enter(w)
				if may {
					others = append(others, key)
				}
				begin(others)
			},
			"leave": func(t *rapid.T) {
				if len(existing) == 0 {
					return
				}
				keys := slices.SortedFunc(maps.Keys(existing), func(a, b types.NamespacedName) int {
					return waiterOf(existing[a]).before(waiterOf(existing[b]))
				})
				key := rapid.SampledFrom(keys).Draw(t, "key")
				uid := existing[key].UID
				delete(existing, key)
				delete(begun, key)
				begin(x.leave(key, uid))
			},
			"limits": func(t *rapid.T) {
				all, own = rapid.IntRange(0, 4).Draw(t, "all"), rapid.IntRange(0, 3).Draw(t, "own")
				before := len(begun)
				begin(x.check())
				if len(begun) > before && all > 0 && len(begun) > all {
					t.Fatalf("%d run of %d", len(begun), all)
				}
			},
			"": func(t *rapid.T) {
				free := false
				count := map[string]int{}
				for key := range begun {
					count[key.Namespace]++
				}
				for key := range existing {
					free = free || !begun[key] && (all == 0 || len(begun) < all) && (own == 0 || count[key.Namespace] < own)
				}
				if free {
					t.Fatalf("a place is free: %v run, %d exist", begun, len(existing))
				}
				if len(x.running) != len(begun) {
					t.Fatalf("it counts %d, %d run", len(x.running), len(begun))
				}
			},
		})
	})
}
