package addons

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"lockstep.dev/lockstep/internal/application/objects"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/render"
	cliapps "lockstep.dev/lockstep/internal/cli/applications"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/submit/addons"
)

// check shows what addons make, and returns an error if rights are missing or definitions of others
// would be replaced.
func (v verb) check(ctx context.Context, client *clients, o *options, run render.Run, all []*wanted) error {
	var made []addons.Made
	var definitions []*unstructured.Unstructured
	defined := map[schema.GroupKind]addons.Resource{}
	for _, w := range all {
		for _, u := range append([]*unstructured.Unstructured{w.rendered.Application}, w.rendered.Beside...) {
			made = append(made, addons.Made{Kind: u.GroupVersionKind(), Namespace: u.GetNamespace(), Objects: 1})
		}
		definitions = append(definitions, w.rendered.Beside...)
		preview, err := cliapps.NewPreview(ctx, client.apps, run, v.Err, w.rendered.Application, definitions)
		if err != nil {
			return fmt.Errorf("addon %s: %w", w.addon.Name, err)
		}
		for _, text := range append(w.rendered.Warnings, preview.Warnings...) {
			fmt.Fprintf(v.Err, "warning: addon %s: %s\n", w.addon.Name, text)
		}
		for _, text := range preview.Unknown {
			fmt.Fprintf(v.Err, "warning: addon %s: what it makes is not known completely: %s\n", w.addon.Name, text)
		}
		for i := range preview.Objects {
			ref := &preview.Objects[i].Ref
			made = append(made, addons.Made{Kind: ref.GVK, Namespace: ref.Namespace, Objects: 1, Managed: true})
			if kind, resource, ok := definedBy(&preview.Objects[i]); ok {
				defined[kind] = resource
			}
		}
	}
	rights, err := client.Rights(ctx, made, defined)
	if err != nil {
		return err
	}
	v.show(all, rights)
	// What would be applied is printed in any case.
	if err := missing(rights); err != nil && !o.force && !v.DryRun.Client() {
		return err
	}
	for _, w := range all {
		conflicts, err := client.Conflicts(ctx, w.rendered)
		if err != nil {
			return fmt.Errorf("addon %s: %w", w.addon.Name, err)
		}
		if len(conflicts) > 0 && !o.override {
			return fmt.Errorf("addon %s: %s: there are such definitions already, which do not belong to the addon; --override-definitions replaces them",
				w.addon.Name, listed(conflicts))
		}
	}
	return nil
}

// definedBy returns the kind that a CustomResourceDefinition defines.
func definedBy(r *plan.Resource) (schema.GroupKind, addons.Resource, bool) {
	u := &unstructured.Unstructured{}
	if r.GVK.Kind != "CustomResourceDefinition" || u.UnmarshalJSON(r.JSON) != nil {
		return schema.GroupKind{}, addons.Resource{}, false
	}
	text := func(path ...string) string {
		s, _, _ := unstructured.NestedString(u.Object, append([]string{"spec"}, path...)...)
		return s
	}
	group := text("group")
	return schema.GroupKind{Group: group, Kind: text("names", "kind")}, addons.Resource{
		GroupResource: schema.GroupResource{Group: group, Resource: text("names", "plural")}, Namespaced: text("scope") == "Namespaced",
	}, true
}

// show prints the kinds that addons make, and the rights that are missing.
func (v verb) show(all []*wanted, rights []addons.Right) {
	var names []string
	for _, w := range all {
		names = append(names, w.addon.String())
	}
	fmt.Fprintf(v.Err, "%s:\n", strings.Join(names, ", "))
	w := command.Columns(v.Err)
	fmt.Fprint(w, "KIND\tNAMESPACE\tOBJECTS\tYOU\tMANAGER\n")
	for i := range rights {
		r := &rights[i]
		you, manager := lacking(r.You), lacking(r.Manager)
		switch {
		case r.Resource.Resource == "":
			you, manager = "kind not served", "kind not served"
		case r.Unasked:
			manager = "you may not ask"
		case !r.Managed:
			manager = "-"
		}
		kind := strings.TrimPrefix(r.Kind.Group+"/", "/") + r.Kind.Kind
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n", kind, r.Namespace, r.Objects, you, manager)
	}
	_ = w.Flush()
}

func lacking(verbs []string) string {
	if len(verbs) == 0 {
		return "may"
	}
	return "may not " + strings.Join(verbs, ", ")
}

// missing returns an error that names the rights that are missing.
func missing(rights []addons.Right) error {
	var out []error
	said := map[schema.GroupResource]bool{}
	for i := range rights {
		r := &rights[i]
		if len(r.You) > 0 {
			where := "in all namespaces"
			if r.Namespace != "" {
				where = "in namespace " + r.Namespace
			}
			out = append(out, fmt.Errorf("you may not %s %s %s, and the application acts with your rights", strings.Join(r.You, ", "), r.Resource, where))
		}
		if len(r.Manager) > 0 && !said[r.Resource] {
			said[r.Resource] = true
			out = append(out, &objects.ErrNoRight{Resource: r.Resource, Err: fmt.Errorf("the manager may not %s %s", strings.Join(r.Manager, ", "), r.Resource)})
		}
	}
	if len(out) == 0 {
		return nil
	}
	return fmt.Errorf("rights are missing (--force enables it in spite of that): %w", errors.Join(out...))
}
