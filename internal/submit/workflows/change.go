package workflows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/compress"
)

// ErrCompleted is the error of changes that are possible only before a workflow is completed.
var ErrCompleted = errors.New("the workflow is completed")

// Suspend prevents a workflow from starting further nodes.
func (c *Client) Suspend(ctx context.Context, namespace, name string) error {
	return c.underWay(ctx, namespace, name, map[string]any{"suspend": true})
}

// Stop ends a workflow, but runs its exit handlers; Terminate ends it without them.
func (c *Client) Stop(ctx context.Context, namespace, name string) error {
	return c.underWay(ctx, namespace, name, map[string]any{"shutdown": wf.ShutdownStop})
}

// Terminate ends a workflow at once.
func (c *Client) Terminate(ctx context.Context, namespace, name string) error {
	return c.underWay(ctx, namespace, name, map[string]any{"shutdown": wf.ShutdownTerminate})
}

// underWay changes the spec of a workflow that is not completed.
func (c *Client) underWay(ctx context.Context, namespace, name string, spec map[string]any) error {
	w, err := c.Get(ctx, namespace, name)
	if err != nil {
		return err
	}
	if w.Status.Phase.Completed() {
		return fmt.Errorf("%w: it has phase %s", ErrCompleted, w.Status.Phase)
	}
	return c.patch(ctx, Workflows, w, map[string]any{"spec": spec})
}

// patch changes an object with a merge patch.
func (c *Client) patch(ctx context.Context, resource string, object Object, change map[string]any) error {
	data, err := json.Marshal(change)
	if err != nil {
		return err
	}
	return explain(c.rest.Patch(types.MergePatchType).NamespaceIfScoped(object.GetNamespace(),
		resource != ClusterTemplates).
		Resource(resource).Name(object.GetName()).
		SpecificallyVersionedParams(&metav1.PatchOptions{FieldManager: fieldManager, DryRun: c.dryRun.Option()},
			metav1.ParameterCodec, metaVersion).
		Body(data).Do(ctx).Error())
}

// SuspendCron suspends or resumes the schedule of a cron.
func (c *Client) SuspendCron(ctx context.Context, namespace, name string, suspend bool) error {
	cron := &wf.CronWorkflow{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	return c.patch(ctx, Crons, cron, map[string]any{"spec": map[string]any{"suspend": suspend}})
}

// NodeChange is the change that SetNode makes to suspended nodes.
type NodeChange struct {
	// Match selects nodes; nil selects all.
	Match func(*wf.NodeStatus) bool
	// Phase, if not empty, ends the nodes: Succeeded, Skipped, Failed or Error.
	Phase wf.NodePhase
	// Message is put in front of the nodes' present message.
	Message string
	// Outputs are values for parameters that wait to be supplied.
	Outputs map[string]string
}

// Resume resumes a workflow: as a whole, and the suspended nodes that match. Parameters without a
// supplied value get their defaults; a missing default is an error.
func (c *Client) Resume(ctx context.Context, namespace, name string, change NodeChange) error {
	change.Phase = wf.PhaseSucceeded
	return c.change(ctx, namespace, name, func(w *wf.Workflow) (map[string]any, map[string]wf.NodeStatus, error) {
		var spec map[string]any
		if ptr.Deref(w.Spec.Suspend, false) && change.Match == nil {
			spec = map[string]any{"suspend": nil}
		}
		nodes, err := c.changed(w, change)
		if err == nil && spec == nil && len(nodes) == 0 {
			err = errors.New("nothing of the workflow is suspended that matches")
		}
		return spec, nodes, err
	})
}

// FailNodes ends the matching suspended nodes as failed. It is Stop for a part of a workflow.
func (c *Client) FailNodes(ctx context.Context, namespace, name string, change NodeChange) error {
	change.Phase = wf.PhaseFailed
	return c.SetNode(ctx, namespace, name, change)
}

// SetNode changes the matching suspended nodes.
func (c *Client) SetNode(ctx context.Context, namespace, name string, change NodeChange) error {
	return c.change(ctx, namespace, name, func(w *wf.Workflow) (map[string]any, map[string]wf.NodeStatus, error) {
		nodes, err := c.changed(w, change)
		if err == nil && len(nodes) == 0 {
			err = errors.New("no suspended node matches")
		}
		return nil, nodes, err
	})
}

// changed returns the matching suspended nodes of w, with the change applied.
func (c *Client) changed(w *wf.Workflow, change NodeChange) (map[string]wf.NodeStatus, error) {
	out := map[string]wf.NodeStatus{}
	used := map[string]bool{}
	for _, id := range slices.Sorted(maps.Keys(w.Status.Nodes)) {
		n := w.Status.Nodes[id]
		if n.Type != wf.NodeSuspend || n.Phase != wf.PhaseRunning || change.Match != nil && !change.Match(&n) {
			continue
		}
		n = *n.DeepCopy()
		if err := supply(&n, change, used); err != nil {
			return nil, fmt.Errorf("node %s: %w", n.DisplayName, err)
		}
		if change.Message != "" {
			if n.Message != "" {
				n.Message = "; " + n.Message
			}
			n.Message = change.Message + n.Message
		}
		if change.Phase != "" {
			n.Phase, n.FinishedAt = change.Phase, metav1.NewTime(c.Now())
		}
		out[id] = n
	}
	if len(out) > 0 {
		for _, name := range slices.Sorted(maps.Keys(change.Outputs)) {
			if !used[name] {
				return nil, fmt.Errorf("no suspended node has an output parameter %q that waits to be supplied", name)
			}
		}
	}
	return out, nil
}

// supply sets the parameters of a node that wait for a value.
func supply(n *wf.NodeStatus, change NodeChange, used map[string]bool) error {
	if n.Outputs == nil {
		return nil
	}
	for i := range n.Outputs.Parameters {
		p := &n.Outputs.Parameters[i]
		if p.ValueFrom == nil || p.ValueFrom.Supplied == nil {
			continue
		}
		value, given := change.Outputs[p.Name]
		switch {
		case given:
			used[p.Name] = true
			p.Value = wf.Any(value)
			p.ValueFrom = nil
		case change.Phase != wf.PhaseSucceeded || p.Value != nil:
		case p.ValueFrom.Default != nil:
			p.Value = p.ValueFrom.Default
			p.ValueFrom = nil
		default:
			return fmt.Errorf("its output parameter %q waits for a value: supply it with 'lockstep node set --output-parameter %s=VALUE'", p.Name, p.Name)
		}
	}
	return nil
}

// change reads a workflow, calls decide, and writes spec and nodes. It starts again if another
// client has changed the workflow meanwhile.
func (c *Client) change(ctx context.Context, namespace, name string,
	decide func(*wf.Workflow) (spec map[string]any, nodes map[string]wf.NodeStatus, err error)) error {
	name, err := c.Name(ctx, namespace, name)
	if err != nil {
		return err
	}
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		w := &wf.Workflow{}
		if err := c.Read(ctx, Workflows, namespace, name, w); err != nil {
			return err
		}
		packed := w.Status.CompressedNodes != ""
		if err := unpack(w); err != nil {
			return err
		}
		if w.Status.Phase.Completed() {
			return fmt.Errorf("%w: it has phase %s", ErrCompleted, w.Status.Phase)
		}
		spec, nodes, err := decide(w)
		if err != nil {
			return err
		}
		change := map[string]any{"metadata": map[string]any{"resourceVersion": w.ResourceVersion}}
		if spec != nil {
			change["spec"] = spec
		}
		switch {
		case len(nodes) == 0:
		case packed:
			maps.Copy(w.Status.Nodes, nodes)
			data, err := json.Marshal(w.Status.Nodes)
			if err != nil {
				return err
			}
			text, err := compress.Pack(data)
			if err != nil {
				return err
			}
			change["status"] = map[string]any{"compressedNodes": text}
		default:
			change["status"] = map[string]any{"nodes": nodes}
		}
		return c.patch(ctx, Workflows, w, change)
	})
}

// Replace writes a whole workflow in place of the version that was read. Large nodes are
// compressed.
func (c *Client) Replace(ctx context.Context, w *wf.Workflow) error {
	w = w.DeepCopy()
	data, err := json.Marshal(w.Status.Nodes)
	if err != nil {
		return err
	}
	if len(data) > maxNodesBytes {
		if w.Status.CompressedNodes, err = compress.Pack(data); err != nil {
			return err
		}
		w.Status.Nodes = nil
	}
	return explain(c.rest.Put().Namespace(w.Namespace).Resource(Workflows).Name(w.Name).
		SpecificallyVersionedParams(&metav1.UpdateOptions{FieldManager: fieldManager, DryRun: c.dryRun.Option()},
			metav1.ParameterCodec, metaVersion).
		Body(w).Do(ctx).Error())
}

// maxNodesBytes is the maximum size of the nodes' JSON that is written uncompressed.
const maxNodesBytes = 1 << 20

// DeletePods deletes pods of a workflow. Pods that are already gone count as deleted.
func (c *Client) DeletePods(ctx context.Context, namespace string, names []string) error {
	for _, name := range names {
		err := c.core.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{DryRun: c.dryRun.Option()})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete pod %s: %w", name, err)
		}
	}
	return nil
}
