// Package rawjson finds the parts of JSON by where their values begin and end, without reading what is in them, for who has
// much of it and looks at little.
//
//	Members   the members of an object, as places
//	Cut       an object without one of them
//	Frames    the objects of a stream, one at a time
//
// It does not check that values are values: whoever decodes a part finds that out. What it hands out never lies outside of the data.
package rawjson
