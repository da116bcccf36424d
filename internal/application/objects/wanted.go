package objects

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kjson "k8s.io/apimachinery/pkg/util/json"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/chart"
	"lockstep.dev/lockstep/internal/application/plan"
)

// Wanted is an object as the plan of an Application wants it.
type Wanted struct {
	*plan.Resource
	// Owner is the Application.
	Owner types.NamespacedName
	// Revision and ComponentRevision are the values of the labels that name the revisions.
	Revision, ComponentRevision string
	// Applied is the object as last applied, or nil.
	Applied json.RawMessage
}

// labelled returns the object in the form in which it is written, with the revision's labels.
func (w *Wanted) labelled() (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(w.JSON); err != nil {
		return nil, err
	}
	w.label(u)
	return u, nil
}

// label puts the revision's labels on o and, if the object is shared, the annotation that lists its
// sharers.
func (w *Wanted) label(o metav1.Object) {
	labels := maps.Clone(o.GetLabels())
	labels[oam.RenderHashLabel] = w.Hash
	if w.Revision != "" {
		labels[oam.AppRevisionLabel] = w.Revision
	}
	if w.ComponentRevision != "" {
		labels[oam.ComponentRevisionLabel] = w.ComponentRevision
	}
	o.SetLabels(labels)
	if w.Shared {
		annotations := maps.Clone(o.GetAnnotations())
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[oam.SharedByAnnotation] = w.Owner.String()
		o.SetAnnotations(annotations)
	}
}

// Created returns the object in the form in which the writer creates it, including the fields that
// are set only at creation.
func (w *Wanted) Created() (apiwriter.Object, error) {
	r := w.Resource
	if r.Once != nil {
		var object, once map[string]any
		if err := errors.Join(kjson.Unmarshal(r.JSON, &object), kjson.Unmarshal(r.Once, &once)); err != nil {
			return nil, fmt.Errorf("%s: %w", r.Ref, err)
		}
		data, err := json.Marshal(chart.MergeValues(object, once))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.Ref, err)
		}
		merged := *r
		merged.JSON, merged.Once = data, nil
		r = &merged
	}
	typed, err := scheme.Scheme.New(r.GVK)
	o, ok := typed.(apiwriter.Object)
	if runtime.IsNotRegisteredError(err) || err == nil && !ok {
		whole := *w
		whole.Resource = r
		return whole.labelled()
	}
	if err == nil {
		err = json.Unmarshal(r.JSON, o)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.Ref, err)
	}
	w.label(o)
	return o, nil
}

// AsWritten returns the object in the form that the writer takes: typed if the scheme has the type.
func AsWritten(u *unstructured.Unstructured) (apiwriter.Object, error) {
	typed, err := plan.Typed(u.Object)
	if err != nil {
		return nil, err
	}
	if typed == nil {
		return u, nil
	}
	o, ok := typed.(apiwriter.Object)
	if !ok {
		return nil, fmt.Errorf("%s %s is not an object", u.GetKind(), u.GetName())
	}
	return o, nil
}

// Sharers returns the Applications (namespace/name) that share an object, the owner first.
func Sharers(there *Object) []string {
	var o struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	if err := json.Unmarshal(there.JSON(), &o); err != nil {
		return nil
	}
	return strings.FieldsFunc(o.Metadata.Annotations[oam.SharedByAnnotation], func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
}

// SharedBy reports whether the Application k is one of an object's sharers.
func SharedBy(there *Object, k types.NamespacedName) bool {
	return slices.Contains(Sharers(there), k.String())
}

// Map returns an object as a map, or nil if there is none.
func Map(o *Object) map[string]any {
	if o == nil {
		return nil
	}
	var m map[string]any
	if err := kjson.Unmarshal(o.JSON(), &m); err != nil {
		return nil
	}
	return m
}
