// Package template substitutes variables in workflow templates.
//
//	text ──Parse──▶ Text ──Resolve(scopes)──▶ string
//	any API value ──Compile──▶ Program ──Apply(value, scopes)──▶ a copy with every string resolved
//
// A text holds simple tags, {{steps.a.outputs.result}}, and expression tags, {{=asInt(inputs.parameters.n) + 1}}. Both are
// parsed once, when a workflow is loaded; to resolve one costs what its variables cost to look up. Strings are replaced
// where they are in the typed value: there is no JSON in between, so that a value with quotes or newlines stays what it is.
//
// Scopes come in passes, as a template goes through several hands: the workflow's variables first, then the inputs, then
// the siblings, then a loop's item. What pass n leaves alone, pass n+1 sees, and also what pass n wrote: a parameter whose
// value holds a tag is resolved again by later passes, and by those only.
//
// A simple tag without a value stays as it is, for it may be the user's own text, unless its name is in a strict namespace:
// then it is an error. The output of a node that was skipped is known and absent: to use it is an error, but for an
// expression that guards it with ?. or ??.
//
// Expressions that are cheap by proof are evaluated here, all others by a Run that the scope holds: in a process of its own. What
// texts become is bounded: see MaxTextBytes and budget. Nothing here reads a clock, the environment, the network or random
// numbers, so the same scopes give the same text: what the time is, and what random numbers are made of, is in a scope (Clock,
// Seed).
package template
