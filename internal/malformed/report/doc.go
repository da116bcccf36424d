// Package report tells users about their objects that cannot be decoded: once for each fault,
// whichever manager leads and however often it restarts.
//
//	informer.Informer ──Tell──▶ queue ──▶ already reported? ──no──▶ a condition, or an event for
//	                                                                kinds without one
//
// A condition is written only if the object still has the inspected version, and nothing else of
// the object is sent. The controller of the kind removes the condition when the object is repaired.
// Kinds without such a condition get an event whose name is derived from its content, so that the
// event is written once for as long as the API server keeps it.
package report
