package objects

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	// failed says of which group versions the API server could not list the kinds. An aggregated
	// API that is down is such a group. It is nil if all were listed.
	failed *discovery.ErrGroupDiscoveryFailed
	apis   []string // such as apps/v1 and apps/v1/Deployment
}

// Mapping returns the REST mapping of a kind.
func (k *kinds) Mapping(gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
	return k.find(func(d *discovered) (*meta.RESTMapping, error) {
		m, err := d.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		if meta.IsNoMatchError(err) {
			err = d.missing(fmt.Sprintf("kind %s of %s", gvk.Kind, gvk.GroupVersion()),
				func(gv schema.GroupVersion) bool { return gv == gvk.GroupVersion() })
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
			gr := schema.ParseGroupResource(strings.ToLower(resource))
			if group != "" {
				gr.Group = group
			}
			found, err := d.mapper.KindFor(gr.WithVersion(""))
			if err != nil {
				return nil, d.missing("resource "+resource,
					func(gv schema.GroupVersion) bool { return gr.Group == "" || gr.Group == gv.Group })
			}
			gk = found.GroupKind()
		}
		m, err := d.mapper.RESTMapping(gk)
		if meta.IsNoMatchError(err) {
			err = d.missing("kind "+gk.String(), func(gv schema.GroupVersion) bool { return gv.Group == gk.Group })
		}
		return m, err
	})
}

// missing returns the error for a kind or resource that the API server has not listed. among
// reports whether a group version may have it.
func (d *discovered) missing(what string, among func(schema.GroupVersion) bool) error {
	if d.failed != nil {
		for gv := range d.failed.Groups {
			if among(gv) {
				return undiscovered(d.failed)
			}
		}
	}
	return ErrNoKind(what)
}

func undiscovered(err error) error {
	return &ErrDown{Err: fmt.Errorf("which kinds there are: %w", err)}
}

// ErrNoKind is the error for a kind or resource that the API server does not serve, as opposed to
// ErrDown for one that it may serve. Its value says which one.
type ErrNoKind string

func (e ErrNoKind) Error() string { return "the API server has no " + string(e) }

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
		client := &partialDiscovery{DiscoveryInterface: k.client}
		groups, err := restmapper.GetAPIGroupResources(client)
		if err != nil {
			return (*discovered)(nil), undiscovered(err)
		}
		d := &discovered{at: k.now(), mapper: restmapper.NewDiscoveryRESTMapper(groups), failed: client.failed}
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

// partialDiscovery keeps the error that comes with a partial result, which GetAPIGroupResources
// drops.
type partialDiscovery struct {
	discovery.DiscoveryInterface
	failed *discovery.ErrGroupDiscoveryFailed
}

// ServerGroupsAndResources implements discovery.DiscoveryInterface.
func (c *partialDiscovery) ServerGroupsAndResources() ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	groups, resources, err := c.DiscoveryInterface.ServerGroupsAndResources()
	if err != nil && !errors.As(err, &c.failed) {
		return nil, nil, err
	}
	return groups, resources, err
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
