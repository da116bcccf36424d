// Package install puts into a cluster what Lockstep needs there: CRDs, access rights, policies, flow control, the
// queues that always exist, and the built-in definitions that applications are made with.
//
// It is a tool of administrators and writes by itself, not through package apiwriter: it runs before the manager, with
// other rights, a few dozen writes at most.
package install

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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

// Apply brings everything of package config into the cluster and returns when its APIs are served. What is already
// there as it should be is left alone: a second Apply writes nothing. cfg needs the rights of a cluster administrator.
// It gives up when ctx is done.
func Apply(ctx context.Context, cfg *rest.Config) error {
	// A few dozen requests, one after the other: the client's own rate limit would only add waits.
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.RateLimiter = -1, nil
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	crds := config.CRDs()
	for _, list := range [][]*unstructured.Unstructured{crds, config.RBAC(), config.FlowControl(), config.Policies()} {
		for _, object := range list {
			if err := apply(ctx, client, object); err != nil {
				return fmt.Errorf("install %s %s: %w", object.GetKind(), object.GetName(), err)
			}
		}
	}
	for _, crd := range crds {
		if err := awaitServed(ctx, client, crd); err != nil {
			return fmt.Errorf("install %s: not served: %w", crd.GetName(), err)
		}
	}
	for _, queue := range config.Queues() {
		if err := createMissing(ctx, client, queue); err != nil {
			return fmt.Errorf("install queue %s: %w", queue.GetName(), err)
		}
	}
	definitions, err := Definitions()
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	for _, definition := range definitions {
		if err := apply(ctx, client, definition); err != nil {
			return fmt.Errorf("install %s %s: %w", definition.GetKind(), definition.GetName(), err)
		}
	}
	return nil
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
func apply(ctx context.Context, client dynamic.Interface, object *unstructured.Unstructured) error {
	hash, err := hashOf(object)
	if err != nil {
		return err
	}
	object.SetAnnotations(merge(object.GetAnnotations(), map[string]string{AppliedAnnotation: hash}))
	resource := resourceOf(client, object)
	return retry.OnError(retry.DefaultRetry, retriable, func() error {
		live, err := resource.Get(ctx, object.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = resource.Create(ctx, object, metav1.CreateOptions{})
			return err
		}
		if err != nil {
			return err
		}
		if contains(live.Object, object.Object) {
			return nil
		}
		// What others have put into the metadata stays. An aggregated ClusterRole's rules are ours to state.
		desired := object.DeepCopy()
		desired.SetResourceVersion(live.GetResourceVersion())
		desired.SetAnnotations(merge(live.GetAnnotations(), desired.GetAnnotations()))
		desired.SetLabels(merge(live.GetLabels(), desired.GetLabels()))
		_, err = resource.Update(ctx, desired, metav1.UpdateOptions{})
		return err
	})
}

// createMissing creates object unless there is one of its name.
func createMissing(ctx context.Context, client dynamic.Interface, object *unstructured.Unstructured) error {
	resource := resourceOf(client, object)
	_, err := resource.Get(ctx, object.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if _, err = resource.Create(ctx, object, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			return nil
		}
	}
	return err
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
// applications of nobody, then, until it knows the types, it refuses them as 503. cfg is not the manager's, whose own
// writes to applications have no author.
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
	last := errors.New("nobody is recorded as an application's author")
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, admittedAtMost, true, func(ctx context.Context) (bool, error) {
		made, err := resourceOf(client, app).Create(ctx, app, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		switch {
		case apierrors.IsServiceUnavailable(err):
			last = err
			return false, nil
		case err != nil:
			return false, err
		}
		return made.GetAnnotations()[oam.UsernameAnnotation] != "", nil
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
