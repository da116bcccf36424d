package submit

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/resource"
)

// fieldManager identifies this client in managedFields.
const fieldManager = "lockstep"

// Object is one manifest together with its API resource.
type Object struct {
	info *resource.Info
}

// Ref returns the object's kind and name for people, for example "job.batch.volcano.sh/hello".
func (o *Object) Ref() string {
	gk := o.info.Mapping.GroupVersionKind.GroupKind()
	name := o.info.Name
	if name == "" {
		if acc, ok := o.info.Object.(metav1.Object); ok {
			name = acc.GetGenerateName() + "*"
		}
	}
	return Ref(gk, name)
}

// Ref returns the kind and name of an object for people, for example "job.batch.volcano.sh/hello".
func Ref(gk schema.GroupKind, name string) string {
	return strings.TrimSuffix(strings.ToLower(gk.Kind)+"."+gk.Group, ".") + "/" + name
}

// Object returns the object as last seen: as read from the file, later as returned by the server.
func (o *Object) Object() runtime.Object { return o.info.Object }

// runs are the kinds of runs, each with the function that reads the outcome of a run.
var runs = map[schema.GroupKind]func(*unstructured.Unstructured) Outcome{
	{Group: "batch.volcano.sh", Kind: "Job"}: jobOutcome,
	{Group: "argoproj.io", Kind: "Workflow"}: workflowOutcome,
}

// Outcome is the state of a run.
type Outcome struct {
	Phase    string
	Message  string
	Finished bool
	Failed   bool
}

// IsRun reports whether the object is a run, which is created once and can be waited for.
func (o *Object) IsRun() bool {
	_, ok := runs[o.info.Mapping.GroupVersionKind.GroupKind()]
	return ok
}

func jobOutcome(u *unstructured.Unstructured) Outcome {
	phase, _, _ := unstructured.NestedString(u.Object, "status", "state", "phase")
	message, _, _ := unstructured.NestedString(u.Object, "status", "state", "message")
	out := Outcome{Phase: phase, Message: message}
	switch phase {
	case "Completed":
		out.Finished = true
	case "Failed", "Aborted", "Terminated":
		out.Finished, out.Failed = true, true
	}
	return out
}

// Read reads manifests from files, folders, URLs and "-" (standard input), in order. Objects
// without a namespace get the configured default namespace. Errors name the file, and the kind if
// the server does not know it.
func Read(getter genericclioptions.RESTClientGetter, files []string, recursive bool) ([]*Object, error) {
	namespace, enforce, err := getter.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, err
	}
	return built(resource.NewBuilder(getter).Unstructured().NamespaceParam(namespace).DefaultNamespace().
		FilenameParam(enforce, &resource.FilenameOptions{Filenames: files, Recursive: recursive}))
}

// Find reads objects of the cluster: those that args name as KIND NAME... or KIND/NAME..., or those
// of a kind that match a label selector.
func Find(getter genericclioptions.RESTClientGetter, args []string, selector string) ([]*Object, error) {
	namespace, _, err := getter.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, err
	}
	return built(resource.NewBuilder(getter).Unstructured().NamespaceParam(namespace).DefaultNamespace().
		LabelSelectorParam(selector).ResourceTypeOrNameArgs(false, args...).Latest())
}

// ownerReference returns a reference to the object.
func (o *Object) ownerReference() metav1.OwnerReference {
	gvk := o.info.Mapping.GroupVersionKind
	u, _ := meta.Accessor(o.info.Object) // only what has metadata is read
	return metav1.OwnerReference{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind, Name: o.info.Name, UID: u.GetUID()}
}

// Kind returns the object's kind.
func (o *Object) Kind() schema.GroupKind { return o.info.Mapping.GroupVersionKind.GroupKind() }

func built(b *resource.Builder) ([]*Object, error) {
	infos, err := b.ContinueOnError().Flatten().Do().Infos()
	if err != nil {
		return nil, err
	}
	objects := make([]*Object, len(infos))
	for i, info := range infos {
		objects[i] = &Object{info}
	}
	return objects, nil
}

// Send creates a run, or an object without a name, and applies any other object. With dryRun the
// server checks the request and stores nothing. Unknown and duplicate fields are errors.
func Send(o *Object, dryRun bool) (verb string, err error) {
	helper := resource.NewHelper(o.info.Client, o.info.Mapping).
		DryRun(dryRun).
		WithFieldManager(fieldManager).
		WithFieldValidation(metav1.FieldValidationStrict)
	var got runtime.Object
	if acc, ok := o.info.Object.(metav1.Object); o.IsRun() || ok && acc.GetName() == "" {
		verb = "created"
		got, err = helper.Create(o.info.Namespace, true, o.info.Object)
		if apierrors.IsAlreadyExists(err) {
			err = fmt.Errorf("%s already exists: a run happens once; delete it first, or use metadata.generateName",
				o.Ref())
		}
	} else {
		verb = "applied"
		var data []byte
		if data, err = json.Marshal(o.info.Object); err == nil {
			force := true
			got, err = helper.Patch(o.info.Namespace, o.info.Name, types.ApplyPatchType, data,
				&metav1.PatchOptions{Force: &force})
		}
	}
	if err != nil {
		return "", err
	}
	return verb, o.info.Refresh(got, true)
}

// Wait waits until the run has ended, or ctx is done. progress, if not nil, is called with every
// new phase or message. The deletion of the run is an error.
func Wait(ctx context.Context, o *Object, progress func(Outcome)) (Outcome, error) {
	outcome := runs[o.info.Mapping.GroupVersionKind.GroupKind()]
	if outcome == nil {
		return Outcome{}, fmt.Errorf("%s is not a run: there is nothing to wait for", o.Ref())
	}
	var last Outcome
	gone := fmt.Errorf("%s was deleted while it was waited for", o.Ref())
	err := Until(ctx, o.info.Client, o.info.Mapping.Resource.Resource, o.info.Namespace, o.info.Name, gone,
		func(u *unstructured.Unstructured) (bool, error) {
			now := outcome(u)
			if now != last && progress != nil {
				progress(now)
			}
			last = now
			return now.Finished, nil
		})
	return last, err
}
