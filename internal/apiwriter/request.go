package apiwriter

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/rawjson"
)

// kind is a type of object, and where the server keeps it.
type kind struct {
	schema.GroupVersionKind
	resource string
}

var podKind = kind{corev1.SchemeGroupVersion.WithKind("Pod"), "pods"}

// label is the resource in metrics, as the audit log would have it: "pods/binding", "jobs.batch.example/status".
func (k kind) label(v verb) string {
	name := k.resource
	if k.Group != "" {
		name += "." + k.Group
	}
	switch v {
	case verbBind:
		return name + "/binding"
	case verbStatus:
		return name + "/status"
	}
	return name
}

// kindOf looks up the kind of obj. The caller holds mu.
func (w *W) kindOf(m Meta, obj Object) (kind, error) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		gvk := u.GroupVersionKind()
		if m.Resource != "" {
			return kind{gvk, m.Resource}, nil
		}
		plural, _ := meta.UnsafeGuessKindToResource(gvk)
		return kind{gvk, plural.Resource}, nil
	}
	kinds, _, err := w.cfg.Scheme.ObjectKinds(obj)
	if err != nil {
		return kind{}, fmt.Errorf("%w: %w", errLocal, err)
	}
	k, ok := w.kinds[kinds[0]]
	if !ok {
		plural, _ := meta.UnsafeGuessKindToResource(kinds[0])
		k = kind{kinds[0], plural.Resource}
		w.kinds[kinds[0]] = k
	}
	return k, nil
}

// attempt carries out x once, and looks again where the answer alone does not tell whose object it is about.
func (w *W) attempt(x *write) (Object, error) {
	ctx, cancel := context.WithTimeout(w.requests, w.cfg.RequestTimeout)
	defer cancel()
	switch x.verb {
	case verbCreate:
		return w.create(ctx, x)
	case verbBind:
		return w.bind(ctx, x)
	case verbStatus:
		return w.putStatus(ctx, x)
	case verbPatch:
		return w.doPatch(ctx, x)
	default:
		return nil, w.doDelete(ctx, x)
	}
}

func (w *W) create(ctx context.Context, x *write) (Object, error) {
	if x.body == nil {
		var err error
		if x.body, err = w.encode(x); err != nil {
			return nil, err
		}
	}
	r := request{verb: "create", method: http.MethodPost, contentType: x.contentType(), accept: x.accept(), body: x.body}
	obj, err := w.sendAsWanted(ctx, x, r)
	if err == nil {
		return obj, nil
	}
	if apierrors.IsConflict(err) {
		// Another create took its share of the same ResourceQuota at the same moment.
		return nil, tryAgain(x, err)
	}
	// Admission comes before the name is looked at: after a lost answer, a quota may be used up by this very object.
	if apierrors.IsAlreadyExists(err) || x.applied && classify(err, false).verdict == refused {
		there, readErr := w.read(ctx, x)
		switch {
		case apierrors.IsNotFound(readErr) && apierrors.IsAlreadyExists(err):
			return nil, tryAgain(x, err) // deleted since
		case apierrors.IsNotFound(readErr):
			return nil, err
		case readErr != nil:
			return nil, readErr
		case ours(x.obj, there) && there.GetDeletionTimestamp() == nil:
			return there, nil
		}
	}
	return nil, err
}

// ours says whether there, found under the name of want, was made for the same owner or by the same creator.
func ours(want, there Object) bool {
	if owner := metav1.GetControllerOfNoCopy(want); owner != nil {
		other := metav1.GetControllerOfNoCopy(there)
		return other != nil && other.UID == owner.UID
	}
	creator := want.GetAnnotations()[CreatorAnnotation]
	return creator != "" && metav1.GetControllerOfNoCopy(there) == nil && there.GetAnnotations()[CreatorAnnotation] == creator
}

func (w *W) encode(x *write) ([]byte, error) {
	if u, ok := x.obj.(*unstructured.Unstructured); ok {
		return u.MarshalJSON()
	}
	media := x.contentType()
	info, _ := runtime.SerializerInfoForMediaType(w.codecs.SupportedMediaTypes(), media)
	codec := w.codecs.EncoderForVersion(info.Serializer, x.kind.GroupVersion())
	body, err := runtime.Encode(codec, x.obj)
	if err != nil {
		return nil, fmt.Errorf("%s %s %w: %w", x.kind.Kind, x.name, errLocal, err)
	}
	return body, nil
}

func (w *W) bind(ctx context.Context, x *write) (Object, error) {
	if x.body == nil {
		binding := &corev1.Binding{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Binding"},
			// The server copies a binding's annotations to the pod.
			ObjectMeta: metav1.ObjectMeta{Namespace: x.name.Namespace, Name: x.name.Name, UID: x.uid, Annotations: x.binding.Annotations},
			Target:     corev1.ObjectReference{Kind: "Node", Name: x.binding.Node},
		}
		info, _ := runtime.SerializerInfoForMediaType(w.codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
		var err error
		if x.body, err = runtime.Encode(info.Serializer, binding); err != nil {
			return nil, fmt.Errorf("binding of %s %w: %w", x.name, errLocal, err)
		}
	}
	_, err := w.send(ctx, x, request{
		verb: "create", method: http.MethodPost, named: true, sub: "binding",
		contentType: runtime.ContentTypeProtobuf, accept: acceptProtobuf, body: x.body,
	})
	if !apierrors.IsConflict(err) {
		return nil, err
	}
	there, readErr := w.read(ctx, x)
	if readErr != nil {
		return nil, readErr
	}
	pod, ok := there.(*corev1.Pod)
	if !ok || pod.Spec.NodeName != x.binding.Node || x.uid != "" && pod.UID != x.uid {
		return nil, err
	}
	for key, value := range x.binding.Annotations {
		if pod.Annotations[key] != value {
			return nil, err
		}
	}
	return nil, nil
}

// putStatus replaces a status. A type of a CustomResourceDefinition takes its status from a PUT of the version last
// seen and ignores the rest of the object, so the rest is not sent: that costs the server 0.7 of a PUT of all and 0.8 of
// a JSON patch (a job of two tasks with 20 variables each). When the object has changed meanwhile, and for built-in
// types, which take labels from such a PUT, it is a patch on condition of the UID.
func (w *W) putStatus(ctx context.Context, x *write) (Object, error) {
	status, err := statusOf(x.obj)
	if err != nil {
		return nil, fmt.Errorf("%s %s %w: %w", x.kind.Kind, x.name, errLocal, err)
	}
	if x.version != "" && kubeclient.ContentType(x.kind.GroupVersion()) == runtime.ContentTypeJSON {
		apiVersion, kindName := x.kind.ToAPIVersionAndKind()
		body, err := json.Marshal(map[string]any{
			"apiVersion": apiVersion, "kind": kindName,
			"metadata": map[string]any{
				"namespace": x.name.Namespace, "name": x.name.Name, "uid": x.uid, "resourceVersion": x.version,
			},
			"status": status,
		})
		if err != nil {
			return nil, fmt.Errorf("%s %s %w: %w", x.kind.Kind, x.name, errLocal, err)
		}
		obj, err := w.sendStatus(ctx, x, request{verb: "update", method: http.MethodPut, contentType: runtime.ContentTypeJSON, body: body})
		if !apierrors.IsConflict(err) || x.shared {
			return obj, err
		}
		x.version = "" // not the version we know; whose it is, the patch finds out
	}
	ops := []jsonPatchOp{{"add", "/status", status}}
	body, err := json.Marshal(onlyWithUID(x.uid, ops))
	if err != nil {
		return nil, fmt.Errorf("%s %s %w: %w", x.kind.Kind, x.name, errLocal, err)
	}
	obj, err := w.sendStatus(ctx, x, request{verb: "patch", method: http.MethodPatch, contentType: string(types.JSONPatchType), body: body})
	return obj, w.otherUID(ctx, x, err)
}

func (w *W) sendStatus(ctx context.Context, x *write, r request) (Object, error) {
	r.named, r.sub, r.accept = true, "status", x.accept()
	if x.brief {
		return w.sendBriefly(ctx, x, r)
	}
	return w.sendObject(ctx, x, r)
}

// statusOf is the Status field of obj, encoded.
func statusOf(obj Object) (json.RawMessage, error) {
	field := reflect.Indirect(reflect.ValueOf(obj)).FieldByName("Status")
	if !field.IsValid() {
		return nil, fmt.Errorf("%T has no status", obj)
	}
	return json.Marshal(field.Interface())
}

type jsonPatchOp struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

func onlyWithUID(uid types.UID, ops []jsonPatchOp) []jsonPatchOp {
	if uid == "" {
		return ops
	}
	return append([]jsonPatchOp{{"test", "/metadata/uid", uid}}, ops...)
}

func (w *W) doPatch(ctx context.Context, x *write) (Object, error) {
	if x.version != "" {
		return w.patchVersion(ctx, x)
	}
	if x.body == nil {
		body, err := patchWithUID(x.patch, x.uid)
		if err != nil {
			return nil, fmt.Errorf("patch of %s %s %w: %w", x.kind.Kind, x.name, errLocal, err)
		}
		x.body = body
	}
	r := request{verb: "patch", method: http.MethodPatch, named: true, contentType: string(x.patch.kind), accept: x.accept(), body: x.body}
	obj, err := w.sendAsWanted(ctx, x, r)
	return obj, w.otherUID(ctx, x, err)
}

func (w *W) patchVersion(ctx context.Context, x *write) (Object, error) {
	if x.body == nil {
		// A patch that sets these to what they are not is refused as a conflict.
		condition, err := json.Marshal([]jsonPatchOp{{"add", "/metadata/uid", x.uid}, {"add", "/metadata/resourceVersion", x.version}})
		if err != nil {
			return nil, err
		}
		ops, found := bytes.CutPrefix(bytes.TrimSpace(x.patch.data), []byte("["))
		if !found {
			return nil, fmt.Errorf("patch of %s %s %w: it is no list", x.kind.Kind, x.name, errLocal)
		}
		x.body = condition
		if !bytes.HasPrefix(bytes.TrimSpace(ops), []byte("]")) {
			x.body = append(append(condition[:len(condition)-1], ','), ops...)
		}
		x.patch.data = nil
	}
	return w.sendBriefly(ctx, x, request{
		verb: "patch", method: http.MethodPatch, named: true, contentType: string(types.JSONPatchType), body: x.body,
	})
}

// identify finds UID and version in an object in JSON, most of whose metadata is who manages which field.
func identify(data []byte, m *metav1.ObjectMeta) error {
	metadata, err := rawjson.Value(data, "metadata")
	if err != nil {
		return err
	}
	for name, into := range map[string]any{"uid": &m.UID, "resourceVersion": &m.ResourceVersion} {
		value, err := rawjson.Value(metadata, name)
		if err == nil && value != nil {
			err = json.Unmarshal(value, into)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// patchWithUID adds the condition that the object has uid.
func patchWithUID(p patch, uid types.UID) ([]byte, error) {
	if uid == "" {
		return p.data, nil
	}
	if p.kind == types.JSONPatchType {
		test, err := json.Marshal(onlyWithUID(uid, nil))
		if err != nil {
			return nil, err
		}
		ops := bytes.TrimPrefix(bytes.TrimSpace(p.data), []byte("["))
		sep := ","
		if bytes.Equal(bytes.TrimSpace(ops), []byte("]")) {
			sep = ""
		}
		return append(append(bytes.TrimSuffix(test, []byte("]")), sep...), ops...), nil
	}
	var doc map[string]any
	if err := json.Unmarshal(p.data, &doc); err != nil {
		return nil, err
	}
	m, _ := doc["metadata"].(map[string]any)
	if m == nil {
		m = map[string]any{}
		doc["metadata"] = m
	}
	m["uid"] = uid
	return json.Marshal(doc)
}

// otherUID turns the refusal of a patch into Conflict when its reason is that the object is another one by now. Such
// a refusal is the server's Invalid, which says the same of a patch that does not fit for other reasons.
func (w *W) otherUID(ctx context.Context, x *write, err error) error {
	if x.uid == "" || !apierrors.IsInvalid(err) && !apierrors.IsConflict(err) {
		return err
	}
	there, readErr := w.read(ctx, x)
	if readErr != nil {
		return readErr
	}
	resource := schema.GroupResource{Group: x.kind.Group, Resource: x.kind.resource}
	if there.GetUID() != x.uid {
		return apierrors.NewConflict(resource, x.name.Name, fmt.Errorf("it has UID %s, not %s", there.GetUID(), x.uid))
	}
	if apierrors.IsConflict(err) {
		// The right object, changed by others faster than the server could patch it.
		return tryAgain(x, err)
	}
	return err
}

func (w *W) doDelete(ctx context.Context, x *write) error {
	opts := &metav1.DeleteOptions{
		TypeMeta:           metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
		GracePeriodSeconds: x.GracePeriodSeconds,
	}
	if x.uid != "" {
		opts.Preconditions = &metav1.Preconditions{UID: &x.uid}
	}
	if x.Propagation != "" {
		opts.PropagationPolicy = &x.Propagation
	}
	body, err := json.Marshal(opts)
	if err != nil {
		return fmt.Errorf("%w: %w", errLocal, err)
	}
	_, err = w.send(ctx, x, request{
		verb: "delete", method: http.MethodDelete, named: true, contentType: runtime.ContentTypeJSON, accept: acceptMeta, body: body,
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if apierrors.IsConflict(err) && x.uid != "" {
		there, readErr := w.read(ctx, x)
		switch {
		case apierrors.IsNotFound(readErr):
			return nil
		case readErr != nil:
			return readErr
		case there.GetUID() != x.uid:
			return nil // the object meant is gone; its name has been taken
		}
		return tryAgain(x, err)
	}
	return err
}

// tryAgain makes a passing trouble of an error that would otherwise be final.
func tryAgain(x *write, err error) error {
	return apierrors.NewInternalError(fmt.Errorf("%s %s: %w", x.kind.Kind, x.name, err))
}
