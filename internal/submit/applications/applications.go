// Package applications is a client for users of applications: it reads, changes and deletes them
// for the command line.
package applications

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// Client reads and deletes applications of one cluster.
type Client struct {
	// tolerant lists objects that cannot be decoded with their metadata only.
	tolerant rest.Interface
	rest     rest.Interface
	config   *rest.Config
	core     kubernetes.Interface
	dryRun   kubeclient.DryRun
}

// New returns a client. With dryRun it changes nothing. It does not contact the server.
func New(cfg *rest.Config, dryRun kubeclient.DryRun) (*Client, error) {
	r, err := kubeclient.ForGroupVersion(cfg, nil, oam.GroupVersion, scheme.Scheme)
	if err != nil {
		return nil, err
	}
	tolerant, err := kubeclient.Lenient(cfg, oam.GroupVersion, scheme.Scheme)
	if err != nil {
		return nil, err
	}
	core, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return &Client{rest: r, tolerant: tolerant, config: cfg, core: core, dryRun: dryRun}, nil
}

// Get returns an application.
func (c *Client) Get(ctx context.Context, namespace, name string) (*oam.Application, error) {
	app := &oam.Application{}
	return app, c.rest.Get().Namespace(namespace).Resource("applications").Name(name).Do(ctx).Into(app)
}

// List returns the applications of a namespace, or of all namespaces if namespace is empty. An
// application that cannot be decoded has only its metadata, and is marked (malformed.Of).
func (c *Client) List(ctx context.Context, namespace, selector string) ([]oam.Application, error) {
	list := &oam.ApplicationList{}
	r := c.tolerant.Get().NamespaceIfScoped(namespace, namespace != "").Resource("applications")
	if selector != "" {
		r = r.Param("labelSelector", selector)
	}
	err := kubeclient.ListLeniently(ctx, r, list)
	return list.Items, err
}

// Tracker returns the ResourceTracker that records an application's objects and revisions.
func (c *Client) Tracker(ctx context.Context, namespace, name string) (*oam.ResourceTracker, error) {
	list := &oam.ResourceTrackerList{}
	selector := oam.AppNameLabel + "=" + name + "," + oam.AppNamespaceLabel + "=" + namespace
	if err := c.rest.Get().Resource("resourcetrackers").Param("labelSelector", selector).Do(ctx).Into(list); err != nil {
		return nil, err
	}
	if len(list.Items) == 0 {
		return nil, fmt.Errorf("application %s/%s has not been deployed", namespace, name)
	}
	rank := func(rt oam.ResourceTracker) int64 {
		if number, has := oam.RecordNumber(&rt); has {
			return number
		}
		return -1 // it is of another controller, or of an earlier generation
	}
	newest := slices.MaxFunc(list.Items, func(a, b oam.ResourceTracker) int { return cmp.Compare(rank(a), rank(b)) })
	return &newest, nil
}

// Definitions are the definitions of a cluster.
type Definitions struct {
	Components []oam.ComponentDefinition
	Workloads  []oam.WorkloadDefinition
	Traits     []oam.TraitDefinition
	Policies   []oam.PolicyDefinition
	Steps      []oam.WorkflowStepDefinition
	// Revisions are set by AllDefinitions.
	Revisions []oam.DefinitionRevision
}

// Definitions returns the definitions that are visible in a namespace: its own, followed by those
// of the system namespace.
func (c *Client) Definitions(ctx context.Context, namespace string) (*Definitions, error) {
	if namespace == oam.SystemNamespace {
		return c.definitions(ctx, namespace)
	}
	return c.definitions(ctx, namespace, oam.SystemNamespace)
}

// AllDefinitions returns the definitions of all namespaces, with their revisions.
func (c *Client) AllDefinitions(ctx context.Context) (*Definitions, error) {
	out, err := c.definitions(ctx, "")
	if err != nil {
		return nil, err
	}
	var revisions oam.DefinitionRevisionList
	err = c.rest.Get().Resource("definitionrevisions").Do(ctx).Into(&revisions)
	out.Revisions = revisions.Items
	return out, err
}

// definitions returns the definitions of namespaces in their order; an empty one stands for all.
func (c *Client) definitions(ctx context.Context, namespaces ...string) (*Definitions, error) {
	out := &Definitions{}
	for _, ns := range namespaces {
		var components oam.ComponentDefinitionList
		var workloads oam.WorkloadDefinitionList
		var traits oam.TraitDefinitionList
		var policies oam.PolicyDefinitionList
		var steps oam.WorkflowStepDefinitionList
		for resource, into := range map[string]runtime.Object{
			"componentdefinitions": &components, "workloaddefinitions": &workloads, "traitdefinitions": &traits,
			"policydefinitions": &policies, "workflowstepdefinitions": &steps,
		} {
			if err := c.rest.Get().NamespaceIfScoped(ns, ns != "").Resource(resource).Do(ctx).Into(into); err != nil {
				return nil, err
			}
		}
		out.Components, out.Workloads = append(out.Components, components.Items...), append(out.Workloads, workloads.Items...)
		out.Traits, out.Policies = append(out.Traits, traits.Items...), append(out.Policies, policies.Items...)
		out.Steps = append(out.Steps, steps.Items...)
	}
	return out, nil
}

// Patch patches an application.
func (c *Client) Patch(ctx context.Context, namespace, name string, kind types.PatchType, data []byte) error {
	return c.rest.Patch(kind).Namespace(namespace).Resource("applications").Name(name).
		SpecificallyVersionedParams(&metav1.PatchOptions{DryRun: c.dryRun.Option()}, metav1.ParameterCodec,
			schema.GroupVersion{Version: "v1"}).
		Body(data).Do(ctx).Error()
}

// DeleteOptions are the options of Delete.
type DeleteOptions struct {
	// Wait makes Delete return only when the application is gone, or ctx is done. It has no effect
	// in a dry run.
	Wait bool
	// Orphan keeps the objects that the application created.
	Orphan bool
}

// Delete deletes an application.
func (c *Client) Delete(ctx context.Context, namespace, name string, opts DeleteOptions) error {
	if opts.Orphan {
		if err := c.orphan(ctx, namespace, name); err != nil {
			return err
		}
	}
	policy := metav1.DeletePropagationBackground
	err := c.rest.Delete().Namespace(namespace).Resource("applications").Name(name).
		Body(&metav1.DeleteOptions{PropagationPolicy: &policy, DryRun: c.dryRun.Option()}).Do(ctx).Error()
	for err == nil && opts.Wait && !bool(c.dryRun) {
		if _, err := c.Get(ctx, namespace, name); apierrors.IsNotFound(err) {
			return nil
		} else if err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("application %s/%s is still there: %w", namespace, name, context.Cause(ctx))
		case <-time.After(200 * time.Millisecond):
		}
	}
	return err
}

// orphan adds the finalizer by which the manager keeps the application's objects when the
// application is deleted.
func (c *Client) orphan(ctx context.Context, namespace, name string) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		app, err := c.Get(ctx, namespace, name)
		if err != nil || slices.Contains(app.Finalizers, oam.OrphanFinalizer) {
			return err
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"resourceVersion": app.ResourceVersion, "finalizers": append(app.Finalizers, oam.OrphanFinalizer)}})
		if err != nil {
			return err
		}
		return c.Patch(ctx, namespace, name, types.MergePatchType, patch)
	})
}
