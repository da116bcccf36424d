// Package plan computes the objects of an Application and the rules that apply to each object. The
// package is pure: the same Application, definitions and clusters give the same plan every time.
//
//	Application ──┬── components, traits ──▶ render ──▶ objects, labelled   ┐
//	              └── policies ────────────▶ Policies ──▶ rules per object ─┴─▶ Plan
//
// Objects of types in the scheme are normalised: they have the form in which the API server stores
// them (quantities in canonical form, stringData as data). A comparison with a live object then
// shows only what other clients changed.
package plan
