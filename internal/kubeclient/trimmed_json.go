package kubeclient

import (
	"errors"
	"net/http"

	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/rawjson"
)

// Objects of CustomResourceDefinitions are encoded in JSON, and half of most objects is managed
// fields. Unwanted parts are cut out before an object is decoded.

// Cut appends the encoding of an object of a kind to out, without the parts that should not be
// decoded. After an error the object is decoded unchanged, which reports what is wrong with it.
type Cut func(out []byte, kind string, object []byte) ([]byte, error)

// LeanCustom is ForGroupVersion for types of CustomResourceDefinitions, for watches. Its objects
// lack managed fields and the parts that cut removes; cut may be nil. An object that does not
// decode is returned with its metadata only, marked by package malformed.
func LeanCustom(cfg *rest.Config, conn *http.Client, gv schema.GroupVersion, s *kruntime.Scheme,
	cut Cut) (rest.Interface, error) {
	c := lenientCodecs(codecsOf(s), s)
	for i := range c.media {
		if c.media[i].MediaType == jsonType {
			c.media[i].Serializer = trimmedObjects{c.media[i].Serializer, cut}
		}
	}
	return clientFor(cfg, conn, gv, ContentType(gv), c)
}

// ForWatch returns a copy of cfg whose connections carry one request at a time (HTTP/1.1). On a
// shared HTTP/2 connection, each piece of a watch is acknowledged, passed from one goroutine to
// another, and copied.
func ForWatch(cfg *rest.Config) *rest.Config {
	c := rest.CopyConfig(cfg)
	c.NextProtos = []string{"http/1.1"}
	return c
}

// trimmedObjects decodes objects without their unwanted parts.
type trimmedObjects struct {
	kruntime.Serializer
	cut Cut
}

// Decode implements runtime.Decoder.
func (l trimmedObjects) Decode(data []byte, defaults *schema.GroupVersionKind, into kruntime.Object) (kruntime.Object,
	*schema.GroupVersionKind, error) {
	if into != nil {
		return l.Serializer.Decode(data, defaults, into)
	}
	kind, err := (quickMeta{}).Interpret(data)
	if err != nil || kind.Kind == "" {
		return l.Serializer.Decode(data, defaults, into)
	}
	buffer := scratch.Get().(*[]byte) // decoding copies what it keeps
	defer scratch.Put(buffer)
	lean, err := l.trim((*buffer)[:0], kind.Kind, data)
	*buffer = lean
	if err != nil {
		lean = data
	}
	return l.Serializer.Decode(lean, defaults, into)
}

func (l trimmedObjects) trim(out []byte, kind string, data []byte) ([]byte, error) {
	if l.cut == nil {
		return WithoutManagedFields(out, data)
	}
	return l.cut(out, kind, data)
}

// WithoutManagedFields appends an object to out, without its managed fields.
func WithoutManagedFields(out, object []byte) ([]byte, error) {
	return CutMembers(out, object, func(out []byte, name string, value []byte) ([]byte, bool, error) {
		if name != "metadata" {
			return out, false, nil
		}
		out, err := withoutManagedFields(append(out, `"metadata":`...), value)
		return out, true, err
	})
}

// withoutManagedFields is WithoutManagedFields for an object's metadata.
func withoutManagedFields(out, metadata []byte) ([]byte, error) {
	return CutMembers(out, metadata, func(out []byte, name string, _ []byte) ([]byte, bool, error) {
		return out, name == "managedFields", nil
	})
}

// CutMembers appends a JSON object to out, member by member. It calls cut for each member. cut may
// append a replacement to out and returns out; if it returns true, the member itself is not
// appended.
func CutMembers(out, object []byte, cut func(out []byte, name string, value []byte) ([]byte, bool, error)) ([]byte,
	error) {
	out = append(out, '{')
	empty := true
	var failed error
	err := rawjson.Members(object, func(m rawjson.Member) bool {
		before := len(out)
		if !empty {
			out = append(out, ',')
		}
		start := len(out)
		var done bool
		out, done, failed = cut(out, string(m.Name), object[m.From:m.End])
		if !done {
			out = append(out[:start], object[m.Start:m.End]...)
		}
		if len(out) == start {
			out = out[:before]
		} else {
			empty = false
		}
		return failed == nil
	})
	return append(out, '}'), errors.Join(err, failed)
}
