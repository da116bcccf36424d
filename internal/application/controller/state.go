package controller

import (
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/plan"
)

// state is what the deployment of one Application is made from, and what is known of it.
type state struct {
	*owner
	as      *apiwriter.Identity // the identity that writes impersonate; nil: the manager itself
	tracker trackerState
	writes  writes
	plan    *plan.Plan
	planErr error     // why there is no plan
	since   time.Time // when the deployment of the revision began
	// leaving is set while the Application is being removed.
	leaving bool
	// follows is set if changes of definitions concern the Application.
	follows bool
	// mayRead has whether the author may read each of these objects of other owners.
	mayRead map[plan.Ref]error
	// health has the components' states as last evaluated.
	health map[string]cachedHealth
	// verified has the objects that were found to be as the plan wants them. accepted has, by ref,
	// the hash of content that is as close to the plan as the server allows.
	verified map[plan.Ref]verifiedContent
	accepted map[string]string
	// uids has the UIDs of objects that this manager created or changed.
	uids map[types.UID]bool
	// external has the answers to the plan's questions to other systems.
	external map[string]cachedRead
}

// verifiedContent is an object's content hash and the hash of the rendered object that the content was
// found to satisfy.
type verifiedContent struct {
	content uint64
	hash    string
}

// resources returns the objects of the plan, or none without a plan.
func (a *state) resources() []plan.Resource {
	if a.plan == nil {
		return nil
	}
	return a.plan.Resources
}

// wants returns an object as the Application wants it now.
func (a *state) wants(r *plan.Resource) *wanted {
	w := &wanted{Resource: r, Owner: a.key, Applied: a.tracker.Applied[refKey(r.Ref)]}
	if last := a.tracker.latest(); last != nil {
		w.Revision = last.Name
	}
	for i := range a.plan.Components {
		if a.plan.Components[i].Name == r.Component {
			w.ComponentRevision = a.plan.Components[i].Revision
		}
	}
	return w
}

// meta returns a write's metadata: the owner and the identity it is made for, the reason, and the
// resource.
func (a *state) meta(t *target, gvk schema.GroupVersionKind, reason string) apiwriter.Meta {
	m := apiwriter.Meta{Owner: a.name, Reason: reason, As: a.as}
	if mapping, err := t.kinds.mapping(gvk); err == nil {
		m.Resource = mapping.Resource.Resource
	}
	return m
}

// accept records the outcome of a successful write. If the server stored something else than was
// asked for, deviates is a hash of that: another write would change nothing.
func (a *state) accept(r *plan.Resource, there *object, deviates string) {
	if a.uids == nil {
		a.uids = map[types.UID]bool{}
	}
	a.uids[there.uid] = true
	if deviates != "" {
		if a.accepted == nil {
			a.accepted = map[string]string{}
		}
		a.accepted[refKey(r.Ref)] = deviates
		return
	}
	delete(a.accepted, refKey(r.Ref))
	if a.verified != nil {
		a.verified[r.Ref] = verifiedContent{there.content, r.Hash}
	}
}

// asAccepted reports whether an object is as the server stored it after the last write.
func (a *state) asAccepted(ref string, there *object) bool {
	hash := a.accepted[ref]
	return hash != "" && hash == content(there)
}

// actAs sets the identity that an Application impersonates. If the identity changes, what the
// previous one was allowed to read is forgotten.
func (a *state) actAs(id *apiwriter.Identity) {
	if !reflect.DeepEqual(a.as, id) {
		a.mayRead = nil
		a.external = nil
	}
	a.as = id
}
