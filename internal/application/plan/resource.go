package plan

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/render"
)

// Ref identifies an object in one of the clusters.
type Ref struct {
	// Cluster is empty for the local cluster.
	Cluster   string
	GVK       schema.GroupVersionKind
	Namespace string
	Name      string
}

func (r Ref) String() string {
	name := r.Name
	if r.Namespace != "" {
		name = r.Namespace + "/" + r.Name
	}
	if r.Cluster != "" {
		return r.GVK.Kind + " " + name + " in cluster " + r.Cluster
	}
	return r.GVK.Kind + " " + name
}

// Unstructured returns an object that has only the Ref's kind and names, and a UID.
func (r Ref) Unstructured(uid types.UID) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(r.GVK)
	u.SetNamespace(r.Namespace)
	u.SetName(r.Name)
	u.SetUID(uid)
	return u
}

// KeptField is a field whose live value is kept.
type KeptField struct {
	// Path is a path such as spec.replicas, or * for the whole object.
	Path   string
	Affect Affect
	// Deletion is set if the object is not created again after another client has deleted it.
	Deletion bool
}

// Resource is one object of an Application.
type Resource struct {
	Ref
	// JSON is the normalised object, with its owner's labels but without the revision's labels.
	JSON []byte
	// Hash is the hash of JSON.
	Hash string

	Component     string
	ComponentType string
	// Trait is the type of the trait that made the object, or empty.
	Trait string
	// Output is the object's name in outputs, or empty for a workload.
	Output string
	// Step is the workflow step that applied the object itself, or empty.
	Step string
	// TraitIndex is the index of the trait in the component; -1 for the component itself.
	TraitIndex int
	// Stage is PostDispatch for objects that are created when the workload is healthy, and
	// PreDispatch for objects that are created before the workload.
	Stage oam.StageType

	Keep           []KeptField
	GC             GCStrategy
	Propagation    string
	Shared         bool
	TakeOver       bool
	ReadOnly       bool
	RecreateFields []string
	// Replace is set if an update removes what others have added to the object.
	Replace bool

	// Wave orders the objects of a component: an object is created after the objects of lower waves
	// exist and are complete.
	Wave int
	// Once is a JSON merge patch that applies when the object is created and never again, or nil.
	Once []byte
}

// AppliedOnce reports whether the object is left alone once the revision has been deployed, also if
// another client has deleted it.
func (r *Resource) AppliedOnce() bool {
	return slices.ContainsFunc(r.Keep, func(k KeptField) bool { return k.Deletion })
}

// ResourceType returns the type of the object in its component, as policies and labels name it.
func (r *Resource) ResourceType() string {
	if r.Output == "" {
		return oam.ResourceTypeWorkload
	}
	return oam.ResourceTypeTrait
}

// Object makes a resource from an object that a workflow step applies itself. It sets the
// Application's labels and applies the policies' rules.
func Object(in *Input, policies *Policies, step, cluster string, object map[string]any) (*Resource, error) {
	if cluster == oam.LocalCluster {
		cluster = ""
	}
	target, err := in.Clusters.Target(cluster)
	if err != nil {
		return nil, err
	}
	at := &Component{Name: step, Placement: Placement{Cluster: cluster, Namespace: in.Namespace}}
	r, err := newResource(in, at, &render.Object{Object: object, Name: step, TraitIndex: -1}, target.Kinds)
	if err != nil {
		return nil, fmt.Errorf("what step %s applies: %w", step, err)
	}
	r.Component, r.Output, r.Step = "", "", step
	policies.Treat(r)
	return r, nil
}

// newResource makes a resource from a rendered object: it sets the name, the namespace and the
// labels.
func newResource(in *Input, comp *Component, o *render.Object, kinds Kinds) (*Resource, error) {
	u := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(o.Object)}
	gvk := u.GroupVersionKind()
	what := "output"
	if o.Name != "" {
		what = "outputs." + o.Name
	}
	cluster := clusterOf(comp, o, u)
	if cluster != comp.Cluster {
		target, err := in.Clusters.Target(cluster)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		kinds = target.Kinds
	}
	if gvk.Kind == "" || gvk.Version == "" {
		return nil, fmt.Errorf("%s has no apiVersion or no kind", what)
	}
	namespaced, err := kinds.Namespaced(gvk)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if u.GetName() == "" {
		u.SetName(comp.Name)
	}
	switch {
	case !namespaced:
		u.SetNamespace("")
	case u.GetNamespace() == "":
		u.SetNamespace(comp.Namespace)
	}
	unstructured.RemoveNestedField(u.Object, "status")
	for _, f := range []string{"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields",
		"ownerReferences", "selfLink"} {
		unstructured.RemoveNestedField(u.Object, "metadata", f)
	}
	r := &Resource{
		Ref:       Ref{cluster, gvk, u.GetNamespace(), u.GetName()},
		Component: comp.Name, ComponentType: comp.Type, Trait: o.Trait, Output: o.Name, TraitIndex: o.TraitIndex,
		Stage: o.Stage,
	}
	labels := u.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[oam.AppNameLabel], labels[oam.AppNamespaceLabel] = in.Name, in.Namespace
	if cluster != "" {
		labels[oam.AppClusterLabel] = labelValue(cluster)
	}
	if comp.Type == "" {
		// A step's own object: its labels may name another component.
		return r, r.complete(u, labels, what)
	}
	labels[oam.AppComponentLabel] = comp.Name
	if comp.Context.ReplicaKey != "" {
		labels[oam.ReplicaKeyLabel] = labelValue(comp.Context.ReplicaKey)
	}
	labels[oam.ResourceTypeLabel] = r.ResourceType()
	if o.Name == "" {
		labels[oam.WorkloadTypeLabel] = labelValue(comp.Type)
	} else {
		labels[oam.TraitResourceLabel] = labelValue(o.Name)
		labels[oam.TraitTypeLabel] = "AuxiliaryWorkload"
		if o.Trait != "" {
			labels[oam.TraitTypeLabel] = labelValue(o.Trait)
		}
	}
	return r, r.complete(u, labels, what)
}

// clusterOf returns the cluster of a rendered object: the one that its label names, the local one for
// objects of the control plane, or otherwise the component's.
func clusterOf(comp *Component, o *render.Object, u *unstructured.Unstructured) string {
	switch named := u.GetLabels()[oam.AppClusterLabel]; {
	case named == oam.LocalCluster || named == "" && o.ControlPlaneOnly:
		return ""
	case named != "":
		return named
	}
	return comp.Cluster
}

// elsewhere reports whether an object is in another cluster than its component.
func elsewhere(r *Resource, comp *Component) bool { return r.Cluster != comp.Cluster }

// complete sets the resource's JSON and hash.
func (r *Resource) complete(u *unstructured.Unstructured, labels map[string]string, what string) error {
	u.SetLabels(labels)
	if err := normalise(u); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	var err error
	if r.JSON, err = json.Marshal(u.Object); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	r.Hash = Hash(r.JSON)
	return nil
}

// labelValue makes a valid label value from a string such as type@v1.
func labelValue(s string) string {
	s = strings.ReplaceAll(s, "@", "-")
	if len(s) > 63 {
		s = s[:63]
	}
	return strings.Trim(s, "-_.")
}
