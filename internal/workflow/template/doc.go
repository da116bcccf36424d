// Package template substitutes variables in workflow templates.
//
//	text ──Parse──▶ Text ──Resolve(scopes)──▶ string
//	any API value ──Compile──▶ Program ──Apply(value, scopes)──▶ a copy with every string resolved
//
// A text contains simple tags, {{steps.a.outputs.result}}, and expression tags,
// {{=asInt(inputs.parameters.n) + 1}}. Both are parsed once, when a workflow is loaded; resolving a
// tag then costs a lookup of its variables. Strings are replaced in place in the typed value,
// without JSON in between, so values with quotes or newlines stay intact.
//
// Scopes are ordered in passes, as a template is resolved in several stages: the workflow's
// variables first, then the inputs, then the siblings, then a loop's item. Pass n+1 sees the tags
// that pass n left unresolved, and also the text that pass n inserted: a parameter whose value
// contains a tag is resolved again, but only by later passes.
//
// A simple tag without a value stays as it is, because it may be the user's own text; it is an
// error if its name is in a strict namespace. The output of a skipped node is known and absent:
// using it is an error, unless an expression guards it with ?. or ??.
//
// Expressions that are provably cheap are evaluated here, all others by a Run that the scope holds:
// in a separate process. The size of the results is bounded: see MaxTextBytes and budget. Nothing
// here reads a clock, the environment, the network or random numbers, so the same scopes give the
// same text: the time and the seed of random numbers are in a scope (Clock, Seed).
package template
