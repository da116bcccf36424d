package controller

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/plan"
)

// access decides which objects Applications may read and their steps may use.
type access struct {
	targets *targets
	spies   *spies
	// unconfined is Config.UnconfinedSteps.
	unconfined bool
	// ctx returns the context of the controller.
	ctx func() context.Context
	// aside runs a function that waits for an answer, see keyed.Loop.Aside.
	aside func(wait func())
}

// mayRead returns nil if the Application's author may read an object that has another owner. It
// asks once for each plan. The check is needed because the object's content may get into the
// Application's status.
func (x *access) mayRead(a *state, t *target, ref plan.Ref) error {
	if a.as == nil {
		return nil
	}
	if err, known := a.mayRead[ref]; known {
		return err
	}
	var err error
	x.aside(func() { err = t.readAs(x.ctx(), ref, a.as) })
	if a.mayRead == nil {
		a.mayRead = map[plan.Ref]error{}
	}
	if !apierrors.IsNotFound(err) { // it may be created
		a.mayRead[ref] = err
	}
	return err
}

// others returns an object that the Application only looks at, if the Application's author may read
// it. there is nil if the object does not exist; known is false until the watch has synced.
func (x *access) others(a *state, r *plan.Resource) (there *object, known bool, _ error) {
	t, err := x.targets.reach(r.Cluster)
	if err != nil {
		return nil, false, err
	}
	if there, known, err = x.spies.look(t, r.Ref, a.key, true); there == nil || err != nil {
		return nil, known, err
	}
	if err := x.mayRead(a, t, r.Ref); err != nil {
		return nil, true, err
	}
	return there, true, nil
}

// mayReach returns an error if a step may not use an object. Unless Config.UnconfinedSteps is set,
// what Applications read and what their steps write is limited to the Application's namespace.
// Applications in oam.SystemNamespace are not limited. The limit holds whether an Application acts
// with its author's rights or with the manager's.
func (x *access) mayReach(a *state, object map[string]any) error {
	u := &unstructured.Unstructured{Object: object}
	return x.mayReachNamespace(a, u.GetNamespace(), true)
}

func (x *access) mayReachNamespace(a *state, namespace string, namespaced bool) error {
	if x.unconfined || a.key.Namespace == oam.SystemNamespace || namespaced && (namespace == "" || namespace == a.key.Namespace) {
		return nil
	}
	if !namespaced {
		return errors.New("applications do not reach objects without a namespace")
	}
	return fmt.Errorf("applications do not reach objects of namespace %s from namespace %s", namespace, a.key.Namespace)
}
