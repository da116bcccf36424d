package plan

import (
	"encoding/base64"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"lockstep.dev/lockstep/api/scheme"
)

// normalise writes an object as the API server will hold it, as far as its type says: quantities in their canonical form,
// numbers and texts as the field has them, and no fields that the type does not have.
func normalise(u *unstructured.Unstructured) error {
	typed, err := Typed(u.Object)
	if err != nil || typed == nil {
		return err
	}
	out, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	if err != nil {
		return err
	}
	delete(out, "status")
	if u.GetKind() == "Secret" && u.GetAPIVersion() == "v1" {
		encodeStringData(out)
	}
	dropNulls(out)
	out["apiVersion"], out["kind"] = u.GetAPIVersion(), u.GetKind()
	u.Object = out
	return nil
}

// Typed is the object as the Go type that the scheme has for it, or nil when the scheme has none.
func Typed(object map[string]any) (runtime.Object, error) {
	u := unstructured.Unstructured{Object: object}
	gvk := u.GroupVersionKind()
	if !scheme.Scheme.Recognizes(gvk) {
		return nil, nil
	}
	typed, err := scheme.Scheme.New(gvk)
	if err != nil {
		return nil, err
	}
	// By way of JSON: it takes a number where a field is a quantity or a port, as the API server does.
	data, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, typed); err != nil {
		return nil, fmt.Errorf("%s %s: %w", gvk.Kind, u.GetName(), err)
	}
	return typed, nil
}

// encodeStringData moves a Secret's stringData to its data, as the API server does.
func encodeStringData(secret map[string]any) {
	texts, _ := secret["stringData"].(map[string]any)
	if len(texts) == 0 {
		return
	}
	data, _ := secret["data"].(map[string]any)
	if data == nil {
		data = map[string]any{}
	}
	for k, v := range texts {
		if s, ok := v.(string); ok {
			data[k] = base64.StdEncoding.EncodeToString([]byte(s))
		}
	}
	secret["data"] = data
	delete(secret, "stringData")
}

// SecretData are the values of a Secret.
func SecretData(secret map[string]any) (map[string][]byte, error) {
	out := map[string][]byte{}
	data, _ := secret["data"].(map[string]any)
	for k, v := range data {
		text, _ := v.(string)
		value, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, fmt.Errorf("key %s: %w", k, err)
		}
		out[k] = value
	}
	return out, nil
}

// dropNulls takes out fields that are null: types write them where they have no value.
func dropNulls(v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, item := range v {
			if item == nil {
				delete(v, k)
				continue
			}
			dropNulls(item)
		}
	case []any:
		for _, item := range v {
			dropNulls(item)
		}
	}
}
