package kubeclient

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/framer"
	"k8s.io/client-go/rest"
)

// Objects of CustomResourceDefinitions come in JSON, and half of most is who manages which field. The library scans an event of
// a watch five times before the last of it is decoded; here it is found by its line and its beginning, and what is not wanted
// is never decoded.

// Cut appends the encoding of an object of a kind to out, without what is not to be decoded. An error has the object decoded as
// it is, which says what is wrong with it.
type Cut func(out []byte, kind string, object []byte) ([]byte, error)

// LeanCustom is ForGroupVersion of types of CustomResourceDefinitions, for who watches them. The objects that it returns are
// without who manages which field, and without what cut takes out of them; cut may be nil.
func LeanCustom(cfg *rest.Config, conn *http.Client, gv schema.GroupVersion, s *kruntime.Scheme, cut Cut) (rest.Interface, error) {
	c := codecsOf(s)
	for i := range c.media {
		if c.media[i].MediaType == jsonType {
			c.media[i].Serializer = leanObjects{c.media[i].Serializer, cut}
		}
	}
	return clientFor(cfg, conn, gv, c)
}

// ForWatch is cfg with connections that carry one request at a time. A watch on one that is shared by HTTP/2 has every piece
// of it acknowledged, handed from one goroutine to another, and copied on the way.
func ForWatch(cfg *rest.Config) *rest.Config {
	c := rest.CopyConfig(cfg)
	c.NextProtos = []string{"http/1.1"}
	return c
}

// leanObjects decodes objects without what is not wanted of them.
type leanObjects struct {
	kruntime.Serializer
	cut Cut
}

// Decode implements runtime.Decoder.
func (l leanObjects) Decode(data []byte, defaults *schema.GroupVersionKind, into kruntime.Object) (kruntime.Object, *schema.GroupVersionKind, error) {
	if into != nil {
		return l.Serializer.Decode(data, defaults, into)
	}
	kind, err := (quickMeta{}).Interpret(data)
	if err != nil || kind.Kind == "" {
		return l.Serializer.Decode(data, defaults, into)
	}
	buffer := scratch.Get().(*[]byte) // decoding copies what it keeps
	defer scratch.Put(buffer)
	lean, err := l.lean((*buffer)[:0], kind.Kind, data)
	*buffer = lean
	if err != nil {
		lean = data
	}
	return l.Serializer.Decode(lean, defaults, into)
}

func (l leanObjects) lean(out []byte, kind string, data []byte) ([]byte, error) {
	if l.cut == nil {
		return WithoutManagedFields(out, data)
	}
	return l.cut(out, kind, data)
}

// WithoutManagedFields appends an object to out, without who manages which field.
func WithoutManagedFields(out, object []byte) ([]byte, error) {
	return CutMembers(out, object, func(out []byte, key, value []byte) ([]byte, bool, error) {
		if string(key) != `"metadata"` {
			return out, false, nil
		}
		out, err := CutMembers(append(append(out, key...), ':'), value, func(out []byte, key, _ []byte) ([]byte, bool, error) {
			return out, string(key) == `"managedFields"`, nil
		})
		return out, true, err
	})
}

// CutMembers appends an object in JSON to out, member by member. Those that cut says it has dealt with, by what it appended or
// by appending nothing, are not appended as they are.
func CutMembers(out, object []byte, cut func(out []byte, key, value []byte) ([]byte, bool, error)) ([]byte, error) {
	out = append(out, '{')
	empty := true
	err := EachMember(object, func(key, value []byte) error {
		before := len(out)
		if !empty {
			out = append(out, ',')
		}
		start := len(out)
		var done bool
		var err error
		out, done, err = cut(out, key, value)
		if !done {
			out = append(append(append(out[:start], key...), ':'), value...)
		}
		if len(out) == start {
			out = out[:before]
		} else {
			empty = false
		}
		return err
	})
	return append(out, '}'), err
}

var errNotObject = errors.New("not an object of JSON")

// EachMember calls do with each member of an object in JSON: its key, with the quotes and escapes that it has, and its value,
// both without the space around them. It does not look into values more closely than to find where they end.
func EachMember(object []byte, do func(key, value []byte) error) error {
	i := space(object, 0)
	if i >= len(object) || object[i] != '{' {
		return errNotObject
	}
	if i = space(object, i+1); i < len(object) && object[i] == '}' {
		return nil
	}
	for {
		start := i
		if i >= len(object) || object[i] != '"' {
			return errNotObject
		}
		end := valueEnd(object, i)
		colon := space(object, end)
		if colon >= len(object) || object[colon] != ':' {
			return errNotObject
		}
		value := space(object, colon+1)
		valueEnds := valueEnd(object, value)
		if valueEnds <= value {
			return errNotObject
		}
		if err := do(object[start:end], object[value:valueEnds]); err != nil {
			return err
		}
		i = space(object, valueEnds)
		if i < len(object) && object[i] == '}' {
			return nil
		}
		if i >= len(object) || object[i] != ',' {
			return errNotObject
		}
		i = space(object, i+1)
	}
}

// space is where the white space at i ends.
func space(data []byte, i int) int {
	for i < len(data) && (data[i] == ' ' || data[i] == '\n' || data[i] == '\t' || data[i] == '\r') {
		i++
	}
	return i
}

// valueEnd is where the value that begins at i ends, or len(data).
func valueEnd(data []byte, i int) int {
	depth := 0
	for ; i < len(data); i++ {
		switch data[i] {
		case '"':
			for i++; i < len(data); i++ {
				n := bytes.IndexByte(data[i:], '"')
				if n < 0 {
					return len(data)
				}
				i += n
				if !escaped(data, i) {
					break
				}
			}
			if depth == 0 {
				return min(i+1, len(data))
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return i // of the object that a number or a word was in
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',', ' ', '\n', '\t', '\r':
			if depth == 0 {
				return i
			}
		}
	}
	return len(data)
}

// escaped says whether what is at i stands behind an odd number of backslashes.
func escaped(data []byte, i int) bool {
	n := 0
	for n < i && data[i-1-n] == '\\' {
		n++
	}
	return n%2 == 1
}

// quickEvents decodes the events of a watch in JSON: as what they are, an object in a frame that is known.
type quickEvents struct{ kruntime.Serializer }

// Decode implements runtime.Decoder.
func (q quickEvents) Decode(data []byte, defaults *schema.GroupVersionKind, into kruntime.Object) (kruntime.Object, *schema.GroupVersionKind, error) {
	if event, wanted := into.(*metav1.WatchEvent); wanted {
		if rest, found := bytes.CutPrefix(data, eventHead); found {
			if word, rest, found := cutWord(rest); found {
				if object, found := bytes.CutPrefix(rest, []byte(`,"object":`)); found {
					if object, found = bytes.CutSuffix(bytes.TrimRight(object, "\n"), []byte("}")); found {
						event.Type, event.Object.Raw = word, object
						return event, &schema.GroupVersionKind{}, nil
					}
				}
			}
		}
	}
	return q.Serializer.Decode(data, defaults, into)
}

var eventHead = []byte(`{"type":"`)

// lines frames the events of a watch by their lines, one to each, where that is how the server writes.
type lines struct{ kruntime.Framer }

// NewFrameReader implements runtime.Framer.
func (lines) NewFrameReader(r io.ReadCloser) io.ReadCloser {
	return &lineReader{closer: r, from: bufio.NewReaderSize(r, 16<<10)}
}

type lineReader struct {
	closer io.Closer
	from   *bufio.Reader
	inside bool          // of a line
	other  io.ReadCloser // of a stream that is not lines of events
}

// Read reads what is left of a line, as far as there is room for it, for which io.ErrShortBuffer asks.
func (l *lineReader) Read(data []byte) (int, error) {
	if l.other != nil {
		return l.other.Read(data)
	}
	n := 0
	for n < len(data) {
		if _, err := l.from.Peek(1); err != nil {
			if err == io.EOF && l.inside {
				err = io.ErrUnexpectedEOF // servers end lines
			}
			return n, err
		}
		if !l.inside {
			if head, err := l.from.Peek(len(eventHead)); err == nil && !bytes.Equal(head, eventHead) {
				l.other = framer.NewJSONFramedReader(struct {
					io.Reader
					io.Closer
				}{l.from, l.closer})
				return l.other.Read(data)
			}
			l.inside = true
		}
		there, _ := l.from.Peek(l.from.Buffered())
		end := bytes.IndexByte(there, '\n') + 1
		if end > 0 {
			there = there[:end]
		}
		k := copy(data[n:], there)
		n += k
		if _, err := l.from.Discard(k); err != nil {
			return n, err
		}
		if k == end && end > 0 {
			l.inside = false
			return n, nil
		}
	}
	return n, io.ErrShortBuffer
}

// Close implements io.Closer.
func (l *lineReader) Close() error { return l.closer.Close() }
