package render

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"cuelang.org/go/cue"
)

// do carries out one action, or sets the state in which the step must stop for it. It reports
// whether the step continues.
func (r *stepRun) do(path []cue.Selector, key string, action cue.Value) (bool, error) {
	do := verb(action)
	params, legacy := action, true
	if p := action.LookupPath(cue.MakePath(cue.Str("$params"))); p.Exists() {
		params, legacy = p, false
	} else if provider, _ := action.LookupPath(cue.MakePath(cue.Def("#provider"))).String(); provider != "op" &&
		provider != "" {
		params, legacy = r.i.ctx.CompileString("{}"), false
	}
	text := func(name string) string {
		s, _ := params.LookupPath(cue.MakePath(cue.Str(name))).String()
		return s
	}
	before := r.out.Message
	if m := text("message"); m != "" {
		r.out.Message = m
	}
	switch do {
	case "message":
		return true, nil
	case "log":
		if data := params.LookupPath(cue.MakePath(cue.Str("data"))); data.Exists() {
			if value, err := plain(data); err == nil {
				r.out.Logs = append(r.out.Logs, fmt.Sprint(value))
			}
		}
		return true, r.source(params)
	case "wait":
		goesOn, err := params.LookupPath(cue.MakePath(cue.Str("continue"))).Bool()
		// The condition's value may not be known yet.
		if err == nil && goesOn {
			r.out.Message = before
			return true, nil
		}
		r.out.Outcome = StepWaits
		return false, nil
	case "suspend":
		if r.req.Resumed {
			r.out.Message = before
			return true, nil
		}
		r.out.Outcome = StepSuspends
		if d := text("duration"); d != "" {
			duration, err := time.ParseDuration(d)
			if err != nil {
				return false, fmt.Errorf("duration %q is not a duration such as 30s", d)
			}
			r.out.Duration = duration
		}
		return false, nil
	case "fail":
		r.out.Outcome = StepFails
		return false, nil
	case "break":
		r.out.Outcome = StepBreaks
		return false, nil
	case "var":
		return true, r.variable(path, params, legacy)
	case "string":
		data, err := params.LookupPath(cue.MakePath(cue.Str("bt"))).Bytes()
		if err != nil {
			return false, err
		}
		return true, r.fill(path, legacy, map[string]any{"str": string(data)})
	case "timestamp", "date":
		return true, r.date(do, path, params, legacy)
	case "patch-k8s-object":
		patched, err := r.patched(params)
		if err != nil {
			return false, err
		}
		return true, r.fill(path, legacy, map[string]any{"result": patched})
	case "load", "load-comps-in-order", "load-policies":
		return true, r.fill(path, legacy, map[string]any{"value": r.loaded(do)})
	}
	if !slices.Contains(Outside, do) {
		return false, fmt.Errorf("the operation %s is not supported", do)
	}
	return r.outside(path, key, do, params, legacy)
}

// outside handles an action that the caller carries out.
func (r *stepRun) outside(path []cue.Selector, key, do string, params cue.Value, legacy bool) (bool, error) {
	var in map[string]any
	switch {
	case do == "patch":
		// The object is read first, to check that the patch can be applied.
		target, err := objectOf(params.LookupPath(cue.MakePath(cue.Str("value"))))
		if err != nil {
			return false, err
		}
		cluster, _ := params.LookupPath(cue.MakePath(cue.Str("cluster"))).String()
		read, ok := r.req.Answers[key+"#read"]
		if !ok {
			return r.ask(Action{Key: key + "#read", Do: "read", Params: map[string]any{"value": target, "cluster": cluster}})
		}
		if err, failed := read.Returns["err"]; failed {
			return false, fmt.Errorf("%v", err)
		}
		base, _ := read.Returns["value"].(map[string]any)
		patch := params.LookupPath(cue.MakePath(cue.Str("patch")))
		m := &merger{ctx: r.i.ctx}
		if _, err := m.patch(base, patch); err != nil {
			return false, err
		}
		change, err := plain(patch)
		if err != nil {
			return false, err
		}
		in = map[string]any{"value": target, "patch": change, "cluster": cluster}
	default:
		var err error
		if in, err = r.params(params, do, legacy); err != nil {
			return false, err
		}
	}
	answer, ok := r.req.Answers[key]
	if !ok {
		return r.ask(Action{Key: key, Do: do, Params: in})
	}
	if answer.Message != "" {
		r.out.Message = answer.Message
	}
	if answer.Wait {
		r.out.Outcome = StepWaits
		return false, nil
	}
	returns := maps.Clone(map[string]any(answer.Returns))
	if err, failed := returns["err"]; failed && do == "read" {
		r.unread = fmt.Sprint(err)
	}
	if legacy {
		switch do {
		case "do":
			returns = map[string]any{"response": returns}
		case "list":
			if values, ok := returns["values"]; ok {
				delete(returns, "values")
				returns["list"] = values
			}
		case "patch":
			returns = map[string]any{"result": returns["value"]}
		case "apply", "read", "apply-in-parallel":
			// The template's values win: the server may have stored them in another form.
			if value, ok := returns["value"]; ok {
				returns["value"] = agreed(value, in["value"])
			}
		}
	}
	return true, r.fill(path, legacy, returns)
}

func (r *stepRun) ask(a Action) (bool, error) {
	r.out.Outcome, r.out.Action = StepActs, a
	return false, nil
}

// params returns an action's parameters as decoded JSON, with its patch applied.
func (r *stepRun) params(params cue.Value, do string, legacy bool) (map[string]any, error) {
	out := map[string]any{}
	fields, err := params.Fields()
	if err != nil {
		return nil, err
	}
	for fields.Next() {
		name := fields.Selector().Unquoted()
		if strings.HasPrefix(name, "$") || name == "patch" {
			continue
		}
		value, err := plain(fields.Value())
		if err != nil {
			return nil, err
		}
		out[name] = value
	}
	if patch := params.LookupPath(cue.MakePath(cue.Str("patch"))); patch.Exists() &&
		(do == "apply" || do == "component-apply") {
		if do == "apply" {
			if out["value"], err = r.patched(params); err != nil {
				return nil, err
			}
			return out, nil
		}
		if out["patch"], err = plain(patch); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// patched returns params.value with params.patch applied.
func (r *stepRun) patched(params cue.Value) (map[string]any, error) {
	base, err := objectOf(params.LookupPath(cue.MakePath(cue.Str("value"))))
	if err != nil {
		return nil, err
	}
	m := &merger{ctx: r.i.ctx}
	return m.patch(base, params.LookupPath(cue.MakePath(cue.Str("patch"))))
}

// fill writes what an action returned into the step's value.
func (r *stepRun) fill(path []cue.Selector, legacy bool, returns map[string]any) error {
	if len(returns) == 0 {
		return nil
	}
	if !legacy {
		path = append(slices.Clone(path), cue.Str("$returns"))
	}
	for _, name := range slices.Sorted(maps.Keys(returns)) {
		at := cue.MakePath(append(slices.Clone(path), cue.Str(name))...)
		r.v = r.v.FillPath(at, r.i.ctx.BuildExpr(exprOf(returns[name])))
	}
	return r.v.LookupPath(cue.MakePath(path...)).Err()
}

// agreed returns live, with the values of declared where the two differ.
func agreed(live, declared any) any {
	switch d := declared.(type) {
	case map[string]any:
		l, ok := live.(map[string]any)
		if !ok {
			return declared
		}
		out := maps.Clone(l)
		for k, v := range d {
			if there, ok := l[k]; ok {
				out[k] = agreed(there, v)
			} else {
				out[k] = v
			}
		}
		return out
	case []any:
		l, ok := live.([]any)
		if !ok || len(l) != len(d) {
			return declared
		}
		out := make([]any, len(d))
		for i := range d {
			out[i] = agreed(l[i], d[i])
		}
		return out
	case nil:
		return live
	}
	return declared
}

func (r *stepRun) variable(path []cue.Selector, params cue.Value, legacy bool) error {
	method, _ := params.LookupPath(cue.MakePath(cue.Str("method"))).String()
	name, err := params.LookupPath(cue.MakePath(cue.Str("path"))).String()
	if err != nil {
		return err
	}
	if method == "Put" {
		value, err := plain(params.LookupPath(cue.MakePath(cue.Str("value"))))
		if err != nil {
			return err
		}
		r.vars[name] = value
		return nil
	}
	value, ok := r.vars[name]
	if !ok {
		return fmt.Errorf("no value has been put under %s", name)
	}
	return r.fill(path, legacy, map[string]any{"value": value})
}

func (r *stepRun) date(do string, path []cue.Selector, params cue.Value, legacy bool) error {
	layout, _ := params.LookupPath(cue.MakePath(cue.Str("layout"))).String()
	if layout == "" {
		layout = time.RFC3339
	}
	if do == "timestamp" {
		date, err := params.LookupPath(cue.MakePath(cue.Str("date"))).String()
		if err != nil {
			return err
		}
		at, err := time.Parse(layout, date)
		if err != nil {
			return err
		}
		return r.fill(path, legacy, map[string]any{"timestamp": at.Unix()})
	}
	seconds, err := params.LookupPath(cue.MakePath(cue.Str("timestamp"))).Int64()
	if err != nil {
		return err
	}
	return r.fill(path, legacy, map[string]any{"date": time.Unix(seconds, 0).UTC().Format(layout)})
}

// loaded returns the Application's components or policies: a list in order, or a struct by name.
func (r *stepRun) loaded(do string) any {
	spec, _ := r.req.Context.Application["spec"].(map[string]any)
	field := "components"
	if do == "load-policies" {
		field = "policies"
	}
	list, _ := spec[field].([]any)
	if do == "load-comps-in-order" {
		return list
	}
	byName := map[string]any{}
	for _, item := range list {
		if m, ok := item.(map[string]any); ok {
			byName[fmt.Sprint(m["name"])] = m
		}
	}
	return byName
}
