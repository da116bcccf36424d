// Package chart makes Kubernetes objects of Helm charts, in memory and with Helm's own engine. It knows no cluster and
// keeps no release: what it makes is an application's, like any other object.
//
//	archive (.tgz) ── Open ──▶ Chart ─┐
//	values, release, capabilities ────┴─ Render ──▶ objects, each with the wave in which it is made
//
// # Waves
//
// The objects of a wave are made when those of the waves before it are there and done: a Job has completed, a
// CustomResourceDefinition is served. Definitions of kinds come first, then namespaces, then hooks that run before an
// installation or an upgrade, by their weights; then everything else; and last the hooks that run after it. Hooks of a
// deletion, a rollback or a test are not made, and named in Left.
//
// # What is made at random
//
// Charts make up passwords and certificates. A chart that does is rendered twice, and what differs is kept apart, in Once:
// it is put into an object when the object is made, and nobody changes it afterwards.
//
// # Bounds
//
// The sizes of archives, of what is in them, of values and of what templates make are bounded, and so are the functions
// that make much of little.
// Archives are read and rendered by functions on bytes, called through a Run: in a manager, in a child process with limits on
// memory and CPU time (package internal/sandbox).
package chart
