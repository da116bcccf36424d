// Package template substitutes variables in workflow templates.
//
//	text ──Parse──▶ Text ──Resolve(scopes)──▶ string
//	any API value ──Compile──▶ Program ──Apply(value, scopes)──▶ a copy with every string resolved
//
// A text contains simple tags, {{steps.a.outputs.result}}, and expression tags,
// {{=asInt(inputs.parameters.n) + 1}}. Both are parsed once, when a workflow is loaded; resolving a
// tag then costs a lookup of its variables. Strings are replaced in place in the typed value,
// without a detour through JSON, so values with quotes or newlines stay intact.
//
// A template is resolved in passes, each with a scope: the workflow's variables first, then the
// inputs, then the siblings, then a loop's item. Pass n+1 resolves the tags that pass n left
// unresolved, and also tags in the text that pass n inserted: a parameter whose value contains a
// tag is resolved again, but only by later passes.
//
// A simple tag of an unknown variable stays as it is, because it may be the user's own text, unless
// the name is in a strict namespace: then it is an error. The output of a skipped node is known and
// absent: to use it is an error, unless an expression guards it with ?. or ??.
//
// Expressions that are provably cheap are evaluated in this process. The Run that the scope holds
// evaluates all others in a separate process. MaxTextBytes and budget bound the size of the
// results. The package reads no clock, environment, network or random numbers, so equal scopes give
// equal text: the time and the seed of random numbers are in a scope (Clock, Seed).
package template
