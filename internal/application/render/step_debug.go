package render

import (
	"encoding/json"

	"cuelang.org/go/cue"
)

// shown returns the fields of a step that clients show of it in debug mode, as JSON, which is CUE, too:
// the step's properties, and its actions with what they have returned. A field that has no value yet
// says why.
func (r *stepRun) shown() string {
	out := map[string]any{}
	all, err := r.v.Fields()
	if err != nil {
		out["error"] = firstProblem(err)
	}
	for err == nil && all.Next() {
		value, err := plain(all.Value())
		if err != nil {
			value = "no value yet: " + firstProblem(err)
		}
		if name := all.Selector().Unquoted(); name != "context" {
			out[name] = value
		}
	}
	data, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		return "{}" // cannot happen: decoded JSON
	}
	return string(data)
}

// source adds where the logs of a step are, as the step says.
func (r *stepRun) source(params cue.Value) error {
	source := params.LookupPath(cue.MakePath(cue.Str("source")))
	if !source.Exists() {
		return nil
	}
	data, err := source.MarshalJSON()
	if err == nil {
		r.out.LogSource = data
	}
	return err
}
