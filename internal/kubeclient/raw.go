package kubeclient

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/rawjson"
)

// Raw is an object in JSON as the server has sent it, with decoded metadata. It is for watches of
// many objects of which few are inspected.
type Raw struct {
	metav1.TypeMeta
	// ObjectMeta has no managedFields.
	metav1.ObjectMeta
	// JSON is the object, without managedFields. It must not be modified.
	JSON []byte
	// Note belongs to the reader, for example for results of parsing the JSON. Copies of the Raw
	// share it, so it must not be modified either.
	Note any
}

// RawList is a list of Raw objects.
type RawList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []Raw
}

// DeepCopyObject implements runtime.Object.
func (r *Raw) DeepCopyObject() kruntime.Object {
	return &Raw{TypeMeta: r.TypeMeta, ObjectMeta: *r.ObjectMeta.DeepCopy(), JSON: r.JSON, Note: r.Note}
}

// DeepCopyObject implements runtime.Object.
func (l *RawList) DeepCopyObject() kruntime.Object {
	out := &RawList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy(), Items: make([]Raw, len(l.Items))}
	for i := range l.Items {
		out.Items[i] = *l.Items[i].DeepCopyObject().(*Raw)
	}
	return out
}

// ForRaw returns a client that reads and watches objects of gv as Raw and RawList. It cannot write.
func ForRaw(cfg *rest.Config, conn *http.Client, gv schema.GroupVersion) (rest.Interface, error) {
	return clientFor(cfg, conn, gv, jsonType, rawCodecs{})
}

// rawCodecs implements runtime.NegotiatedSerializer.
type rawCodecs struct{}

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (rawCodecs) SupportedMediaTypes() []kruntime.SerializerInfo {
	return []kruntime.SerializerInfo{{
		MediaType: jsonType, MediaTypeType: "application", MediaTypeSubType: "json", EncodesAsText: true,
		Serializer: rawJSON{},
		StreamSerializer: &kruntime.StreamSerializerInfo{EncodesAsText: true, Serializer: events{rawJSON{}},
			Framer: framer{}},
	}}
}

// EncoderForVersion implements runtime.NegotiatedSerializer.
func (rawCodecs) EncoderForVersion(e kruntime.Encoder, _ kruntime.GroupVersioner) kruntime.Encoder {
	return e
}

// DecoderToVersion implements runtime.NegotiatedSerializer.
func (rawCodecs) DecoderToVersion(d kruntime.Decoder, _ kruntime.GroupVersioner) kruntime.Decoder {
	return d
}

// framer splits a stream of JSON into objects.
type framer struct{}

// NewFrameReader implements runtime.Framer.
func (framer) NewFrameReader(r io.ReadCloser) io.ReadCloser { return rawjson.NewFrames(r) }

// NewFrameWriter implements runtime.Framer.
func (framer) NewFrameWriter(w io.Writer) io.Writer { return w }

// events decodes watch events without parsing their objects, and everything else with the
// underlying serializer. An event's object is a part of the data.
type events struct{ kruntime.Serializer }

// Decode implements runtime.Decoder.
func (e events) Decode(data []byte, defaults *schema.GroupVersionKind, into kruntime.Object) (kruntime.Object,
	*schema.GroupVersionKind, error) {
	event, ok := into.(*metav1.WatchEvent)
	if !ok {
		return e.Serializer.Decode(data, defaults, into)
	}
	*event = metav1.WatchEvent{}
	err := rawjson.Members(data, func(m rawjson.Member) bool {
		switch string(m.Name) {
		case "type":
			event.Type = string(bytes.Trim(data[m.From:m.End], `"`))
		case "object":
			event.Object.Raw = data[m.From:m.End]
		}
		return true
	})
	if err != nil {
		return nil, nil, fmt.Errorf("an event of a watch: %w", err)
	}
	return event, &schema.GroupVersionKind{}, nil
}

// rawJSON decodes objects as Raw, lists as RawList, and a Status as Status.
type rawJSON struct{}

// Identifier implements runtime.Encoder.
func (rawJSON) Identifier() kruntime.Identifier { return "raw" }

// Encode implements runtime.Encoder.
func (rawJSON) Encode(kruntime.Object, io.Writer) error {
	return errors.New("what is read raw is not written")
}

// Decode implements runtime.Decoder.
func (rawJSON) Decode(data []byte, _ *schema.GroupVersionKind, into kruntime.Object) (kruntime.Object,
	*schema.GroupVersionKind, error) {
	if into != nil {
		return nil, nil, fmt.Errorf("what is read raw is not decoded into %T", into)
	}
	var apiVersion, kind string
	var metadata, items *rawjson.Member
	err := rawjson.Members(data, func(m rawjson.Member) bool {
		switch string(m.Name) {
		case "apiVersion":
			apiVersion = string(bytes.Trim(data[m.From:m.End], `"`))
		case "kind":
			kind = string(bytes.Trim(data[m.From:m.End], `"`))
		case "metadata":
			metadata = &m
		case "items":
			items = &m
		}
		return true
	})
	if err != nil {
		return nil, nil, err
	}
	gvk := schema.FromAPIVersionAndKind(apiVersion, kind)
	switch {
	case apiVersion == "v1" && kind == "Status":
		s := &metav1.Status{}
		return s, &gvk, json.Unmarshal(data, s)
	case items != nil && strings.HasSuffix(kind, "List"):
		list, err := rawList(data, metadata, items, gvk)
		return list, &gvk, err
	}
	object, err := rawObject(data, metadata, nil)
	if err == nil {
		object.SetGroupVersionKind(gvk)
	}
	return object, &gvk, err
}

func rawObject(data []byte, metadata *rawjson.Member, types []byte) (*Raw, error) {
	r := &Raw{}
	if metadata == nil {
		return nil, errors.New("an object without metadata")
	}
	meta, err := withoutManagedFields(make([]byte, 0, metadata.End-metadata.From), data[metadata.From:metadata.End])
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(meta, &r.ObjectMeta); err != nil {
		return nil, err
	}
	start := bytes.IndexByte(data, '{') + 1
	// The data may be a part of a larger buffer, or of a buffer that is reused.
	r.JSON = make([]byte, 0, 1+len(types)+len(data)-start-(metadata.End-metadata.From)+len(meta))
	r.JSON = append(append(r.JSON, '{'), types...)
	r.JSON = append(append(append(r.JSON, data[start:metadata.From]...), meta...), data[metadata.End:]...)
	return r, nil
}

// rawList splits a list. The objects in a list may lack apiVersion and kind, which follow from the
// list's.
func rawList(data []byte, metadata, items *rawjson.Member, gvk schema.GroupVersionKind) (*RawList, error) {
	list := &RawList{}
	list.SetGroupVersionKind(gvk)
	if metadata != nil {
		if err := json.Unmarshal(data[metadata.From:metadata.End], &list.ListMeta); err != nil {
			return nil, err
		}
	}
	var parts []json.RawMessage
	if err := json.Unmarshal(data[items.From:items.End], &parts); err != nil {
		return nil, err
	}
	of := gvk.GroupVersion().WithKind(strings.TrimSuffix(gvk.Kind, "List"))
	types := []byte(fmt.Sprintf(`"apiVersion":%q,"kind":%q,`, of.GroupVersion(), of.Kind))
	for _, part := range parts {
		var meta *rawjson.Member
		typed := false
		err := rawjson.Members(part, func(m rawjson.Member) bool {
			switch string(m.Name) {
			case "metadata":
				meta = &m
			case "kind":
				typed = true
			}
			return true
		})
		if err != nil {
			return nil, err
		}
		prefix := types
		if typed {
			prefix = nil
		}
		r, err := rawObject(part, meta, prefix)
		if err != nil {
			return nil, err
		}
		r.SetGroupVersionKind(of)
		list.Items = append(list.Items, *r)
	}
	return list, nil
}
