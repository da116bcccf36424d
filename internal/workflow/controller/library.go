package controller

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// templateLibrary gives the workflows of one namespace access to the templates and ConfigMaps that they may
// refer to.
type templateLibrary struct {
	c         *Controller
	namespace string
}

// Spec implements engine.Library.
func (l templateLibrary) Spec(cluster bool, name string) (*wf.WorkflowSpec, bool) {
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

// Malformed returns the error that explains why an existing template cannot be decoded, or nil.
func (l templateLibrary) Malformed(cluster bool, name string) error {
	fault := l.c.templateFault(cluster, l.namespace, name)
	if fault == nil {
		return nil
	}
	return fault
}

// ConfigMapKey implements engine.Library.
func (l templateLibrary) ConfigMapKey(name, key string) (string, bool) {
	cm, found := l.c.Informers.ConfigMaps.Get(l.namespace, name)
	if !found {
		return "", false
	}
	value, found := cm.Data[key]
	return value, found
}

// ConfigMap implements engine.Library.
func (l templateLibrary) ConfigMap(name string) bool {
	_, found := l.c.Informers.ConfigMaps.Get(l.namespace, name)
	return found
}

// leaveToLeader hands a workflow to the leader by an annotation, and releases it. This manager does
// not load the workflow again before its watch shows the annotation.
func (c *Controller) leaveToLeader(r *record) {
	w, key, uid, id := r.object, r.key, r.uid, c.writeSeq.Add(1)
	// The version of this write is newer than that of a status in flight, which now need not be
	// waited for.
	r.writing, r.writes = id, r.writes+1
	c.abandon(r, true)
	c.drop(key, r)
	patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{wf.AnnotationLeader: "true"}}})
	c.Writer.Patch(apiwriter.Meta{Owner: ownerKey(key), Reason: "leave-to-leader"}, w, types.MergePatchType, patch,
		func(o apiwriter.Object, err error) {
			version := ""
			if err == nil {
				version = o.GetResourceVersion()
			} else {
				c.Log.Warn("leaving a workflow to the leader failed", "workflow", key, "error", err)
			}
			c.answeredLate(key, uid, id, version)
		})
}

// keepWithLeader adds the annotation that leaves the workflow to the leader to the next status
// write.
func (r *record) keepWithLeader() {
	if r.object.Annotations[wf.AnnotationLeader] != "" {
		return
	}
	r.extraAnnotations = merged(r.extraAnnotations, map[string]string{wf.AnnotationLeader: "true"})
}

// prepareMetadata evaluates the labels and annotations that the workflowMetadata of the workflow,
// or else of its template, adds to the workflow.
func (c *Controller) prepareMetadata(r *record, w *wf.Workflow) error {
	m, base := w.Spec.WorkflowMetadata, &wf.WorkflowSpec{}
	if ref := w.Spec.WorkflowTemplateRef; ref != nil {
		if spec, found := (templateLibrary{c, w.Namespace}).Spec(ref.ClusterScope, ref.Name); found {
			base = spec
		}
	}
	if m = cmp.Or(m, base.WorkflowMetadata); m == nil {
		return nil
	}
	r.extraLabels, r.extraAnnotations = merged(r.extraLabels, m.Labels), merged(r.extraAnnotations, m.Annotations)
	for name, from := range m.LabelsFrom {
		value, err := evaluateLabel(from.Expression, w, base, c.evaluate(r))
		if err != nil {
			return fmt.Errorf("workflowMetadata.labelsFrom.%s.expression: %w", name, err)
		}
		r.extraLabels[name] = value
	}
	if err := validMetadata(r.extraLabels, r.extraAnnotations); err != nil {
		// The server would refuse every status written with them.
		r.extraLabels, r.extraAnnotations = nil, nil
		return fmt.Errorf("workflowMetadata.%w", err)
	}
	return nil
}

// validMetadata returns an error that names the first label or annotation that the API server would
// refuse.
func validMetadata(labels, annotations map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		if faults := validation.IsQualifiedName(name); len(faults) > 0 {
			return fmt.Errorf("labels: %q is no name of a label: %s", name, strings.Join(faults, "; "))
		}
		if faults := validation.IsValidLabelValue(labels[name]); len(faults) > 0 {
			return fmt.Errorf("labels[%s]: %q is no label: %s", name, labels[name], strings.Join(faults, "; "))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		if faults := validation.IsQualifiedName(strings.ToLower(name)); len(faults) > 0 {
			return fmt.Errorf("annotations: %q is no name of an annotation: %s", name, strings.Join(faults, "; "))
		}
	}
	return nil
}

// evaluateLabel evaluates an expression for a label. Fields that the workflow leaves empty come
// from base, the spec of the template that it refers to.
func evaluateLabel(source string, w *wf.Workflow, base *wf.WorkflowSpec, run template.Run) (string, error) {
	e, err := template.CompileExpr(source)
	if err != nil {
		return "", err
	}
	scope := template.Map{
		"workflow.name": w.Name, "workflow.namespace": w.Namespace, "workflow.uid": string(w.UID),
		"workflow.serviceAccountName": cmp.Or(w.Spec.ServiceAccountName, base.ServiceAccountName),
		"workflow.mainEntrypoint":     cmp.Or(w.Spec.Entrypoint, base.Entrypoint),
	}
	for _, p := range slices.Concat(base.Arguments.Parameters, w.Spec.Arguments.Parameters) {
		if value := cmp.Or(p.Value, p.Default); value != nil {
			scope["workflow.parameters."+p.Name] = string(*value)
		}
	}
	for key, value := range w.Labels {
		scope["workflow.labels."+key] = value
	}
	for key, value := range w.Annotations {
		scope["workflow.annotations."+key] = value
	}
	value, err := e.Text(template.Scopes{scope, template.Typed{template.Runner: run}})
	if err != nil {
		return "", err
	}
	if faults := validation.IsValidLabelValue(value); len(faults) > 0 {
		return "", fmt.Errorf("%q is no label: %s", value, strings.Join(faults, "; "))
	}
	return value, nil
}

// resourceSecondsMax bounds the resources duration of one pod, so that the sum over the pods of a
// workflow does not overflow.
const resourceSecondsMax = 1 << 44

// requestedAnyway are the requests assumed for a container that states none.
var requestedAnyway = corev1.ResourceList{
	corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("100Mi"),
}

// resourcesDuration returns the resources duration of a finished pod: for each resource, the sum
// over the containers of the seconds run times the request in units of wf.ResourceUnit, rounded.
func resourcesDuration(p *corev1.Pod) map[corev1.ResourceName]int64 {
	used := map[corev1.ResourceName]float64{}
	for i := range p.Status.ContainerStatuses {
		s := &p.Status.ContainerStatuses[i]
		t := s.State.Terminated
		if t == nil || t.StartedAt.IsZero() {
			continue
		}
		requests := corev1.ResourceList{}
		for j := range p.Spec.Containers {
			if c := &p.Spec.Containers[j]; c.Name == s.Name {
				maps.Copy(requests, requestedAnyway)
				maps.Copy(requests, c.Resources.Requests)
			}
		}
		seconds := t.FinishedAt.Sub(t.StartedAt.Time).Seconds()
		for name, amount := range requests {
			unit := wf.ResourceUnit(name)
			used[name] += seconds * amount.AsApproximateFloat64() / unit.AsApproximateFloat64()
		}
	}
	if len(used) == 0 {
		return nil
	}
	out := map[corev1.ResourceName]int64{}
	for name, amount := range used {
		out[name] = int64(math.Round(min(amount, resourceSecondsMax)))
	}
	return out
}

// estimates records how long the last successful workflow of each template took.
type estimates struct {
	mu     sync.Mutex
	byName map[string]estimate
}

type estimate struct {
	took     time.Duration
	finished time.Time
}

// estimatesMax bounds the number of templates recorded.
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

// learn records the duration of a finished workflow, if it succeeded and comes from a template.
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

// of returns the expected duration of a workflow in seconds, or 0 if none is recorded.
func (e *estimates) of(w *wf.Workflow) int64 {
	key := estimateKey(w)
	if key == "" {
		return 0
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return int64(e.byName[key].took / time.Second)
}
