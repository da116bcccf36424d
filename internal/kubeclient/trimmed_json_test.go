package kubeclient

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"
)

func TestMembersAreCutOut(t *testing.T) {
	cut := func(object string, names ...string) (string, error) {
		out, err := CutMembers(nil, []byte(object), func(out []byte, name string, _ []byte) ([]byte, bool, error) {
			return out, slices.Contains(names, name), nil
		})
		return string(out), err
	}
	for _, c := range []struct{ object, want string }{
		{`{}`, `{}`},
		{` { "a" : 1 , "b" : [ { } , "," ] } `, `{"b" : [ { } , "," ]}`},
		{`{"b":"x\\","a":{"a":"}"},"c":-1e3}`, `{"b":"x\\","c":-1e3}`},
		{`{"a":1,"a":2}`, `{}`},
		{`{"c":true,"a":null}`, `{"c":true}`},
	} {
		if got, err := cut(c.object, "a"); got != c.want || err != nil {
			t.Errorf("%s: %s %v; want %s", c.object, got, err, c.want)
		}
	}
	for _, object := range []string{``, `[]`, `{`, `{"a"`, `{"a"}`, `{"a":`, `{"a":}`, `{"a":1`, `{"a":1,`, `{"a":1 "b":2}`, `{a:1}`, `{"a":[`, `{"a":"`} {
		if got, err := cut(object, "b"); err == nil {
			t.Errorf("%s: %s and no error", object, got)
		}
	}
	lean, err := WithoutManagedFields(nil, []byte(`{"apiVersion":"v1","metadata":{"name":"n","managedFields":[{"a":"]"}],"uid":"u"},"data":{"managedFields":"stay"}}`))
	if want := `{"apiVersion":"v1","metadata":{"name":"n","uid":"u"},"data":{"managedFields":"stay"}}`; string(lean) != want || err != nil {
		t.Errorf("%s %v; want %s", lean, err, want)
	}
}

// FuzzCutMembers checks that an object decodes as before after a member is cut out, except for that
// member.
func FuzzCutMembers(f *testing.F) {
	f.Add([]byte(`{"a":1,"b":{"c":["\"",2]}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var whole map[string]json.RawMessage
		if json.Unmarshal(raw, &whole) != nil || whole == nil {
			_, _ = CutMembers(nil, raw, func(out []byte, _ string, _ []byte) ([]byte, bool, error) { return out, false, nil })
			return
		}
		lean, err := CutMembers(nil, raw, func(out []byte, name string, _ []byte) ([]byte, bool, error) { return out, name == "a", nil })
		if err != nil {
			t.Fatal(err)
		}
		var rest map[string]json.RawMessage
		if err := json.Unmarshal(lean, &rest); err != nil {
			t.Fatalf("%s: %v", lean, err)
		}
		if !bytes.Contains(raw, []byte(`\`)) { // a key may be written with escapes
			delete(whole, "a")
			if len(rest) != len(whole) {
				t.Fatalf("%s of %s", lean, raw)
			}
		}
	})
}
