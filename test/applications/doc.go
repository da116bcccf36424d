// Package applications holds what applications and definitions must do, as manifests with the objects and the status that
// they must come to.
//
// Each file in testdata is about one part of the API and is a list of cases:
//
//   - name: deploy-takes-overrides          as docs/applications-reference.md calls it
//     before: [objects]                     that are there first
//     app: {metadata, spec}                 the application, called app unless it has a name
//     wait: {phase, steps, says, status}    what it must come to; phase running by default
//     objects: [objects]                    that must be there then, with at least these fields
//     missing: [Kind/name]                  that must not
//     then: [...]                           what users do next, each with wait, objects and missing:
//     apply, app, merge, delete, command, annotate
//
// ${ns} is the case's namespace. The cases run at the same time, each in a namespace of its own, on one real control plane with
// the real controller manager and scheduler, simulated nodes, and the application controller under the manager's rights. The
// components and traits of internal/application/render/testdata/builtins are cases too: their objects must be in the cluster.
package applications
