package objects

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"

	"lockstep.dev/lockstep/internal/application/plan"
)

// apiServer answers discovery.
type apiServer struct {
	discovery.DiscoveryInterface
	groups    []*metav1.APIGroup
	resources []*metav1.APIResourceList
	err       error
	asked     func()
}

func (s *apiServer) ServerGroupsAndResources() ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	if s.asked != nil {
		s.asked()
	}
	return s.groups, s.resources, s.err
}

// serve lets the server serve a namespaced kind.
func (s *apiServer) serve(gvk schema.GroupVersionKind, resource string) {
	gv := metav1.GroupVersionForDiscovery{GroupVersion: gvk.GroupVersion().String(), Version: gvk.Version}
	s.groups = append(s.groups, &metav1.APIGroup{Name: gvk.Group, Versions: []metav1.GroupVersionForDiscovery{gv}, PreferredVersion: gv})
	s.resources = append(s.resources, &metav1.APIResourceList{
		GroupVersion: gv.GroupVersion, APIResources: []metav1.APIResource{{Name: resource, Kind: gvk.Kind, Namespaced: true}},
	})
}

var (
	configMap = schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	flag      = schema.GroupVersionKind{Group: "toys.example.com", Version: "v1", Kind: "Flag"}
)

// TestDiscoveryHoldsNoLock checks that no lock is locked while the API server is asked for its
// kinds: an Application with an unknown kind must not keep others from their objects.
func TestDiscoveryHoldsNoLock(t *testing.T) {
	server, now, asked := &apiServer{}, time.Unix(1000, 0), 0
	server.serve(configMap, "configmaps")
	k := &kinds{client: server, now: func() time.Time { return now }}
	l := &ManagedObjects{
		kinds: k, now: k.now, log: slog.New(slog.DiscardHandler), changed: func(types.NamespacedName) {},
		watches: map[schema.GroupVersionKind]*kindWatch{},
	}
	watches, target := NewWatches(nil), &Target{Kinds: k, Objects: l}
	server.asked = func() {
		asked++
		for name, lock := range map[string]interface {
			TryLock() bool
			Unlock()
		}{"the kinds": &k.mu, "the managed objects": &l.mu, "the watches of single objects": &watches.mu} {
			if !lock.TryLock() {
				t.Errorf("%s are locked during a discovery", name)
				continue
			}
			lock.Unlock()
		}
	}
	app := types.NamespacedName{Namespace: "ns", Name: "shop"}
	for what, ask := range map[string]func() error{
		"its own objects":     func() error { _, err := l.Ready(flag, app); return err },
		"an object of others": func() error { _, _, err := watches.Get(target, plan.Ref{GVK: flag}, app, false); return err },
		"a name":              func() error { _, err := k.Named("flags", "", ""); return err },
	} {
		asked = 0
		now = now.Add(RelearnInterval)
		for range 2 {
			if err := ask(); err == nil {
				t.Errorf("%s: an unknown kind is known", what)
			}
		}
		if asked != 1 {
			t.Errorf("%s: %d discoveries within %s", what, asked, RelearnInterval)
		}
	}
	if _, err := k.Mapping(configMap); err != nil {
		t.Error(err)
	}
}

// TestAKindWhoseAPIIsDownMayExist checks that a kind whose group the API server cannot list is not
// taken for one that it does not serve: objects of that kind would be taken for deleted.
func TestAKindWhoseAPIIsDownMayExist(t *testing.T) {
	server, now := &apiServer{}, time.Unix(1000, 0)
	server.serve(configMap, "configmaps")
	k := &kinds{client: server, now: func() time.Time { return now }}
	mapping := func(gvk schema.GroupVersionKind) func() error {
		return func() error { _, err := k.Mapping(gvk); return err }
	}
	named := func(resource, group, kind string) func() error {
		return func() error { _, err := k.Named(resource, group, kind); return err }
	}
	const served, down, none = "served", "down", "none"
	partly := &discovery.ErrGroupDiscoveryFailed{Groups: map[schema.GroupVersion]error{flag.GroupVersion(): errors.New("it is down")}}
	for name, c := range map[string]struct {
		err  error
		ask  func() error
		want string
	}{
		"a kind that is listed":                {partly, mapping(configMap), served},
		"a kind of the group that is down":     {partly, mapping(flag), down},
		"another version of that group":        {partly, mapping(flag.GroupKind().WithVersion("v2")), none},
		"a kind of another group":              {partly, mapping(schema.GroupVersionKind{Group: "games.example.com", Version: "v1", Kind: "Flag"}), none},
		"any kind, and all groups are listed":  {nil, mapping(flag), none},
		"any kind, and nothing is listed":      {errors.New("no route"), mapping(flag), down},
		"a resource, by its name":              {partly, named("flags", "", ""), down},
		"a resource of the group that is down": {partly, named("flags.toys.example.com", "", ""), down},
		"a resource of another group":          {partly, named("flags.games.example.com", "", ""), none},
		"a kind of the group, by its name":     {partly, named("", flag.Group, flag.Kind), down},
		"a kind of another group, by its name": {partly, named("", "games.example.com", flag.Kind), none},
	} {
		t.Run(name, func(t *testing.T) {
			now = now.Add(RelearnInterval)
			server.err = c.err
			got, err := served, c.ask()
			isDown, noKind := (*ErrDown)(nil), ErrNoKind("")
			switch {
			case errors.As(err, &isDown):
				got = down
			case errors.As(err, &noKind):
				got = none
			case err != nil:
				t.Fatal(err)
			}
			if got != c.want {
				t.Errorf("it is %s (%v), want %s", got, err, c.want)
			}
		})
	}
}
