package install

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/config"
)

// RemoveOptions say what Uninstall removes, and how.
type RemoveOptions struct {
	// CRDs removes the CRDs that Install made, and with them every object of theirs. Otherwise the CRDs stay with all that
	// is in them: queues, definitions, what users made.
	CRDs bool
	// Wait returns when everything is gone.
	Wait bool
	// DryRun has the API server check everything and keep nothing.
	DryRun bool
}

// Content is how many objects a CRD holds.
type Content struct {
	CRD   string
	Count int64
}

// Contents returns how many objects each CRD holds that Uninstall would remove.
func Contents(ctx context.Context, cfg *rest.Config) ([]Content, error) {
	u, err := newUninstaller(cfg, RemoveOptions{})
	if err != nil {
		return nil, err
	}
	var out []Content
	for _, crd := range config.CRDs() {
		live, err := resourceOf(u.client, crd).Get(ctx, crd.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && notOurs(live) != "" {
			continue
		}
		if err != nil {
			return nil, err
		}
		n, err := Count(ctx, u.client, live)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", crd.GetName(), err)
		}
		out = append(out, Content{crd.GetName(), n})
	}
	return out, nil
}

// uninstaller removes what Install made.
type uninstaller struct {
	client    dynamic.Interface
	discovery discovery.DiscoveryInterface
	opts      RemoveOptions
	// done is told what has become of an object; kept is why it stays, empty: it is deleted.
	done func(o *unstructured.Unstructured, kept string)
}

func newUninstaller(cfg *rest.Config, opts RemoveOptions) (*uninstaller, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.RateLimiter = -1, nil
	cfg.WarningHandler = rest.NoWarnings{} // it looks at kinds that are deprecated, too
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	d, err := discovery.NewDiscoveryClientForConfig(cfg)
	return &uninstaller{client: client, discovery: d, opts: opts}, err
}

// Uninstall removes what Install has made and nothing else: objects that others made, also when Install has taken them
// over, and namespaces that hold anything of others stay. It may be called again. First the manager goes, so that nobody
// reacts to the rest: what applications have deployed runs on.
func Uninstall(ctx context.Context, cfg *rest.Config, opts RemoveOptions, done func(o *unstructured.Unstructured, kept string)) error {
	u, err := newUninstaller(cfg, opts)
	if err != nil {
		return err
	}
	u.done = done
	// Everything that any options install.
	workloads := append(config.Manager(), config.Agent()...)
	rest := slices.Concat(config.Policies(), config.CPUPolicies(), config.FlowControl(), config.RBAC(), config.Retired())
	var namespaces []*unstructured.Unstructured
	rest = slices.DeleteFunc(rest, func(o *unstructured.Unstructured) bool {
		if o.GetKind() != "Namespace" {
			return false
		}
		namespaces = append(namespaces, o)
		return true
	})
	// 1. Those who act.
	if err := u.removeAll(ctx, workloads); err != nil {
		return err
	}
	if err := u.awaitPods(ctx, workloads); err != nil {
		return err
	}
	// 2. What they act by, and what the API server does for them.
	if err := u.removeAll(ctx, rest); err != nil {
		return err
	}
	// 3. The APIs.
	if opts.CRDs {
		if err := u.removeAll(ctx, config.CRDs()); err != nil {
			return err
		}
		if err := u.emptyCRDs(ctx); err != nil {
			return err
		}
	}
	// 4. The namespaces, of what is left.
	for _, ns := range namespaces {
		if err := u.removeNamespace(ctx, ns); err != nil {
			return fmt.Errorf("uninstall %s: %w", nameOf(ns), err)
		}
	}
	return nil
}

// notOurs says why an object is not to be removed.
func notOurs(live *unstructured.Unstructured) string {
	switch {
	case !ours(live):
		return "not made by 'lockstep install'"
	case live.GetAnnotations()[TakenOverAnnotation] != "":
		return "was there before Lockstep, which has taken it over"
	}
	return ""
}

func (u *uninstaller) removeAll(ctx context.Context, objects []*unstructured.Unstructured) error {
	for _, o := range objects {
		if err := u.remove(ctx, o); err != nil {
			return fmt.Errorf("uninstall %s: %w", nameOf(o), err)
		}
	}
	return nil
}

// remove deletes an object that Install has made.
func (u *uninstaller) remove(ctx context.Context, o *unstructured.Unstructured) error {
	resource := resourceOf(u.client, o)
	live, err := resource.Get(ctx, o.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && live.GetDeletionTimestamp() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	if kept := notOurs(live); kept != "" {
		u.done(live, kept)
		return nil
	}
	if err := u.delete(ctx, resource, live); err != nil {
		return err
	}
	u.done(live, "")
	return nil
}

// delete deletes the object that was looked at, and not another one of its name that somebody has made since.
func (u *uninstaller) delete(ctx context.Context, resource dynamic.ResourceInterface, live *unstructured.Unstructured) error {
	uid, background := live.GetUID(), metav1.DeletePropagationBackground
	o := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &background}
	if u.opts.DryRun {
		o.DryRun = []string{metav1.DryRunAll}
	}
	if err := resource.Delete(ctx, live.GetName(), o); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

// removePoll is between two looks at whether something is gone.
const removePoll = 100 * time.Millisecond

// awaitPods returns when the pods of the workloads that are gone are gone.
func (u *uninstaller) awaitPods(ctx context.Context, workloads []*unstructured.Unstructured) error {
	if u.opts.DryRun {
		return nil
	}
	for _, o := range workloads {
		if _, err := resourceOf(u.client, o).Get(ctx, o.GetName(), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			if err == nil {
				continue // it stays
			}
			return err
		}
		labels, _, _ := unstructured.NestedStringMap(o.Object, "spec", "selector", "matchLabels")
		selector := metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: labels})
		pods := u.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).Namespace(o.GetNamespace())
		err := wait.PollUntilContextCancel(ctx, removePoll, true, func(ctx context.Context) (bool, error) {
			list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: selector})
			return err == nil && len(list.Items) == 0, err
		})
		if err != nil {
			return fmt.Errorf("uninstall %s: its pods are still there: %w", nameOf(o), err)
		}
	}
	return nil
}

// finalizers are those that the manager would take off objects which are deleted.
var finalizers = map[string]bool{oam.ResourceTrackerFinalizer: true, oam.OrphanFinalizer: true, wf.FinalizerArtifactGC: true}

// emptyCRDs has the objects of deleted CRDs go, which would wait for the manager, and waits for the CRDs' end.
func (u *uninstaller) emptyCRDs(ctx context.Context) error {
	if u.opts.DryRun {
		return nil
	}
	var left []string
	err := wait.PollUntilContextCancel(ctx, removePoll, true, func(ctx context.Context) (bool, error) {
		left = nil
		for _, crd := range config.CRDs() {
			live, err := resourceOf(u.client, crd).Get(ctx, crd.GetName(), metav1.GetOptions{})
			if apierrors.IsNotFound(err) || err == nil && live.GetDeletionTimestamp() == nil {
				continue
			}
			if err == nil {
				left = append(left, crd.GetName())
				err = u.letGo(ctx, live)
			}
			if err != nil {
				return false, fmt.Errorf("%s: %w", crd.GetName(), err)
			}
		}
		return len(left) == 0 || !u.opts.Wait, nil
	})
	if err != nil && len(left) > 0 {
		return fmt.Errorf("uninstall: still there are %s, maybe because objects of theirs have finalizers of others: %w", strings.Join(left, ", "), err)
	}
	return err
}

// letGo takes the manager's finalizers off all objects of a CRD.
func (u *uninstaller) letGo(ctx context.Context, crd *unstructured.Unstructured) error {
	served, ok := servedBy(crd)
	if !ok {
		return nil
	}
	list, err := u.client.Resource(served).List(ctx, metav1.ListOptions{Limit: 500}) // the next look has the rest
	if err != nil {
		if apierrors.IsNotFound(err) {
			return nil // no longer served
		}
		return err
	}
	for i := range list.Items {
		o := &list.Items[i]
		kept := slices.DeleteFunc(o.GetFinalizers(), func(f string) bool { return finalizers[f] })
		if len(kept) == len(o.GetFinalizers()) {
			continue
		}
		o.SetFinalizers(kept)
		to := u.client.Resource(served).Namespace(o.GetNamespace())
		if _, err := to.Update(ctx, o, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("%s: %w", nameOf(o), err)
		}
	}
	return nil
}

// removeNamespace deletes a namespace that Install has made and that holds nothing of others.
func (u *uninstaller) removeNamespace(ctx context.Context, ns *unstructured.Unstructured) error {
	resource := resourceOf(u.client, ns)
	live, err := resource.Get(ctx, ns.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && live.GetDeletionTimestamp() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	kept := notOurs(live)
	if kept == "" {
		if kept, err = u.holds(ctx, ns.GetName()); err != nil {
			return err
		}
	}
	if kept != "" {
		u.done(live, kept)
		return nil
	}
	if err := u.delete(ctx, resource, live); err != nil {
		return err
	}
	u.done(live, "")
	if u.opts.DryRun || !u.opts.Wait {
		return nil
	}
	err = wait.PollUntilContextCancel(ctx, removePoll, true, func(ctx context.Context) (bool, error) {
		_, err := resource.Get(ctx, ns.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
	if err != nil {
		return fmt.Errorf("is still there: %w", err)
	}
	return nil
}

// holds says what a namespace holds beside what Install made and what comes and goes by itself; empty: nothing.
func (u *uninstaller) holds(ctx context.Context, namespace string) (string, error) {
	lists, err := u.discovery.ServerPreferredNamespacedResources()
	if err != nil {
		// What is served by somebody who does not answer now cannot be seen.
		return fmt.Sprintf("what it holds cannot be seen: %v", err), nil
	}
	counts := map[string]int{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return "", err
		}
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "list") || !slices.Contains(r.Verbs, "delete") || r.Kind == "Event" {
				continue
			}
			objects, err := u.client.Resource(gv.WithResource(r.Name)).Namespace(namespace).List(ctx, metav1.ListOptions{})
			if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
				continue // a kind whose CRD has just gone
			}
			if err != nil {
				return "", fmt.Errorf("%s: %w", r.Name, err)
			}
			for i := range objects.Items {
				if o := &objects.Items[i]; !u.comesAlong(o) {
					counts[schema.GroupResource{Group: gv.Group, Resource: r.Name}.String()]++
				}
			}
		}
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[name], name))
	}
	if len(parts) == 0 {
		return "", nil
	}
	return "holds " + strings.Join(parts, ", "), nil
}

// comesAlong reports whether an object in a namespace is of what Install made or of the namespace itself.
func (u *uninstaller) comesAlong(o *unstructured.Unstructured) bool {
	switch {
	case o.GetDeletionTimestamp() != nil, len(o.GetOwnerReferences()) > 0:
		return true // it goes with somebody
	case o.GetKind() == "ConfigMap" && o.GetName() == "kube-root-ca.crt", o.GetKind() == "ServiceAccount" && o.GetName() == "default":
		return true
	case o.GetKind() == "Lease" && strings.HasPrefix(o.GetName(), "lockstep-"):
		return true // the managers'
	}
	// In a dry run what Install made is still there.
	return u.opts.DryRun && ours(o) && (u.opts.CRDs || !strings.HasSuffix(o.GroupVersionKind().Group, oam.GroupVersion.Group))
}
