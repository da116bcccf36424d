package rerun

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// ResubmitOptions configures how the new workflow differs from the old one.
type ResubmitOptions struct {
	// Name is the name of the new workflow. It is required if Memoized, because the names of nodes
	// begin with it. Otherwise, if Name is empty, the server generates a name with the old prefix.
	Name       string
	Memoized   bool // do not run succeeded nodes again; the workflow must have failed
	Parameters map[string]string
	Priority   *int32
}

// Resubmit returns a new workflow like w. A memoized one has a status, which the caller must write
// too.
func Resubmit(w *wf.Workflow, o ResubmitOptions) (*wf.Workflow, error) {
	out := &wf.Workflow{TypeMeta: w.TypeMeta, Spec: *w.Spec.DeepCopy()}
	out.Namespace, out.Name = w.Namespace, o.Name
	if o.Name == "" {
		out.GenerateName = cmp.Or(w.GenerateName, w.Name+"-")
	}
	out.Spec.Shutdown, out.Spec.Suspend = wf.ShutdownNone, nil
	out.Spec.Priority = cmp.Or(o.Priority, out.Spec.Priority)
	meta := w.ObjectMeta.DeepCopy()
	out.Labels, out.Annotations, out.OwnerReferences = meta.Labels, meta.Annotations, meta.OwnerReferences
	if out.Labels == nil {
		out.Labels = map[string]string{}
	}
	for _, key := range []string{wf.LabelPhase, wf.LabelCompleted, wf.LabelArchivingStatus} {
		delete(out.Labels, key)
	}
	out.Labels[wf.LabelPreviousWorkflow] = w.Name
	delete(out.Annotations, wf.AnnotationPodNameFormat)
	delete(out.Annotations, wf.AnnotationArchived)
	delete(out.Annotations, corev1.LastAppliedConfigAnnotation)
	setParameters(out, o.Parameters)
	if !o.Memoized {
		return out, nil
	}
	if o.Name == "" {
		return nil, errors.New("a memoized workflow needs a name")
	}
	plan, err := Retry(w, RetryOptions{Parameters: o.Parameters})
	if err != nil {
		return nil, fmt.Errorf("memoized: %w", err)
	}
	remember(out, plan.Workflow)
	return out, nil
}

// remember copies the nodes of old to out, renamed for the new workflow.
func remember(out, old *wf.Workflow) {
	id := func(name string) string {
		if n, found := old.Status.Nodes[name]; found {
			return wf.NodeID(out.Name, rename(n.Name, old.Name, out.Name))
		}
		return ""
	}
	ids := func(list []string) (renamed []string) {
		for _, name := range list {
			renamed = append(renamed, id(name))
		}
		return renamed
	}
	out.Status = wf.WorkflowStatus{
		StoredTemplates: old.Status.StoredTemplates, StoredWorkflowTemplateSpec: old.Status.StoredWorkflowTemplateSpec,
		Outputs: old.Status.Outputs, Nodes: wf.Nodes{},
	}
	for _, n := range old.Status.Nodes {
		if n.Type == wf.NodePod && n.Phase == wf.PhaseSucceeded {
			n.Message = "original pod: " + n.PodName(old.Name)
			n.Type = wf.NodeSkipped // the node has no pod in this workflow
		}
		boundary := n.BoundaryID
		n.ID = id(n.ID)
		n.Name = rename(n.Name, old.Name, out.Name)
		if n.DisplayName == old.Name || strings.HasPrefix(n.DisplayName, old.Name+"(") {
			n.DisplayName = rename(n.DisplayName, old.Name, out.Name)
		}
		if n.TemplateScope == "local/"+old.Name {
			n.TemplateScope = "local/" + out.Name
		}
		if n.BoundaryID = ""; boundary != "" {
			n.BoundaryID = id(boundary)
		}
		n.Children, n.OutboundNodes = ids(n.Children), ids(n.OutboundNodes)
		if !n.Phase.Fulfilled() {
			n.StartedAt = metav1.Time{}
		}
		out.Status.Nodes[n.ID] = n
	}
}

// rename replaces the workflow name at the beginning of a node name.
func rename(name, from, to string) string { return to + strings.TrimPrefix(name, from) }
