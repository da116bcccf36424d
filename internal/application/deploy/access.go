package deploy

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/objects"
	"lockstep.dev/lockstep/internal/application/plan"
)

// Access decides which objects Applications may read and their steps may use.
type Access struct {
	Targets *objects.Targets
	Watches *objects.Watches
	// Ctx returns the context of the controller.
	Ctx func() context.Context
	// Aside runs a function that waits for an answer. See controlloop.Loop.Yield.
	Aside func(wait func())
}

// MayRead returns nil if the Application's author may read an object that has another owner. It
// asks once for each plan. The check is needed because the object's content may get into the
// Application's status.
func (x *Access) MayRead(a *State, t *objects.Target, ref plan.Ref) error {
	if a.As == nil {
		return nil
	}
	if err, known := a.mayRead[ref]; known {
		return err
	}
	var err error
	x.Aside(func() { err = t.ReadAs(x.Ctx(), ref, a.As) })
	if a.mayRead == nil {
		a.mayRead = map[plan.Ref]error{}
	}
	if !apierrors.IsNotFound(err) { // it may be created
		a.mayRead[ref] = err
	}
	return err
}

// others returns an object that the Application only reads, if the Application's author may read
// it. The object is nil if it does not exist. known is false until the watch has synced.
func (x *Access) others(a *State, r *plan.Resource) (there *objects.Object, known bool, _ error) {
	t, err := x.Targets.Reach(r.Cluster)
	if err != nil {
		return nil, false, err
	}
	if there, known, err = x.Watches.Get(t, r.Ref, a.Key, true); there == nil || err != nil {
		return nil, known, err
	}
	if err := x.MayRead(a, t, r.Ref); err != nil {
		return nil, true, err
	}
	return there, true, nil
}

// MayReach returns an error if a step may not use an object: what Applications read and what their
// steps write is limited to the Application's namespace. Applications in oam.SystemNamespace are
// not limited. The limit holds whether an Application acts with its author's rights or with the
// manager's.
func (x *Access) MayReach(a *State, object map[string]any) error {
	u := &unstructured.Unstructured{Object: object}
	return x.MayReachNamespace(a, u.GetNamespace(), true)
}

// MayReachNamespace is like MayReach for all objects in a namespace. namespaced is false for
// objects that have no namespace.
func (x *Access) MayReachNamespace(a *State, namespace string, namespaced bool) error {
	if a.Key.Namespace == oam.SystemNamespace || namespaced && (namespace == "" || namespace == a.Key.Namespace) {
		return nil
	}
	if !namespaced {
		return errors.New("applications do not reach objects without a namespace")
	}
	return fmt.Errorf("applications do not reach objects of namespace %s from namespace %s", namespace, a.Key.Namespace)
}
