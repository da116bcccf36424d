package objects

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/restmapper"

	"lockstep.dev/lockstep/internal/application/render"
)

// RelearnInterval is the minimum time between two discoveries of an API server's kinds.
const RelearnInterval = 5 * time.Second

// kinds caches the kinds that an API server serves. It runs discovery again when it does not know a
// kind.
type kinds struct {
	client discovery.DiscoveryInterface
	now    func() time.Time

	mu      sync.Mutex
	mapper  meta.RESTMapper
	learned time.Time
	version render.ClusterVersion
	apis    []string // such as apps/v1 and apps/v1/Deployment
}

// Mapping returns the REST mapping of a kind.
func (k *kinds) Mapping(gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mapper != nil {
		m, err := k.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		if err == nil || k.now().Sub(k.learned) < RelearnInterval {
			return m, noSuchKind(gvk, err)
		}
	}
	if err := k.discover(); err != nil {
		return nil, err
	}
	m, err := k.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	return m, noSuchKind(gvk, err)
}

// Named returns the REST mapping of a resource's name, such as configmap or deployments.apps, or,
// if resource is empty, of a group and kind without a version.
func (k *kinds) Named(resource, group, kind string) (*meta.RESTMapping, error) {
	look := func() (*meta.RESTMapping, error) {
		gk := schema.GroupKind{Group: group, Kind: kind}
		if resource != "" {
			found, err := k.mapper.KindFor(schema.ParseGroupResource(strings.ToLower(resource)).WithVersion(""))
			if err != nil {
				return nil, fmt.Errorf("the API server has no resource %s", resource)
			}
			gk = found.GroupKind()
		}
		m, err := k.mapper.RESTMapping(gk)
		if meta.IsNoMatchError(err) {
			err = fmt.Errorf("the API server has no kind %s", gk)
		}
		return m, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mapper != nil {
		if m, err := look(); err == nil || k.now().Sub(k.learned) < RelearnInterval {
			return m, err
		}
	}
	if err := k.discover(); err != nil {
		return nil, err
	}
	return look()
}

// discover asks the API server for its kinds. The caller holds mu.
func (k *kinds) discover() error {
	groups, err := restmapper.GetAPIGroupResources(k.client)
	if err != nil && len(groups) == 0 {
		return fmt.Errorf("which kinds there are: %w", err)
	}
	k.mapper, k.learned, k.apis = restmapper.NewDiscoveryRESTMapper(groups), k.now(), nil
	for _, g := range groups {
		for version, resources := range g.VersionedResources {
			gv := schema.GroupVersion{Group: g.Group.Name, Version: version}.String()
			k.apis = append(k.apis, gv)
			for i := range resources {
				if !strings.Contains(resources[i].Name, "/") {
					k.apis = append(k.apis, gv+"/"+resources[i].Kind)
				}
			}
		}
	}
	slices.Sort(k.apis)
	return nil
}

// served returns the API versions and kinds that the API server serves, sorted.
func (k *kinds) served() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.apis
}

func noSuchKind(gvk schema.GroupVersionKind, err error) error {
	if meta.IsNoMatchError(err) {
		return fmt.Errorf("the API server has no kind %s of %s", gvk.Kind, gvk.GroupVersion())
	}
	return err
}

// Namespaced implements plan.Kinds.
func (k *kinds) Namespaced(gvk schema.GroupVersionKind) (bool, error) {
	m, err := k.Mapping(gvk)
	if err != nil {
		return false, err
	}
	return m.Scope.Name() == meta.RESTScopeNameNamespace, nil
}

// Learn asks the API server for its version and kinds.
func (k *kinds) Learn() error {
	v, err := k.client.ServerVersion()
	if err != nil {
		return fmt.Errorf("the API server's version: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.version = clusterVersion(v)
	return k.discover()
}

// known reports whether discovery has succeeded once.
func (k *kinds) known() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.mapper != nil
}

func (k *kinds) clusterVersion() render.ClusterVersion {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.version
}

func clusterVersion(v *version.Info) render.ClusterVersion {
	out := render.ClusterVersion{Major: v.Major, GitVersion: v.GitVersion, Platform: v.Platform}
	_, _ = fmt.Sscanf(strings.TrimRight(v.Minor, "+"), "%d", &out.Minor)
	return out
}
