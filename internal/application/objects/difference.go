package objects

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kjson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/fieldpath"
	"lockstep.dev/lockstep/internal/application/plan"
)

// PatchType returns how objects of a kind are patched: a strategic merge patch for Kubernetes'
// built-in types, a JSON merge patch for others.
func PatchType(gvk schema.GroupVersionKind) types.PatchType {
	if clientgoscheme.Scheme.Recognizes(gvk) {
		return types.StrategicMergePatchType
	}
	return types.MergePatchType
}

// Difference returns the patch that brings an object to its desired state, or nil if none is
// needed. recreate means that a field in RecreateFields differs, so the object must be deleted and
// created again. update is set if the rendered object has changed since the object was last
// written.
func (w *Wanted) Difference(there *Object, update bool) (patch []byte, recreate bool, _ error) {
	wanted, err := w.labelled()
	if err != nil {
		return nil, false, err
	}
	if w.Shared && SharedBy(there, w.Owner) {
		// The list of sharers belongs to all sharers together, so a write does not change it.
		annotations := wanted.GetAnnotations()
		annotations[oam.SharedByAnnotation] = strings.Join(Sharers(there), ",")
		wanted.SetAnnotations(annotations)
	}
	raw := there.JSON()
	var current map[string]any
	if err := kjson.Unmarshal(raw, &current); err != nil {
		return nil, false, err
	}
	keepServiceName(w.GVK, wanted.Object, current)
	whole := keep(w.Keep, wanted.Object, current, update)
	if whole && !update {
		return nil, false, nil
	}
	if !update {
		// A repair leaves the revision's labels as the last update wrote them.
		copyLabels(wanted.Object, current, oam.AppRevisionLabel, oam.ComponentRevisionLabel)
		if contains(current, wanted.Object) {
			return nil, false, nil
		}
	}
	base := w.Applied
	if base == nil || !update {
		base = w.JSON // a repair removes no field
	}
	if w.Replace && update {
		if base, err = replaceable(current); err != nil {
			return nil, false, err
		}
	}
	modified, err := json.Marshal(wanted.Object)
	if err != nil {
		return nil, false, err
	}
	if PatchType(w.GVK) == types.StrategicMergePatchType {
		typed, err := clientgoscheme.Scheme.New(w.GVK)
		if err != nil {
			return nil, false, err
		}
		lookup, err := strategicpatch.NewPatchMetaFromStruct(typed)
		if err != nil {
			return nil, false, err
		}
		patch, err = strategicpatch.CreateThreeWayMergePatch(base, modified, raw, lookup, true)
		if err != nil {
			return nil, false, fmt.Errorf("%s: %w", w.Ref, err)
		}
	} else if patch, err = jsonmergepatch.CreateThreeWayJSONMergePatch(base, modified, raw); err != nil {
		return nil, false, fmt.Errorf("%s: %w", w.Ref, err)
	}
	if string(patch) == "{}" {
		return nil, false, nil
	}
	return patch, mustRecreate(w.RecreateFields, wanted.Object, current), nil
}

// keepServiceName copies a StatefulSet's serviceName, which cannot be changed, into wanted if wanted
// has none.
func keepServiceName(gvk schema.GroupVersionKind, wanted, current map[string]any) {
	if gvk.Group != "apps" || gvk.Kind != "StatefulSet" {
		return
	}
	name, _, _ := unstructured.NestedString(current, "spec", "serviceName")
	if set, _, err := unstructured.NestedString(wanted, "spec", "serviceName"); name != "" && set == "" && err == nil {
		_ = unstructured.SetNestedField(wanted, name, "spec", "serviceName") // fails if wanted has no spec
	}
}

// replaceable returns the part of an object that its author can write.
func replaceable(current map[string]any) (json.RawMessage, error) {
	out := maps.Clone(current)
	delete(out, "status")
	there, _ := out["metadata"].(map[string]any)
	metadata := map[string]any{}
	for _, field := range []string{"labels", "annotations"} {
		if there[field] != nil {
			metadata[field] = there[field]
		}
	}
	out["metadata"] = metadata
	return json.Marshal(out)
}

// mustRecreate reports whether wanted has a value at one of the paths that current lacks.
func mustRecreate(paths []string, wanted, current map[string]any) bool {
	for _, p := range paths {
		want, _ := fieldpath.Get(wanted, p)
		is, _ := fieldpath.Get(current, p)
		if want != nil && !contains(is, want) {
			return true
		}
	}
	return false
}

// keep copies the live values of kept fields into wanted. whole is set if the whole object is kept.
func keep(fields []plan.KeptField, wanted, current map[string]any, update bool) (whole bool) {
	for _, f := range fields {
		if f.Affect == plan.OnUpdate && !update || f.Affect == plan.OnStateKeep && update {
			continue
		}
		if f.Path == "*" {
			whole = true
			continue
		}
		if value, ok := fieldpath.Get(current, f.Path); ok {
			_, _ = fieldpath.Set(wanted, f.Path, value, 0) // fails for items of lists that are not wanted
		}
	}
	return whole
}

func copyLabels(to, from map[string]any, keys ...string) {
	source, _, _ := unstructured.NestedMap(from, "metadata", "labels")
	target, _ := to["metadata"].(map[string]any)["labels"].(map[string]any)
	for _, k := range keys {
		if v, ok := source[k]; ok {
			target[k] = v
		} else {
			delete(target, k)
		}
	}
}

// contains reports whether live has every value that wanted has. live may have more, such as the
// server's defaults. Zero values of wanted may be missing in live.
func contains(live, wanted any) bool {
	switch wanted := wanted.(type) {
	case map[string]any:
		there, ok := live.(map[string]any)
		if !ok {
			return len(wanted) == 0 && live == nil
		}
		for k, v := range wanted {
			if !contains(there[k], v) {
				return false
			}
		}
		return true
	case []any:
		there, ok := live.([]any)
		if !ok || len(there) != len(wanted) {
			return len(wanted) == 0 && live == nil
		}
		for i := range wanted {
			if !contains(there[i], wanted[i]) {
				return false
			}
		}
		return true
	case int64:
		switch live := live.(type) {
		case int64:
			return live == wanted
		case float64:
			return live == float64(wanted)
		case nil:
			return wanted == 0 // the zero value may be left out
		}
		return false
	case string:
		return live == wanted || wanted == "" && live == nil
	case bool:
		return live == wanted || !wanted && live == nil
	}
	return reflect.DeepEqual(live, wanted)
}

// Content returns a hash of an object without its status, resourceVersion and generation.
func Content(there *Object) string {
	var o map[string]any
	if err := kjson.Unmarshal(there.JSON(), &o); err != nil {
		return ""
	}
	delete(o, "status")
	metadata, err := meta.Accessor(&unstructured.Unstructured{Object: o})
	if err != nil {
		return ""
	}
	metadata.SetResourceVersion("")
	metadata.SetGeneration(0)
	data, err := json.Marshal(o)
	if err != nil {
		return ""
	}
	return plan.Hash(data)
}

// Deviation returns a hash of an object's content if the object lacks something that wanted has,
// and otherwise an empty string. known is false if either is not JSON.
func Deviation(there *Object, wanted []byte) (hash string, known bool) {
	var current, want map[string]any
	if kjson.Unmarshal(there.JSON(), &current) != nil || kjson.Unmarshal(wanted, &want) != nil {
		return "", false
	}
	if contains(current, want) {
		return "", true
	}
	return Content(there), true
}
