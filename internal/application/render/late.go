package render

import (
	"slices"

	"cuelang.org/go/cue"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// A trait of the stage PostDispatch may read fields that only the API server or a controller sets, such
// as context.output.status. Such a trait is late: it makes no objects until the live objects of its
// component are given, and it is rendered again when what it reads of them changes.

// LiveObjects holds the live objects of a component, in JSON.
type LiveObjects struct {
	// Output is the workload, or nil. Outputs has the auxiliary objects by their names in outputs.
	Output  []byte
	Outputs map[string][]byte
}

// MayBeLate reports whether the definition may read live objects while it is rendered.
func (t *Template) MayBeLate() bool {
	if t.main == nil || t.Definition.Kind != Trait || t.Definition.Stage != oam.PostDispatch {
		return false
	}
	return t.main.Reads.Context.at("output") || t.main.Reads.Context.at("outputs")
}

// LivePart returns the part of live objects that the traits may read while they are rendered, as JSON.
// It is nil if they read none.
func LivePart(traits []Use, live *LiveObjects) ([]byte, error) {
	reads := &fieldUse{}
	for _, use := range traits {
		if use.Template.MayBeLate() {
			reads.join(&use.Template.main.Reads.Context)
		}
	}
	if !reads.at("output") && !reads.at("outputs") {
		return nil, nil
	}
	part, err := reads.live(&Live{Output: live.Output, Outputs: live.Outputs})
	if err != nil {
		return nil, err
	}
	for name := range part { // what is not live
		if name != "output" && name != "outputs" {
			delete(part, name)
		}
	}
	return exactly(part), nil
}

// late reports whether a trait reads fields that the rendered objects lack.
func (t *evaluable) late(out *Rendered) bool {
	if t.def.Stage != oam.PostDispatch || t.main == nil {
		return false
	}
	reads := &t.main.Reads.Context
	if use := reads.field("output"); use != nil {
		if use.all || out.Workload == nil || use.lacks(map[string]any(out.Workload.Object)) {
			return true
		}
	}
	use := reads.field("outputs")
	if use == nil {
		return false
	}
	if use.all {
		return true
	}
	for name, inner := range use.fields {
		at := slices.IndexFunc(out.Auxiliaries, func(o Object) bool { return o.Name == name })
		if at < 0 || inner.lacks(map[string]any(out.Auxiliaries[at].Object)) {
			return true
		}
	}
	return false
}

// lacks reports whether a value lacks a field that is read.
func (l *fieldUse) lacks(value any) bool {
	fields, ok := value.(map[string]any)
	for name, inner := range l.fields {
		if !ok {
			return true
		}
		if v, there := fields[name]; !there || inner.lacks(v) {
			return true
		}
	}
	return false
}

// overlaid returns rendered objects with the live ones in the place of those that exist.
func overlaid(made, live map[string]any) map[string]any {
	out := map[string]any{"outputs": map[string]any{}}
	if o, ok := made["output"]; ok {
		out["output"] = o
	}
	if o, ok := live["output"]; ok {
		out["output"] = o
	}
	outputs := out["outputs"].(map[string]any)
	for _, from := range []map[string]any{made, live} {
		more, _ := from["outputs"].(map[string]any)
		for name, o := range more {
			outputs[name] = o
		}
	}
	return out
}

// patches reports whether a trait patches the component's objects.
func patches(v cue.Value) bool {
	return v.LookupPath(cue.ParsePath("patch")).Exists() || v.LookupPath(cue.ParsePath("patchOutputs")).Exists()
}
