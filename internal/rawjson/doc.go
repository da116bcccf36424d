// Package rawjson locates values in JSON by byte offset without decoding them. It is for code that
// receives large documents and inspects small parts of them.
//
//	Members   the members of an object, as offsets
//	Value     the value of one member
//	Frames    the objects of a stream, one at a time
//
// The package does not check that values are valid JSON: the code that decodes a value does.
// Returned offsets are always within the data.
package rawjson
