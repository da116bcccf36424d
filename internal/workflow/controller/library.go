package controller

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
)

// library is what a workflow of a namespace may refer to.
type library struct {
	c         *Controller
	namespace string
}

// Spec implements engine.Library.
func (l library) Spec(cluster bool, name string) (*wf.WorkflowSpec, bool) {
	if cluster {
		t, found := l.c.Informers.ClusterWorkflowTemplates.Get("", name)
		if !found {
			return nil, false
		}
		return &t.Spec, true
	}
	t, found := l.c.Informers.WorkflowTemplates.Get(l.namespace, name)
	if !found {
		return nil, false
	}
	return &t.Spec, true
}

// ConfigMapKey implements engine.Library.
func (l library) ConfigMapKey(name, key string) (string, bool) {
	cm, found := l.c.Informers.ConfigMaps.Get(l.namespace, name)
	if !found {
		return "", false
	}
	value, found := cm.Data[key]
	return value, found
}

// leaveToLeader marks a workflow as one for the manager that places pods, and lets go of it.
func (c *Controller) leaveToLeader(r *record) {
	c.withdraw(r)
	patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{wf.AnnotationLeader: "true"}}})
	c.Writer.Patch(apiwriter.Meta{Owner: ownerKey(r.key), Reason: "leave-to-leader"}, r.object, types.MergePatchType, patch, nil)
	r.run, r.events, r.next = nil, nil, statusNews{}
}

// keepWithLeader marks a workflow as one for the manager that places pods, with its next status.
func (r *record) keepWithLeader() {
	if r.object.Annotations[wf.AnnotationLeader] != "" {
		return
	}
	if r.extraAnnotations == nil {
		r.extraAnnotations = map[string]string{}
	}
	r.extraAnnotations[wf.AnnotationLeader] = "true"
}

// prepareMetadata finds the labels and annotations that the workflow's spec puts on it.
func (c *Controller) prepareMetadata(r *record, w *wf.Workflow) {
	m := w.Spec.WorkflowMetadata
	if m == nil {
		return
	}
	r.extraLabels, r.extraAnnotations = maps.Clone(m.Labels), maps.Clone(m.Annotations)
}

// sortNatural sorts names with numbers in them as people count: item(2) before item(10).
func sortNatural(names []string) { slices.SortFunc(names, compareNatural) }

func compareNatural(a, b string) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}

// estimates remembers how long workflows of a template took.
type estimates struct {
	mu     sync.Mutex
	byName map[string]estimate
}

type estimate struct {
	took     time.Duration
	finished time.Time
}

// estimatesMax bounds what is remembered; it is more templates than people have.
const estimatesMax = 10_000

func estimateKey(w *wf.Workflow) string {
	for _, label := range []string{wf.LabelWorkflowTemplate, wf.LabelClusterWorkflowTemplate, wf.LabelCronWorkflow} {
		if name := w.Labels[label]; name != "" {
			return w.Namespace + "/" + label + "/" + name
		}
	}
	if ref := w.Spec.WorkflowTemplateRef; ref != nil {
		label := wf.LabelWorkflowTemplate
		if ref.ClusterScope {
			label = wf.LabelClusterWorkflowTemplate
		}
		return w.Namespace + "/" + label + "/" + ref.Name
	}
	return ""
}

// learn takes in a workflow that is over.
func (e *estimates) learn(w *wf.Workflow) {
	key := estimateKey(w)
	if key == "" || w.Status.Phase != wf.WorkflowSucceeded || w.Status.StartedAt.IsZero() {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.byName == nil || len(e.byName) >= estimatesMax {
		e.byName = map[string]estimate{}
	}
	if old := e.byName[key]; !w.Status.FinishedAt.Time.Before(old.finished) {
		e.byName[key] = estimate{w.Status.FinishedAt.Sub(w.Status.StartedAt.Time), w.Status.FinishedAt.Time}
	}
}

// of is how many seconds a workflow will take, or 0 if nothing like it was seen.
func (e *estimates) of(w *wf.Workflow) int64 {
	key := estimateKey(w)
	if key == "" {
		return 0
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return int64(e.byName[key].took / time.Second)
}
