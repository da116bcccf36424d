package kubeclient

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/serializer/json"
)

// TestQuickMetaSaysWhatTheUsualSays compares the results of both methods, also for input to which
// the quick method does not apply.
func TestQuickMetaSaysWhatTheUsualSays(t *testing.T) {
	for _, data := range []string{
		`{"apiVersion":"argoproj.io/v1alpha1","kind":"Workflow","metadata":{}}`,
		`{"apiVersion":"v1","kind":"Pod"}`,
		`{"kind":"Pod","apiVersion":"v1"}`,
		`{ "apiVersion": "v1", "kind": "Pod" }`,
		`{"apiVersion":"v1","metadata":{},"kind":"Pod"}`,
		`{"apiVersion":"a\u002fv1","kind":"Pod"}`,
		`{"apiVersion":"a/b/c","kind":"Pod"}`,
		`{"type":"ADDED","object":{"apiVersion":"v1","kind":"Pod"}}`,
		`{"type":"ADDED","apiVersion":"v1","kind":"WatchEvent"}`,
		`{"type":"ADDED","object":{"kind":"Pod"},"kind":"Event","apiVersion":"v1"}`,
		`{}`, ``, `[]`, `{"apiVersion":"`, `{"apiVersion":"v1","kind":"`, `{"type":"`,
	} {
		want, wantErr := json.DefaultMetaFactory.Interpret([]byte(data))
		got, err := quickMeta{}.Interpret([]byte(data))
		if (err == nil) != (wantErr == nil) || err == nil && *got != *want {
			t.Errorf("%s: %v, %v; want %v, %v", data, got, err, want, wantErr)
		}
	}
}
