// Package report tells users of their objects that cannot be decoded: once for each fault, whoever leads and however often the
// manager is started.
//
//	cluster.Kind ──Tell──▶ queue ──▶ is it said already? ──no──▶ a condition, or where there is none an event
//
// A condition is written in the place of the version that was looked at, and nothing else of the object is sent. The controller of
// the kind takes the condition away when the object is mended. Kinds without conditions of ours get an event whose name follows from
// what it says, so that it is written once for as long as the API server keeps it.
package report
