// Package contain keeps a panic that one object causes from ending the process.
//
//	Guard.Try(part, key, do) ──▶ do panics ──▶ was shared state being changed? ──yes──▶ the process ends, with the stack
//	                                                     │ no
//	                                                     ▼
//	                                        logged with its stack, counted, returned as a *Panic
//
// A caller of Try throws away what do may have changed halfway: the record of its object, or the copy that it computed on. What is
// shared by all objects can't be thrown away. So a panic whose stack passes through a part in the list shared ends the process, and
// the next manager reads everything from the API server.
package contain
