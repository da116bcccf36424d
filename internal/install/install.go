// Package install installs the objects that Lockstep needs in a cluster: CRDs, access rights,
// policies, flow control, the queues that always exist, and the built-in definitions and views of
// applications.
//
// It is a tool for administrators and writes to the API server itself, not through package
// apiwriter: it runs before the manager, with other rights, and makes a few dozen writes at most.
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
	"strconv"
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
	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/config"
	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// ManagedByLabel, with the value ManagedBy, is on all objects that Install creates.
const (
	ManagedByLabel = "app.kubernetes.io/managed-by"
	ManagedBy      = "lockstep"
)

// TakenOverAnnotation marks objects that another party created before Install took them over.
// Uninstall leaves them in place.
const TakenOverAnnotation = "lockstep.dev/taken-over"

// AppliedAnnotation holds the hash of the object as last applied. It shows that a part has been
// removed from the manifest, which a comparison with the live object cannot show.
const AppliedAnnotation = "lockstep.dev/applied"

// The scheduler configuration is in the ConfigMap of config/manager.yaml, under schedulerConfigKey,
// and in schedulerConfigFolder of the manager's container. schedulerConfigAnnotation on the pods has
// its hash.
const (
	schedulerConfigKey        = "scheduler.conf"
	schedulerConfigFolder     = "/etc/lockstep/scheduler/"
	schedulerConfigAnnotation = "lockstep.dev/scheduler-config"
)

// resources maps kinds in package config to their resources. Kinds that are not listed have regular
// plurals.
var resources = map[string]string{
	"ValidatingAdmissionPolicy":  "validatingadmissionpolicies",
	"MutatingAdmissionPolicy":    "mutatingadmissionpolicies",
	"NetworkPolicy":              "networkpolicies",
	"PriorityLevelConfiguration": "prioritylevelconfigurations",
}

// Options select what is installed besides the APIs, the policies and the manager's rights.
type Options struct {
	// ActAsManager lets applications act with the manager's rights instead of their authors'.
	ActAsManager bool
	// AnyKind lets the manager read and delete objects of every kind, so that applications can have
	// them. A later Install without it removes that right.
	AnyKind bool
	// RefuseUnservedKinds installs the policy that refuses definitions whose outputs have kinds that the
	// cluster does not serve. A later Install without it removes the policy.
	RefuseUnservedKinds bool
	// Image is the image of the manager in the cluster. Empty means that the manager runs
	// elsewhere.
	Image string
	// ExecutorImage is the image from which workflow pods take lockstep-exec. Empty means the
	// manager's default.
	ExecutorImage string
	// AllowRequestsTo lists the destinations that applications may reach besides public addresses:
	// see egress.Config.
	AllowRequestsTo []string
	// JobPodGroups makes the manager keep a PodGroup for each Job.
	JobPodGroups bool
	// PodsOfWaitingJobs makes the manager create about so many pods of Jobs that wait for room. 0 means
	// none.
	PodsOfWaitingJobs int
	// SchedulerConfig is a scheduler configuration for the manager (see package scheduler/config), or
	// empty.
	SchedulerConfig string
	// WorkflowConfigMap is the ConfigMap with the configuration of workflows, NAMESPACE/NAME. Empty
	// means the manager's default.
	WorkflowConfigMap string
	// Replicas is the number of managers, of which one is the leader. 0 means 2.
	Replicas int
	// Agent installs an agent on every node, from Image. AgentArgs are further arguments of it.
	Agent     bool
	AgentArgs []string
	// CPUs installs the policies that check pods' CPU annotations, and that give pods which request
	// CPUs and name no scheduler Lockstep's, in namespaces labelled for it. Agent implies it.
	CPUs bool
	// CPUsEverywhere gives such pods Lockstep's scheduler in all namespaces, except those labelled
	// "none". It implies CPUs.
	CPUsEverywhere bool
	// TakeOver continues if other parties serve Lockstep's kinds, and replaces their objects.
	// Without it, Install returns a *ForeignError in that case and changes nothing.
	TakeOver bool
	// Found is called for each finding that TakeOver overrides; it may be nil.
	Found func(Finding)
	// DryRun lets the API server check all writes and store none.
	DryRun bool
}

// Objects returns all objects to install, in the order of installation.
func Objects(opts Options) ([]*unstructured.Unstructured, error) {
	definitions, err := Definitions()
	if err != nil {
		return nil, err
	}
	workloads, err := workloads(opts)
	if err != nil {
		return nil, err
	}
	return marked(slices.Concat(beforeServed(opts, true), config.Queues(), definitions, config.Views(), workloads)), nil
}

// beforeServed returns the objects that do not need Lockstep's own kinds to be served. records
// means that the API server can record who wrote an application.
func beforeServed(opts Options, records bool) []*unstructured.Unstructured {
	out := slices.Concat(config.CRDs(), config.RBAC(), config.FlowControl(), config.Policies())
	if opts.CPUs || opts.CPUsEverywhere || opts.Agent {
		out = append(out, cpuPolicies(opts.CPUsEverywhere)...)
	}
	if opts.AnyKind {
		out = append(out, config.AnyKind(opts.ActAsManager)...)
	}
	if opts.RefuseUnservedKinds {
		out = append(out, config.ServedKinds()...)
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

// cpuPolicies returns the policies on pods' CPUs. everywhere lets the one that gives pods a scheduler
// apply to all namespaces that are not labelled "none".
func cpuPolicies(everywhere bool) []*unstructured.Unstructured {
	out := config.CPUPolicies()
	for _, o := range out {
		if everywhere && o.GetName() == config.CPUSchedulersPolicy && o.GetKind() == "MutatingAdmissionPolicyBinding" {
			o.Object["spec"].(map[string]any)["matchResources"] = map[string]any{
				"namespaceSelector": map[string]any{"matchExpressions": []any{map[string]any{
					"key": topologyv1alpha1.SchedulerLabel, "operator": "NotIn", "values": []any{"none"},
				}}},
			}
		}
	}
	return out
}

// workloads returns the manager and the agents, with the images and arguments of opts.
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
	if opts.SchedulerConfig != "" {
		args = append(args, "--scheduler-config="+schedulerConfigFolder+schedulerConfigKey)
	}
	if opts.JobPodGroups {
		args = append(args, "--job-podgroups")
	}
	if opts.PodsOfWaitingJobs > 0 {
		args = append(args, "--pods-of-waiting-jobs="+strconv.Itoa(opts.PodsOfWaitingJobs))
	}
	if opts.WorkflowConfigMap != "" {
		args = append(args, "--workflow-configmap="+opts.WorkflowConfigMap)
	}
	out := config.Manager()
	if opts.Agent {
		out = append(out, config.Agent()...)
	}
	for _, o := range out {
		if o.GetKind() == "ConfigMap" {
			if opts.SchedulerConfig != "" {
				o.Object["data"] = map[string]any{schedulerConfigKey: opts.SchedulerConfig}
			}
			continue
		}
		containers, _, err := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
		if err != nil || len(containers) != 1 {
			return nil, fmt.Errorf("%s %s has %d containers: %w", o.GetKind(), o.GetName(), len(containers), err)
		}
		c := containers[0].(map[string]any)
		c["image"] = opts.Image
		if o.GetKind() == "DaemonSet" {
			for _, arg := range opts.AgentArgs {
				c["args"] = append(c["args"].([]any), arg)
			}
		}
		if o.GetKind() == "Deployment" {
			c["args"] = append(c["args"].([]any), args...)
			if opts.SchedulerConfig != "" { // a manager reads it once, so a change must start new pods
				sum := sha256.Sum256([]byte(opts.SchedulerConfig))
				if err := unstructured.SetNestedField(o.Object, hex.EncodeToString(sum[:8]),
					"spec", "template", "metadata", "annotations", schedulerConfigAnnotation); err != nil {
					return nil, err
				}
			}
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

// Change says what Install did to an object.
type Change string

const (
	Created    Change = "created"
	Configured Change = "configured"
	Unchanged  Change = "unchanged"
	// Removed is the change of an object that an earlier version installed and this version does
	// not.
	Removed Change = "removed"
	// Kept is the change of an object that has the name of such an object but was created by
	// another party.
	Kept Change = "kept: not made by 'lockstep install'"
)

// Apply installs the APIs, the policies and the manager's rights: it is Install without options.
func Apply(ctx context.Context, cfg *rest.Config) error { return With(Options{})(ctx, cfg) }

// With returns a function that calls Install with these options.
func With(opts Options) func(context.Context, *rest.Config) error {
	return func(ctx context.Context, cfg *rest.Config) error {
		return Install(ctx, cfg, opts, func(*unstructured.Unstructured, Change) {})
	}
}

// Install installs all objects of Objects, and returns when their APIs are served. Objects that are
// up to date are left alone: a second Install writes nothing. It removes objects that earlier
// versions installed and this version does not. It calls done for each object, and gives up when
// ctx is done. cfg needs the rights of a cluster administrator.
//
// API servers before Kubernetes 1.36 cannot change objects by policy. On these, Install omits the
// objects that need such policies, and omits applications from the roles edit and admin: see
// docs/security.md. If other parties serve Lockstep's kinds, Install changes nothing and returns a
// *ForeignError, unless Options.TakeOver is set.
func Install(ctx context.Context, cfg *rest.Config, opts Options, done func(*unstructured.Unstructured, Change)) error {
	// Install makes a few dozen requests one after the other; the client's own rate limit would
	// only add delays.
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
	first, then := marked(first), marked(slices.Concat(config.Queues(), definitions, config.Views(), workloads))
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
	// live maps each object to install to the live object that look has found under its name, or to
	// nil.
	live map[*unstructured.Unstructured]*unstructured.Unstructured
}

// shared reports whether the object is of a kind that several parties may use. An existing object
// of such a kind is not replaced.
func shared(object *unstructured.Unstructured) bool {
	return object.GetKind() == "Namespace" || object.GetKind() == "Queue"
}

// dryRun returns the dryRun option of writes.
func (w *installer) dryRun() []string { return kubeclient.DryRun(w.opts.DryRun).Option() }

// bring installs one object.
func (w *installer) bring(ctx context.Context, object *unstructured.Unstructured) (Change, error) {
	if shared(object) {
		return w.createMissing(ctx, object)
	}
	return w.apply(ctx, object)
}

// Definitions returns the built-in definitions of components, traits and so on, as they are
// installed.
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

// apply creates an object, or updates it if it differs.
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
				return nil // its namespace or its kind would have been created before
			}
			return err
		}
		if contains(live.Object, object.Object) && (object.GroupVersionKind().Group != mutatingPolicies.Group || PolicyDiffers(live.Object, object.Object) == "") {
			change = Unchanged
			return nil
		}
		change = Configured
		// Metadata set by other parties stays. The rules of an aggregated ClusterRole are replaced.
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

// createMissing creates an object unless an object of its name exists.
func (w *installer) createMissing(ctx context.Context, object *unstructured.Unstructured) (Change, error) {
	if w.live[object] != nil {
		return Unchanged, nil
	}
	_, err := resourceOf(w.client, object).Create(ctx, object, metav1.CreateOptions{DryRun: w.dryRun()})
	switch {
	case apierrors.IsAlreadyExists(err):
		return Unchanged, nil
	case w.opts.DryRun && apierrors.IsNotFound(err):
		return Created, nil // its kind would have been created before
	}
	return Created, err
}

// retriable reports whether another client was faster, so that another attempt may succeed.
func retriable(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)
}

// awaitServed waits until the objects of a CRD can be listed, which is shortly after the CRD
// becomes Established.
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

// AwaitApplications waits until applications are admitted and their authors recorded. This takes up
// to five seconds after Apply: the interval at which the API server looks up the types that its
// policies may change. Before it knows the policies, the API server admits applications without an
// author. Until it knows the types, it rejects applications with status 503. If it knows the policy
// that checks authors before the policy that fills them in, it rejects applications as forbidden.
// cfg must not be the manager's, whose own writes to applications have no author. An API server
// that cannot record authors (see Install) admits applications as soon as it serves them.
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

// admittedAtMost bounds the duration of AwaitApplications.
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

// contains reports whether live has everything that desired has. live may have more, such as the
// server's defaults.
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

// number makes numbers comparable: one decoder returns a float where another returns an integer.
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
