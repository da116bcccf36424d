// Package hostile tests that no object which a user can store disturbs the objects of other users.
//
//	TestMalformedObjects   objects that do not decode, stored before the CRDs had schemas
//	TestWrongValues        wrong values in each leaf of each CRD that today's API server accepts
//
// In both tests, jobs, workflows and applications of other users (canaries) run to their ends while
// such objects exist, and again after the manager was restarted with the objects in place.
// TestWrongValues tries a part of the leaves. LOCKSTEP_HOSTILE=full (make test-hostile) makes it
// try all; LOCKSTEP_SEED repeats a choice.
package hostile
