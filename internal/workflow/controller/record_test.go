package controller

import (
	"reflect"
	"slices"
	"testing"
)

// TestAResetClearsEverythingOfARun checks that a workflow that runs again gets nothing of its
// earlier run.
func TestAResetClearsEverythingOfARun(t *testing.T) {
	// The fields that are not of a run.
	stay := []string{"key", "epoch", "last", "uid", "object", "version", "offloaded", "resumed", "pods", "gangSeq"}
	var r record
	r.reset()
	fields := reflect.ValueOf(&r).Elem()
	for i := range fields.NumField() {
		name, field := fields.Type().Field(i).Name, fields.Field(i)
		if slices.Contains(stay, name) {
			continue
		}
		if fill(settable(field)); field.IsZero() {
			t.Fatalf("%s is not filled", name)
		}
	}
	r.reset()
	for i := range fields.NumField() {
		if name := fields.Type().Field(i).Name; !fields.Field(i).IsZero() && !slices.Contains(stay, name) {
			t.Errorf("%s survives a reset", name)
		}
	}
}

// settable returns a field of a struct, also one that is not exported.
func settable(field reflect.Value) reflect.Value {
	return reflect.NewAt(field.Type(), field.Addr().UnsafePointer()).Elem()
}

// fill gives a value that is not the zero value.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint8, reflect.Uint64:
		v.SetUint(1)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Struct:
		for i := range v.NumField() {
			fill(settable(v.Field(i)))
		}
	case reflect.String:
		v.SetString("x")
	}
}
