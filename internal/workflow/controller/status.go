package controller

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/rawjson"
	"lockstep.dev/lockstep/internal/unpack"
	"lockstep.dev/lockstep/internal/workflow/compress"
	"lockstep.dev/lockstep/internal/workflow/engine"
)

// These delays batch changes of the status. The end of a workflow is never delayed.
const (
	// firstTold is the delay of the first status after the first pod began to run. A workflow that
	// ends sooner saves this write.
	firstTold = 2 * time.Second
	// firstQueued is the same delay for a workflow that has no running pod.
	firstQueued = 5 * time.Second
	// intervalMin and intervalMax bound the interval between two status writes of one workflow. The
	// interval doubles with each write.
	intervalMin = 2 * time.Second
	intervalMax = 5 * time.Second
	// costShare bounds the time spent composing large statuses to one part in costShare.
	costShare = 20
	// lagShare is the delay of a non-urgent status write as a multiple of the writer's latency, up
	// to lagWaitMax: when the server is busy, the workflow may end first, which saves the write.
	lagShare   = 40
	lagWaitMax = 20 * time.Second
	// waitTold is how long a pod waits for free capacity before the status of its node says why.
	waitTold = 2 * time.Second
)

// objectBytesMax is the maximum size of a workflow in bytes, below the API server's limit.
const objectBytesMax = 1200 << 10

// report writes the workflow's status if changes are pending and due.
func (c *Controller) report(r *record) {
	if r.object == nil || r.run == nil || r.writing != 0 || r.stuck || r.next.empty() {
		return
	}
	now := c.Clock.Now()
	if wait := r.refused.Left(now); wait > 0 {
		c.loop.WakeAfter(r.key, wait)
		return
	}
	if !r.next.urgent {
		if wait := c.due(r).Sub(now); wait > 0 {
			c.loop.WakeAfter(r.key, wait)
			return
		}
		if !c.statusSlots.enter(r) {
			return // its key is woken when a slot is free
		}
	}
	started := time.Now()
	about := &wf.Workflow{ObjectMeta: metav1.ObjectMeta{
		Namespace: r.key.Namespace, Name: r.key.Name, UID: r.uid, ResourceVersion: r.version,
	}}
	patch, sent, moved, err := c.compose(r)
	if err != nil {
		c.tooLarge(r, err)
		return
	}
	r.cost = time.Since(started)
	id := c.writeSeq.Add(1)
	r.writing, r.lastStatusAt = id, now
	r.writes++
	urgent := r.next.urgent
	r.next = statusChanges{nodes: map[string]bool{}, sent: r.next.nodes}
	for i := range r.done {
		if r.done[i].state == doneUnwritten {
			r.done[i].state = doneSent
		}
	}
	if r.first == firstUnwritten {
		r.first = firstSent
	}
	key, uid := r.key, r.uid
	over := r.run.Workflow.Status.Phase.Completed()
	labels := labelsOf(r.run.Workflow) // a copy of the labels as written: the run goes on meanwhile
	answered := func(o apiwriter.Object, err error) {
		version := ""
		if err == nil {
			version = o.GetResourceVersion()
			if moved != nil && c.Clock.Since(moved.at) > nodesLate {
				err = errNodesLate
			}
		}
		// The post is addressed to Anyone: if the controller releases the workflow, only posts to
		// Anyone still run.
		posted := c.loop.Post(key, controlloop.Anyone, func(r *record) {
			if r.uid == uid && r.writing == id {
				c.told(r, version, sent, labels, over, err)
				return
			}
			c.answeredLate(key, uid, id, version)
		})
		if !posted {
			c.answeredLate(key, uid, id, version)
		}
	}
	write := func() {
		c.Writer.PatchVersion(apiwriter.Meta{Owner: ownerKey(key), Reason: "workflow-status"}, about, urgent, patch, answered)
	}
	if moved == nil {
		write()
		return
	}
	object := r.object
	moved.namespace, moved.uid, moved.done = key.Namespace, uid, func(err error) {
		if err == nil {
			moved.at = c.Clock.Now()
			write()
			return
		}
		if c.nodeWrites.loop.Context().Err() == nil { // otherwise the manager ends
			c.Writer.Event(object, corev1.EventTypeWarning, "NodesNotMoved", shortened(err.Error()))
		}
		answered(nil, err)
	}
	c.nodeWrites.put(id, moved)
}

// answeredLate takes in the answer to the last write of a released workflow.
func (c *Controller) answeredLate(key types.NamespacedName, uid types.UID, id uint64, version string) {
	if c.released.answered(uid, id, version) {
		c.loop.Wake(key)
	}
}

// due returns the time at which a non-urgent status is to be written.
func (c *Controller) due(r *record) time.Time {
	busy := min(lagWaitMax, lagShare*c.Writer.Latency())
	if r.writes == 0 {
		wait := max(firstTold, busy)
		switch {
		case !r.ran.IsZero():
			wait += max(0, r.ran.Sub(r.next.since))
		case len(r.pauses) > 0 || len(r.nodePods) == 0:
		case r.pods.Writing() > 0:
			wait = lagWaitMax // the status write would delay the create of a pod
		default:
			wait = min(lagWaitMax, max(0, r.created.Sub(r.next.since))+max(firstQueued, busy))
		}
		return r.next.since.Add(wait)
	}
	interval := min(intervalMax, intervalMin<<min(r.writes-1, 4))
	return r.lastStatusAt.Add(max(interval, busy, costShare*r.cost))
}

// explainWaiting reports to the engine why pods wait, once they have waited for waitTold.
func (c *Controller) explainWaiting(r *record, now time.Time) {
	for _, q := range r.pods.Requests() {
		if q.Why == nil {
			continue
		}
		if wait := waitTold - now.Sub(q.Since); wait > 0 {
			c.loop.WakeAfter(r.key, wait)
			continue
		}
		for _, slot := range r.pods.Queued(q) {
			r.events = append(r.events, engine.PodState{
				NodeID: slot.Maker.(*nodePod).nodeID, Phase: corev1.PodPending, Message: q.Why.Code + ": " + q.Why.Message,
			})
		}
		q.Why = nil
	}
}

// told takes in the writer's answer to a status write.
func (c *Controller) told(r *record, version string, sent, labels map[string]string, over bool, err error) {
	r.writing = 0
	c.statusSlots.leave(r)
	switch {
	case err == nil:
		r.setVersion(version, true)
		r.base, r.next.sent, r.defaults = sent, nil, nil
		if r.moved != "" {
			r.offloaded = nil // an earlier version
		}
		r.refused.Succeeded()
		r.labelled(labels)
		for i := range r.done {
			if r.done[i].state == doneSent {
				r.done[i].state, r.done[i].due = doneWritten, r.run.Workflow.Status.Nodes[r.done[i].nodeID].FinishedAt.Time
			}
		}
		if r.first == firstSent {
			r.first = firstNone
		}
		if over {
			c.finish(r)
		}
		return
	case errors.Is(err, errNodesLate):
		r.setVersion(version, true) // it is written again, with its nodes
	case errors.Is(err, apiwriter.ErrStopped):
	case apierrors.IsConflict(err):
		r.stuck = true // until the version on the server has been taken in
	case apierrors.IsNotFound(err):
		r.stuck = true // the watch will show its deletion
	default:
		if r.defaults != nil && apierrors.IsInvalid(err) {
			c.Log.Warn("a workflow keeps its spec without the defaults, which the API server refuses", "workflow", r.key)
			r.defaults = nil
		}
		r.refused.Failed(c.Clock.Now())
		c.Log.Warn("writing a workflow's status failed", "workflow", r.key, "error", err)
	}
	// The changes that were not written are pending again, and the whole status is written next:
	// the server's state is unknown.
	r.news(c.Clock.Now())
	maps.Copy(r.next.nodes, r.next.sent)
	r.next.fields, r.next.sent, r.base = true, nil, nil
	r.next.urgent = r.next.urgent || over || r.first == firstSent
	for i := range r.done {
		if r.done[i].state == doneSent {
			r.done[i].state = doneUnwritten
		}
	}
	if r.first == firstSent {
		r.first = firstUnwritten
	}
	c.loop.Wake(r.key)
}

// finish ends the run of a workflow after its end has been written.
func (c *Controller) finish(r *record) {
	w := r.run.Workflow
	phase := w.Status.Phase
	c.metrics.ended(phase, w)
	c.past.learn(w)
	if phase == wf.WorkflowSucceeded {
		if r.tells.Workflows {
			c.Writer.Event(w, corev1.EventTypeNormal, "WorkflowSucceeded", "Workflow completed")
		}
	} else {
		c.Writer.Event(w, corev1.EventTypeWarning, "Workflow"+string(phase), shortened(w.Status.Message))
	}
	for _, t := range c.Informers.TaskResults.ByIndex(informer.ResultsByWorkflow, r.key.String()) {
		c.Writer.Delete(apiwriter.Meta{Owner: ownerKey(r.key), Reason: "delete-task-result"}, t, apiwriter.DeleteOptions{}, nil)
	}
	meta := w.ObjectMeta
	meta.Labels = r.object.Labels
	rest := &wf.Workflow{ObjectMeta: meta}
	spec := w.EffectiveSpec()
	rest.Spec = wf.WorkflowSpec{TTLStrategy: spec.TTLStrategy, PodGC: spec.PodGC}
	rest.Status = wf.WorkflowStatus{Phase: phase, FinishedAt: w.Status.FinishedAt}
	version := r.version
	c.releaseRun(r)
	r.object, r.version = rest, version
	c.locks.forget(r.key)
}

// labelled records in r.object the labels, annotations and finalizers that a status write has
// stored.
func (r *record) labelled(labels map[string]string) {
	w := *r.object
	w.Labels = merged(w.Labels, labels, r.extraLabels)
	w.Annotations = merged(w.Annotations, map[string]string{wf.AnnotationPodNameFormat: "v2"}, r.extraAnnotations)
	w.Finalizers = r.finalizers()
	r.object = &w
}

// labelsOf returns the labels by which clients find workflows of a phase or of a template.
func labelsOf(w *wf.Workflow) map[string]string {
	out := map[string]string{
		wf.LabelPhase: string(w.Status.Phase), wf.LabelCompleted: strconv.FormatBool(w.Status.Phase.Completed()),
	}
	// A template reference may be longer than a label value, and need not be the name of an
	// existing template.
	if ref := w.Spec.WorkflowTemplateRef; ref != nil && len(validation.IsValidLabelValue(ref.Name)) == 0 {
		if ref.ClusterScope {
			out[wf.LabelClusterWorkflowTemplate] = ref.Name
		} else {
			out[wf.LabelWorkflowTemplate] = ref.Name
		}
	}
	return out
}

// compose builds the JSON patch that updates the workflow on the server. fields are the top-level
// status fields that the server will have after the patch. If the nodes exceed NodesBytesMax they
// are written compressed. If moved is not nil, its nodes must be in the database before the patch is
// sent. The error is a *sizeError if the workflow is too large to be stored.
func (c *Controller) compose(r *record) (patch []byte, fields map[string]string, moved *movedNodes, err error) {
	w := r.run.Workflow
	s := &w.Status
	r.conditions(s)
	if s.Phase.Completed() {
		c.conclude(r, s)
	}
	for id, outputs := range r.supplied {
		if n, found := s.Nodes[id]; found && n.Outputs != outputs {
			n.Outputs = outputs
			s.Nodes[id] = n
			r.next.nodes[id] = true
		}
	}
	own := *s
	own.Nodes, own.CompressedNodes = nil, ""
	whole, fields, err := fieldsOf(&own)
	if err != nil {
		return nil, nil, nil, err
	}
	always := c.AlwaysMoveNodes && c.moves()
	p := r.patchMetadata(w)
	if r.base != nil && !r.packed && !always {
		parts := slices.Clone(p)
		if err := r.patchParts(&parts, s, fields); err != nil {
			return nil, nil, nil, err
		}
		if r.size <= c.NodesBytesMax {
			patch, err = json.Marshal(parts)
			return patch, fields, nil, err
		}
	}
	nodes, err := json.Marshal(s.Nodes)
	if err != nil {
		return nil, nil, nil, err
	}
	// Larger nodes could not be read again.
	if most := int(unpack.WorkflowNodes.Bytes); len(nodes) > most {
		return nil, nil, nil, &sizeError{nodes: len(s.Nodes), bytes: len(nodes), most: most, what: "in JSON, and compressed ones may have"}
	}
	key, value := "nodes", nodes
	r.size, r.moved = len(nodes), ""
	if r.packed = r.packed || always || len(nodes) > c.NodesBytesMax; r.packed && len(s.Nodes) > 0 {
		text := ""
		if !always {
			if text, err = compress.Pack(nodes); err != nil {
				return nil, nil, nil, err
			}
			c.metrics.compressed.Inc()
			value, _ = json.Marshal(text)
			key = "compressedNodes"
		}
		rest := len(whole) + r.specSize()
		switch size := len(text) + rest; {
		case always, size > objectBytesMax && rest <= objectBytesMax && (c.moves() || c.Nodes != nil && c.Settings().Refused != ""):
			r.moved = nodesVersion(nodes)
			moved = &movedNodes{version: r.moved, nodes: nodes}
			own.OffloadNodeStatusVersion = r.moved
			if whole, fields, err = fieldsOf(&own); err != nil {
				return nil, nil, nil, err
			}
		case size > objectBytesMax:
			return nil, nil, nil, &sizeError{len(s.Nodes), size, objectBytesMax, "compressed, and an object of the API server holds"}
		}
	}
	if r.hasNodes = len(s.Nodes) > 0 && moved == nil; r.hasNodes {
		separator := ","
		if len(fields) == 0 {
			separator = ""
		}
		whole = slices.Concat(whole[:len(whole)-1], []byte(separator+`"`+key+`":`), value, []byte("}"))
	}
	p.add("/status", json.RawMessage(whole))
	patch, err = json.Marshal(p)
	return patch, fields, moved, err
}

// fieldsOf returns a status in JSON, and its top-level fields.
func fieldsOf(s *wf.WorkflowStatus) (whole []byte, fields map[string]string, err error) {
	if whole, err = json.Marshal(s); err != nil {
		return nil, nil, err
	}
	fields = map[string]string{}
	return whole, fields, rawjson.Members(whole, func(m rawjson.Member) bool {
		fields[string(m.Name)] = string(whole[m.From:m.End])
		return true
	})
}

// specSize returns the approximate size in bytes of the workflow without its status.
func (r *record) specSize() int {
	data, err := json.Marshal(r.object.Spec)
	if err != nil {
		return 0
	}
	return len(data) + 4096
}

// conditions sets the PodRunning condition of a workflow that is not over.
func (r *record) conditions(s *wf.WorkflowStatus) {
	if s.Phase.Completed() {
		return // the engine has set the final conditions
	}
	running := metav1.ConditionFalse
	if r.running > 0 {
		running = metav1.ConditionTrue
	}
	s.Conditions = slices.DeleteFunc(slices.Clone(s.Conditions), func(c wf.Condition) bool {
		return c.Type == wf.ConditionPodRunning || c.Type == wf.ConditionCompleted
	})
	s.Conditions = append([]wf.Condition{{Type: wf.ConditionPodRunning, Status: running}}, s.Conditions...)
}

// conclude adds the SpecError condition and the resources duration to the final status, and deletes
// the workflow's volume claims and disruption budget.
func (c *Controller) conclude(r *record, s *wf.WorkflowStatus) {
	if s.Phase == wf.WorkflowError && len(s.Nodes) == 0 && !slices.ContainsFunc(s.Conditions, func(c wf.Condition) bool { return c.Type == wf.ConditionSpecError }) {
		s.Conditions = append(s.Conditions, wf.Condition{Type: wf.ConditionSpecError, Status: metav1.ConditionTrue, Message: s.Message})
	}
	if s.ResourcesDuration == nil {
		for _, n := range s.Nodes {
			for name, amount := range n.ResourcesDuration {
				if s.ResourcesDuration == nil {
					s.ResourcesDuration = map[corev1.ResourceName]int64{}
				}
				s.ResourcesDuration[name] += amount
			}
		}
	}
	if len(s.PersistentVolumeClaims) > 0 || r.spec.PodDisruptionBudget != nil {
		s.PersistentVolumeClaims = c.deleteObjects(r, r.spec, s)
	}
}

// patchMetadata patches the labels, annotations and finalizers that differ from the server's.
func (r *record) patchMetadata(w *wf.Workflow) (p statusPatch) {
	p.addMap("/metadata/labels", r.object.Labels, labelsOf(w), r.extraLabels)
	annotations := map[string]string{wf.AnnotationPodNameFormat: "v2"}
	p.addMap("/metadata/annotations", r.object.Annotations, annotations, r.extraAnnotations)
	if list := r.finalizers(); len(list) > len(r.object.Finalizers) {
		p.add("/metadata/finalizers", list)
	}
	if r.defaults != nil {
		p = append(p, r.defaults.patch...)
	}
	return p
}

// patchParts patches the status fields and nodes that changed.
func (r *record) patchParts(p *statusPatch, s *wf.WorkflowStatus, fields map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if r.base[name] != fields[name] {
			p.add("/status/"+name, json.RawMessage(fields[name]))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.base)) {
		if _, found := fields[name]; !found {
			*p = append(*p, apiwriter.PatchOp{Op: "remove", Path: "/status/" + name})
		}
	}
	ids := slices.Sorted(maps.Keys(r.next.nodes))
	if len(ids) > 0 && !r.hasNodes {
		r.hasNodes = true
		p.add("/status/nodes", struct{}{})
	}
	for _, id := range ids {
		n, found := s.Nodes[id]
		if !found {
			continue
		}
		data, err := json.Marshal(&n)
		if err != nil {
			return err
		}
		r.size += len(data) + len(id) + 4
		p.add("/status/nodes/"+id, json.RawMessage(data))
	}
	return nil
}

// sizeError reports that a workflow is too large to be stored.
type sizeError struct {
	nodes, bytes, most int
	what               string // how the bytes are measured and what limits them
}

func (e *sizeError) Error() string {
	return fmt.Sprintf("the workflow is too large: its %d nodes take %d bytes %s %d; split it into several workflows",
		e.nodes, e.bytes, e.what, e.most)
}

// tooLarge aborts a workflow whose status cannot be stored, and drops its nodes.
func (c *Controller) tooLarge(r *record, err error) {
	var size *sizeError
	if !errors.As(err, &size) {
		c.Log.Error("making a workflow's status failed", "workflow", r.key, "error", err)
		return
	}
	now := c.Clock.Now()
	out := r.run.Abort(now, err.Error())
	c.act(r, &out, now)
	s := &r.run.Workflow.Status
	s.Nodes, s.StoredTemplates, r.packed, r.base, r.size = wf.Nodes{}, nil, false, nil, 0
	r.next.urgent = true
	c.loop.Wake(r.key)
}

// statusPatch is a JSON patch under construction.
type statusPatch []apiwriter.PatchOp

func (p *statusPatch) add(path string, value any) {
	*p = append(*p, apiwriter.PatchOp{Op: "add", Path: path, Value: value})
}

// addMap sets the keys whose value in wants differs from the value in there. Later maps in wants
// override earlier ones.
func (p *statusPatch) addMap(path string, there map[string]string, wants ...map[string]string) {
	want := merged(wants...)
	if len(there) == 0 {
		p.add(path, want)
		return
	}
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if old, found := there[key]; !found || old != want[key] {
			p.add(path+"/"+escape(key), want[key])
		}
	}
}

// merged returns the union of maps. Later maps override earlier ones.
func merged(list ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, m := range list {
		maps.Copy(out, m)
	}
	return out
}

// escape escapes a map key for a path of a JSON patch.
func escape(key string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(key) }
