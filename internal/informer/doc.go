// Package informer keeps caches of what the API server has, each filled by a list and a watch.
//
//	API server ──list, watch──▶ trim ──▶ cache ──▶ handlers: Added, Updated, Deleted, Malformed
//	                                      │
//	                                      └──▶ Get, List, ByIndex
//
// The goroutine that reads a watch also changes the cache and calls the handlers, so what a handler
// has seen is what the cache shows. A cache may be behind the server: Older compares resource
// versions, SeenVersion returns how far a cache is, and Versions reads from the server.
//
// An Informer has objects of one type. A Set has the informers of all types that the scheduler and
// the controllers of jobs and workflows read.
//
// # Invariants
//
//   - Objects of a cache lack the fields that nobody reads (trim.go) and are shared: they must
//     neither be modified nor written back.
//   - An object that cannot be decoded, or on which a handler panicked, is not in the cache
//     (malformed_store.go). It returns when it is changed.
//   - A watch that fails is opened again within seconds, or within a minute with Options.Patient.
package informer
