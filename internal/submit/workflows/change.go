package workflows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/compress"
)

// ErrCompleted is the outcome of changes that only make sense while a workflow is under way.
var ErrCompleted = errors.New("the workflow is completed")

// Suspend keeps a workflow from starting anything new.
func (c *Client) Suspend(ctx context.Context, namespace, name string) error {
	return c.underWay(ctx, namespace, name, map[string]any{"suspend": true})
}

// Stop ends a workflow, its exit handlers included; Terminate ends it without them.
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

// patch changes an object by a merge patch.
func (c *Client) patch(ctx context.Context, resource string, object Object, change map[string]any) error {
	data, err := json.Marshal(change)
	if err != nil {
		return err
	}
	return explain(c.rest.Patch(types.MergePatchType).NamespaceIfScoped(object.GetNamespace(), resource != ClusterTemplates).
		Resource(resource).Name(object.GetName()).
		SpecificallyVersionedParams(&metav1.PatchOptions{FieldManager: fieldManager, DryRun: c.DryRun.Option()}, metav1.ParameterCodec, metaVersion).
		Body(data).Do(ctx).Error())
}

// SuspendCron stops or takes up again the schedule of a cron.
func (c *Client) SuspendCron(ctx context.Context, namespace, name string, suspend bool) error {
	cron := &wf.CronWorkflow{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	return c.patch(ctx, Crons, cron, map[string]any{"spec": map[string]any{"suspend": suspend}})
}

// NodeChange is what SetNode does to nodes that wait for a person.
type NodeChange struct {
	// Match chooses nodes; nil takes all.
	Match func(*wf.NodeStatus) bool
	// Phase, if not empty, ends the nodes: Succeeded, Skipped, Failed or Error.
	Phase wf.NodePhase
	// Message is put before what the nodes say already.
	Message string
	// Outputs are values for parameters that wait to be supplied.
	Outputs map[string]string
}

// Resume lets a workflow go on: as a whole, and in the nodes that wait for it and match. Parameters that nobody has
// supplied take their defaults; without one, it is an error.
func (c *Client) Resume(ctx context.Context, namespace, name string, change NodeChange) error {
	change.Phase = wf.PhaseSucceeded
	return c.change(ctx, namespace, name, func(w *wf.Workflow) (map[string]any, map[string]wf.NodeStatus, error) {
		var spec map[string]any
		if w.Spec.Suspend != nil && *w.Spec.Suspend && change.Match == nil {
			spec = map[string]any{"suspend": nil}
		}
		nodes, err := c.changed(w, change)
		if err == nil && spec == nil && len(nodes) == 0 {
			err = errors.New("nothing of the workflow is suspended that matches")
		}
		return spec, nodes, err
	})
}

// FailNodes ends the waiting nodes that match as failed. It is stop for a part of a workflow.
func (c *Client) FailNodes(ctx context.Context, namespace, name string, change NodeChange) error {
	change.Phase = wf.PhaseFailed
	return c.SetNode(ctx, namespace, name, change)
}

// SetNode changes the waiting nodes that match.
func (c *Client) SetNode(ctx context.Context, namespace, name string, change NodeChange) error {
	return c.change(ctx, namespace, name, func(w *wf.Workflow) (map[string]any, map[string]wf.NodeStatus, error) {
		nodes, err := c.changed(w, change)
		if err == nil && len(nodes) == 0 {
			err = errors.New("no suspended node matches")
		}
		return nil, nodes, err
	})
}

// changed returns the waiting nodes of w that match, as change makes them.
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

// supply gives values to the parameters of a node that wait for them.
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

// change reads a workflow, decides, and writes spec and nodes, anew if somebody else was quicker.
func (c *Client) change(ctx context.Context, namespace, name string, decide func(*wf.Workflow) (spec map[string]any, nodes map[string]wf.NodeStatus, err error)) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		w := &wf.Workflow{}
		if name == "@latest" {
			last, err := c.latest(ctx, namespace)
			if err != nil {
				return err
			}
			name = last.Name
		}
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

// Replace writes a workflow as a whole, in place of the version that was read. Its nodes are packed if they are large.
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
		SpecificallyVersionedParams(&metav1.UpdateOptions{FieldManager: fieldManager, DryRun: c.DryRun.Option()}, metav1.ParameterCodec, metaVersion).
		Body(w).Do(ctx).Error())
}

// maxNodesBytes is how large the JSON of the nodes may be before it is packed.
const maxNodesBytes = 1 << 20

// DeletePods deletes pods of a workflow; those that are gone already count as deleted.
func (c *Client) DeletePods(ctx context.Context, namespace string, names []string) error {
	for _, name := range names {
		err := c.core.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{DryRun: c.DryRun.Option()})
		if err != nil && !isNotFound(err) {
			return fmt.Errorf("delete pod %s: %w", name, err)
		}
	}
	return nil
}
