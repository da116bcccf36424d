// Package install puts into a cluster what Lockstep needs there: CRDs, access rights, policies, flow control, the
// queues that always exist, and the built-in definitions that applications are made with.
//
// It is a tool of administrators and writes by itself, not through package apiwriter: it runs before the manager, with
// other rights, a few dozen writes at most.
package install

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/config"
	"lockstep.dev/lockstep/internal/application/render"
)

// ManagedByLabel with value ManagedBy is on everything that Install makes.
const (
	ManagedByLabel = "app.kubernetes.io/managed-by"
	ManagedBy      = "lockstep"
)

// TakenOverAnnotation is on objects that were there before Install, made by somebody else. Uninstall leaves them.
const TakenOverAnnotation = "lockstep.dev/taken-over"

// AppliedAnnotation is the hash of the object as it was last applied. It tells what a comparison with the live object
// cannot: that something has been taken out.
const AppliedAnnotation = "lockstep.dev/applied"

// resources maps the kinds in package config to their resources; kinds that are not here are plain plurals.
var resources = map[string]string{
	"ValidatingAdmissionPolicy":  "validatingadmissionpolicies",
	"MutatingAdmissionPolicy":    "mutatingadmissionpolicies",
	"NetworkPolicy":              "networkpolicies",
	"PriorityLevelConfiguration": "prioritylevelconfigurations",
}

// Options choose what is installed beside the APIs, the policies and the manager's rights.
type Options struct {
	// ActAsManager lets applications act with the manager's rights, and not with those of their authors.
	ActAsManager bool
	// Image runs the manager in the cluster. Empty: it is run elsewhere.
	Image string
	// ExecutorImage is what pods of workflows take lockstep-exec from. Empty: the manager's default.
	ExecutorImage string
	// AllowRequestsTo is what applications may reach beside public addresses: see egress.Config.
	AllowRequestsTo []string
	// Replicas is how many managers there are, of which one leads. 0: 2.
	Replicas int
	// Agent puts an agent on every node, from Image.
	Agent bool
	// CPUs has what is said of pods' CPUs checked. Agent does, too.
	CPUs bool
	// TakeOver goes on where others serve our kinds, and replaces their objects. Without it Install is a *ForeignError then,
	// and has changed nothing.
	TakeOver bool
	// Found is told what TakeOver goes on over; nil: nobody is.
	Found func(Finding)
	// DryRun has the API server check everything and keep nothing.
	DryRun bool
}

// Objects returns everything that is installed, in the order in which it is.
func Objects(opts Options) ([]*unstructured.Unstructured, error) {
	definitions, err := Definitions()
	if err != nil {
		return nil, err
	}
	workloads, err := workloads(opts)
	if err != nil {
		return nil, err
	}
	return marked(slices.Concat(beforeServed(opts, true), config.Queues(), definitions, workloads)), nil
}

// beforeServed is what does not need our own kinds to be served yet. records says that the API server can record who wrote an
// application.
func beforeServed(opts Options, records bool) []*unstructured.Unstructured {
	out := slices.Concat(config.CRDs(), config.RBAC(), config.FlowControl(), config.Policies())
	if opts.CPUs || opts.Agent {
		out = append(out, config.CPUPolicies()...)
	}
	if !records {
		out = slices.DeleteFunc(out, needsMutatingPolicies)
	}
	if opts.ActAsManager {
		for _, o := range config.ActAsManager() {
			at := slices.IndexFunc(out, func(x *unstructured.Unstructured) bool {
				return x.GetKind() == o.GetKind() && x.GetName() == o.GetName()
			})
			out[at] = o
		}
	}
	for _, o := range out {
		if o.GetKind() == "ClusterRole" && o.GetName() == config.ApplicationEditRole {
			labels := o.GetLabels()
			for key := range labels {
				labels[key] = fmt.Sprint(records && !opts.ActAsManager)
			}
			o.SetLabels(labels)
		}
	}
	return out
}

// workloads are the manager and the agents, with the images and arguments that opts ask for.
func workloads(opts Options) ([]*unstructured.Unstructured, error) {
	if opts.Image == "" {
		if opts.Agent {
			return nil, errors.New("agents need an image")
		}
		return nil, nil
	}
	var args []any
	if opts.ActAsManager {
		args = append(args, "--applications-act-as-manager")
	}
	if len(opts.AllowRequestsTo) > 0 {
		args = append(args, "--allow-requests-to="+strings.Join(opts.AllowRequestsTo, ","))
	}
	if opts.ExecutorImage != "" {
		args = append(args, "--executor-image="+opts.ExecutorImage)
	}
	out := config.Manager()
	if opts.Agent {
		out = append(out, config.Agent()...)
	}
	for _, o := range out {
		containers, _, err := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
		if err != nil || len(containers) != 1 {
			return nil, fmt.Errorf("%s %s has %d containers: %w", o.GetKind(), o.GetName(), len(containers), err)
		}
		c := containers[0].(map[string]any)
		c["image"] = opts.Image
		if o.GetKind() == "Deployment" {
			c["args"] = append(c["args"].([]any), args...)
			if err := unstructured.SetNestedField(o.Object, int64(cmp.Or(opts.Replicas, 2)), "spec", "replicas"); err != nil {
				return nil, err
			}
		}
		if err := unstructured.SetNestedSlice(o.Object, containers, "spec", "template", "spec", "containers"); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Change is what Install did to an object.
type Change string

const (
	Created    Change = "created"
	Configured Change = "configured"
	Unchanged  Change = "unchanged"
	// Removed is of what an earlier version installed and this one does not.
	Removed Change = "removed"
	// Kept is of what has the name of such an object and was made by somebody else.
	Kept Change = "kept: not made by 'lockstep install'"
)

// Apply brings the APIs, the policies and the manager's rights into the cluster: Install without options.
func Apply(ctx context.Context, cfg *rest.Config) error { return With(Options{})(ctx, cfg) }

// With returns Install with these options.
func With(opts Options) func(context.Context, *rest.Config) error {
	return func(ctx context.Context, cfg *rest.Config) error {
		return Install(ctx, cfg, opts, func(*unstructured.Unstructured, Change) {})
	}
}

// Install brings everything of Objects into the cluster and returns when its APIs are served. What is already there as it
// should be is left alone: a second Install writes nothing. It calls done for each object.
// What earlier versions installed and this one does not, it removes. cfg needs the rights of a
// cluster administrator. It gives up when ctx is done. On API servers before Kubernetes 1.36, which cannot change objects by
// policy, it leaves out what needs that, and applications out of the roles edit and admin: see docs/security.md. Where others
// serve our kinds it changes nothing and returns a *ForeignError, unless Options.TakeOver.
func Install(ctx context.Context, cfg *rest.Config, opts Options, done func(*unstructured.Unstructured, Change)) error {
	// A few dozen requests, one after the other: the client's own rate limit would only add waits.
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.RateLimiter = -1, nil
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	definitions, err := Definitions()
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	workloads, err := workloads(opts)
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	w := &installer{client: client, opts: opts, live: map[*unstructured.Unstructured]*unstructured.Unstructured{}}
	each := func(list []*unstructured.Unstructured) error {
		for _, object := range list {
			change, err := w.bring(ctx, object)
			if err != nil {
				return fmt.Errorf("install %s %s: %w", object.GetKind(), object.GetName(), err)
			}
			done(object, change)
		}
		return nil
	}
	records, err := servesMutatingPolicies(ctx, client)
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	first := beforeServed(opts, records)
	first, then := marked(first), marked(slices.Concat(config.Queues(), definitions, workloads))
	foreign, err := w.look(ctx, slices.Concat(first, then))
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	if len(foreign) > 0 && opts.TakeOver && opts.Found != nil {
		for _, f := range foreign {
			opts.Found(f)
		}
	}
	if len(foreign) > 0 && !opts.TakeOver && !opts.DryRun {
		return &ForeignError{foreign}
	}
	if err := each(first); err != nil {
		return err
	}
	for _, crd := range config.CRDs() {
		if opts.DryRun {
			break
		}
		if err := awaitServed(ctx, client, crd); err != nil {
			return fmt.Errorf("install %s: not served: %w", crd.GetName(), err)
		}
	}
	if err := each(then); err != nil {
		return err
	}
	if err := w.removeRetired(ctx, done); err != nil {
		return err
	}
	if len(foreign) > 0 && !opts.TakeOver {
		return &ForeignError{foreign}
	}
	return nil
}

// installer writes the objects of one Install.
type installer struct {
	client dynamic.Interface
	opts   Options
	// live is what look has found under the objects' names.
	live map[*unstructured.Unstructured]*unstructured.Unstructured
}

// shared are the kinds of objects that several may use: one that is there is nobody's to replace.
func shared(object *unstructured.Unstructured) bool {
	return object.GetKind() == "Namespace" || object.GetKind() == "Queue"
}

// dryRun is the option of writes.
func (w *installer) dryRun() []string {
	if w.opts.DryRun {
		return []string{metav1.DryRunAll}
	}
	return nil
}

// bring brings one object into the cluster.
func (w *installer) bring(ctx context.Context, object *unstructured.Unstructured) (Change, error) {
	if shared(object) {
		return w.createMissing(ctx, object)
	}
	return w.apply(ctx, object)
}

// Definitions returns the built-in definitions of components, traits and so on, as they go into the cluster.
func Definitions() ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	for _, d := range config.Definitions() {
		object, err := render.ParseFile(d.File, d.Source, config.DefinitionFragment)
		if err != nil {
			return nil, err
		}
		o := &unstructured.Unstructured{Object: object}
		o.SetNamespace(oam.SystemNamespace)
		out = append(out, o)
	}
	return out, nil
}

// apply creates object, or updates it where it differs.
func (w *installer) apply(ctx context.Context, object *unstructured.Unstructured) (Change, error) {
	hash, err := hashOf(object)
	if err != nil {
		return "", err
	}
	live, looked := w.live[object]
	object.SetAnnotations(merge(object.GetAnnotations(), map[string]string{AppliedAnnotation: hash}))
	resource := resourceOf(w.client, object)
	change := Unchanged
	err = retry.OnError(retry.DefaultRetry, retriable, func() error {
		if !looked {
			if live, err = resource.Get(ctx, object.GetName(), metav1.GetOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return err
			} else if err != nil {
				live = nil
			}
		}
		looked = false
		if live == nil {
			change = Created
			_, err = resource.Create(ctx, object, metav1.CreateOptions{DryRun: w.dryRun()})
			if w.opts.DryRun && apierrors.IsNotFound(err) {
				return nil // its namespace or its kind would have been made before
			}
			return err
		}
		if contains(live.Object, object.Object) && (object.GroupVersionKind().Group != mutatingPolicies.Group || PolicyDiffers(live.Object, object.Object) == "") {
			change = Unchanged
			return nil
		}
		change = Configured
		// What others have put into the metadata stays. An aggregated ClusterRole's rules are ours to state.
		desired := object.DeepCopy()
		desired.SetResourceVersion(live.GetResourceVersion())
		desired.SetAnnotations(merge(live.GetAnnotations(), desired.GetAnnotations()))
		desired.SetLabels(merge(live.GetLabels(), desired.GetLabels()))
		if !ours(live) && !asWanted(live, object) {
			desired.SetAnnotations(merge(desired.GetAnnotations(), map[string]string{TakenOverAnnotation: "true"}))
		}
		_, err = resource.Update(ctx, desired, metav1.UpdateOptions{DryRun: w.dryRun()})
		return err
	})
	return change, err
}

// createMissing creates object unless there is one of its name.
func (w *installer) createMissing(ctx context.Context, object *unstructured.Unstructured) (Change, error) {
	if w.live[object] != nil {
		return Unchanged, nil
	}
	_, err := resourceOf(w.client, object).Create(ctx, object, metav1.CreateOptions{DryRun: w.dryRun()})
	switch {
	case apierrors.IsAlreadyExists(err):
		return Unchanged, nil
	case w.opts.DryRun && apierrors.IsNotFound(err):
		return Created, nil // its kind would have been made before
	}
	return Created, err
}

// retriable says whether another attempt may succeed: someone else was quicker.
func retriable(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)
}

// awaitServed waits until the objects of a CRD can be listed, which is a moment after the CRD says Established.
func awaitServed(ctx context.Context, client dynamic.Interface, crd *unstructured.Unstructured) error {
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "plural")
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	version, _, _ := unstructured.NestedString(versions[0].(map[string]any), "name")
	resource := client.Resource(schema.GroupVersionResource{Group: group, Version: version, Resource: plural})
	var last error
	err := wait.PollUntilContextCancel(ctx, 25*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		_, last = resource.List(ctx, metav1.ListOptions{Limit: 1})
		if last != nil && !apierrors.IsNotFound(last) && !apierrors.IsServiceUnavailable(last) {
			return false, last
		}
		return last == nil, nil
	})
	if err != nil && last != nil {
		return last
	}
	return err
}

// AwaitApplications returns when applications are admitted and their authors recorded, which is up to five seconds after
// Apply: so often the API server looks for the types that its policies may change. Before it knows the policies it admits
// applications of nobody; until it knows the types, it refuses them as 503; and if it knows the policy that checks authors
// before the one that fills them in, as forbidden. cfg is not the manager's, whose own writes to applications have no
// author. An API server that cannot record authors, see Install, admits them as soon as it serves them.
func AwaitApplications(ctx context.Context, cfg *rest.Config) error {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	app := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"components": []any{
		map[string]any{"name": "any", "type": "raw"},
	}}}}
	app.SetGroupVersionKind(oam.GroupVersion.WithKind("Application"))
	app.SetNamespace(metav1.NamespaceDefault)
	app.SetName("dry-run-of-lockstep")
	records, err := servesMutatingPolicies(ctx, client)
	if err != nil {
		return err
	}
	last := errors.New("nobody is recorded as an application's author")
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, admittedAtMost, true, func(ctx context.Context) (bool, error) {
		made, err := resourceOf(client, app).Create(ctx, app, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		switch {
		case apierrors.IsServiceUnavailable(err), apierrors.IsForbidden(err) && strings.Contains(err.Error(), config.AuthorsPolicy),
			apierrors.IsNotFound(err): // a server that has just started has no namespaces yet
			last = err
			return false, nil
		case err != nil:
			return false, err
		}
		return !records || made.GetAnnotations()[oam.UsernameAnnotation] != "", nil
	})
	if err != nil {
		return fmt.Errorf("applications are not admitted: %w", errors.Join(err, last))
	}
	return nil
}

// admittedAtMost bounds AwaitApplications.
const admittedAtMost = 30 * time.Second

func resourceOf(client dynamic.Interface, object *unstructured.Unstructured) dynamic.ResourceInterface {
	gvk := object.GroupVersionKind()
	gvr, _ := meta.UnsafeGuessKindToResource(gvk)
	if plural, ok := resources[gvk.Kind]; ok {
		gvr.Resource = plural
	}
	if ns := object.GetNamespace(); ns != "" {
		return client.Resource(gvr).Namespace(ns)
	}
	return client.Resource(gvr)
}

func hashOf(object *unstructured.Unstructured) (string, error) {
	data, err := json.Marshal(object.Object)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8]), nil
}

// contains says whether live has everything that desired has; live may have more, namely the server's defaults.
func contains(live, desired any) bool {
	switch desired := desired.(type) {
	case map[string]any:
		live, ok := live.(map[string]any)
		if !ok {
			return len(desired) == 0 && live == nil
		}
		for k, v := range desired {
			if !contains(live[k], v) {
				return false
			}
		}
		return true
	case []any:
		live, ok := live.([]any)
		if !ok || len(live) != len(desired) {
			return false
		}
		for i := range desired {
			if !contains(live[i], desired[i]) {
				return false
			}
		}
		return true
	}
	return number(live) == number(desired)
}

// number makes numbers comparable: a decoder gives a float where another gives an integer.
func number(v any) any {
	switch v := v.(type) {
	case int64:
		return float64(v)
	case int:
		return float64(v)
	}
	return v
}

func merge(base, over map[string]string) map[string]string {
	out := maps.Clone(base)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, over)
	return out
}
