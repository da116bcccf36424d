// Package steps runs the workflow of an Application that is deployed in steps.
//
//	Prepare ──▶ Run ──▶ Advance: flow decides the steps ─┬▶ units: planned, merged into the plan
//	             ▲                                       └▶ actions: reads, writes, requests
//	             └──────── posted to the Application's key ◀────────── answers
//
// The decisions and actions of steps are stored in the tracker (records.Flow) before the status
// reports them. A manager that starts continues from there.
//
// # Invariants
//
//   - A Run belongs to the turns of one Application.
//   - An action that is not repeated in every turn is carried out once, or again with backoff while
//     the step waits.
package steps
