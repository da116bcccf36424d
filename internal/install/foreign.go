package install

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/pager"
)

// Finding is an object of another party that Install would replace, or that acts on Lockstep's
// kinds.
type Finding struct {
	// Object is KIND.GROUP/NAME, or KIND.GROUP/NAMESPACE/NAME.
	Object string
	// Problem describes the object, and the consequences of continuing.
	Problem string
}

// ForeignError means that other parties serve Lockstep's kinds.
type ForeignError struct{ Findings []Finding }

func (e *ForeignError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "install: others serve kinds of Lockstep in this cluster (%d findings):", len(e.Findings))
	for _, f := range e.Findings {
		fmt.Fprintf(&b, "\n  %s: %s", f.Object, f.Problem)
	}
	return b.String()
}

// marked puts ManagedByLabel on the objects.
func marked(objects []*unstructured.Unstructured) []*unstructured.Unstructured {
	for _, o := range objects {
		o.SetLabels(merge(o.GetLabels(), map[string]string{ManagedByLabel: ManagedBy}))
	}
	return objects
}

// ours reports whether Install has created an object or taken it over.
func ours(live *unstructured.Unstructured) bool {
	// Versions before the label set only this annotation.
	_, applied := live.GetAnnotations()[AppliedAnnotation]
	return applied || live.GetLabels()[ManagedByLabel] == ManagedBy
}

// asWanted reports whether live has everything that object has, apart from the marks of Install: a
// user may have applied the printed manifests of a version without these marks.
func asWanted(live, object *unstructured.Unstructured) bool {
	want := object.DeepCopy()
	unstructured.RemoveNestedField(want.Object, "metadata", "labels", ManagedByLabel)
	unstructured.RemoveNestedField(want.Object, "metadata", "annotations", AppliedAnnotation)
	for _, field := range []string{"labels", "annotations"} {
		if m, _, _ := unstructured.NestedMap(want.Object, "metadata", field); len(m) == 0 {
			unstructured.RemoveNestedField(want.Object, "metadata", field)
		}
	}
	return contains(live.Object, want.Object)
}

// look reads the live objects under the names of the given objects, and returns the objects of
// other parties.
func (w *installer) look(ctx context.Context, objects []*unstructured.Unstructured) ([]Finding, error) {
	var found []Finding
	groups := map[string]bool{}
	for _, o := range objects {
		live, err := resourceOf(w.client, o).Get(ctx, o.GetName(), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			live = nil
		case err != nil:
			return nil, fmt.Errorf("%s: %w", nameOf(o), err)
		}
		w.live[o] = live
		if o.GetKind() == "CustomResourceDefinition" {
			group, _, _ := unstructured.NestedString(o.Object, "spec", "group")
			groups[group] = true
		}
		if live == nil || shared(o) || ours(live) || asWanted(live, o) {
			continue
		}
		problem, err := w.foreign(ctx, live)
		if err != nil {
			return nil, err
		}
		found = append(found, Finding{nameOf(live), problem})
	}
	hooks, err := w.webhooks(ctx, groups)
	if err != nil {
		return nil, err
	}
	controllers, err := w.controllers(ctx)
	return slices.Concat(found, hooks, controllers), err
}

// foreign describes the consequences of replacing an object of another party.
func (w *installer) foreign(ctx context.Context, live *unstructured.Unstructured) (string, error) {
	by := "was not made by 'lockstep install'"
	if maker := makerOf(live); maker != "" {
		by += " but by " + maker
	}
	if live.GetKind() != "CustomResourceDefinition" {
		return by + ": it would be replaced", nil
	}
	n, err := Count(ctx, w.client, live)
	if err != nil {
		return "", fmt.Errorf("%s: %w", nameOf(live), err)
	}
	what := "no objects"
	switch {
	case n == 1:
		what = "1 object, which stays"
	case n > 1:
		what = fmt.Sprintf("%d objects, which stay", n)
	}
	return fmt.Sprintf("%s, and has %s: its schema would be replaced. Lockstep would act on its objects beside whoever does so now, "+
		"and fields that the new schema does not have are lost when an object is written next", by, what), nil
}

// makerOf returns who created an object according to its metadata, or "" if that does not show it.
func makerOf(live *unstructured.Unstructured) string {
	var parts []string
	if release := live.GetAnnotations()["meta.helm.sh/release-name"]; release != "" {
		parts = append(parts, "the Helm release "+path.Join(live.GetAnnotations()["meta.helm.sh/release-namespace"], release))
	} else if by := live.GetLabels()[ManagedByLabel]; by != "" {
		parts = append(parts, by)
	}
	if fields := live.GetManagedFields(); len(fields) > 0 && fields[0].Manager != "" {
		parts = append(parts, "field manager "+fields[0].Manager)
	}
	return strings.Join(parts, ", ")
}

// Count returns the number of objects of a CRD.
func Count(ctx context.Context, client dynamic.Interface, crd *unstructured.Unstructured) (int64, error) {
	resource, ok := servedBy(crd)
	if !ok {
		return 0, nil
	}
	list, err := client.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	n := int64(len(list.Items))
	if more := list.GetRemainingItemCount(); more != nil {
		n += *more
	}
	return n, nil
}

// servedBy returns the resource of a CRD in its first served version.
func servedBy(crd *unstructured.Unstructured) (schema.GroupVersionResource, bool) {
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "plural")
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	for _, v := range versions {
		v, _ := v.(map[string]any)
		if served, _ := v["served"].(bool); served {
			name, _ := v["name"].(string)
			return schema.GroupVersionResource{Group: group, Version: name, Resource: plural}, true
		}
	}
	return schema.GroupVersionResource{}, false
}

// webhooks finds webhook configurations whose rules name one of Lockstep's API groups. Rules for
// all groups belong to webhooks that inspect everything and serve no kind, so they are ignored.
func (w *installer) webhooks(ctx context.Context, groups map[string]bool) ([]Finding, error) {
	var out []Finding
	for _, kind := range []string{"validatingwebhookconfigurations", "mutatingwebhookconfigurations"} {
		list, err := w.client.Resource(schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: kind}).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kind, err)
		}
		for i := range list.Items {
			o := &list.Items[i]
			asked := map[string]bool{}
			hooks, _, _ := unstructured.NestedSlice(o.Object, "webhooks")
			for _, h := range hooks {
				h, _ := h.(map[string]any)
				rules, _, _ := unstructured.NestedSlice(h, "rules")
				for _, r := range rules {
					r, _ := r.(map[string]any)
					in, _, _ := unstructured.NestedStringSlice(r, "apiGroups")
					resources, _, _ := unstructured.NestedStringSlice(r, "resources")
					for _, g := range in {
						for _, name := range resources {
							if groups[g] {
								asked[name+"."+g] = true
							}
						}
					}
				}
			}
			if len(asked) > 0 {
				out = append(out, Finding{nameOf(o), fmt.Sprintf("is asked about each write of %s, and can change or refuse it. "+
					"It stays in force, also with --take-over: remove it together with the controller that it belongs to",
					strings.Join(slices.Sorted(maps.Keys(asked)), ", "))})
			}
		}
	}
	return out, nil
}

// controllerImages are image names, without registry and tag, of controllers that act on Lockstep's
// kinds.
var controllerImages = map[string]bool{
	"vc-controller-manager": true, "vc-webhook-manager": true, "vc-scheduler": true,
	"workflow-controller": true, "vela-core": true,
}

// controllers finds Deployments that run controllerImages.
func (w *installer) controllers(ctx context.Context) ([]Finding, error) {
	var out []Finding
	deployments := w.client.Resource(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"})
	list := func(o metav1.ListOptions) (runtime.Object, error) { return deployments.List(ctx, o) }
	err := pager.New(pager.SimplePageFunc(list)).EachListItem(ctx, metav1.ListOptions{}, func(item runtime.Object) error {
		o := item.(*unstructured.Unstructured)
		if replicas, found, _ := unstructured.NestedInt64(o.Object, "spec", "replicas"); found && replicas == 0 {
			return nil
		}
		containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
		for _, c := range containers {
			c, _ := c.(map[string]any)
			image, _ := c["image"].(string)
			name, _, _ := strings.Cut(path.Base(image), "@")
			name, _, _ = strings.Cut(name, ":")
			if controllerImages[name] {
				out = append(out, Finding{nameOf(o), fmt.Sprintf("runs %s, which acts on the same objects as Lockstep: run one controller for each kind", image)})
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("deployments: %w", err)
	}
	return out, nil
}

// nameOf returns KIND.GROUP/NAME, or KIND.GROUP/NAMESPACE/NAME for a namespaced object.
func nameOf(o *unstructured.Unstructured) string {
	kind := strings.ToLower(o.GetKind())
	if group := o.GroupVersionKind().Group; group != "" {
		kind += "." + group
	}
	return path.Join(kind, o.GetNamespace(), o.GetName())
}
