package malformed

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "k8s.io/apimachinery/pkg/util/json"

	"lockstep.dev/lockstep/internal/clip"
	"lockstep.dev/lockstep/internal/rawjson"
)

// Fault is a value that the Go type of its field does not accept.
type Fault struct {
	// Path is the path of the field, as in spec.tasks[0].template.
	Path string
	// Value is the value in JSON, cut if it is long.
	Value string
	// Why says what is wrong with the value, as a phrase that follows it: "is no duration".
	Why string
}

// Error implements error.
func (f *Fault) Error() string {
	if f.Path == "" {
		return f.Value + " " + f.Why
	}
	return f.Path + ": " + f.Value + " " + f.Why
}

// Find returns the first value in a JSON document that does not decode into a Go type, or nil if
// the document decodes.
func Find(data []byte, t reflect.Type) *Fault { return find("", data, t) }

func find(path string, data []byte, t reflect.Type) *Fault {
	err := kjson.Unmarshal(data, reflect.New(t).Interface())
	if err == nil {
		return nil
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if f := findWithin(path, data, t); f != nil {
		return f
	}
	return &Fault{Path: path, Value: shown(data), Why: why(t, err)}
}

// findWithin searches the parts of a value. It returns nil if the value itself is at fault.
func findWithin(path string, data []byte, t reflect.Type) (found *Fault) {
	if decodesItself(t) {
		return nil
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		if !begins(data, '{') {
			return nil
		}
		_ = rawjson.Members(data, func(m rawjson.Member) bool {
			var name string
			if json.Unmarshal(append(append([]byte{'"'}, m.Name...), '"'), &name) != nil {
				return true
			}
			if t.Kind() == reflect.Map {
				found = find(path+"["+name+"]", data[m.From:m.End], t.Elem())
			} else if field, ok := fieldNamed(t, name); ok {
				found = find(strings.TrimPrefix(path+"."+name, "."), data[m.From:m.End], field)
			}
			return found == nil
		})
	case reflect.Slice, reflect.Array:
		if !begins(data, '[') || t.Elem().Kind() == reflect.Uint8 {
			return nil
		}
		var items []json.RawMessage
		if json.Unmarshal(data, &items) != nil {
			return nil
		}
		for i, item := range items {
			if f := find(path+"["+strconv.Itoa(i)+"]", item, t.Elem()); f != nil {
				return f
			}
		}
	}
	return found
}

func begins(data []byte, with byte) bool {
	for _, b := range data {
		switch b {
		case ' ', '\t', '\n', '\r':
		default:
			return b == with
		}
	}
	return false
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

func decodesItself(t reflect.Type) bool { return reflect.PointerTo(t).Implements(unmarshaler) }

// fieldNamed returns the type of the field with a JSON name, which may belong to an embedded
// struct.
func fieldNamed(t reflect.Type, name string) (reflect.Type, bool) {
	for f := range t.Fields() {
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case tag == name, tag == "" && !f.Anonymous && f.Name == name:
			return f.Type, true
		case tag == "" && (f.Anonymous || strings.Contains(options, "inline")):
			inner := f.Type
			for inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			if inner.Kind() != reflect.Struct {
				continue
			}
			if found, ok := fieldNamed(inner, name); ok {
				return found, true
			}
		}
	}
	return nil, false
}

// valueMax is the maximum number of bytes of a value that are shown.
const valueMax = 64

func shown(data []byte) string {
	return clip.Text(strings.TrimSpace(string(data)), valueMax)
}

// why says what a value of t should be. For a type that decodes itself, why returns the error of
// its decoder, except for well-known types.
func why(t reflect.Type, err error) string {
	switch t {
	case reflect.TypeFor[metav1.Duration](), reflect.TypeFor[time.Duration]():
		return `is no duration such as "90s"`
	case reflect.TypeFor[resource.Quantity]():
		return `is no quantity such as "500m" or "2Gi"`
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime]():
		return `is no time such as "2006-01-02T15:04:05Z"`
	}
	if decodesItself(t) {
		return fmt.Sprintf("is refused: %s", firstLine(err))
	}
	switch t.Kind() {
	case reflect.String:
		return "is no string"
	case reflect.Bool:
		return "is no boolean"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return fmt.Sprintf("is no integer of %d bits", t.Bits())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return fmt.Sprintf("is no positive integer of %d bits", t.Bits())
	case reflect.Float32, reflect.Float64:
		return "is no number"
	case reflect.Struct, reflect.Map:
		return "is no object"
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return "is no text in base64"
		}
		return "is no list"
	}
	return fmt.Sprintf("is refused: %s", firstLine(err))
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return clip.Text(line, 4*valueMax)
}
