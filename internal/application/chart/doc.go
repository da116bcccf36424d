// Package chart renders Helm charts to Kubernetes objects, in memory and with Helm's own engine. It
// accesses no cluster and keeps no release: the objects belong to an Application, like any other
// object.
//
//	archive (.tgz) ── Open ──▶ Chart ─┐
//	values, release, capabilities ────┴─ Render ──▶ objects, each with its wave of creation
//
// # Waves
//
// The objects of a wave are created after the objects of earlier waves exist and are complete: a
// Job has completed, a CustomResourceDefinition is established. CustomResourceDefinitions come
// first, then namespaces, then hooks before an installation or upgrade by their weights, then
// everything else, and last the hooks after an installation or upgrade. Hooks of a deletion or a
// rollback are not created, and are listed in Left. Tests are not created.
//
// # Random values
//
// Charts generate passwords and certificates. A chart that does so is rendered twice, and the
// values that differ are kept apart, in Once: they are set when the object is created and are never
// changed afterwards.
//
// # Bounds
//
// Bounds apply to the sizes of archives, their contents, values and results, and to the functions
// that make long values from short ones. Archives are read and rendered by functions on bytes that
// are called through a Run: in a manager, a Run uses a child process with limits on memory and CPU
// time (package internal/sandbox).
package chart
