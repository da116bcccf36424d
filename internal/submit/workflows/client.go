package workflows

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/submit"
	"lockstep.dev/lockstep/internal/workflow/compress"
)

// Resources of the API.
const (
	Workflows        = "workflows"
	Templates        = "workflowtemplates"
	ClusterTemplates = "clusterworkflowtemplates"
	Crons            = "cronworkflows"
)

// fieldManager identifies this client in managedFields.
const fieldManager = "lockstep"

// Client reads and changes workflows, templates and crons. It is safe for concurrent use.
type Client struct {
	rest rest.Interface
	// tolerant lists objects that cannot be decoded with their metadata only.
	tolerant rest.Interface
	core     kubernetes.Interface
	// Now returns the time that is recorded in changes; time.Now by default.
	Now    func() time.Time
	dryRun kubeclient.DryRun
}

// New returns a client for a cluster. With dryRun it changes nothing. It does not contact the
// server.
func New(cfg *rest.Config, dryRun kubeclient.DryRun) (*Client, error) {
	r, err := kubeclient.ForGroupVersion(cfg, nil, wf.GroupVersion, scheme.Scheme)
	if err != nil {
		return nil, err
	}
	tolerant, err := kubeclient.Lenient(cfg, wf.GroupVersion, scheme.Scheme)
	if err != nil {
		return nil, err
	}
	core, err := kubeclient.Clientset(cfg)
	if err != nil {
		return nil, err
	}
	return &Client{rest: r, tolerant: tolerant, core: core, Now: time.Now, dryRun: dryRun}, nil
}

// Object is any object of the API.
type Object interface {
	metav1.Object
	runtime.Object
}

// Read reads an object of a resource into out.
func (c *Client) Read(ctx context.Context, resource, namespace, name string, out Object) error {
	err := c.rest.Get().NamespaceIfScoped(namespace, resource != ClusterTemplates).Resource(resource).Name(name).Do(ctx).Into(out)
	return explain(err)
}

// explain adds advice to errors that mean that the API does not exist.
func explain(err error) error {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) && apierrors.IsNotFound(err) {
		if d := status.Status().Details; d == nil || d.Name == "" {
			return fmt.Errorf("the cluster has no workflows API: install it with 'lockstep install': %w", err)
		}
	}
	return err
}

// Create creates an object. Its namespace must be set if the resource is namespaced. Unknown fields
// are errors.
func (c *Client) Create(ctx context.Context, resource string, object, out Object) error {
	options := &metav1.CreateOptions{FieldManager: fieldManager, FieldValidation: metav1.FieldValidationStrict,
		DryRun: c.dryRun.Option()}
	return explain(c.rest.Post().NamespaceIfScoped(object.GetNamespace(), resource != ClusterTemplates).Resource(resource).
		SpecificallyVersionedParams(options, metav1.ParameterCodec, metaVersion).Body(object).Do(ctx).Into(out))
}

// metaVersion is the version in which the options of requests are defined, for all API groups.
var metaVersion = schema.GroupVersion{Version: "v1"}

// Delete deletes an object and, in the background, the objects that it owns.
func (c *Client) Delete(ctx context.Context, resource, namespace, name string) error {
	background := metav1.DeletePropagationBackground
	return explain(c.rest.Delete().NamespaceIfScoped(namespace, resource != ClusterTemplates).Resource(resource).Name(name).
		Body(&metav1.DeleteOptions{PropagationPolicy: &background, DryRun: c.dryRun.Option()}).Do(ctx).Error())
}

// Get returns a workflow with its nodes unpacked. The name @latest stands for the most recently
// created workflow of the namespace.
func (c *Client) Get(ctx context.Context, namespace, name string) (*wf.Workflow, error) {
	if name == "@latest" {
		return c.latest(ctx, namespace)
	}
	w := &wf.Workflow{}
	if err := c.Read(ctx, Workflows, namespace, name, w); err != nil {
		return nil, err
	}
	return w, unpack(w)
}

// Name returns the name of the workflow that name stands for, which may be @latest.
func (c *Client) Name(ctx context.Context, namespace, name string) (string, error) {
	if name != "@latest" {
		return name, nil
	}
	w, err := c.latest(ctx, namespace)
	if err != nil {
		return "", err
	}
	return w.Name, nil
}

func (c *Client) latest(ctx context.Context, namespace string) (*wf.Workflow, error) {
	var last *wf.Workflow
	err := c.List(ctx, Query{Namespace: namespace}, func(w *wf.Workflow) error {
		if last == nil || last.CreationTimestamp.Before(&w.CreationTimestamp) {
			last = w
		}
		return nil
	})
	if err == nil && last == nil {
		err = fmt.Errorf("namespace %s has no workflow", namespace)
	}
	if err != nil {
		return nil, err
	}
	return last, unpack(last)
}

// unpack decompresses compressed nodes into Status.Nodes.
func unpack(w *wf.Workflow) error {
	nodes, err := compress.Nodes(&w.Status)
	if err != nil {
		return fmt.Errorf("workflow %s/%s: %w", w.Namespace, w.Name, err)
	}
	w.Status.Nodes, w.Status.CompressedNodes = nodes, ""
	return nil
}

// Query selects the workflows to list.
type Query struct {
	// Namespace is empty for all namespaces.
	Namespace      string
	Labels, Fields string
	Prefix         string
	Statuses       []string
	Completed      bool // only completed workflows
	Running        bool // only workflows that are not completed
	Resubmitted    bool // only resubmitted workflows
	// InstanceID selects the workflows of an instance of the controller; empty selects all.
	InstanceID      string
	Since, OlderFor time.Duration
	// PageSize is the number of workflows per request; 500 by default.
	PageSize int64
}

// selector returns the label selector for the part of the query that the server can evaluate.
func (q *Query) selector() string {
	var terms []string
	if q.Labels != "" {
		terms = append(terms, q.Labels)
	}
	switch {
	case q.Completed && !q.Running:
		terms = append(terms, wf.LabelCompleted+"=true")
	case q.Running && !q.Completed:
		terms = append(terms, wf.LabelCompleted+"!=true")
	}
	// New and malformed workflows have no phase label, or that of an earlier phase.
	if len(q.Statuses) > 0 && !slices.Contains(q.Statuses, "Pending") && !slices.Contains(q.Statuses, Malformed) {
		terms = append(terms, fmt.Sprintf("%s in (%s)", wf.LabelPhase, strings.Join(q.Statuses, ",")))
	}
	if q.InstanceID != "" {
		terms = append(terms, wf.LabelInstanceID+"="+q.InstanceID)
	}
	if q.Resubmitted {
		terms = append(terms, wf.LabelPreviousWorkflow)
	}
	return strings.Join(terms, ",")
}

func (q *Query) matches(w *wf.Workflow, now time.Time) bool {
	phase := string(cmp.Or(w.Status.Phase, wf.WorkflowPending))
	if malformed.Of(w) != nil {
		phase = Malformed
	}
	age := now.Sub(w.CreationTimestamp.Time)
	return strings.HasPrefix(w.Name, q.Prefix) && (len(q.Statuses) == 0 || slices.Contains(q.Statuses, phase)) &&
		(q.Since == 0 || age <= q.Since) && (q.OlderFor == 0 || age >= q.OlderFor)
}

const defaultPage = 500

// Malformed is the phase shown for a workflow that cannot be decoded.
const Malformed = "Malformed"

// List calls each with every workflow that matches, page by page. Nodes are as the server stores
// them, possibly compressed. A workflow that cannot be decoded has only its metadata, and is marked
// (malformed.Of).
func (c *Client) List(ctx context.Context, q Query, each func(*wf.Workflow) error) error {
	options := metav1.ListOptions{LabelSelector: q.selector(), FieldSelector: q.Fields, Limit: cmp.Or(max(q.PageSize, 0), defaultPage)}
	list := func(o metav1.ListOptions) (runtime.Object, error) {
		page := &wf.WorkflowList{}
		return page, explain(kubeclient.ListLeniently(ctx, c.tolerant.Get().NamespaceIfScoped(q.Namespace, q.Namespace != "").Resource(Workflows).
			SpecificallyVersionedParams(&o, metav1.ParameterCodec, metaVersion), page))
	}
	return pager.New(pager.SimplePageFunc(list)).EachListItem(ctx, options, func(o runtime.Object) error {
		if w := o.(*wf.Workflow); q.matches(w, c.Now()) {
			return each(w)
		}
		return nil
	})
}

// ListOf lists the objects of another resource of the API into list. Like List, it marks objects
// that cannot be decoded.
func (c *Client) ListOf(ctx context.Context, resource, namespace, labels string, list runtime.Object) error {
	r := c.tolerant.Get().NamespaceIfScoped(namespace, namespace != "" && resource != ClusterTemplates).Resource(resource).
		SpecificallyVersionedParams(&metav1.ListOptions{LabelSelector: labels}, metav1.ParameterCodec, metaVersion)
	return explain(kubeclient.ListLeniently(ctx, r, list))
}

// Watch calls each with a workflow, its nodes unpacked: first in its present state, then after
// every change. It returns nil when each returns true, and an error when the workflow is deleted
// or ctx is done.
func (c *Client) Watch(ctx context.Context, namespace, name string, each func(*wf.Workflow) (done bool)) error {
	// An informer would retry forever if there is no server.
	if err := c.Read(ctx, Workflows, namespace, name, &wf.Workflow{}); err != nil {
		return err
	}
	gone := fmt.Errorf("workflow %s/%s was deleted", namespace, name)
	return submit.Until(ctx, c.rest, Workflows, namespace, name, gone, func(w *wf.Workflow) (bool, error) {
		w = w.DeepCopy()
		if err := unpack(w); err != nil {
			return false, err
		}
		return each(w), nil
	})
}

// Wait waits until a workflow is completed, and returns it.
func (c *Client) Wait(ctx context.Context, namespace, name string) (*wf.Workflow, error) {
	var last *wf.Workflow
	err := c.Watch(ctx, namespace, name, func(w *wf.Workflow) bool {
		last = w
		return w.Status.Phase.Completed()
	})
	return last, err
}
