package rawjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"
)

// documents generates JSON objects with arbitrary values.
func documents() *rapid.Generator[map[string]any] {
	text := rapid.StringOfN(rapid.RuneFrom([]rune("a\"\\{}[]:, \n\té\u2028")), 0, 6, -1)
	var value func(depth int) *rapid.Generator[any]
	value = func(depth int) *rapid.Generator[any] {
		of := []*rapid.Generator[any]{text.AsAny(), rapid.IntRange(-9, 9).AsAny(), rapid.Bool().AsAny(), rapid.Just[any](nil)}
		if depth > 0 {
			of = append(of, rapid.SliceOfN(value(depth-1), 0, 3).AsAny(), rapid.MapOfN(text, value(depth-1), 0, 3).AsAny())
		}
		return rapid.OneOf(of...)
	}
	return rapid.MapOfN(text, value(3), 0, 4)
}

// TestMembersAreWhereTheyAre compares the scan with the decoder of the standard library, for
// documents written in one line and in several.
func TestMembersAreWhereTheyAre(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := documents().Draw(t, "document")
		data, err := json.MarshalIndent(want, "", strings.Repeat(" ", rapid.IntRange(0, 2).Draw(t, "indent")))
		if err != nil {
			t.Fatal(err)
		}
		got, members := map[string]json.RawMessage{}, 0
		err = Members(data, func(m Member) bool {
			var name string
			if err := json.Unmarshal(data[m.From:m.End], new(any)); err != nil {
				t.Fatalf("%s in %s: %v", data[m.From:m.End], data, err)
			}
			if err := json.Unmarshal(append(append([]byte{'"'}, m.Name...), '"'), &name); err != nil {
				t.Fatal(err)
			}
			got[name] = data[m.From:m.End]
			if value, err := Value(data, string(m.Name)); err != nil || !bytes.Equal(value, got[name]) {
				t.Fatalf("%s of %s: %s, %v", name, data, value, err)
			}
			members++
			return true
		})
		if err != nil || members != len(want) {
			t.Fatalf("%s: %d members, %v", data, members, err)
		}
		if value, err := Value(data, "no member has this name"); value != nil || err != nil {
			t.Fatalf("a member that is not there: %s, %v", value, err)
		}
		for name, value := range want {
			encoded, err := json.Marshal(value)
			if err != nil {
				t.Fatal(err)
			}
			var compact bytes.Buffer
			if err := json.Compact(&compact, got[name]); err != nil || !bytes.Equal(compact.Bytes(), encoded) {
				t.Fatalf("%s: %s, want %s", name, compact.Bytes(), encoded)
			}
		}
	})
}

// TestFramesOfAStream splits a stream of documents into pieces of any size.
func TestFramesOfAStream(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var stream bytes.Buffer
		var want []string
		for range rapid.IntRange(0, 5).Draw(t, "documents") {
			data, err := json.Marshal(documents().Draw(t, "document"))
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, string(data))
			stream.Write(data)
			stream.WriteString(rapid.SampledFrom([]string{"", "\n", " \r\n"}).Draw(t, "between"))
		}
		var from io.Reader = &stream
		if rapid.Bool().Draw(t, "slowly") {
			from = iotest.OneByteReader(from)
		}
		f := NewFrames(io.NopCloser(from))
		buffer := make([]byte, rapid.IntRange(1, 64).Draw(t, "buffer"))
		var frame []byte
		for {
			n, err := f.Read(buffer)
			frame = append(frame, buffer[:n]...)
			if errors.Is(err, io.ErrShortBuffer) {
				continue
			}
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(want) == 0 || strings.TrimSpace(string(frame)) != want[0] {
				t.Fatalf("%q, want %q", frame, want)
			}
			frame, want = frame[:0], want[1:]
		}
		if len(want) > 0 {
			t.Fatalf("missing: %q", want)
		}
	})
}
