// Package evaluation evaluates users' templates, charts and expressions in child processes, and
// caches the outcomes.
//
// A turn waits only briefly for an answer. Then it fails with ErrPending, and the Application is
// enqueued when there is an answer. An evaluation is a function from bytes to bytes, so an
// evaluation that takes too long shares no state with the turn that gave up waiting for it.
package evaluation
