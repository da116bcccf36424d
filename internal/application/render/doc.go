// Package render makes Kubernetes objects from components, traits and their definitions. The
// package is pure: the same request gives the same result, whatever the state of the cluster.
//
//	Definition ── Compile ──▶ Template ─┐
//	                                    ▼
//	 properties ──┐        evaluate template with parameter and context
//	 Context ─────┴──────▶              │ output, outputs
//	                                    ▼
//	              for each trait: evaluate, then patch ──▶ output (merge.go)
//	                                    │                  outputs (patchOutputs)
//	                                    ▼
//	                             Rendered: workload and auxiliary objects
//
//	 live objects ──▶ State: isHealth, message, details of the status section (health.go)
//
// # The template's contract
//
// A template is CUE. It reads parameter (the user's properties) and context. It yields output and
// outputs (components, traits), patch and patchOutputs (traits), or errs: messages that reject the
// properties. Directives in comments say how a patch is merged: see merge.go.
//
// # Shapes
//
// Applications that are deployed by the hundred differ in little more than their names. A request's
// Shape identifies the request without these names, and its Placeholders are the names. The result
// for one request of a shape holds for the others, with their names filled in, if the templates are
// parametric (string_use.go) and the names cannot be mistaken for other strings (spellings.go).
// Package internal/application/plan caches such results.
//
// # Bounds
//
// The evaluation of CUE always ends, but may take exponential time, and the evaluator cannot be
// interrupted. So inputs are bounded: the size of templates and properties, the depth of
// properties, and the arguments of the builtins that make long values from short ones (compile.go).
// These bounds do not limit what a hostile template takes. Therefore everything that evaluates CUE
// is a function on bytes and is called through a Run. In a manager, a Run uses a child process with
// limits on memory and CPU time (package internal/sandbox). InProcess evaluates in this process,
// for users who evaluate their own definitions.
//
//	Compile, Render, State, Step, Condition, ValueFrom      Engine
//	(the caller's process: no CUE is evaluated)  ── Run ──▶ evaluates CUE, caches definitions
//
// # Memory
//
// A CUE evaluator never frees values that it has built. Each compiled instance of a template is
// therefore discarded after a number of evaluations.
package render
