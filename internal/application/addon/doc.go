// Package addon renders addons: packages of definitions, and of what these need in a cluster, in
// KubeVela's format. An addon is deployed as an Application.
//
//	archive (.tgz) ── Unpack ──┐
//	folder ────────────────────┴─ Files ── Open ──▶ Addon ─┐
//	                               parameters, registry ───┴─ Render ──▶ Rendered
//
//	metadata.yaml                     name, version, dependencies, requirements
//	template.yaml, template.cue       the Application, and objects beside it
//	parameter.cue                     the parameters
//	resources/                        components: *.yaml together in one, *.cue one each
//	definitions/, views/, schemas/    objects beside the Application
//	NOTES.cue                         a text for whoever enables it
//
// The objects beside the Application belong to it by owner references, and so are deleted with it.
//
// # Bounds
//
// Bounds apply to the number and sizes of files and of what archives unpack to. Names of files that lead
// out of the addon are refused. CUE is evaluated through a render.Run.
package addon
