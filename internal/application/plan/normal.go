package plan

import (
	"encoding/base64"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"lockstep.dev/lockstep/api/scheme"
)

// normalise brings an object into the form in which the API server stores it, as far as its Go type
// determines that: quantities in canonical form, numbers and strings as the field's type has them,
// and no unknown fields. Objects of types that are not in the scheme stay as they are.
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

// Typed returns the object as its Go type, or nil if the scheme has no such type.
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
	// Decode JSON: like the API server, the decoder accepts a number where a field is a quantity or
	// a port.
	data, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, typed); err != nil {
		return nil, fmt.Errorf("%s %s: %w", gvk.Kind, u.GetName(), err)
	}
	return typed, nil
}

// encodeStringData moves a Secret's stringData into its data, as the API server does.
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

// SecretData returns the decoded data of a Secret.
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

// dropNulls removes fields that are null. Go types write null where they have no value.
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
