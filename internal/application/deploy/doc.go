// Package deploy brings the objects of one Application to the state that its plan wants.
//
//	Planner.Make ──▶ State.Plan ──▶ Deployer.Dispatch ──▶ creates, patches ──▶ apiwriter
//	                                Remover.Collect   ──▶ deletions        ──▶ apiwriter
//	                     ▲                                                        │
//	                     └───── State ◀── posted to the Application's key ◀── answers
//
// Dispatch compares each object of the plan with the watch caches, decides, and hands over at most
// one write per object. It waits for no write. Collect deletes the objects that have left the plan.
// RemoveAll deletes the objects of an Application that is removed, in the order that the
// Application asks for.
//
// # Invariants
//
//   - State belongs to the turns of one Application.
//   - An object that has a write under way is left alone until the answer.
//   - A failed write is repeated with backoff.
//   - An object of another Application is never changed, unless both share it.
package deploy
