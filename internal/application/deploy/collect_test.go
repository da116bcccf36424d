package deploy

import (
	"errors"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/objects"
	"lockstep.dev/lockstep/internal/application/plan"
)

// TestObjectsOfAnAPIThatIsDownRemain checks that an Application keeps the names of its objects
// while nobody knows whether they exist.
func TestObjectsOfAnAPIThatIsDownRemain(t *testing.T) {
	flag := schema.GroupVersionKind{Group: "toys.example.com", Version: "v1", Kind: "Flag"}
	for name, c := range map[string]struct {
		down bool
		want int
	}{
		"the API is down":      {true, 1},
		"there is no such API": {false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			x := newWorld(t)
			if c.down {
				x.target.FailDiscovery(flag.GroupVersion())
			}
			m := oam.ManagedResource{Component: "web"}
			m.APIVersion, m.Kind = flag.ToAPIVersionAndKind()
			m.Namespace, m.Name = "ns", "red"
			x.a.Tracker.Resources = []oam.ManagedResource{m}
			x.a.Plan.Policies = &plan.Policies{}
			d := &Remover{Deployer: x.d}

			d.Collect(x.a, &oam.ApplicationSpec{}, nil)
			if got := len(x.a.Tracker.Resources); got != c.want {
				t.Errorf("the tracker names %d objects after they left the plan, want %d", got, c.want)
			}
			if c.down != (len(x.wakes) > 0) {
				t.Errorf("the application is enqueued after %v", x.wakes)
			}
			x.a.Tracker.Resources = []oam.ManagedResource{m}
			order := &deletionOrder{dependents: map[string][]string{"db": {"web"}}, existing: map[string]bool{"web": d.mayBeThere(x.a, &m)}}
			if waits := order.mustWait(&oam.ManagedResource{Component: "db"}); waits != c.down {
				t.Errorf("what it depends on waits: %t", waits)
			}
			remaining, why, failed := d.RemoveAll(x.a, nil, false)
			if remaining != c.want || c.down != (why != nil) || failed {
				t.Errorf("%d objects remain when the application is deleted, because %v (failed: %t); want %d", remaining, why, failed, c.want)
			}
		})
	}
}

// TestAPlanThatAnAPIKeepsFromBeingMadeIsMadeAgain checks that an Application is planned again, as
// nothing else tells it that the API is back.
func TestAPlanThatAnAPIKeepsFromBeingMadeIsMadeAgain(t *testing.T) {
	x := newWorld(t)
	down := &objects.ErrDown{Err: errors.New("it is down")}
	if err := planError(x.a, fmt.Errorf("output: %w", down)); !errors.Is(err, ErrAskedAgain) || !errors.Is(err, down) {
		t.Errorf("%v", err)
	}
	if len(x.wakes) == 0 {
		t.Error("the application is not enqueued")
	}
}
