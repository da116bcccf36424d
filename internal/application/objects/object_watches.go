package objects

import (
	"errors"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/application/plan"
)

// Watches watches single objects of other owners that Applications read. An object that a step
// reads is watched until the workflow is done. An object that a plan is made from, or that a
// read-only policy leaves to another owner, is watched as long as the Application has that plan.
type Watches struct {
	changed func(types.NamespacedName)

	mu   sync.Mutex
	each map[watchedObject]*objectWatch
}

// watchedObject identifies an object in a cluster.
type watchedObject struct {
	live *ManagedObjects
	ref  plan.Ref
}

type objectWatch struct {
	watch *kindWatch
	stop  func()
	// forApps has the Applications that read the object. The value is true if they read it beyond
	// their workflow's end.
	forApps map[types.NamespacedName]bool
}

// NewWatches returns a Watches without any watch. changed is called for each Application that reads
// an object that has changed.
func NewWatches(changed func(types.NamespacedName)) *Watches {
	return &Watches{changed: changed, each: map[watchedObject]*objectWatch{}}
}

// objectWatchesMax bounds the watches of single objects.
const objectWatchesMax = 512

// ErrTooManyWatches is the error of Get when objectWatchesMax objects are watched.
var ErrTooManyWatches = errors.New("too many objects of others are being looked at; it is tried again")

// Get returns the object as last seen, or nil if it does not exist, and starts a watch of it if
// there is none. known is false until the watch has synced. Syncing enqueues the Application, and
// so does every change. A lasting watch does not end with the workflow.
func (s *Watches) Get(t *Target, ref plan.Ref, app types.NamespacedName, lasting bool) (o *Object, known bool, _ error) {
	// This watch is separate from the watches by label of Applications' own objects.
	k := watchedObject{t.Objects, ref}
	var m *meta.RESTMapping
	var err error
	s.mu.Lock()
	if s.each[k] == nil {
		s.mu.Unlock() // Mapping may wait for the API server
		if m, err = t.Kinds.Mapping(ref.GVK); err != nil {
			return nil, false, err
		}
		s.mu.Lock()
	}
	x := s.each[k]
	if x == nil {
		if len(s.each) >= objectWatchesMax {
			s.mu.Unlock()
			return nil, false, ErrTooManyWatches
		}
		x = &objectWatch{forApps: map[types.NamespacedName]bool{}}
		if x.watch, x.stop, err = t.Objects.single(ref, m, func() { s.tell(k) }); err != nil {
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

// tell enqueues the Applications that read an object.
func (s *Watches) tell(k watchedObject) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.each[k]; x != nil {
		for app := range x.forApps {
			s.changed(app)
		}
	}
}

// Release ends an Application's watches of single objects: all of them if lasting is set, otherwise
// only those of its workflow.
func (s *Watches) Release(app types.NamespacedName, lasting bool) {
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
