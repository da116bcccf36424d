// Package addons is a client for administrators of addons: it applies what package
// application/addon renders, and keeps the list of registries.
package addons

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kjson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/addon"
	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// fieldManager identifies this client in managedFields.
const fieldManager = "lockstep-addon"

// Client enables and disables addons in one cluster.
type Client struct {
	core      kubernetes.Interface
	dyn       dynamic.Interface
	discovery discovery.DiscoveryInterface
	mapper    meta.RESTMapper
	dryRun    kubeclient.DryRun
}

// New returns a client. With dryRun it changes nothing. It does not contact the server.
func New(cfg *rest.Config, dryRun kubeclient.DryRun) (*Client, error) {
	core, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	d := core.Discovery()
	return &Client{core, dyn, d, restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(d)), dryRun}, nil
}

// Enabled is an addon that is enabled.
type Enabled struct {
	Name, Version, Registry string
	Application             *oam.Application
}

// EnabledOf returns what an application says about its addon.
func EnabledOf(app *oam.Application) Enabled {
	l := app.Labels
	return Enabled{l[oam.AddonLabel], l[oam.AddonVersionLabel], l[oam.AddonRegistryLabel], app}
}

// Parameters returns the parameters that an addon was enabled with, or nil.
func (c *Client) Parameters(ctx context.Context, name string) (map[string]any, error) {
	secret, err := c.core.CoreV1().Secrets(oam.SystemNamespace).Get(ctx, secretName(name), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	data, ok := secret.Data[parametersKey]
	if !ok {
		return nil, nil
	}
	var out map[string]any
	if err := kjson.Unmarshal(data, &out); err != nil {
		return nil, fmt.Errorf("secret %s/%s: %s: %w", oam.SystemNamespace, secret.Name, parametersKey, err)
	}
	return out, nil
}

// parametersKey is the key of the Secret with an addon's parameters.
const parametersKey = "addonParameterDataKey"

func secretName(name string) string { return "addon-secret-" + name }

// KubernetesVersion returns the version of the cluster's API server.
func (c *Client) KubernetesVersion() (string, error) {
	v, err := c.discovery.ServerVersion()
	if err != nil {
		return "", err
	}
	return v.GitVersion, nil
}

// definitionKinds are the kinds that are deleted when a newer version of an addon does not have the
// object any more, with the resource of each.
var definitionKinds = map[string]string{
	string(render.Component): "componentdefinitions", string(render.Trait): "traitdefinitions", string(render.Policy): "policydefinitions",
	string(render.WorkflowStep): "workflowstepdefinitions",
}

// Conflicts returns the definitions of an addon that exist and do not belong to it. It returns an error
// if an object cannot belong to an Application.
func (c *Client) Conflicts(ctx context.Context, r *addon.Rendered) ([]string, error) {
	var out []string
	for _, u := range r.Beside {
		resource, err := c.resource(u)
		if meta.IsNoMatchError(err) {
			continue // an addon before it may define the kind
		}
		if err != nil {
			return nil, err
		}
		if definitionKinds[u.GetKind()] == "" {
			continue
		}
		there, err := resource.Get(ctx, u.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if owner := metav1.GetControllerOf(there); owner == nil || owner.Kind != "Application" || owner.Name != r.Application.GetName() {
			out = append(out, u.GetKind()+" "+u.GetName())
		}
	}
	return out, nil
}

// resource returns a client for the objects of the kind of u in its namespace.
func (c *Client) resource(u *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	gvk := u.GroupVersionKind()
	m, err := c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, err
	}
	if m.Scope.Name() != meta.RESTScopeNameNamespace {
		return nil, fmt.Errorf("%s %s has no namespace, and cannot belong to the addon's application: components make such objects", u.GetKind(), u.GetName())
	}
	return c.dyn.Resource(m.Resource).Namespace(u.GetNamespace()), nil
}

// Apply applies an addon: its Application, what is beside it, and a Secret with its parameters. It
// deletes definitions and ConfigMaps of an earlier version that this one does not have. It returns the
// generation of the Application.
func (c *Client) Apply(ctx context.Context, r *addon.Rendered, name string, parameters map[string]any) (generation int64, _ error) {
	app, err := c.apply(ctx, r.Application)
	if err != nil {
		return 0, err
	}
	return app.GetGeneration(), c.applyBeside(ctx, r, name, parameters, app)
}

// applyBeside applies what is beside the Application app of an addon.
func (c *Client) applyBeside(ctx context.Context, r *addon.Rendered, name string, parameters map[string]any, app *unstructured.Unstructured) error {
	owner := *metav1.NewControllerRef(app, oam.GroupVersion.WithKind("Application"))
	objects := slices.Clone(r.Beside)
	if len(parameters) > 0 {
		data, err := json.Marshal(parameters)
		if err != nil {
			return err
		}
		secret := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Secret", "type": string(corev1.SecretTypeOpaque), "stringData": map[string]any{parametersKey: string(data)},
		}}
		secret.SetNamespace(oam.SystemNamespace)
		secret.SetName(secretName(name))
		objects = append(objects, secret)
	}
	var failed []error
	for _, u := range objects {
		u = u.DeepCopy()
		u.SetOwnerReferences([]metav1.OwnerReference{owner})
		if _, err := c.apply(ctx, u); err != nil {
			failed = append(failed, err)
		}
	}
	if len(failed) > 0 {
		return errors.Join(failed...)
	}
	if len(parameters) == 0 {
		err := c.core.CoreV1().Secrets(oam.SystemNamespace).Delete(ctx, secretName(name), metav1.DeleteOptions{DryRun: c.dryRun.Option()})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return c.prune(ctx, r, name, app)
}

// apply applies one object.
func (c *Client) apply(ctx context.Context, u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	resource, err := c.resource(u)
	if err != nil {
		return nil, err
	}
	got, err := resource.Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: fieldManager, Force: true, DryRun: c.dryRun.Option()})
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", u.GetKind(), u.GetName(), err)
	}
	return got, nil
}

// prune deletes what an earlier version of an addon had beside its Application.
func (c *Client) prune(ctx context.Context, r *addon.Rendered, name string, app *unstructured.Unstructured) error {
	resources := map[string]dynamic.NamespaceableResourceInterface{"ConfigMap": c.dyn.Resource(corev1.SchemeGroupVersion.WithResource("configmaps"))}
	for kind, resource := range definitionKinds {
		resources[kind] = c.dyn.Resource(oam.GroupVersion.WithResource(resource))
	}
	for kind, resource := range resources {
		list, err := resource.Namespace(oam.SystemNamespace).List(ctx, metav1.ListOptions{LabelSelector: oam.AddonLabel + "=" + name})
		if err != nil {
			return err
		}
		for i := range list.Items {
			u := &list.Items[i]
			kept := slices.ContainsFunc(r.Beside, func(b *unstructured.Unstructured) bool { return b.GetKind() == kind && b.GetName() == u.GetName() })
			if kept || !metav1.IsControlledBy(u, app) {
				continue
			}
			uid := u.GetUID()
			err := resource.Namespace(oam.SystemNamespace).Delete(ctx, u.GetName(),
				metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}, DryRun: c.dryRun.Option()})
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s %s: %w", kind, u.GetName(), err)
			}
		}
	}
	return nil
}

// Users returns the applications among apps that use definitions of an addon, as NAMESPACE/NAME.
func Users(enabled *oam.Application, apps []oam.Application) []string {
	own := map[string]bool{}
	for kind, key := range addon.DefinitionAnnotations {
		for name := range strings.SplitSeq(enabled.Annotations[key], ",") {
			own[string(kind)+" "+name] = name != ""
		}
	}
	uses := func(kind render.Kind, of string) bool {
		name, _, _ := strings.Cut(of, "@")
		return own[string(kind)+" "+name]
	}
	var out []string
	for i := range apps {
		app := &apps[i]
		used := slices.ContainsFunc(app.Spec.Components, func(c oam.Component) bool {
			return uses(render.Component, c.Type) || slices.ContainsFunc(c.Traits, func(t oam.Trait) bool { return uses(render.Trait, t.Type) })
		}) || slices.ContainsFunc(app.Spec.Policies, func(p oam.AppPolicy) bool { return uses(render.Policy, p.Type) })
		if w := app.Spec.Workflow; w != nil && !used {
			used = slices.ContainsFunc(w.Steps, func(s oam.WorkflowStep) bool {
				return uses(render.WorkflowStep, s.Type) || slices.ContainsFunc(s.SubSteps, func(s oam.WorkflowStepBase) bool { return uses(render.WorkflowStep, s.Type) })
			})
		}
		if used && app.UID != enabled.UID {
			out = append(out, app.Namespace+"/"+app.Name)
		}
	}
	slices.Sort(out)
	return out
}
