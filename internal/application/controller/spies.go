package controller

import (
	"errors"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/application/plan"
)

// spies watch single objects that steps read, and that are not the applications' own: each for as long as a step that is
// not done looks at it.
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
	// for are the applications that look at it.
	forApps map[types.NamespacedName]bool
}

// spiesMax bounds the watches of single objects.
const spiesMax = 512

var errTooManySpies = errors.New("too many objects are being read by steps; it is tried again")

// look is an object as it is, nil when there is none. known is false until that has been found out, which brings the
// application back, as changes do.
func (s *spies) look(t *target, ref plan.Ref, app types.NamespacedName) (object map[string]any, known bool, _ error) {
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
	x.forApps[app] = true
	s.mu.Unlock()
	x.watch.mu.Lock()
	defer x.watch.mu.Unlock()
	if !x.watch.synced {
		return nil, false, x.watch.err
	}
	return asMap(x.watch.objects[types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}]), true, nil
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

// leave ends an application's looking.
func (s *spies) leave(app types.NamespacedName) {
	s.mu.Lock()
	var stop []func()
	for k, x := range s.each {
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
