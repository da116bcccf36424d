package malformed

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// mark is the annotation of a marked object; no key of an annotation on the API server has a space.
const mark = "lockstep.dev/ malformed"

// panicked begins the fault of an object on which a part of the manager has panicked; no fault of a value begins so.
const panicked = "\x00"

// Error says that an object does not decode, or that the manager cannot work on it.
type Error struct {
	Kind, Namespace, Name string
	// Fault names the field, its value, and what was wanted. Of an object on which the manager panicked it says where.
	Fault string
	// Panicked says that the object decodes, and that the manager panicked when it worked on it.
	Panicked bool
}

// Error implements error. It begins with the object's kind and name.
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

// Reason is the error's in conditions and events.
func (e *Error) Reason() string {
	if e.Panicked {
		return "ManagerFailed"
	}
	return "Malformed"
}

// Mark notes on an object of a kind that nothing but its metadata could be decoded, because of fault.
func Mark(o metav1.Object, kind, fault string) {
	a := o.GetAnnotations()
	if a == nil {
		a = map[string]string{}
	}
	a[mark] = kind + " " + fault
	o.SetAnnotations(a)
}

// MarkPanicked notes on an object of a kind, of which nothing but the metadata is kept, that the manager panicked when it worked on
// it, and where.
func MarkPanicked(o metav1.Object, kind, where string) { Mark(o, kind, panicked+where) }

// Of says why an object has nothing but its metadata, or is nil for an object that was decoded.
func Of(o metav1.Object) *Error {
	text, marked := o.GetAnnotations()[mark]
	if !marked {
		return nil
	}
	kind, fault, _ := strings.Cut(text, " ")
	fault, failed := strings.CutPrefix(fault, panicked)
	return &Error{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(), Fault: fault, Panicked: failed}
}

// Unmark takes the mark off an object, for who writes what it should have been.
func Unmark(o metav1.Object) {
	if a := o.GetAnnotations(); a[mark] != "" {
		delete(a, mark)
		o.SetAnnotations(a)
	}
}
