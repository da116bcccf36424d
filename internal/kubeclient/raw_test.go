package kubeclient

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
)

func TestRawObjectsAreAsTheirServerSentThem(t *testing.T) {
	for name, c := range map[string]struct{ data, want string }{
		"managed fields at the end": {
			`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","uid":"u","managedFields":[{"fieldsV1":{"f:metadata":{}}}]},"spec":{"x":"{\"]"}}`,
			`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","uid":"u"},"spec":{"x":"{\"]"}}`,
		},
		"in the middle":  {`{"metadata":{"labels":{"a":"b"},"managedFields":[], "name":"a","uid":"u"}}`, `{"metadata":{"labels":{"a":"b"},"name":"a","uid":"u"}}`},
		"at the start":   {`{"metadata":{"managedFields":[],"name":"a","uid":"u"}}`, `{"metadata":{"name":"a","uid":"u"}}`},
		"nowhere":        {` {"metadata":{"name":"a","uid":"u"},"managedFields":1}` + "\n", `{"metadata":{"name":"a","uid":"u"},"managedFields":1}`},
		"nothing beside": {`{"metadata":{"managedFields":[]}}`, `{"metadata":{}}`},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, err := rawJSON{}.Decode([]byte(c.data), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			r := got.(*Raw)
			if text := strings.TrimSpace(string(r.JSON)); text != c.want {
				t.Errorf("%s\nwant %s", text, c.want)
			}
			if strings.Contains(c.want, `"a"`) && (r.Name != "a" || r.UID != "u" || r.ManagedFields != nil) {
				t.Errorf("metadata: %+v", r.ObjectMeta)
			}
		})
	}
}

func TestRawListsSayOfWhatKindTheirObjectsAre(t *testing.T) {
	got, _, err := rawJSON{}.Decode([]byte(`{"kind":"DeploymentList","apiVersion":"apps/v1","metadata":{"resourceVersion":"7","continue":"c"},`+
		`"items":[{"metadata":{"name":"a","managedFields":[1]}},{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"b"}}]}`), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	list := got.(*RawList)
	if list.ResourceVersion != "7" || list.Continue != "c" || len(list.Items) != 2 {
		t.Fatalf("%+v", list)
	}
	want := []string{`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a"}}`, `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"b"}}`}
	for i, r := range list.Items {
		if string(r.JSON) != want[i] || r.Kind != "Deployment" {
			t.Errorf("%s", r.JSON)
		}
	}
}

func TestWhatServersSayOfFailuresIsAStatus(t *testing.T) {
	got, _, err := rawJSON{}.Decode([]byte(`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","code":410,"reason":"Expired"}`), nil, nil)
	if s, ok := got.(*metav1.Status); err != nil || !ok || s.Code != 410 || s.Reason != metav1.StatusReasonExpired {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestEventsAreTakenApart compares events with the result of the default decoder.
func TestEventsAreTakenApart(t *testing.T) {
	for _, data := range []string{
		`{"type":"ADDED","object":{"kind":"Pod","x":["}"]}}`, `{ "object" : {} , "type" : "DELETED" }` + "\n", `{"type":"BOOKMARK","object":null}`,
	} {
		var want, got metav1.WatchEvent
		if err := json.Unmarshal([]byte(data), &want); err != nil {
			t.Fatal(err)
		}
		if _, _, err := (events{}).Decode([]byte(data), nil, &got); err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(got.Object.Raw, []byte("null")) {
			got.Object.Raw = want.Object.Raw
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", data, diff)
		}
	}
}

// FuzzRaw checks that no data makes the scan read past its end, and that valid JSON is still valid
// when it was decoded as Raw.
func FuzzRaw(f *testing.F) {
	for _, seed := range []string{`{"metadata":{"managedFields":[{}],"name":"x"}}`, `{"a`, `{"a":"\`, `[]`, `{"kind":"XList","items":[{"metadata":{}}],"metadata":{}}`, `{"":{}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		object, _, err := rawJSON{}.Decode(data, nil, nil)
		if err == nil && json.Valid(data) {
			if r, ok := object.(*Raw); ok && !json.Valid(r.JSON) {
				t.Errorf("%q became %q", data, r.JSON)
			}
		}
		var event metav1.WatchEvent
		_, _, _ = (events{}).Decode(data, nil, &event)
		_, _ = io.ReadAll(framer{}.NewFrameReader(io.NopCloser(bytes.NewReader(data))))
	})
}

var _ kruntime.NegotiatedSerializer = rawCodecs{}

func BenchmarkRaw(b *testing.B) {
	data := []byte(`{"type":"MODIFIED","object":{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"a","namespace":"b","uid":"u","resourceVersion":"1",` +
		`"labels":{"a":"b","c":"d"},"managedFields":[` + strings.TrimSuffix(strings.Repeat(`{"fieldsV1":{"f:metadata":{"f:labels":{}}}},`, 30), ",") + `]},"spec":{"template":"` + strings.Repeat("x", 2000) + `"}}}` + "\n")
	stream := bytes.Repeat(data, 100)
	b.SetBytes(int64(len(stream)))
	buffer := make([]byte, 16<<10)
	for b.Loop() {
		f := framer{}.NewFrameReader(io.NopCloser(bytes.NewReader(stream)))
		for {
			n, err := f.Read(buffer)
			if err != nil {
				break
			}
			var event metav1.WatchEvent
			if _, _, err := (events{}).Decode(buffer[:n], nil, &event); err != nil {
				b.Fatal(err)
			}
			if _, _, err := (rawJSON{}).Decode(event.Object.Raw, nil, nil); err != nil {
				b.Fatal(err)
			}
		}
	}
}
