// Package malformed is about objects that the API server has stored and that do not decode into their Go type: a duration that
// is no duration, an object where a string should be; and about those on which the manager panicked, which are treated alike.
//
//	JSON that does not decode ──Find──▶ Fault: path, value, what was wanted
//	                          ──Mark──▶ an object of the type with its metadata only ──Of──▶ *Error: kind, name, Fault
//
// The decoders of package kubeclient mark what they cannot decode, so that one such object is not an error of the list or of the
// watch that it is in. Package cluster keeps marked objects apart from the others. The mark is an annotation whose key the API
// server would refuse, so that nobody can set it there.
package malformed
