// Package unsupported names the parts of an object that the API has and Lockstep does not act on.
// Objects that use such parts have the condition Supported with the status False, and its message
// names them.
package unsupported

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reason is the reason of the condition Supported.
const Reason = "NotImplemented"

// Field is a field of objects of type T, or an annotation, that Lockstep does not act on.
type Field[T any] struct {
	Path string
	Used func(T) bool
	// Holds means that without the field something else would happen than the object asks for, so
	// that it is not worked on.
	Holds bool
}

// Annotations returns the fields for annotations.
func Annotations[T metav1.Object](keys ...string) []Field[T] {
	fields := make([]Field[T], len(keys))
	for i, key := range keys {
		fields[i] = Field[T]{Path: "metadata.annotations[" + key + "]", Used: func(o T) bool { return o.GetAnnotations()[key] != "" }}
	}
	return fields
}

// Part returns fields of a part of an object as fields of the object.
func Part[T, P any](part func(T) P, fields []Field[P]) []Field[T] {
	out := make([]Field[T], len(fields))
	for i, f := range fields {
		out[i] = Field[T]{Path: f.Path, Used: func(o T) bool { return f.Used(part(o)) }, Holds: f.Holds}
	}
	return out
}

// In returns the message of the condition Supported of an object, and the paths of the fields that
// hold it. Both are empty for most objects.
func In[T any](object T, fields []Field[T]) (message, holding string) {
	var all, holders []string
	for _, f := range Used(object, fields) {
		all = append(all, f.Path)
		if f.Holds {
			holders = append(holders, f.Path)
		}
	}
	if len(all) == 0 {
		return "", ""
	}
	return "not acted on: " + strings.Join(all, ", "), strings.Join(holders, ", ")
}

// Used returns the fields that an object uses.
func Used[T any](object T, fields []Field[T]) []Field[T] {
	return slices.DeleteFunc(slices.Clone(fields), func(f Field[T]) bool { return !f.Used(object) })
}
