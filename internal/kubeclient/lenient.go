package kubeclient

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/rawjson"
)

// lenient decodes JSON objects with the underlying serializer. If an object does not decode,
// lenient returns its metadata, marked (malformed.Mark); in a list, all other objects are
// complete. So an object that does not fit its Go type does not fail the list, watch or response
// that contains it.
type lenient struct {
	kruntime.Serializer
	scheme *kruntime.Scheme
}

// lenientCodecs makes the JSON decoder of codecs lenient.
func lenientCodecs(c codecs, s *kruntime.Scheme) codecs {
	for i := range c.media {
		if c.media[i].MediaType == jsonType {
			c.media[i].Serializer = lenient{c.media[i].Serializer, s}
		}
	}
	return c
}

// Decode implements runtime.Decoder.
func (t lenient) Decode(data []byte, defaults *schema.GroupVersionKind, into kruntime.Object) (kruntime.Object,
	*schema.GroupVersionKind, error) {
	o, gvk, err := t.Serializer.Decode(data, defaults, into)
	if err == nil || into != nil {
		return o, gvk, err
	}
	kind, kindErr := (quickMeta{}).Interpret(data)
	if kindErr != nil {
		return o, gvk, err
	}
	if rest := t.salvage(data, *kind, err); rest != nil {
		return rest, kind, nil
	}
	return o, gvk, err
}

// salvage returns what can be decoded of data, for which decoding failed with refusal, or nil.
func (t lenient) salvage(data []byte, kind schema.GroupVersionKind, refusal error) kruntime.Object {
	o, err := t.scheme.New(kind)
	if err != nil {
		return nil
	}
	metadata, err := rawjson.Value(data, "metadata")
	if err != nil || metadata == nil {
		return nil
	}
	if meta.IsListType(o) {
		return t.salvageList(o, data, metadata, kind)
	}
	object, ok := o.(metav1.Object)
	if !ok {
		return nil
	}
	if fault := malformed.Find(data, reflect.TypeOf(o)); fault != nil {
		refusal = fault
	}
	m, ok := metadataOf(metadata)
	if !ok {
		return nil
	}
	m.DeepCopyInto(objectMeta(object))
	o.GetObjectKind().SetGroupVersionKind(kind)
	malformed.Mark(object, kind.Kind, refusal.Error())
	return o
}

// metadataOf decodes an object's metadata. The API server returns only metadata that decodes.
func metadataOf(data []byte) (*metav1.ObjectMeta, bool) {
	lean, err := withoutManagedFields(nil, data)
	m := &metav1.ObjectMeta{}
	if err != nil || json.Unmarshal(lean, m) != nil || m.Name == "" {
		return nil, false
	}
	return m, true
}

// objectMeta returns the metadata of an object.
func objectMeta(o metav1.Object) *metav1.ObjectMeta {
	if m, ok := o.(metav1.ObjectMetaAccessor); ok {
		if m, ok := m.GetObjectMeta().(*metav1.ObjectMeta); ok {
			return m
		}
	}
	return &metav1.ObjectMeta{}
}

// salvageList fills a list with the objects of data, decoded one by one.
func (t lenient) salvageList(o kruntime.Object, data, metadata []byte, kind schema.GroupVersionKind) kruntime.Object {
	list, ok := o.(metav1.ListInterface)
	items, err := rawjson.Value(data, "items")
	if err != nil || !ok {
		return nil
	}
	var m metav1.ListMeta
	var parts []json.RawMessage
	if json.Unmarshal(metadata, &m) != nil || json.Unmarshal(items, &parts) != nil {
		return nil
	}
	list.SetResourceVersion(m.ResourceVersion)
	list.SetContinue(m.Continue)
	list.SetRemainingItemCount(m.RemainingItemCount)
	of := kind.GroupVersion().WithKind(strings.TrimSuffix(kind.Kind, "List"))
	objects := make([]kruntime.Object, len(parts))
	for i, part := range parts {
		if objects[i], _, err = t.Serializer.Decode(part, &of, nil); err == nil {
			continue
		}
		if objects[i] = t.salvage(part, of, err); objects[i] == nil {
			return nil
		}
	}
	if meta.SetList(o, objects) != nil {
		return nil
	}
	o.GetObjectKind().SetGroupVersionKind(kind)
	return o
}

// Lenient is ForGroupVersion for custom resources, with a client that ListLeniently accepts.
func Lenient(cfg *rest.Config, gv schema.GroupVersion, s *kruntime.Scheme) (rest.Interface, error) {
	return clientFor(cfg, nil, gv, jsonType, lenientCodecs(codecsOf(s), s))
}

// ListLeniently reads a list into into, which has the list's type. An object that does not decode
// has its metadata only, and is marked (malformed.Of). The request must come from a client that
// Lenient returned.
func ListLeniently(ctx context.Context, r *rest.Request, into kruntime.Object) error {
	o, err := r.Do(ctx).Get()
	if err != nil {
		return err
	}
	from, to := reflect.ValueOf(o), reflect.ValueOf(into)
	if from.Type() != to.Type() {
		return fmt.Errorf("the server returned a %T, want a %T", o, into)
	}
	to.Elem().Set(from.Elem())
	return nil
}
