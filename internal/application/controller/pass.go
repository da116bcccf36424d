package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/malformed"
)

// app is the in-memory state of one Application that is not in the watch caches. Passes over one
// Application do not overlap, because the queue hands a key to one worker at a time. Answers to
// writes arrive on other goroutines and take mu.
type app struct {
	epoch uint64 // the controller's epoch when this app was created
	key   types.NamespacedName
	owner string // for fairness among writes
	// follows is set if changes of definitions concern the Application.
	follows atomic.Bool
	// places is set if the plan depends on which clusters exist.
	places atomic.Bool

	// Fields that only passes use.

	opened  *oam.Application    // the Application as last seen; read-only
	read    map[plan.Ref]string // objects whose values the plan uses, and their resource versions
	as      *apiwriter.Identity // the identity that writes impersonate; nil: the manager itself
	reads   map[plan.Ref]error  // whether the author may read each of these objects of other owners
	leaving bool                // the Application is being removed
	course  *course             // the workflow's state, if the Application is deployed in steps
	// again says that the revision is deployed once more, with the current definitions.
	again  bool
	asking string // the revision and hash for which answers are kept
	// asked is when asking was set. Charts see it as the current time, so that they are evaluated
	// once per state.
	asked     time.Time
	restarted string      // the restart annotation that was obeyed and is being removed
	restartAt metav1.Time // when the workflow runs again
	loaded    bool
	// unreadable describes the record that could not be read.
	unreadable badRecord
	record     record
	planned    string // the inputs of the plan, in one string
	made       made   // the inputs of the plan, for a quick comparison
	plan       *plan.Plan
	planErr    error
	since      time.Time // when the deployment of the revision began
	states     map[string]states
	// checked holds the objects that were found to be as the plan wants them.
	checked map[plan.Ref]checked
	idle    time.Time              // since when there has been nothing to do
	status  *oam.ApplicationStatus // as last handed to the writer
	dirty   bool                   // the tracker does not yet have the latest revision

	mu     sync.Mutex
	flight map[string]bool      // writes under way: refs, "tracker" and others
	failed map[string]string    // by ref, why the last write failed
	fine   map[plan.Ref]checked // objects that answers showed to be as the plan wants them
	// accepted has, by ref, the hash of content that is as close to the plan as the server allows.
	accepted map[string]string
	answers  map[string]told      // answers to the plan's questions to other systems
	answered *oam.ResourceTracker // the tracker from the last answer, for the next pass
	other    *oam.ResourceTracker // a tracker from the server whose content is not what was written
	dropped  bool                 // the tracker was deleted
	// unknownRecord is set if the tracker could not be created because it exists, though the watch
	// has not shown it.
	unknownRecord bool
	uids          map[types.UID]bool // UIDs of objects that this manager created or changed
	// clusters has the managed clusters that hold, or will hold, the Application's objects.
	clusters map[string]bool
	retryAt  map[string]time.Time // by ref, when a failed write may be retried
	retries  map[string]int
	// conflicted is the resourceVersion of the Application that the last status was made from, if
	// that write met a conflict.
	conflicted string
	// statusVersion is the Application's resourceVersion after this manager's last status write, or
	// with another client's change of the status that was obeyed since. statusWrites is the number
	// of status writes under way.
	statusVersion uint64
	lastAnswer    time.Time // the last answer to a write of an object
	// released is the UID of the Application whose finalizers were removed: watch events about it
	// are out of date.
	released     types.UID
	statusWrites int
}

// setRetry records when a failed write may be retried, and returns the delay until then.
func (a *app) setRetry(ref string, now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.retryAt == nil {
		a.retryAt, a.retries = map[string]time.Time{}, map[string]int{}
	}
	delay := min(retryFirst<<a.retries[ref], retryMax)
	a.retries[ref] = min(a.retries[ref]+1, 16)
	a.retryAt[ref] = now.Add(delay)
	return delay
}

func (a *app) clearRetry(ref string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.retryAt, ref)
	delete(a.retries, ref)
}

// The backoff of a failed write starts at retryFirst and doubles up to retryMax. Refused writes are
// retried, too, because the reason for the refusal may have gone.
const (
	retryFirst = time.Second
	retryMax   = 5 * time.Minute
)

// takeUp merges what answers to writes left into the fields that passes use. It returns an error if
// the answers hold a record that cannot be read.
func (a *app) takeUp() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.checked != nil {
		maps.Copy(a.checked, a.fine)
		clear(a.fine)
	}
	if a.answered != nil {
		a.record.object, a.answered = a.answered, nil
	}
	if a.dropped {
		// The Application was removed. If an Application with this key exists again, it is a new
		// one and inherits nothing of the old one's plan, steps or status.
		a.record, a.dropped = record{}, false
		a.planned, a.plan, a.course, a.status = "", nil, nil, nil
	}
	if a.other != nil {
		// Another manager wrote the tracker a moment ago: continue from its content.
		r, err := newRecord(a.other)
		a.other = nil
		if err != nil {
			return err
		}
		a.record, a.planned, a.plan = r, "", nil
	}
	return nil
}

// hasUnknownRecord reports whether a creation found the tracker to exist though the watch had not
// shown it, and clears that flag.
func (a *app) hasUnknownRecord() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	has := a.unknownRecord
	a.unknownRecord = false
	return has
}

func (a *app) flying(what string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.flight[what]
}

// starts marks what as being written. It returns false if what is being written already.
func (a *app) starts(what string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.flight[what] {
		return false
	}
	a.flight[what] = true
	return true
}

// ended records the outcome of a write.
func (a *app) ended(what string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.flight, what)
	if err != nil {
		a.failed[what] = err.Error()
	} else {
		delete(a.failed, what)
	}
}

// well records that an object is as the plan wants it, and clears the last write's error: that
// write may have been carried out although it seemed to fail, or somebody else may have made the
// change.
func (a *app) well(ref string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, failed := a.failed[ref]; failed {
		delete(a.failed, ref)
		delete(a.retryAt, ref)
		delete(a.retries, ref)
	}
}

func (a *app) wasReleased(uid types.UID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.released == uid
}

// writing reports whether writes are under way. Their answers put the Application back into the
// queue.
func (a *app) writing() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.flight) > 0
}

// settlesAt returns the time when progress may be reported: after has passed since the last answer
// or since the deployment began, whichever is later.
func (a *app) settlesAt(after time.Duration) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lastAnswer.After(a.since) {
		return a.lastAnswer.Add(after)
	}
	return a.since.Add(after)
}

// made holds the inputs that a plan was made from.
type made struct {
	uid                 types.UID
	generation          int64
	labels, annotations map[string]string
	clusters            uint64
}

func (m *made) of(o *oam.Application, clusters uint64) bool {
	return m.uid == o.UID && m.generation == o.Generation && m.clusters == clusters && equalMaps(m.labels, o.Labels) && equalMaps(m.annotations, o.Annotations)
}

// checked is an object's content hash and the hash of the rendered object that the content was
// found to satisfy.
type checked struct {
	content uint64
	hash    string
}

func (a *app) failures() map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make(map[string]string, len(a.failed))
	for k, v := range a.failed {
		out[k] = v
	}
	return out
}

// pass reconciles one Application: it compares the desired with the live state, and starts the
// writes that are due.
func (c *Controller) pass(ctx context.Context, k types.NamespacedName) {
	a := c.appOf(k)
	through := true
	defer func() {
		if !through {
			return
		}
		if keeps, wait := c.keepsPlace(a); keeps {
			if wait > 0 {
				c.queue.AddAfter(k, wait)
			}
			return
		}
		c.through(k)
	}()
	if a.hasUnknownRecord() {
		a.loaded, a.planned, a.plan = false, "", nil
	}
	if err := c.load(a); err != nil {
		c.noRecord(a, err)
		return
	}
	if err := a.takeUp(); err != nil {
		a.loaded = false // the watch will show the record
		c.noRecord(a, err)
		return
	}
	o, err := c.open(a)
	if err != nil {
		if last := a.record.latest(); last != nil {
			o.Spec = *last.Spec // the spec by which it is removed
		}
		a.plan, a.planned, a.planErr = nil, "", err
	}
	if o == nil || o.DeletionTimestamp != nil {
		c.remove(a, o)
		return
	}
	if o.Labels[oam.PauseLabel] == "true" {
		return
	}
	if err != nil {
		c.report(a, o, progress{})
		return
	}
	if a.record.object == nil && !c.gate.enter(k) {
		through = false // it waits at the gate
		return
	}
	if c.restart(a, o) {
		c.runAgain(a)
		if a.record.object != nil {
			c.writeTracker(a, o.UID, o.Generation)
			return
		}
	}
	// 1. Make the plan, and find the identity to act as.
	author, err := c.authorOf(o)
	if errors.Is(err, ErrNotKnown) {
		return // Rebalance is called when it is known
	}
	if err != nil {
		a.plan, a.planned, a.planErr = nil, "", err
		c.report(a, o, progress{})
		return
	}
	a.actAs(author)
	if !c.replan(a, o) {
		if !errors.Is(a.planErr, plan.ErrNotYet) {
			c.report(a, o, progress{})
		}
		return
	}
	c.hold(a, o)
	var p progress
	for range stepsMax {
		// 2. Name new objects in the tracker before they are created.
		if !c.recordNew(a, o) {
			return
		}
		// 3. Create and patch objects.
		p = c.dispatch(ctx, a, o)
		if a.course == nil || !p.planned {
			break
		}
		more, unsaved := c.advance(ctx, a, o, &p)
		if more {
			a.plan = c.merged(a, a.course)
			a.lives()
		}
		if unsaved {
			if c.recordNew(a, o) {
				c.writeTracker(a, o.UID, o.Generation)
			}
			return
		}
		if !more {
			break
		}
	}
	// 4. Delete objects that left the plan, and update the tracker.
	if p.applied+p.blocked == len(a.plan.Resources) && p.settled && a.course.whole() {
		c.collect(a, o)
	}
	// 5. Report the status, unless a component's state is still being evaluated.
	if slices.ContainsFunc(p.components, func(s componentState) bool { return s.unknown }) {
		return
	}
	c.report(a, o, p)
	c.rest(a, o, &p)
}

// open returns the Application as last seen, or nil if it does not exist. If the spec cannot be
// read, open returns an error and an Application without a spec.
func (c *Controller) open(a *app) (*oam.Application, error) {
	raw, ok := c.applications.Get(a.key.Namespace, a.key.Name)
	if !ok {
		a.opened = nil
		return nil, nil
	}
	if a.opened != nil && a.opened.UID == raw.UID && a.opened.ResourceVersion == raw.ResourceVersion {
		return a.opened, nil
	}
	o, err := c.applications.open(raw)
	if a.opened = o; err != nil {
		a.opened = nil // so that the next pass reports it again
	}
	return o, err
}

const (
	// takenUpMax is how long after the last answer an Application may keep its place at the gate
	// until controllers have observed the objects it created.
	takenUpMax = 2 * time.Second
	// silenceMax is how long a managed cluster may leave writes unanswered before Applications stop
	// keeping their places at the gate for it. It is a round trip to the other side of the world,
	// and a short wait for others when the cluster has gone.
	silenceMax = 250 * time.Millisecond
)

// keepsPlace reports whether an Application keeps its place at the gate. again is when to ask again
// if nothing happens before; zero means an answer will bring the Application back.
func (c *Controller) keepsPlace(a *app) (keeps bool, again time.Duration) {
	if !c.gate.has(a.key) {
		return false, 0
	}
	now := c.cfg.Now()
	a.mu.Lock()
	local := len(a.flight) // writes to the local cluster that are under way
	wait := takenUpMax - now.Sub(a.lastAnswer)
	for i := range resourcesOf(a.plan) {
		r := &a.plan.Resources[i]
		if r.Cluster == "" || !a.flight[refKey(r.Ref)] {
			continue
		}
		local--
		if t := c.targets.get(r.Cluster); t != nil {
			again = max(again, silenceMax-t.pulse.silence(now))
		}
	}
	a.mu.Unlock()
	switch {
	case local > 0:
		return true, 0
	case again > 0:
		return true, again
	case wait > 0 && c.untaken(a):
		return true, wait
	}
	return false, 0
}

func resourcesOf(p *plan.Plan) []plan.Resource {
	if p == nil {
		return nil
	}
	return p.Resources
}

// untaken reports whether the controller of some object that the Application created has not
// observed that object yet. While such controllers lag behind, more objects would only delay them
// further.
func (c *Controller) untaken(a *app) bool {
	return slices.ContainsFunc(resourcesOf(a.plan), func(r plan.Resource) bool {
		there := c.seen(r.Ref)
		return there != nil && there.owner == a.key && there.untaken
	})
}

// through frees an Application's place at the gate and enqueues the Applications that enter
// instead.
func (c *Controller) through(k types.NamespacedName) {
	for _, next := range c.gate.leave(k, c.cfg.Writer.Latency()) {
		c.queue.Add(next)
	}
}

// deleted reports whether an Application is being deleted.
func (c *Controller) deleted(k types.NamespacedName) bool {
	raw, ok := c.applications.Get(k.Namespace, k.Name)
	return ok && raw.DeletionTimestamp != nil
}

// letGo removes the finalizers of a deleted Application whose record cannot be read, and tells in
// an event what stays.
func (c *Controller) letGo(a *app, o *oam.Application) {
	tracker := trackerName(a.key.Namespace, a.key.Name)
	if !slices.Contains(o.Finalizers, oam.ResourceTrackerFinalizer) && !slices.Contains(o.Finalizers, oam.OrphanFinalizer) {
		return
	}
	c.log.Warn("an application is let go whose record cannot be read: what it has made stays", "application", a.key, "tracker", tracker)
	c.cfg.Writer.Event(o, corev1.EventTypeWarning, "RecordUnreadable",
		fmt.Sprintf("the application is deleted and what it has made stays, for ResourceTracker %s, which lists it, cannot be read", tracker))
	c.release(a, o)
}

// replan makes the plan again if its inputs have changed. It returns false if there is no plan;
// a.planErr says why.
func (c *Controller) replan(a *app, o *oam.Application) bool {
	clusters := c.targets.version()
	if len(a.read) > 0 && c.valuesChanged(a) {
		a.planned, a.made = "", made{}
	}
	if a.planned != "" && a.plan != nil && !a.follows.Load() && a.made.of(o, clusters) {
		return true
	}
	spec, publish := &o.Spec, o.Annotations[oam.PublishVersionAnnotation]
	data, err := json.Marshal(spec)
	if err != nil {
		a.planErr = err
		return false
	}
	hash := plan.Hash(data)
	last := a.record.latest()
	if last != nil && publish != "" && last.PublishVersion == publish && last.Hash != hash {
		// Pinned: the new spec takes effect with another publishVersion.
		spec, hash = last.Spec, last.Hash
	}
	autoUpdate := o.Annotations[oam.AutoUpdateAnnotation] == "true"
	annotations := withoutCommands(o.Annotations)
	input := hash + "/" + publish + "/" + hashOf(o.Labels) + "/" + hashOf(annotations)
	places := slices.ContainsFunc(spec.Policies, func(p oam.AppPolicy) bool { return p.Type == plan.TypeTopology })
	if a.places.Store(places); places {
		input += fmt.Sprintf("/%d", clusters)
	}
	a.made = made{o.UID, o.Generation, o.Labels, o.Annotations, clusters}
	if a.planned == input && a.plan != nil && !autoUpdate {
		return true
	}
	if a.planned == input && a.planErr != nil && !a.follows.Load() {
		return false
	}
	number, name := int64(1), ""
	if last != nil {
		number = last.Number
		if last.Hash != hash || last.PublishVersion != publish {
			number++
		}
	}
	name = fmt.Sprintf("%s-v%d", o.Name, number)
	in := &plan.Input{
		Namespace: o.Namespace, Name: o.Name, Revision: name, RevisionNum: number, PublishVersion: publish,
		Labels: o.Labels, Annotations: annotations, Spec: spec, Clusters: c.targets, Memo: &c.memo,
	}
	var charts *appCharts
	charts, in.Pinned = c.chartsOf(a, name, autoUpdate)
	in.Charts, in.External = charts, asked{c, a}
	if a.asking != name+"/"+hash {
		a.asking, a.asked = name+"/"+hash, c.cfg.Now()
		a.forgetAnswers()
		c.spies.leave(a.key, true)
	}
	in.Now = a.asked
	var p *plan.Plan
	if coursed(spec) {
		if a.status == nil {
			a.status = o.Status.DeepCopy()
		}
		p, err = c.prepare(a, in, a.record.run(name, hash))
	} else {
		a.course = nil
		p, err = c.makePlan(a, in)
	}
	a.planned, a.planErr = input, err
	a.follows.Store(autoUpdate || errors.Is(err, errNoDefinition) || errors.Is(err, plan.ErrNotYet) || errors.Is(err, errChart) || errors.Is(err, errAsked))
	if err != nil {
		a.plan = nil
		return false
	}
	a.read = charts.read
	if last == nil || last.Hash != hash || last.PublishVersion != publish {
		a.record.Revisions = append(a.record.Revisions, revision{
			Name: name, Number: number, Hash: hash, PublishVersion: publish, Created: metav1.NewTime(c.cfg.Now()).Rfc3339Copy(),
			Spec: spec.DeepCopy(), Definitions: p.Definitions,
		})
		limit := c.cfg.RevisionLimit
		if p.Policies.RevisionLimit > 0 {
			limit = p.Policies.RevisionLimit
		}
		c.publish(a, o)
		if n := len(a.record.Revisions); n > limit {
			c.retract(a, a.record.Revisions[:n-limit])
			a.record.Revisions = slices.Clone(a.record.Revisions[n-limit:])
		}
		a.since, a.dirty = c.cfg.Now(), true
	} else if a.again {
		a.record.latest().Definitions, a.dirty = p.Definitions, true
	} else if !autoUpdate && (a.course == nil || workflowFinished(o, a)) {
		keepAsApplied(p, &a.record)
	}
	a.again = false
	a.reads = nil
	a.plan, a.states, a.checked = p, map[string]states{}, map[plan.Ref]checked{}
	a.lives()
	a.mu.Lock()
	clear(a.failed)
	clear(a.retryAt)
	clear(a.retries)
	a.mu.Unlock()
	return true
}

// withoutCommands returns the annotations without those that request one action.
func withoutCommands(annotations map[string]string) map[string]string {
	_, command := annotations[oam.WorkflowCommandAnnotation]
	_, restart := annotations[oam.RestartWorkflowAnnotation]
	if !command && !restart {
		return annotations
	}
	out := maps.Clone(annotations)
	delete(out, oam.WorkflowCommandAnnotation)
	delete(out, oam.RestartWorkflowAnnotation)
	return out
}

// keepAsApplied replaces the objects of a plan by those last applied, if definitions have changed
// since: an Application changes only when its spec does.
func keepAsApplied(p *plan.Plan, r *record) {
	last := r.latest()
	if last == nil || equalMaps(last.Definitions, p.Definitions) {
		return
	}
	for i := range p.Resources {
		if data, ok := r.Applied[refKey(p.Resources[i].Ref)]; ok {
			p.Resources[i].JSON, p.Resources[i].Hash = data, plan.Hash(data)
		}
	}
}

func hashOf(m map[string]string) string {
	if len(m) == 0 {
		return ""
	}
	data, _ := json.Marshal(m) // a map of strings
	return plan.Hash(data)
}

// recordNew names new objects in the tracker, and reports whether the tracker already names all
// objects of the plan. If it returns false, the tracker's answer brings the Application back.
func (c *Controller) recordNew(a *app, o *oam.Application) bool {
	if a.flying("tracker") {
		return false
	}
	resources := a.record.resources
	missing := false
	for i := range a.plan.Resources {
		if r := &a.plan.Resources[i]; !r.ReadOnly && !a.record.has(r.Ref) {
			missing = true
			resources = append(resources[:len(resources):len(resources)], managed(r))
		}
	}
	if !missing && a.record.object != nil {
		return true
	}
	a.record.resources = resources
	// A new object has no earlier applied state: three-way merges start from what is applied now.
	if a.record.Applied == nil {
		a.record.Applied = map[string]json.RawMessage{}
	}
	for i := range a.plan.Resources {
		r := &a.plan.Resources[i]
		if _, known := a.record.Applied[refKey(r.Ref)]; !known && !isSecret(r.GVK) && !r.ReadOnly {
			a.record.Applied[refKey(r.Ref)] = r.JSON
		}
	}
	c.writeTracker(a, o.UID, o.Generation)
	return false
}

// writeTracker creates the tracker or replaces its spec.
func (c *Controller) writeTracker(a *app, uid types.UID, generation int64) {
	compression, err := pack(a.record.packed)
	if err != nil {
		c.log.Error("an application's record cannot be packed", "application", a.key, "error", err)
		return
	}
	spec := oam.ResourceTrackerSpec{
		Type: oam.ResourceTrackerTypeRoot, ApplicationGeneration: generation,
		ManagedResources: a.record.resources, Compression: compression,
	}
	if !a.starts("tracker") {
		return
	}
	a.dirty = false
	done := func(obj apiwriter.Object, err error) {
		if err == nil {
			a.mu.Lock()
			rt, _ := obj.(*oam.ResourceTracker)
			if rt != nil && malformed.Of(rt) != nil {
				rt = nil // the watch will show what it says now
			}
			if rt != nil && rt.Spec.Compression.Data != compression.Data {
				a.other = rt
			} else {
				a.answered = rt
			}
			a.mu.Unlock()
		}
		if apierrors.IsAlreadyExists(err) {
			// The watch has not shown the tracker yet. When it does, it enqueues the Application.
			a.mu.Lock()
			a.unknownRecord = true
			a.mu.Unlock()
			a.ended("tracker", err)
			c.queue.AddRateLimited(a.key)
			return
		}
		a.ended("tracker", err)
		c.again(a, err)
	}
	meta := apiwriter.Meta{Owner: a.owner, Reason: "application-tracker", StartsWork: true}
	if a.record.object == nil {
		c.cfg.Writer.Create(meta, &oam.ResourceTracker{
			ObjectMeta: metav1.ObjectMeta{
				Name: trackerName(a.key.Namespace, a.key.Name),
				Labels: map[string]string{
					oam.AppNameLabel: a.key.Name, oam.AppNamespaceLabel: a.key.Namespace, oam.AppUIDLabel: string(uid),
				},
				Annotations: map[string]string{apiwriter.CreatorAnnotation: a.owner},
			},
			Spec: spec,
		}, done)
		return
	}
	data, err := json.Marshal([]map[string]any{{"op": "add", "path": "/spec", "value": spec}})
	if err != nil {
		a.ended("tracker", err)
		return
	}
	c.cfg.Writer.Patch(meta, a.record.object, types.JSONPatchType, data, done)
}

// again enqueues an Application after the answer to a write: at once, and once more with backoff if
// the write failed.
func (c *Controller) again(a *app, err error) {
	switch {
	case err == nil:
		c.queue.Add(a.key)
	case errors.Is(err, apiwriter.ErrStopped):
	default:
		c.queue.Add(a.key) // to report it
		c.queue.AddRateLimited(a.key)
	}
}

// remove deletes an Application's objects, then its tracker, then its finalizers.
func (c *Controller) remove(a *app, o *oam.Application) {
	if o != nil && o.DeletionTimestamp != nil && slices.Contains(o.Finalizers, oam.OrphanFinalizer) {
		a.record.resources = nil
	}
	var spec *oam.ApplicationSpec
	if o != nil {
		spec = &o.Spec
	} else if last := a.record.latest(); last != nil {
		spec = last.Spec
	}
	order := c.orderOf(a, spec)
	c.leaves(a)
	remaining, why := 0, error(nil)
	for i := range a.record.resources {
		m := &a.record.resources[i]
		if order.holds(m) {
			remaining++
			continue
		}
		gone, err := c.removeOne(a, m, metav1.DeletePropagationBackground, nil)
		if unreachable := (*errDown)(nil); errors.As(err, &unreachable) {
			why = unreachable // the Application is enqueued when the cluster can be reached again
		} else if err != nil {
			c.log.Warn("an object cannot be removed", "application", a.key, "object", refOf(m).String(), "error", err)
			c.queue.AddRateLimited(a.key)
		}
		if !gone {
			remaining++
		}
	}
	if remaining > 0 || a.flying("tracker") {
		if o != nil {
			c.reportDeleting(a, o, remaining, why)
		}
		return
	}
	tracker := a.record.object
	meta := apiwriter.Meta{Owner: a.owner, Reason: "application-tracker"}
	if tracker != nil {
		if a.starts("tracker") {
			c.cfg.Writer.Delete(meta, tracker, apiwriter.DeleteOptions{}, func(err error) {
				if err == nil {
					a.mu.Lock()
					a.dropped = true
					a.mu.Unlock()
				}
				a.ended("tracker", err)
				c.again(a, err)
			})
		}
		return
	}
	if o == nil {
		c.forget(a.key)
		return
	}
	c.release(a, o)
}

// hold adds this manager's finalizer if admission has not.
func (c *Controller) hold(a *app, o *oam.Application) {
	if slices.Contains(o.Finalizers, oam.ResourceTrackerFinalizer) || !a.starts("finalizer") {
		return
	}
	data, err := finalizersPatch(o, append(slices.Clone(o.Finalizers), oam.ResourceTrackerFinalizer))
	if err != nil {
		return
	}
	c.cfg.Writer.Patch(apiwriter.Meta{Owner: a.owner, Reason: "application-finalizer"}, o, types.JSONPatchType, data, func(_ apiwriter.Object, err error) {
		if err != nil {
			// The Application was changed or deleted meanwhile, or the patch was refused. The next
			// pass tries again; until then there is no finalizer.
			c.log.Debug("no finalizer yet", "application", a.key, "error", err)
		}
		a.ended("finalizer", nil)
	})
}

// finalizersPatch returns a JSON patch that replaces the finalizers, and fails if they have changed
// meanwhile. Other changes, such as this manager's own status writes, do not matter.
func finalizersPatch(o *oam.Application, to []string) ([]byte, error) {
	type op struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	const path = "/metadata/finalizers"
	if len(o.Finalizers) == 0 {
		return json.Marshal([]op{{"add", path, to}})
	}
	return json.Marshal([]op{{"test", path, o.Finalizers}, {"replace", path, to}})
}

// release removes this manager's finalizers, so that the API server can delete the Application.
func (c *Controller) release(a *app, o *oam.Application) {
	kept := slices.DeleteFunc(slices.Clone(o.Finalizers), func(f string) bool {
		return f == oam.ResourceTrackerFinalizer || f == oam.OrphanFinalizer
	})
	if len(kept) == len(o.Finalizers) || a.wasReleased(o.UID) || !a.starts("finalizer") {
		return
	}
	data, err := finalizersPatch(o, kept)
	if err != nil {
		return
	}
	meta := apiwriter.Meta{Owner: a.owner, Reason: "application-finalizer"}
	c.cfg.Writer.Patch(meta, o, types.JSONPatchType, data, func(_ apiwriter.Object, err error) {
		if apierrors.IsNotFound(err) {
			err = nil
		}
		if apierrors.IsConflict(err) || apierrors.IsInvalid(err) {
			// Another client was faster: look again when the watch has shown the new version.
			c.queue.AddAfter(a.key, 100*time.Millisecond)
			err = nil
		} else if err == nil {
			a.mu.Lock()
			a.released = o.UID
			a.mu.Unlock()
		}
		a.ended("finalizer", err)
		if err != nil {
			c.again(a, err)
		}
	})
}
