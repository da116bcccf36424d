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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"
	"k8s.io/client-go/util/retry"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/config"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// RemoveOptions select what Uninstall removes, and how.
type RemoveOptions struct {
	// CRDs removes the CRDs that Install created, and with them every object of their kinds.
	// Otherwise the CRDs stay with all their objects: queues, definitions and objects of users.
	CRDs bool
	// Wait makes Uninstall return only when everything is deleted.
	Wait bool
	// DryRun lets the API server check all writes and store none.
	DryRun bool
}

// Content is the number of objects of a CRD.
type Content struct {
	CRD   string
	Count int64
}

// Contents returns the number of objects of each CRD that Uninstall would remove.
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

// uninstaller removes what Install created.
type uninstaller struct {
	client    dynamic.Interface
	discovery discovery.DiscoveryInterface
	opts      RemoveOptions
	// done is called with the outcome for an object. kept says why the object stays; empty means
	// that it is deleted.
	done func(o *unstructured.Unstructured, kept string)
}

func newUninstaller(cfg *rest.Config, opts RemoveOptions) (*uninstaller, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.RateLimiter = -1, nil
	cfg.WarningHandler = rest.NoWarnings{} // the uninstaller also lists deprecated kinds
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	d, err := discovery.NewDiscoveryClientForConfig(cfg)
	return &uninstaller{client: client, discovery: d, opts: opts}, err
}

// Uninstall removes what Install has created and nothing else. Objects that other parties created
// stay, even if Install has taken them over, and so do namespaces that contain objects of other
// parties. Uninstall may be repeated. It removes the manager first, so that no controller reacts to
// the other deletions: what applications have deployed keeps running.
func Uninstall(ctx context.Context, cfg *rest.Config, opts RemoveOptions, done func(o *unstructured.Unstructured, kept string)) error {
	u, err := newUninstaller(cfg, opts)
	if err != nil {
		return err
	}
	u.done = done
	// Everything that Install may create with any options.
	workloads := append(config.Manager(), config.Agent()...)
	rest := slices.Concat(config.Policies(), config.CPUPolicies(), config.FlowControl(), config.RBAC(), config.AnyKind(false), config.ServedKinds(), config.Views(), config.Retired())
	var namespaces []*unstructured.Unstructured
	rest = slices.DeleteFunc(rest, func(o *unstructured.Unstructured) bool {
		if o.GetKind() != "Namespace" {
			return false
		}
		namespaces = append(namespaces, o)
		return true
	})
	// 1. The manager and the agents.
	if err := u.removeAll(ctx, workloads); err != nil {
		return err
	}
	if err := u.awaitPods(ctx, workloads); err != nil {
		return err
	}
	// 2. Their access rights, and the policies of the API server.
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
	// 4. The namespaces, unless they contain something else.
	for _, ns := range namespaces {
		if err := u.removeNamespace(ctx, ns); err != nil {
			return fmt.Errorf("uninstall %s: %w", nameOf(ns), err)
		}
	}
	return nil
}

// notOurs returns the reason why an object must not be removed, or "".
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

// remove deletes an object that Install has created.
func (u *uninstaller) remove(ctx context.Context, o *unstructured.Unstructured) error {
	_, err := u.removeUnless(ctx, o, func(live *unstructured.Unstructured) (string, error) { return notOurs(live), nil })
	return err
}

// removeUnless deletes the live object of o and calls done with the outcome. It returns false if
// there is nothing to delete, or keep returns a reason to keep the object.
func (u *uninstaller) removeUnless(ctx context.Context, o *unstructured.Unstructured,
	keep func(live *unstructured.Unstructured) (string, error)) (removed bool, err error) {
	live, kept, err := removeLive(ctx, resourceOf(u.client, o), o.GetName(), kubeclient.DryRun(u.opts.DryRun), keep)
	if live == nil || err != nil {
		return false, err
	}
	u.done(live, kept)
	return kept == "", nil
}

// removeLive deletes the object of a name, unless keep returns a reason to keep it. It deletes
// exactly the object that keep has seen, not another one of that name created since. live is nil if
// there is no object, or if the object is being deleted already.
func removeLive(ctx context.Context, resource dynamic.ResourceInterface, name string, dryRun kubeclient.DryRun,
	keep func(live *unstructured.Unstructured) (string, error)) (live *unstructured.Unstructured, kept string, err error) {
	live, err = resource.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && live.GetDeletionTimestamp() != nil {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	if kept, err = keep(live); kept != "" || err != nil {
		return live, kept, err
	}
	uid, background := live.GetUID(), metav1.DeletePropagationBackground
	err = resource.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid},
		PropagationPolicy: &background, DryRun: dryRun.Option()})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return live, "", err
}

// removePoll is the interval at which the uninstaller checks whether an object is deleted.
const removePoll = 100 * time.Millisecond

// awaitPods waits until the pods of the removed workloads are deleted.
func (u *uninstaller) awaitPods(ctx context.Context, workloads []*unstructured.Unstructured) error {
	if u.opts.DryRun {
		return nil
	}
	for _, o := range workloads {
		if _, err := resourceOf(u.client, o).Get(ctx, o.GetName(), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			if err == nil {
				continue // the workload stays
			}
			return err
		}
		labels, _, _ := unstructured.NestedStringMap(o.Object, "spec", "selector", "matchLabels")
		if len(labels) == 0 {
			continue // it has no pods
		}
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

// finalizers are the finalizers that the manager would remove from deleted objects.
var finalizers = map[string]bool{oam.ResourceTrackerFinalizer: true, oam.OrphanFinalizer: true, oam.TrackerFinalizer: true, wf.FinalizerArtifactGC: true}

// emptyCRDs removes the manager's finalizers from the objects of deleted CRDs, because the manager,
// which would remove them, no longer runs. With Wait it waits until the CRDs are deleted.
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

// letGo removes the manager's finalizers from all objects of a CRD.
func (u *uninstaller) letGo(ctx context.Context, crd *unstructured.Unstructured) error {
	served, ok := servedBy(crd)
	if !ok {
		return nil
	}
	resource := u.client.Resource(served)
	list := func(o metav1.ListOptions) (runtime.Object, error) {
		list, err := resource.List(ctx, o)
		if apierrors.IsNotFound(err) {
			return &unstructured.UnstructuredList{}, nil // no longer served
		}
		return list, err
	}
	return pager.New(pager.SimplePageFunc(list)).EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		object := o.(*unstructured.Unstructured)
		if err := free(ctx, resource.Namespace(object.GetNamespace()), object); err != nil {
			return fmt.Errorf("%s: %w", nameOf(object), err)
		}
		return nil
	})
}

// free removes the manager's finalizers from an object, which may change meanwhile.
func free(ctx context.Context, resource dynamic.ResourceInterface, o *unstructured.Unstructured) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		kept := slices.DeleteFunc(o.GetFinalizers(), func(f string) bool { return finalizers[f] })
		if len(kept) == len(o.GetFinalizers()) {
			return nil
		}
		o.SetFinalizers(kept)
		_, err := resource.Update(ctx, o, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) {
			now, gone := resource.Get(ctx, o.GetName(), metav1.GetOptions{})
			if gone != nil {
				return gone
			}
			o = now
		}
		return err
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// removeNamespace deletes a namespace that Install has created and that contains nothing of other
// parties.
func (u *uninstaller) removeNamespace(ctx context.Context, ns *unstructured.Unstructured) error {
	removed, err := u.removeUnless(ctx, ns, func(live *unstructured.Unstructured) (string, error) {
		if kept := notOurs(live); kept != "" {
			return kept, nil
		}
		return u.holds(ctx, ns.GetName())
	})
	if err != nil || !removed || u.opts.DryRun || !u.opts.Wait {
		return err
	}
	err = wait.PollUntilContextCancel(ctx, removePoll, true, func(ctx context.Context) (bool, error) {
		_, err := resourceOf(u.client, ns).Get(ctx, ns.GetName(), metav1.GetOptions{})
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

// holds describes what a namespace contains besides the objects that Install or Kubernetes itself
// created. It returns "" if there is nothing else.
func (u *uninstaller) holds(ctx context.Context, namespace string) (string, error) {
	lists, err := u.discovery.ServerPreferredNamespacedResources()
	if err != nil {
		// Objects of an aggregated API that does not answer now cannot be listed.
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
				continue // a kind whose CRD has just been deleted
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

// comesAlong reports whether an object in a namespace was created by Install or belongs to the
// namespace itself.
func (u *uninstaller) comesAlong(o *unstructured.Unstructured) bool {
	switch {
	case o.GetDeletionTimestamp() != nil, len(o.GetOwnerReferences()) > 0:
		return true // it is deleted together with its owner
	case o.GetKind() == "ConfigMap" && o.GetName() == "kube-root-ca.crt", o.GetKind() == "ServiceAccount" && o.GetName() == "default":
		return true
	case o.GetKind() == "Lease" && strings.HasPrefix(o.GetName(), "lockstep-"):
		return true // leases of the managers
	}
	// In a dry run the objects that Install created still exist.
	return u.opts.DryRun && ours(o) && (u.opts.CRDs || !strings.HasSuffix(o.GroupVersionKind().Group, oam.GroupVersion.Group))
}
