package apiwriter

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"

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

// kind is a type of object and its API resource.
type kind struct {
	schema.GroupVersionKind
	resource string
}

var podKind = kind{corev1.SchemeGroupVersion.WithKind("Pod"), "pods"}

// label returns the resource for metrics, as in the audit log: "pods/binding",
// "jobs.batch.example/status".
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

// attempt sends x once. If the response does not tell which object it is about, attempt also reads
// the object.
func (w *W) attempt(x *write) (Object, error) {
	ctx, cancel := context.WithTimeout(w.requests, w.cfg.RequestTimeout)
	defer cancel()
	switch x.verb {
	case verbCreate:
		if x.seen.Load() != nil {
			return nil, errSeen
		}
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
	if x.readFirst {
		there, err := w.read(ctx, x)
		switch {
		case err == nil && ours(x.obj, there) && there.GetDeletionTimestamp() == nil:
			return there, nil
		case err != nil && !apierrors.IsNotFound(err):
			return nil, err
		}
		x.readFirst = false // if another object has the name, the create fails with AlreadyExists
	}
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
		// A concurrent create updated the same ResourceQuota.
		return nil, tryAgain(x, err)
	}
	// Admission runs before the name is checked: after a lost answer, a quota may be used up by
	// this very object.
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

// ours reports whether there, the object found under the name of want, has the same controller
// owner or, if want has none, the same creator annotation.
func ours(want, there Object) bool {
	if owner := metav1.GetControllerOfNoCopy(want); owner != nil {
		other := metav1.GetControllerOfNoCopy(there)
		return other != nil && other.UID == owner.UID
	}
	creator := want.GetAnnotations()[CreatorAnnotation]
	return creator != "" && metav1.GetControllerOfNoCopy(there) == nil &&
		there.GetAnnotations()[CreatorAnnotation] == creator
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
			// The server copies the annotations of a binding to the pod.
			ObjectMeta: metav1.ObjectMeta{Namespace: x.name.Namespace, Name: x.name.Name, UID: x.uid,
				Annotations: x.binding.Annotations},
			Target: corev1.ObjectReference{Kind: "Node", Name: x.binding.Node},
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

// putStatus replaces a status. For a type defined by a CustomResourceDefinition, putStatus sends a
// PUT with the resource version. The server takes only the status from it, so the rest of the
// object is not sent: this costs the server 0.7 of a PUT of the whole object and 0.8 of a JSON
// patch (measured with a job of two tasks with 20 variables each). For built-in types, whose status
// PUT also changes labels, and for a status without a resource version, it sends a patch with UID
// and resource version as preconditions.
func (w *W) putStatus(ctx context.Context, x *write) (Object, error) {
	status, err := statusOf(x.obj)
	if err != nil {
		return nil, fmt.Errorf("%s %s %w: %w", x.kind.Kind, x.name, errLocal, err)
	}
	obj, err := w.sendStatus(ctx, x, status)
	if apierrors.IsConflict(err) && x.unanswered != nil {
		obj, err = w.afterLostAnswer(ctx, x, status, err)
	}
	if err != nil && classify(err, false).applied {
		x.rememberUnanswered(status)
	}
	return obj, w.checkConflict(ctx, x, x.version, err)
}

// unansweredMax bounds how many statuses without an answer are remembered.
const unansweredMax = 64

// rememberUnanswered records that an attempt sent a status and got no answer. All such statuses
// count, not only the last: the server may have carried out the first, and refused the later ones
// because of it.
func (x *write) rememberUnanswered(status json.RawMessage) {
	sum := sha256.Sum256(status)
	if slices.Contains(x.unanswered, sum) {
		return
	}
	if len(x.unanswered) == unansweredMax {
		x.unanswered = x.unanswered[1:]
	}
	x.unanswered = append(x.unanswered, sum)
}

// checkConflict checks a Conflict from a write with a resource version as its precondition. If the
// object still has that version, checkConflict returns an error that is retried: a caller that gets
// a Conflict waits until its watch shows another version, which would never come. Other errors are
// returned unchanged.
func (w *W) checkConflict(ctx context.Context, x *write, version string, err error) error {
	if version == "" || !apierrors.IsConflict(err) {
		return err
	}
	a, _, readErr := w.exchange(ctx, x, request{method: http.MethodGet, named: true, accept: acceptMeta})
	var there metav1.ObjectMeta
	if readErr == nil {
		readErr = identify(a.body, &there)
	}
	switch {
	case apierrors.IsNotFound(readErr):
		return err
	case readErr != nil:
		return readErr
	case there.UID == x.uid && there.ResourceVersion == version:
		return tryAgain(x, err)
	}
	return err
}

// afterLostAnswer finds out whether a status write conflicts with an earlier attempt of itself
// whose answer was lost.
func (w *W) afterLostAnswer(ctx context.Context, x *write, status json.RawMessage, conflict error) (Object, error) {
	there, err := w.read(ctx, x)
	if err != nil {
		return nil, err
	}
	now, err := statusOf(there)
	switch {
	case err != nil || there.GetUID() != x.uid:
		return nil, conflict
	case bytes.Equal(now, status):
		return there, nil
	case slices.Contains(x.unanswered, sha256.Sum256(now)): // the entry has a newer status since then
		x.version = there.GetResourceVersion()
		return w.sendStatus(ctx, x, status)
	}
	return nil, conflict
}

func (w *W) sendStatus(ctx context.Context, x *write, status json.RawMessage) (Object, error) {
	r := request{named: true, sub: "status", accept: x.accept()}
	var err error
	if x.version != "" && kubeclient.ContentType(x.kind.GroupVersion()) == runtime.ContentTypeJSON {
		apiVersion, kindName := x.kind.ToAPIVersionAndKind()
		r.verb, r.method, r.contentType = "update", http.MethodPut, runtime.ContentTypeJSON
		r.body, err = json.Marshal(map[string]any{
			"apiVersion": apiVersion, "kind": kindName,
			"metadata": map[string]any{
				"namespace": x.name.Namespace, "name": x.name.Name, "uid": x.uid, "resourceVersion": x.version,
			},
			"status": status,
		})
	} else {
		r.verb, r.method, r.contentType = "patch", http.MethodPatch, string(types.JSONPatchType)
		ops := []PatchOp{{"add", "/status", status}}
		if x.version != "" {
			ops = append([]PatchOp{{"add", "/metadata/resourceVersion", x.version}}, ops...)
		}
		r.body, err = json.Marshal(onlyWithUID(x.uid, ops))
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s %w: %w", x.kind.Kind, x.name, errLocal, err)
	}
	send := w.sendObject
	if x.metadataOnly {
		send = w.sendForMetadata
	}
	obj, err := send(ctx, x, r)
	switch {
	case x.version == "":
		err = w.uidConflict(ctx, x, err)
	// The failed test of the UID is reported as Invalid.
	case apierrors.IsInvalid(err) && r.method == http.MethodPatch:
		err = w.uidConflict(ctx, x, err)
	}
	return obj, err
}

// statusOf returns the Status field of obj, encoded as JSON.
func statusOf(obj Object) (json.RawMessage, error) {
	field := reflect.Indirect(reflect.ValueOf(obj)).FieldByName("Status")
	if !field.IsValid() {
		return nil, fmt.Errorf("%T has no status", obj)
	}
	return json.Marshal(field.Interface())
}

// PatchOp is an operation of a JSON patch.
type PatchOp struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

func onlyWithUID(uid types.UID, ops []PatchOp) []PatchOp {
	if uid == "" {
		return ops
	}
	return append([]PatchOp{{"test", "/metadata/uid", uid}}, ops...)
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
	r := request{verb: "patch", method: http.MethodPatch, named: true, contentType: string(x.patch.kind),
		accept: x.accept(), body: x.body}
	obj, err := w.sendAsWanted(ctx, x, r)
	return obj, w.uidConflict(ctx, x, err)
}

func (w *W) patchVersion(ctx context.Context, x *write) (Object, error) {
	if x.body == nil {
		body, err := x.patch.onVersion(x.uid, x.version)
		if err != nil {
			return nil, fmt.Errorf("patch of %s %s %w: %w", x.kind.Kind, x.name, errLocal, err)
		}
		x.body, x.patch.data = body, nil
	}
	obj, err := w.sendForMetadata(ctx, x, request{
		verb: "patch", method: http.MethodPatch, named: true, sub: x.sub, contentType: string(x.patch.kind), body: x.body,
	})
	return obj, w.checkConflict(ctx, x, x.version, err)
}

// onVersion returns the patch with UID and resource version as preconditions: the server refuses a
// patch that sets either to another value than the object has, as a conflict.
func (p patch) onVersion(uid types.UID, version string) ([]byte, error) {
	data := bytes.TrimSpace(p.data)
	if p.kind == types.MergePatchType {
		return mergeMetadata(data, map[string]any{"uid": uid, "resourceVersion": version})
	}
	ops, found := bytes.CutPrefix(data, []byte("["))
	if !found {
		return nil, errors.New("it is no list")
	}
	body, err := json.Marshal([]PatchOp{{"add", "/metadata/uid", uid}, {"add", "/metadata/resourceVersion", version}})
	if err != nil || bytes.HasPrefix(bytes.TrimSpace(ops), []byte("]")) {
		return body, err
	}
	return append(append(body[:len(body)-1], ','), ops...), nil
}

// mergeMetadata adds fields to the metadata of a merge patch.
func mergeMetadata(data []byte, add map[string]any) ([]byte, error) {
	var doc map[string]any
	if err := json.Unmarshal(data, &doc); err != nil {
		return nil, err
	}
	m, _ := doc["metadata"].(map[string]any)
	if m == nil {
		m = map[string]any{}
		doc["metadata"] = m
	}
	maps.Copy(m, add)
	return json.Marshal(doc)
}

// identify finds UID and resource version in a JSON object. It decodes nothing else, because most
// of the metadata is managedFields.
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

// patchWithUID adds the precondition that the object has uid.
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
	return mergeMetadata(p.data, map[string]any{"uid": uid})
}

// uidConflict turns the refusal of a patch into a Conflict if the object has another UID. The
// server reports such a refusal as Invalid, which it also does for a patch that does not fit for
// other reasons. If the object has x.uid and the error is a Conflict, uidConflict returns an error
// that is retried.
func (w *W) uidConflict(ctx context.Context, x *write, err error) error {
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
		// The right object, but other clients changed it faster than the server could patch it.
		return tryAgain(x, err)
	}
	return err
}

func (w *W) doDelete(ctx context.Context, x *write) error {
	opts := &metav1.DeleteOptions{
		TypeMeta:           metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
		GracePeriodSeconds: x.GracePeriodSeconds,
	}
	opts.Preconditions = &metav1.Preconditions{}
	if x.uid != "" {
		opts.Preconditions.UID = &x.uid
	}
	if x.Version != "" {
		opts.Preconditions.ResourceVersion = &x.Version
	}
	if x.Propagation != "" {
		opts.PropagationPolicy = &x.Propagation
	}
	body, err := json.Marshal(opts)
	if err != nil {
		return fmt.Errorf("%w: %w", errLocal, err)
	}
	_, err = w.send(ctx, x, request{
		verb: "delete", method: http.MethodDelete, named: true, contentType: runtime.ContentTypeJSON, accept: acceptMeta,
		body: body,
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if apierrors.IsConflict(err) && (x.uid != "" || x.Version != "") {
		there, readErr := w.read(ctx, x)
		switch {
		case apierrors.IsNotFound(readErr):
			return nil
		case readErr != nil:
			return readErr
		case x.uid != "" && there.GetUID() != x.uid:
			return nil // the intended object is gone; another one has its name
		case x.Version != "" && there.GetResourceVersion() != x.Version:
			return err // the object has changed
		}
		return tryAgain(x, err)
	}
	return err
}

// tryAgain turns an error that would be final into one that is retried.
func tryAgain(x *write, err error) error {
	return transientError{apierrors.NewInternalError(fmt.Errorf("%s %s: %w", x.kind.Kind, x.name, err))}
}
