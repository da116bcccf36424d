package render

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"cuelang.org/go/cue"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	"lockstep.dev/lockstep/internal/application/fieldpath"
)

// directives say how a field of a patch is merged. They are comments before the field:
//
//	// +patchKey=name              items of a list are matched by this field and merged; others are
//	                               added. Lists inside the field have the same key, unless they
//	                               name another
//	// +patchStrategy=retainKeys   the field's value replaces the present value; with a patchKey,
//	                               items replace the present items
//	// +patchStrategy=replace      the list replaces the present list
//	// +patchStrategy=jsonPatch    the whole patch is {operations: [...]} of RFC 6902
//	// +patchStrategy=jsonMergePatch  the whole patch is merged by RFC 7396: null removes
//
// Without directives a patch is unified: structs field by field, lists item by item, and scalars
// must be equal. A list with a key is also merged item by item if none of its items has the key.
type directives struct {
	keys     []string
	strategy string
}

// directivesOf returns the directives of a field. A field without its own key inherits the keys of
// the field around it.
func directivesOf(v cue.Value, around []string) directives {
	var d directives
	for _, group := range v.Doc() {
		for _, line := range group.List {
			text := strings.TrimSpace(strings.TrimPrefix(line.Text, "//"))
			name, value, ok := strings.Cut(strings.TrimPrefix(text, "+"), "=")
			if !ok || !strings.HasPrefix(text, "+") {
				continue
			}
			switch strings.TrimSpace(name) {
			case "patchKey":
				for key := range strings.SplitSeq(value, ",") {
					d.keys = append(d.keys, strings.TrimSpace(key))
				}
			case "patchStrategy":
				d.strategy = strings.TrimSpace(value)
			}
		}
	}
	if len(d.keys) == 0 {
		d.keys = around
	}
	return d
}

// merger merges patches in one CUE context.
type merger struct{ ctx *cue.Context }

// patch applies the value of a patch field to an object.
func (m *merger) patch(base map[string]any, patch cue.Value) (map[string]any, error) {
	switch d := directivesOf(patch, nil); d.strategy {
	case "jsonMergePatch":
		value, err := plain(patch)
		if err != nil {
			return nil, err
		}
		merged, _ := mergePatch(base, value).(map[string]any)
		return merged, nil
	case "jsonPatch":
		return jsonPatch(base, patch.LookupPath(cue.ParsePath("operations")))
	case "retainKeys", "replace":
		value, err := plain(patch)
		if err != nil {
			return nil, err
		}
		merged, ok := value.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s is not a struct", patch.Path())
		}
		return merged, nil
	}
	merged, err := m.merge(base, patch, directives{})
	if err != nil {
		return nil, err
	}
	object, ok := merged.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%s is not a struct", patch.Path())
	}
	return object, nil
}

// merge returns base merged with patch. base is nil if there is no value yet.
func (m *merger) merge(base any, patch cue.Value, d directives) (any, error) {
	kind := patch.IncompleteKind()
	byKey := kind == cue.ListKind && hasKey(patch, d.keys)
	if base == nil && !byKey || d.strategy == "retainKeys" && !byKey || d.strategy == "replace" {
		return plain(patch)
	}
	if err := patch.Err(); err != nil {
		return nil, err
	}
	switch kind {
	case cue.StructKind:
		return m.mergeStruct(base, patch, d.keys)
	case cue.ListKind:
		if base == nil {
			base = []any{}
		}
		list, ok := base.([]any)
		if !ok {
			return nil, conflict(base, patch)
		}
		if byKey {
			return m.mergeByKey(list, patch, d)
		}
		return m.mergeByIndex(list, patch, d.keys)
	}
	return m.unify(base, patch)
}

// hasKey reports whether a list is empty or one of its items has one of the keys.
func hasKey(list cue.Value, keys []string) bool {
	items, err := list.List()
	if err != nil || len(keys) == 0 {
		return false
	}
	empty := true
	for items.Next() {
		empty = false
		for _, key := range keys {
			if items.Value().LookupPath(cue.ParsePath(key)).Exists() {
				return true
			}
		}
	}
	return empty
}

func (m *merger) mergeStruct(base any, patch cue.Value, keys []string) (any, error) {
	object, ok := base.(map[string]any)
	if !ok {
		return nil, conflict(base, patch)
	}
	out := make(map[string]any, len(object))
	for k, v := range object {
		out[k] = v
	}
	fields, err := patch.Fields()
	if err != nil {
		return nil, err
	}
	for fields.Next() {
		name := fields.Selector().Unquoted()
		merged, err := m.merge(out[name], fields.Value(), directivesOf(fields.Value(), keys))
		if err != nil {
			return nil, err
		}
		out[name] = merged
	}
	return out, nil
}

// mergeByKey merges items with the items of base that have the same key, or replaces the latter,
// and appends the other items. Appended items are not merged with each other: two mounts may be of
// the same volume.
func (m *merger) mergeByKey(base []any, patch cue.Value, d directives) (any, error) {
	out := append([]any{}, base...)
	items, err := patch.List()
	if err != nil {
		return nil, err
	}
	for items.Next() {
		item, err := plain(items.Value())
		if err != nil {
			// The item may be complete after the merge with the item of base.
			if item, err = plainKeys(items.Value(), d.keys); err != nil {
				return nil, err
			}
		}
		at := match(base, item, d.keys)
		switch {
		case at >= 0 && d.strategy != "retainKeys":
			if out[at], err = m.merge(out[at], items.Value(), directives{keys: d.keys}); err != nil {
				return nil, err
			}
			continue
		case at < 0 && slices.ContainsFunc(out[len(base):], func(added any) bool { return reflect.DeepEqual(added, item) }):
			continue
		}
		whole, err := plain(items.Value())
		if err != nil {
			return nil, err
		}
		if at >= 0 {
			out[at] = whole
		} else {
			out = append(out, whole)
		}
	}
	// [...{...}] applies to all items.
	if each := patch.LookupPath(cue.MakePath(cue.AnyIndex)); each.Exists() {
		for i := range out {
			if out[i], err = m.merge(out[i], each, directives{keys: d.keys}); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// match returns the index of the item of list that has the same key as item, or -1. If there are
// several keys, the first one that item has counts.
func match(list []any, item any, keys []string) int {
	for _, key := range keys {
		want, ok := fieldpath.Get(item, key)
		if !ok {
			continue
		}
		for i, other := range list {
			if there, ok := fieldpath.Get(other, key); ok && reflect.DeepEqual(want, there) {
				return i
			}
		}
		return -1
	}
	return -1
}

// plainKeys returns the fields of an item that keys name.
func plainKeys(item cue.Value, keys []string) (any, error) {
	out := map[string]any{}
	for _, key := range keys {
		v := item.LookupPath(cue.ParsePath(key))
		if !v.Exists() {
			continue
		}
		value, err := plain(v)
		if err != nil {
			return nil, err
		}
		if _, err := fieldpath.Set(out, key, value, 0); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (m *merger) mergeByIndex(base []any, patch cue.Value, keys []string) (any, error) {
	out := append([]any{}, base...)
	items, err := patch.List()
	if err != nil {
		return nil, err
	}
	n := 0
	for items.Next() {
		if n < len(out) {
			if out[n], err = m.merge(out[n], items.Value(), directives{keys: keys}); err != nil {
				return nil, err
			}
		} else {
			value, err := plain(items.Value())
			if err != nil {
				return nil, err
			}
			out = append(out, value)
		}
		n++
	}
	if each := patch.LookupPath(cue.MakePath(cue.AnyIndex)); each.Exists() {
		for i := n; i < len(out); i++ {
			if out[i], err = m.merge(out[i], each, directives{keys: keys}); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// unify merges scalars. base must equal the patch or meet its constraint, and replaces its default.
func (m *merger) unify(base any, patch cue.Value) (any, error) {
	unified := patch.Unify(m.ctx.Encode(base))
	if err := unified.Err(); err != nil {
		return nil, err
	}
	return plain(unified)
}

func conflict(base any, patch cue.Value) error {
	kind := "a scalar"
	switch base.(type) {
	case map[string]any:
		kind = "a struct"
	case []any:
		kind = "a list"
	}
	return fmt.Errorf("%s: what is patched is %s, the patch is a %v", patch.Path(), kind, patch.IncompleteKind())
}

// mergePatch applies a JSON merge patch (RFC 7396).
func mergePatch(base, patch any) any {
	changes, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	object, _ := base.(map[string]any)
	out := make(map[string]any, len(object))
	for k, v := range object {
		out[k] = v
	}
	for k, v := range changes {
		if v == nil {
			delete(out, k)
			continue
		}
		out[k] = mergePatch(out[k], v)
	}
	return out
}

// jsonPatch applies a JSON patch (RFC 6902).
func jsonPatch(base map[string]any, operations cue.Value) (map[string]any, error) {
	if !operations.Exists() {
		return nil, fmt.Errorf("a jsonPatch needs the field operations")
	}
	ops, err := operations.MarshalJSON()
	if err != nil {
		return nil, err
	}
	decoded, err := jsonpatch.DecodePatch(ops)
	if err != nil {
		return nil, fmt.Errorf("operations: %w", err)
	}
	doc, err := encode(base)
	if err != nil {
		return nil, err
	}
	if doc, err = decoded.Apply(doc); err != nil {
		return nil, fmt.Errorf("operations: %w", err)
	}
	patched, err := decode(doc)
	if err != nil {
		return nil, err
	}
	object, ok := patched.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("operations: the result is not an object")
	}
	return object, nil
}

// plain returns a concrete value as decoded JSON, with numbers as int64 or float64.
func plain(v cue.Value) (any, error) {
	data, err := v.MarshalJSON()
	if err != nil {
		return nil, err
	}
	return decode(data)
}
