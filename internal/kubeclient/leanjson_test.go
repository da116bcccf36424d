package kubeclient

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/client-go/kubernetes/scheme"
)

// stream decodes all events of a stream with the framing and serializer of media.
func stream(media *kruntime.StreamSerializerInfo, r io.Reader) (events []string, err error) {
	d := streaming.NewDecoder(media.Framer.NewFrameReader(io.NopCloser(r)), media.Serializer)
	for {
		var e metav1.WatchEvent
		if _, _, err := d.Decode(nil, &e); err != nil {
			return events, err
		}
		events = append(events, e.Type+" "+string(bytes.TrimSpace(e.Object.Raw)))
	}
}

// TestEventsAreFramedAsUsual compares streams of random events, read in pieces of any size, with what the library makes of them.
func TestEventsAreFramedAsUsual(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewSource(seed))
	isJSON := func(i kruntime.SerializerInfo) bool { return i.MediaType == jsonType }
	usual := scheme.Codecs.WithoutConversion().SupportedMediaTypes()
	ours := codecsOf(scheme.Scheme).media
	want, got := usual[slices.IndexFunc(usual, isJSON)].StreamSerializer, ours[slices.IndexFunc(ours, isJSON)].StreamSerializer
	for round := range 60 {
		var b bytes.Buffer
		for range random.Intn(6) {
			text := strings.Repeat(`a\"}{[`, random.Intn(8)<<random.Intn(12))
			event := fmt.Sprintf(`{"type":"MODIFIED","object":{"apiVersion":"v1","kind":"ConfigMap","data":{"a":"%s"}}}`, text)
			switch {
			case round%5 == 1: // as a server that prints for people
				var pretty bytes.Buffer
				if err := json.Indent(&pretty, []byte(event), "", "  "); err != nil {
					t.Fatal(err)
				}
				event = pretty.String()
			case round%5 == 2: // in another order, and without a line's end
				b.WriteString(strings.Replace(event, `"type":"MODIFIED","object"`, `"object"`, 1))
				b.Truncate(b.Len() - 1)
				b.WriteString(`,"type":"ADDED"}`)
				continue
			}
			b.WriteString(event + "\n")
		}
		whole := b.Bytes()
		for _, cut := range []int{0, 2 + random.Intn(20), len(whole)} { // without the last line's end alone, it is cut off for us
			data := whole[:len(whole)-min(cut, len(whole))]
			for name, r := range map[string]func() io.Reader{
				"whole": func() io.Reader { return bytes.NewReader(data) },
				"slow":  func() io.Reader { return iotest.HalfReader(bytes.NewReader(data)) },
				"bytes": func() io.Reader { return iotest.OneByteReader(bytes.NewReader(data)) },
				"break": func() io.Reader { return io.MultiReader(bytes.NewReader(data), iotest.ErrReader(io.ErrUnexpectedEOF)) },
			} {
				if name == "bytes" && len(data) > 20_000 {
					continue
				}
				events, err := stream(want, r())
				same, sameErr := stream(got, r())
				if !reflect.DeepEqual(events, same) || (err == io.EOF) != (sameErr == io.EOF) {
					t.Fatalf("%s, of %q without %d: %q %v; want %q %v", name, whole, cut, same, sameErr, events, err)
				}
			}
		}
	}
}

func TestMembersAreCutOut(t *testing.T) {
	cut := func(object string, names ...string) (string, error) {
		out, err := CutMembers(nil, []byte(object), func(out, key, _ []byte) ([]byte, bool, error) {
			return out, slices.Contains(names, string(bytes.Trim(key, `"`))), nil
		})
		return string(out), err
	}
	for _, c := range []struct{ object, want string }{
		{`{}`, `{}`},
		{` { "a" : 1 , "b" : [ { } , "," ] } `, `{"b":[ { } , "," ]}`},
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

// FuzzCutMembers: what is cut out of an object leaves one that decodes as before, without it.
func FuzzCutMembers(f *testing.F) {
	f.Add([]byte(`{"a":1,"b":{"c":["\"",2]}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var whole map[string]json.RawMessage
		if json.Unmarshal(raw, &whole) != nil || whole == nil {
			_, _ = CutMembers(nil, raw, func(out, _, _ []byte) ([]byte, bool, error) { return out, false, nil })
			return
		}
		lean, err := CutMembers(nil, raw, func(out, key, _ []byte) ([]byte, bool, error) { return out, string(key) == `"a"`, nil })
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
