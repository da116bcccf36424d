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
// much of little (compile.go). That does not bound what a hostile template takes. So everything that evaluates CUE is a
// function on bytes, called through a Run: in a manager, in a child process with limits on memory and CPU time (package
// internal/sandbox); in this process, by InProcess, for users who evaluate definitions of their own.
//
//	Compile, Render, State, Step, Condition, ValueFrom      Engine
//	(the caller's process: no CUE is evaluated)  ── Run ──▶ evaluates CUE, keeps what is compiled
//
// # Memory
//
// An evaluator of CUE keeps what it has once seen. Each compiled instance of a template is therefore thrown away after
// a number of evaluations.
package render
