// Package applications tests applications and definitions against a specification: manifests with
// the objects and the status that each application must reach.
//
// Each file in testdata is about one part of the API and is a list of cases with these fields:
//
//	name: deploy-takes-overrides          the name in docs/applications-reference.md
//	before: [objects]                     objects that exist before
//	app: {metadata, spec}                 the application, called app unless it has a name
//	wait: {phase, steps, says, status}    what it must reach; the default phase is running
//	objects: [objects]                    objects that must then exist, with at least these fields
//	missing: [Kind/name]                  objects that must not exist
//	then: [...]                           later actions of users: apply, app, merge, delete,
//	                                      command, annotate; each with wait, objects and missing
//
// ${ns} is the case's namespace. The cases run at the same time, each in a namespace of its own, on
// one real control plane with the real controller manager and scheduler, simulated nodes, and the
// application controller under the manager's rights. The components and traits of
// internal/application/render/testdata/builtins are cases too: their objects must exist in the
// cluster.
package applications
