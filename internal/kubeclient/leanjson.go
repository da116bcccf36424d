package kubeclient

import (
	"errors"
	"net/http"

	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/rawjson"
)

// Objects of CustomResourceDefinitions come in JSON, and half of most is who manages which field. What is not wanted is cut out
// before it is decoded.

// Cut appends the encoding of an object of a kind to out, without what is not to be decoded. An error has the object decoded as
// it is, which says what is wrong with it.
type Cut func(out []byte, kind string, object []byte) ([]byte, error)

// LeanCustom is ForGroupVersion of types of CustomResourceDefinitions, for who watches them. The objects that it returns are
// without who manages which field, and without what cut takes out of them; cut may be nil. One that does not decode is returned
// with its metadata only, marked as package malformed does.
func LeanCustom(cfg *rest.Config, conn *http.Client, gv schema.GroupVersion, s *kruntime.Scheme, cut Cut) (rest.Interface, error) {
	c := tolerantOf(codecsOf(s), s)
	for i := range c.media {
		if c.media[i].MediaType == jsonType {
			c.media[i].Serializer = leanObjects{c.media[i].Serializer, cut}
		}
	}
	return clientFor(cfg, conn, gv, ContentType(gv), c)
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

// CutMembers appends an object in JSON to out, member by member. Those that cut says it has dealt with, by what it appended or
// by appending nothing, are not appended as they are.
func CutMembers(out, object []byte, cut func(out []byte, name string, value []byte) ([]byte, bool, error)) ([]byte, error) {
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
