package deploy

import (
	"errors"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/flow"
	"lockstep.dev/lockstep/internal/application/objects"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/records"
)

// State is the input of the deployment of one Application, and its state in memory.
type State struct {
	*records.Owner
	As      *apiwriter.Identity // the identity that writes impersonate; nil: the manager itself
	Tracker records.Tracker
	Writes  records.Writes
	Plan    *plan.Plan
	PlanErr error     // why there is no plan
	Since   time.Time // when the deployment of the revision began
	// leaving is set while the Application is being removed.
	leaving bool
	// Follows is set if changes of definitions concern the Application.
	Follows bool
	// mayRead has the result of MayRead for objects of other owners.
	mayRead map[plan.Ref]error
	// health has the components' states as last evaluated.
	health map[string]cachedHealth
	// verified has the objects that were found to be as the plan wants them. Accepted has, by ref,
	// the hash of content that is as close to the plan as the server allows.
	verified map[plan.Ref]verifiedContent
	Accepted map[string]string
	// UIDs has the UIDs of objects that this manager created or changed.
	UIDs map[types.UID]bool
	// tries has the errors of components by key, and those of planning under an empty key.
	tries map[string]flow.Try
	// External has the answers to the plan's questions to other systems.
	External Answers
}

// verifiedContent is an object's content hash and the hash of the rendered object that the content
// was found to satisfy.
type verifiedContent struct {
	content uint64
	hash    string
}

// SetPlan replaces the plan. It forgets what was found about objects under the previous plan, and
// lets failed writes be retried at once.
func (a *State) SetPlan(p *plan.Plan) {
	a.Plan, a.health, a.verified, a.mayRead = p, map[string]cachedHealth{}, map[plan.Ref]verifiedContent{}, nil
	a.Writes.Forget()
}

// Resources returns the objects of the plan, or none without a plan.
func (a *State) Resources() []plan.Resource {
	if a.Plan == nil {
		return nil
	}
	return a.Plan.Resources
}

// Live returns a function for plan.Input.Live: the Application's own objects as last seen.
func (p *Planner) Live(a *State) func(plan.Ref) []byte {
	return func(ref plan.Ref) []byte {
		if there := p.Targets.Seen(ref); there != nil && there.Owner == a.Key {
			return there.JSON()
		}
		return nil
	}
}

// wants returns an object as the Application wants it now.
func (a *State) wants(r *plan.Resource) *objects.Wanted {
	w := &objects.Wanted{Resource: r, Owner: a.Key, Applied: a.Tracker.Applied[records.RefKey(r.Ref)]}
	if last := a.Tracker.Latest(); last != nil {
		w.Revision = last.Name
	}
	for i := range a.Plan.Components {
		if a.Plan.Components[i].Name == r.Component {
			w.ComponentRevision = a.Plan.Components[i].Revision
		}
	}
	return w
}

// Meta returns a write's metadata: the owner and the identity it is made for, the reason, and the
// resource.
func (a *State) Meta(t *objects.Target, gvk schema.GroupVersionKind, reason string) apiwriter.Meta {
	m := apiwriter.Meta{Owner: a.Name, Reason: reason, As: a.As}
	if mapping, err := t.Kinds.Mapping(gvk); err == nil {
		m.Resource = mapping.Resource.Resource
	}
	return m
}

// mayPass reports whether err is about an API that cannot be reached at present, and if so enqueues
// the Application for when it may be reached again.
func (a *State) mayPass(err error) bool {
	down := (*objects.ErrDown)(nil)
	if !errors.As(err, &down) {
		return false
	}
	a.WakeAfter(objects.RelearnInterval)
	return true
}

// accept records the outcome of a successful write. If the server stored something else than was
// requested, deviates is a hash of what it stored: another write would change nothing.
func (a *State) accept(r *plan.Resource, there *objects.Object, deviates string) {
	if a.UIDs == nil {
		a.UIDs = map[types.UID]bool{}
	}
	a.UIDs[there.Uid] = true
	if deviates != "" {
		if a.Accepted == nil {
			a.Accepted = map[string]string{}
		}
		a.Accepted[records.RefKey(r.Ref)] = deviates
		return
	}
	delete(a.Accepted, records.RefKey(r.Ref))
	if a.verified != nil {
		a.verified[r.Ref] = verifiedContent{there.Content, r.Hash}
	}
}

// asAccepted reports whether an object is as the server stored it after the last write.
func (a *State) asAccepted(ref string, there *objects.Object) bool {
	hash := a.Accepted[ref]
	return hash != "" && hash == objects.Content(there)
}

// ActAs sets the identity that an Application impersonates. If the identity changes, ActAs forgets
// what the previous one was allowed to read.
func (a *State) ActAs(id *apiwriter.Identity) {
	if !reflect.DeepEqual(a.As, id) {
		a.mayRead = nil
		a.External = nil
	}
	a.As = id
}
