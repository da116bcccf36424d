package controller

import (
	"maps"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/deploy"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/report"
	"lockstep.dev/lockstep/internal/application/steps"
	"lockstep.dev/lockstep/internal/controlloop"
)

// record is the in-memory state of one Application that is not in the watch caches. Only turns of
// the Application's key access it, except for interests. Answers to writes, evaluations and reads
// are posted to the key.
type record struct {
	*deploy.State
	planning planning
	run      *steps.Run // the workflow's state, if the Application is deployed in steps
	report   report.State

	// epoch is the controller's epoch when this record was created.
	epoch uint64
	// opened is the Application as last seen; read-only.
	opened *oam.Application
	// released is the UID of the Application whose finalizers were removed: watch events about it
	// are out of date.
	released types.UID
	// finalizersAt is when finalizers may be written again.
	finalizersAt time.Time
	removal      controlloop.Backoff // after an object could not be removed
	given        controlloop.Backoff // after labels and annotations of policies could not be written
	givenAt      uint64              // the Application's version with which they were written
	restarted    string              // the restart annotation that was obeyed and is being removed
	cleared      bool                // the removal of the workflow's status was obeyed
	idle         time.Time           // since when there has been nothing to do

	interests atomic.Pointer[interests]
}

// planning holds the inputs of the plan and the state of planning.
type planning struct {
	inputs  string     // the inputs of the plan, in one string
	objects planInputs // the inputs of the plan, for a quick comparison
	// again is set if the revision is to be deployed once more, with the current definitions.
	again bool
	// asking is the revision and hash for which answers are kept. asked is when asking was set.
	// Charts see asked as the current time, so that they are evaluated once per state.
	asking string
	asked  time.Time
	// read has the objects whose values the plan uses, and their resource versions.
	read map[plan.Ref]string
	// kinds delays the next plan while a kind does not exist.
	kinds controlloop.Backoff
	// changes is the count of changes of definitions and clusters at which the plan of an Application
	// that fails was made.
	changes uint64
	// places is set if the plan depends on which clusters exist.
	places bool
}

// noPlan drops the plan, so that it is made again. err says why there is no plan; it may be nil.
func (a *record) noPlan(err error) {
	a.Plan, a.planning.inputs, a.PlanErr = nil, "", err
}

// interests says what concerns an Application besides its own objects. It is never changed, only
// replaced.
type interests struct {
	// definitions is set if changes of definitions concern the Application. clusters is set if
	// clusters that are added or removed concern it.
	definitions, clusters bool
	// in has the managed clusters that hold, or will hold, the Application's objects.
	in map[string]bool
}

// planInputs identifies the state of the Application and the clusters that a plan was made from.
type planInputs struct {
	uid                 types.UID
	generation          int64
	labels, annotations map[string]string
	clusters            uint64
}

func (m *planInputs) of(o *oam.Application, clusters uint64) bool {
	return m.uid == o.UID && m.generation == o.Generation && m.clusters == clusters &&
		maps.Equal(m.labels, o.Labels) && maps.Equal(m.annotations, o.Annotations)
}

// declareInterests publishes what concerns the Application, for the handlers of watches.
func (a *record) declareInterests() {
	now := &interests{definitions: a.Follows || a.HasErrors(), clusters: a.planning.places}
	note := func(cluster string) {
		if cluster == "" {
			return
		}
		if now.in == nil {
			now.in = map[string]bool{}
		}
		now.in[cluster] = true
	}
	for i := range a.Tracker.Resources {
		note(a.Tracker.Resources[i].Cluster)
	}
	for i := range a.Resources() {
		note(a.Plan.Resources[i].Cluster)
	}
	a.interests.Store(now)
}
