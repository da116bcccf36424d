// Package hostile tests that no object which a user can store stops what belongs to others.
//
//	TestMalformedObjects   objects that do not decode, as an API server has them that was filled before the CRDs had schemas
//	TestWrongValues        a wrong value in each leaf of each CRD, as the API server of today takes it
//
// In both, jobs, workflows and applications of others (canaries) run to their ends while such objects are there, and again after the
// manager was started anew with the objects in place. TestWrongValues takes a part of the leaves, which LOCKSTEP_HOSTILE=full
// (make test-hostile) makes all of them; LOCKSTEP_SEED repeats a choice.
package hostile
