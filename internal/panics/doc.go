// Package panics keeps a panic caused by one object from ending the process.
//
//	Guard.Try(part, key, do) ──▶ do panics ──▶ was shared state being changed?
//	                                              │ no                 │ yes
//	                                              ▼                    ▼
//	                              logged with its stack,      the process ends and
//	                              counted, returned as        logs the stack
//	                              a *Panic
//
// The caller of Try discards the state that do may have changed halfway: the record of its object,
// or the copy that it worked on. State shared by all objects cannot be discarded. Therefore a panic
// whose stack passes through a function in the list shared ends the process, and the next manager
// reads everything from the API server.
package panics
