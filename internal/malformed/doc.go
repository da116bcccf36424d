// Package malformed describes objects that the API server has stored and that do not decode into
// their Go type, for example because a duration is not a duration, or an object is where a string
// should be. Objects on which the manager panicked are treated the same way.
//
//	JSON that does not decode ──Find──▶ Fault: path, value, what was wanted
//	an object of the type with its metadata only ──Mark──▶ marked object
//	marked object ──Of──▶ *Error: kind, name, Fault
//
// The decoders of package kubeclient mark objects that they cannot decode, so that one such object
// does not fail the list or watch that contains it. Package informer sets marked objects apart from
// the others. The mark is an annotation whose key the API server would reject, so that no client
// can set it there.
package malformed
