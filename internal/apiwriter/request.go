package apiwriter

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
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
func (w *core) kindOf(m Meta, obj Object) (kind, error) {
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
func (s *sender) attempt(ctx context.Context, x *write) (Object, error) {
	switch x.verb {
	case verbCreate:
		if x.seen.Load() != nil {
			return nil, errSeen
		}
		return s.create(ctx, x)
	case verbBind:
		return s.bind(ctx, x)
	case verbStatus:
		return s.putStatus(ctx, x)
	case verbPatch:
		return s.doPatch(ctx, x)
	case verbDeletePods:
		_, err := s.send(ctx, x, request{
			verb: string(verbDeletePods), method: http.MethodDelete, query: x.selection.query(),
			accept: kubeclient.AcceptMetadata(true),
		})
		return nil, err
	default:
		return nil, s.doDelete(ctx, x)
	}
}

func (s *sender) create(ctx context.Context, x *write) (Object, error) {
	if x.readFirst {
		there, err := s.read(ctx, x)
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
		if x.body, err = s.encode(x); err != nil {
			return nil, err
		}
	}
	r := request{verb: "create", method: http.MethodPost, contentType: x.contentType(), accept: x.accept(), body: x.body}
	send := s.sendAsWanted
	if x.metadataOnly {
		send = s.sendForMetadata
	}
	obj, err := send(ctx, x, r)
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
		there, readErr := s.read(ctx, x)
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

func (s *sender) encode(x *write) ([]byte, error) {
	if u, ok := x.obj.(*unstructured.Unstructured); ok {
		return u.MarshalJSON()
	}
	media := x.contentType()
	info, _ := runtime.SerializerInfoForMediaType(s.codecs.SupportedMediaTypes(), media)
	codec := s.codecs.EncoderForVersion(info.Serializer, x.kind.GroupVersion())
	body, err := runtime.Encode(codec, x.obj)
	if err != nil {
		return nil, fmt.Errorf("%s %s %w: %w", x.kind.Kind, x.name, errLocal, err)
	}
	return body, nil
}

func (s *sender) bind(ctx context.Context, x *write) (Object, error) {
	if x.body == nil {
		binding := &corev1.Binding{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Binding"},
			// The server copies the annotations of a binding to the pod.
			ObjectMeta: metav1.ObjectMeta{Namespace: x.name.Namespace, Name: x.name.Name, UID: x.uid,
				Annotations: x.binding.Annotations},
			Target: corev1.ObjectReference{Kind: "Node", Name: x.binding.Node},
		}
		info, _ := runtime.SerializerInfoForMediaType(s.codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
		var err error
		if x.body, err = runtime.Encode(info.Serializer, binding); err != nil {
			return nil, fmt.Errorf("binding of %s %w: %w", x.name, errLocal, err)
		}
	}
	_, err := s.send(ctx, x, request{
		verb: "create", method: http.MethodPost, named: true, sub: "binding",
		contentType: runtime.ContentTypeProtobuf, accept: acceptProtobuf, body: x.body,
	})
	if !apierrors.IsConflict(err) {
		return nil, err
	}
	there, readErr := s.read(ctx, x)
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
func (s *sender) putStatus(ctx context.Context, x *write) (Object, error) {
	status, err := statusOf(x.obj)
	if err != nil {
		return nil, fmt.Errorf("%s %s %w: %w", x.kind.Kind, x.name, errLocal, err)
	}
	obj, err := s.sendStatus(ctx, x, status)
	if apierrors.IsConflict(err) && x.unanswered != nil {
		obj, err = s.afterLostAnswer(ctx, x, status, err)
	}
	if err != nil && classify(err, false).applied {
		x.rememberUnanswered(status)
	}
	return obj, s.checkConflict(ctx, x, err)
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
func (s *sender) checkConflict(ctx context.Context, x *write, err error) error {
	if x.version == "" || !apierrors.IsConflict(err) {
		return err
	}
	a, _, readErr := s.exchange(ctx, x, request{method: http.MethodGet, named: true, accept: acceptMeta})
	var there metav1.ObjectMeta
	if readErr == nil {
		readErr = identify(a.body, &there)
	}
	switch {
	case apierrors.IsNotFound(readErr):
		return err
	case readErr != nil:
		return readErr
	case there.UID == x.uid && there.ResourceVersion == x.version:
		return tryAgain(x, err)
	}
	return err
}

// afterLostAnswer finds out whether a status write conflicts with an earlier attempt of itself
// whose answer was lost.
func (s *sender) afterLostAnswer(ctx context.Context, x *write, status json.RawMessage, conflict error) (Object, error) {
	there, err := s.read(ctx, x)
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
		return s.sendStatus(ctx, x, status)
	}
	return nil, conflict
}

func (s *sender) sendStatus(ctx context.Context, x *write, status json.RawMessage) (Object, error) {
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
	send := s.sendObject
	if x.metadataOnly {
		send = s.sendForMetadata
	}
	obj, err := send(ctx, x, r)
	// A failed test of the UID is reported as Invalid.
	if x.version == "" || apierrors.IsInvalid(err) && r.method == http.MethodPatch {
		err = s.uidConflict(ctx, x, err)
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

func (s *sender) doPatch(ctx context.Context, x *write) (Object, error) {
	if x.body == nil {
		body, err := x.patch.on(x.uid, x.version)
		if err != nil {
			return nil, fmt.Errorf("patch of %s %s %w: %w", x.kind.Kind, x.name, errLocal, err)
		}
		x.body, x.patch.data = body, nil
	}
	r := request{verb: "patch", method: http.MethodPatch, named: true, sub: x.sub, contentType: string(x.patch.kind),
		accept: x.accept(), body: x.body}
	if x.version != "" {
		obj, err := s.sendForMetadata(ctx, x, r)
		return obj, s.checkConflict(ctx, x, err)
	}
	obj, err := s.sendAsWanted(ctx, x, r)
	return obj, s.uidConflict(ctx, x, err)
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

// uidConflict turns the refusal of a patch into a Conflict if the object has another UID. The
// server reports such a refusal as Invalid, which it also does for a patch that does not fit for
// other reasons. If the object has x.uid and the error is a Conflict, uidConflict returns an error
// that is retried.
func (s *sender) uidConflict(ctx context.Context, x *write, err error) error {
	if x.uid == "" || !apierrors.IsInvalid(err) && !apierrors.IsConflict(err) {
		return err
	}
	there, readErr := s.read(ctx, x)
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

// query returns the selectors as the query of a URL.
func (p Selection) query() string {
	q := url.Values{}
	for name, selector := range map[string]string{"labelSelector": p.Labels, "fieldSelector": p.Fields} {
		if selector != "" {
			q.Set(name, selector)
		}
	}
	return q.Encode()
}

func (s *sender) doDelete(ctx context.Context, x *write) error {
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
	if x.DryRun {
		opts.DryRun = []string{metav1.DryRunAll}
	}
	body, err := json.Marshal(opts)
	if err != nil {
		return fmt.Errorf("%w: %w", errLocal, err)
	}
	_, err = s.send(ctx, x, request{
		verb: "delete", method: http.MethodDelete, named: true, contentType: runtime.ContentTypeJSON, accept: acceptMeta,
		body: body,
	})
	if x.DryRun {
		return err
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	if apierrors.IsConflict(err) && (x.uid != "" || x.Version != "") {
		there, readErr := s.read(ctx, x)
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
