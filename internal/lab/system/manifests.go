package system

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// readManifests returns the objects of a file, or of the YAML and JSON files of a folder.
func readManifests(path string) (out []*unstructured.Unstructured, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	paths := []string{path}
	if info.IsDir() {
		paths = nil
		for _, pattern := range []string{"*.yaml", "*.yml", "*.json"} {
			found, err := filepath.Glob(filepath.Join(path, pattern))
			if err != nil {
				return nil, err
			}
			paths = append(paths, found...)
		}
		slices.Sort(paths)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
		for n := 1; ; n++ {
			u := &unstructured.Unstructured{}
			err := decoder.Decode(&u.Object)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("%s: document %d: %w", path, n, err)
			}
			if len(u.Object) == 0 {
				continue
			}
			if u.GetKind() == "" || u.GetAPIVersion() == "" || u.GetName() == "" {
				return nil, fmt.Errorf("%s: document %d: has no apiVersion, kind or name", path, n)
			}
			out = append(out, u)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: has no objects", path)
	}
	return out, nil
}

// servedTimeout bounds the wait until the kinds of CustomResourceDefinitions are served.
const servedTimeout = 30 * time.Second

// rank puts namespaces and CustomResourceDefinitions before the objects that need them.
func rank(u *unstructured.Unstructured) int {
	switch u.GetKind() {
	case "Namespace":
		return 0
	case "CustomResourceDefinition":
		return 1
	}
	return 2
}

// apply creates objects, and waits until the kinds that they define are served.
func apply(ctx context.Context, cfg *rest.Config, objects []*unstructured.Unstructured) error {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	disco, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return err
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco))
	objects = slices.Clone(objects)
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int { return cmp.Compare(rank(a), rank(b)) })
	for _, u := range objects {
		if err := create(ctx, client, mapper, u); err != nil {
			return fmt.Errorf("%s %s: %w", u.GetKind(), u.GetName(), err)
		}
	}
	return nil
}

func create(ctx context.Context, client dynamic.Interface, mapper *restmapper.DeferredDiscoveryRESTMapper,
	u *unstructured.Unstructured) error {
	gvk := u.GroupVersionKind()
	var mapping *meta.RESTMapping
	// The kind of a CustomResourceDefinition is served some time after the definition exists.
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, servedTimeout, true, func(context.Context) (done bool, err error) {
		mapping, err = mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		if meta.IsNoMatchError(err) {
			mapper.Reset()
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return fmt.Errorf("the server has no %s: %w", gvk, err)
	}
	var to dynamic.ResourceInterface = client.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		to = client.Resource(mapping.Resource).Namespace(cmp.Or(u.GetNamespace(), metav1.NamespaceDefault))
	}
	if _, err := to.Create(ctx, u, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	if gvk.Kind != "CustomResourceDefinition" {
		return nil
	}
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, servedTimeout, true, func(ctx context.Context) (bool, error) {
		crd, err := to.Get(ctx, u.GetName(), metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		// A new definition has no conditions, or null.
		found, _, err := unstructured.NestedFieldNoCopy(crd.Object, "status", "conditions")
		conditions, _ := found.([]any)
		return slices.ContainsFunc(conditions, func(c any) bool {
			m, _ := c.(map[string]any)
			return m["type"] == "Established" && m["status"] == "True"
		}), err
	})
	if err != nil {
		return fmt.Errorf("is not established: %w", err)
	}
	return nil
}
