// Package plan says which objects an application is made of, and how each is to be treated. It is pure: an application,
// the definitions it uses and the place it goes to give the same plan every time.
//
//	Application ──┬── components, traits ──▶ render ──▶ objects, labelled   ┐
//	              └── policies ────────────▶ Policies ──▶ rules per object ─┴─▶ Plan
//
// Objects are normal: of kinds that the scheme knows they are as the API server will hold them (quantities in their
// canonical form, stringData as data), so that comparing them with live objects shows what somebody changed.
package plan
