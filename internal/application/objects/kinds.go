package objects

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
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
	asking singleflight.Group // runs discover once for all that wait for it

	// mu is never held during a request to the API server.
	mu      sync.Mutex
	last    *discovered // nil before the first discovery
	version render.ClusterVersion
}

// discovered is the result of a discovery. It is never changed.
type discovered struct {
	at     time.Time
	mapper meta.RESTMapper
	apis   []string // such as apps/v1 and apps/v1/Deployment
}

// Mapping returns the REST mapping of a kind.
func (k *kinds) Mapping(gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
	return k.find(func(d *discovered) (*meta.RESTMapping, error) {
		m, err := d.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		if meta.IsNoMatchError(err) {
			err = fmt.Errorf("the API server has no kind %s of %s", gvk.Kind, gvk.GroupVersion())
		}
		return m, err
	})
}

// Named returns the REST mapping of a resource's name, such as configmap or deployments.apps, or,
// if resource is empty, of a group and kind without a version.
func (k *kinds) Named(resource, group, kind string) (*meta.RESTMapping, error) {
	return k.find(func(d *discovered) (*meta.RESTMapping, error) {
		gk := schema.GroupKind{Group: group, Kind: kind}
		if resource != "" {
			found, err := d.mapper.KindFor(schema.ParseGroupResource(strings.ToLower(resource)).WithVersion(""))
			if err != nil {
				return nil, fmt.Errorf("the API server has no resource %s", resource)
			}
			gk = found.GroupKind()
		}
		m, err := d.mapper.RESTMapping(gk)
		if meta.IsNoMatchError(err) {
			err = fmt.Errorf("the API server has no kind %s", gk)
		}
		return m, err
	})
}

// find returns what look finds in the last discovery. If look finds nothing there and that
// discovery is old, find runs another one.
func (k *kinds) find(look func(*discovered) (*meta.RESTMapping, error)) (*meta.RESTMapping, error) {
	if d := k.known(); d != nil {
		if m, err := look(d); err == nil || k.now().Sub(d.at) < RelearnInterval {
			return m, err
		}
	}
	d, err := k.discover()
	if err != nil {
		return nil, err
	}
	return look(d)
}

// discover asks the API server for its kinds, or waits for the answer if they are being asked for.
func (k *kinds) discover() (*discovered, error) {
	d, err, _ := k.asking.Do("", func() (any, error) {
		groups, err := restmapper.GetAPIGroupResources(k.client)
		if err != nil && len(groups) == 0 {
			return (*discovered)(nil), fmt.Errorf("which kinds there are: %w", err)
		}
		d := &discovered{at: k.now(), mapper: restmapper.NewDiscoveryRESTMapper(groups)}
		for _, g := range groups {
			for version, resources := range g.VersionedResources {
				gv := schema.GroupVersion{Group: g.Group.Name, Version: version}.String()
				d.apis = append(d.apis, gv)
				for i := range resources {
					if !strings.Contains(resources[i].Name, "/") {
						d.apis = append(d.apis, gv+"/"+resources[i].Kind)
					}
				}
			}
		}
		slices.Sort(d.apis)
		k.mu.Lock()
		defer k.mu.Unlock()
		k.last = d
		return d, nil
	})
	return d.(*discovered), err
}

// known returns the result of the last discovery, or nil if none has succeeded.
func (k *kinds) known() *discovered {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.last
}

// served returns the API versions and kinds that the API server serves, sorted.
func (k *kinds) served() []string {
	if d := k.known(); d != nil {
		return d.apis
	}
	return nil
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
	k.version = clusterVersion(v)
	k.mu.Unlock()
	_, err = k.discover()
	return err
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
