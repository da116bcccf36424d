package controller

import (
	"errors"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/application/plan"
)

// spies watch single objects that applications look at, and that are not their own: what a step reads until the workflow is
// done, and what a plan is made of, or a read-only policy leaves to others, for as long as the plan is the application's.
type spies struct {
	changed func(types.NamespacedName)

	mu   sync.Mutex
	each map[spied]*spy
}

// spied is an object in a cluster.
type spied struct {
	live *live
	ref  plan.Ref
}

type spy struct {
	watch *kindWatch
	stop  func()
	// forApps are the applications that look at it, and whether they do beyond their workflows.
	forApps map[types.NamespacedName]bool
}

// spiesMax bounds the watches of single objects.
const spiesMax = 512

var errTooManySpies = errors.New("too many objects of others are being looked at; it is tried again")

// look is an object as it is, nil when there is none. known is false until that has been found out, which brings the
// application back, as changes do. lasting looks go on when the workflow is done.
func (s *spies) look(t *target, ref plan.Ref, app types.NamespacedName, lasting bool) (o *object, known bool, _ error) {
	// What is an application's is watched already.
	k := spied{t.live, ref}
	s.mu.Lock()
	x := s.each[k]
	if x == nil {
		if len(s.each) >= spiesMax {
			s.mu.Unlock()
			return nil, false, errTooManySpies
		}
		x = &spy{forApps: map[types.NamespacedName]bool{}}
		var err error
		if x.watch, x.stop, err = t.live.single(ref, func() { s.tell(k) }); err != nil {
			s.mu.Unlock()
			return nil, false, err
		}
		s.each[k] = x
	}
	x.forApps[app] = x.forApps[app] || lasting
	s.mu.Unlock()
	x.watch.mu.Lock()
	defer x.watch.mu.Unlock()
	if !x.watch.synced {
		return nil, false, x.watch.err
	}
	return x.watch.objects[types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}], true, nil
}

// tell brings back those that look at an object.
func (s *spies) tell(k spied) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.each[k]; x != nil {
		for app := range x.forApps {
			s.changed(app)
		}
	}
}

// leave ends an application's looking, or that of its workflow only.
func (s *spies) leave(app types.NamespacedName, lasting bool) {
	s.mu.Lock()
	var stop []func()
	for k, x := range s.each {
		if x.forApps[app] && !lasting {
			continue
		}
		if delete(x.forApps, app); len(x.forApps) == 0 {
			stop = append(stop, x.stop)
			delete(s.each, k)
		}
	}
	s.mu.Unlock()
	for _, f := range stop {
		f()
	}
}
