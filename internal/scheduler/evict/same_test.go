package evict

import (
	"reflect"
	"testing"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

// TestStatesWithDifferentQueuesAreNotTheSame changes each field of a queue: one that Same does not compare
// would keep refusals that no longer hold.
func TestStatesWithDifferentQueuesAreNotTheSame(t *testing.T) {
	before := &State{Queues: []Queue{{Name: "q"}}}
	if !before.Same(&State{Queues: []Queue{{Name: "q"}}}) {
		t.Error("equal states are not the same")
	}
	for i := range reflect.TypeFor[Queue]().NumField() {
		q := Queue{Name: "q"}
		field := reflect.ValueOf(&q).Elem().Field(i)
		name := reflect.TypeFor[Queue]().Field(i).Name
		switch field.Interface().(type) {
		case string:
			field.SetString("changed")
		case bool:
			field.SetBool(true)
		case place.Vector:
			field.Set(reflect.ValueOf(place.Vector{1}))
		default:
			if field.Kind() != reflect.Slice {
				t.Fatalf("Queue.%s: the test does not know how to change a %s", name, field.Type())
			}
			field.Set(reflect.MakeSlice(field.Type(), 1, 1))
		}
		if before.Same(&State{Queues: []Queue{q}}) {
			t.Errorf("Queue.%s is not compared", name)
		}
	}
}
