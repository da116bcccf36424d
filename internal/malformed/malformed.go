package malformed

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// mark is the annotation of a marked object. It contains a space, which the API server accepts in
// no annotation key.
const mark = "lockstep.dev/ malformed"

// panicked is the prefix of the fault of an object on which the manager panicked; no fault of a
// value begins with it.
const panicked = "\x00"

// Error says that an object does not decode, or that the manager cannot work on it.
type Error struct {
	Kind, Namespace, Name string
	// Fault names the field, its value, and what was wanted. For an object on which the manager
	// panicked, it names the function.
	Fault string
	// Panicked means that the object decodes, but the manager panicked while working on it.
	Panicked bool
}

// Error implements error. The text begins with the object's kind and name.
func (e *Error) Error() string {
	name := e.Name
	if e.Namespace != "" {
		name = e.Namespace + "/" + name
	}
	if e.Panicked {
		return fmt.Sprintf("%s %s is left alone until it is changed: %s", e.Kind, name, e.Fault)
	}
	return fmt.Sprintf("%s %s is malformed: %s", e.Kind, name, e.Fault)
}

// Reason returns the reason for conditions and events.
func (e *Error) Reason() string {
	if e.Panicked {
		return "ManagerFailed"
	}
	return "Malformed"
}

// Mark records on an object of a kind that only its metadata could be decoded, because of fault.
func Mark(o metav1.Object, kind, fault string) {
	a := o.GetAnnotations()
	if a == nil {
		a = map[string]string{}
	}
	a[mark] = kind + " " + fault
	o.SetAnnotations(a)
}

// MarkPanicked records on an object of a kind, of which only the metadata is kept, that the manager
// panicked while working on it, and where.
func MarkPanicked(o metav1.Object, kind, where string) { Mark(o, kind, panicked+where) }

// Of returns the reason why an object has only its metadata, or nil for an object without a mark.
func Of(o metav1.Object) *Error {
	text, marked := o.GetAnnotations()[mark]
	if !marked {
		return nil
	}
	kind, fault, _ := strings.Cut(text, " ")
	fault, failed := strings.CutPrefix(fault, panicked)
	return &Error{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(), Fault: fault, Panicked: failed}
}

// Unmark removes the mark from an object, for code that writes a corrected version of the object.
func Unmark(o metav1.Object) {
	if a := o.GetAnnotations(); a[mark] != "" {
		delete(a, mark)
		o.SetAnnotations(a)
	}
}
