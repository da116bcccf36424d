package v1alpha1

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// AnyString is a string that may also be written as a number or boolean, whose text it keeps.
//
// +kubebuilder:validation:Schemaless
// +kubebuilder:pruning:PreserveUnknownFields
type AnyString string

// UnmarshalJSON accepts strings, numbers and booleans.
func (s *AnyString) UnmarshalJSON(data []byte) error {
	var v any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber() // 1e3 and large numbers stay as they were written
	if err := d.Decode(&v); err != nil {
		return err
	}
	switch v := v.(type) {
	case string:
		*s = AnyString(v)
	case json.Number:
		*s = AnyString(v.String())
	case bool:
		*s = AnyString(fmt.Sprint(v))
	default:
		return fmt.Errorf("want a string, number or boolean, not %s", data)
	}
	return nil
}

// MarshalJSON writes a string.
func (s AnyString) MarshalJSON() ([]byte, error) { return json.Marshal(string(s)) }

// Any returns a pointer to s as an AnyString.
func Any(s string) *AnyString { v := AnyString(s); return &v }

// UnmarshalJSON accepts a list of steps, or one step.
func (p *ParallelSteps) UnmarshalJSON(data []byte) error {
	if trimmed := bytes.TrimSpace(data); len(trimmed) > 0 && trimmed[0] == '{' {
		p.Steps = make([]WorkflowStep, 1)
		return json.Unmarshal(data, &p.Steps[0])
	}
	return json.Unmarshal(data, &p.Steps)
}

// MarshalJSON writes a list of steps.
func (p ParallelSteps) MarshalJSON() ([]byte, error) { return json.Marshal(p.Steps) }

// UnmarshalJSON keeps the item as it is.
func (i *Item) UnmarshalJSON(data []byte) error {
	i.Raw = append([]byte(nil), data...)
	return nil
}

// MarshalJSON writes the item as it was.
func (i Item) MarshalJSON() ([]byte, error) {
	if len(i.Raw) == 0 {
		return []byte("null"), nil
	}
	return i.Raw, nil
}
