// Package render makes Kubernetes objects of components, traits and their definitions. It is pure: the same request gives
// the same result, whatever the cluster does.
//
//	Definition ── Compile ──▶ Template ─┐
//	                                    ▼
//	 properties ──┐        evaluate template with parameter and context
//	 Context ─────┴──────▶              │ output, outputs
//	                                    ▼
//	              for each trait: evaluate, then patch ──▶ output (patch.go)
//	                                    │                  outputs (patchOutputs)
//	                                    ▼
//	                             Rendered: workload and auxiliary objects
//
//	 live objects ──▶ Health: isHealth, message, details of the definition's status section (health.go)
//
// # The template's contract
//
// A template is CUE. It reads parameter (the user's properties) and context, and yields output and outputs (components,
// traits), patch and patchOutputs (traits), or errs, messages that refuse the properties. Directives in comments say how
// a patch is merged: see merge.
//
// # Shapes
//
// Applications that are deployed by the hundred differ in little but their names. A request's Shape is what is left of it
// without them, and its Holes are where they were; what has been worked out for one request of a shape holds for the
// others, with their names filled in, if the templates are parametric (parametric.go) and the names cannot be mistaken
// for something else (words.go). Package internal/application/plan remembers it.
//
// # Bounds
//
// CUE always ends, but may take exponential time, and its evaluator cannot be interrupted. So what goes in is bounded:
// the size of templates, properties and contexts, the depth of properties, and the arguments of the builtins that make
// much of little (compile.go). Who calls with templates of strangers must also keep a watch on the time, on another
// goroutine, and set a template aside that has used it up: package internal/application/controller does.
//
// # Memory
//
// An evaluator of CUE keeps what it has once seen. Each compiled instance of a template is therefore thrown away after
// a number of evaluations.
package render
