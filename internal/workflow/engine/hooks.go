package engine

import (
	"strings"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// hooks is the state of the lifecycle hooks of a node or of the workflow, except the exit handler.
type hooks struct {
	run      *Run
	name     string
	spec     wf.LifecycleHooks
	from     *compiled
	boundary *node
	parent   *node
	onExit   bool
	finished func()
	fired    map[string]bool
	open     int
	done     map[string]bool // IDs of the nodes of hooks that are done
}

// consider starts each hook that has not been started before and whose expression is true.
func (h *hooks) consider(passes []template.Scope) {
	for _, name := range sortedKeys(h.spec) {
		hook := h.spec[name]
		if name == wf.ExitHook || h.fired[name] {
			continue
		}
		full := h.name + ".hooks." + name
		old := h.run.nodes[wf.NodeID(h.run.Workflow.Name, full)]
		if due, err := evaluate(hook.Expression, passes); (err != nil || !due) && (old == nil || !old.known) {
			continue // variables of the expression may not be set yet
		}
		if h.fired == nil {
			h.fired = map[string]bool{}
		}
		h.fired[name] = true
		h.open++
		args, err := resolveArguments(hook.Arguments, passes)
		c := call{
			name: full, display: h.display(full), target: target{template: hook.Template, ref: hook.TemplateRef}, args: args, failure: err,
			from: h.from, boundary: h.boundary, owner: h, hooked: true, onExit: h.onExit, depth: 1,
		}
		if h.parent != nil {
			c.edges = []*node{h.parent}
		}
		h.run.execute(c)
	}
}

// display returns the part of a hook's node name that follows the name of the enclosing node and of
// its group.
func (h *hooks) display(name string) string {
	if h.boundary == nil {
		return name
	}
	name = strings.TrimPrefix(name, h.boundary.Name)
	if group, rest, found := strings.Cut(name, "]."); found && strings.HasPrefix(group, "[") {
		return rest
	}
	return strings.TrimPrefix(name, ".")
}

func (h *hooks) changed(*node) {}

func (h *hooks) fulfilled(n *node) {
	if h.done[n.ID] {
		return // a daemon, which counted as done before, has ended
	}
	put(&h.done, n.ID, true)
	if h.open--; h.open == 0 {
		h.finished()
	}
}

// when evaluates a condition whose tags have been resolved.
func when(condition string, passes []template.Scope) (bool, error) {
	return template.When(condition, template.RunnerOf(template.Scopes(passes)))
}

// evaluate evaluates a bare expression, one that is not inside a tag, to a bool.
func evaluate(expression string, passes []template.Scope) (bool, error) {
	e, err := template.CompileExpr(expression)
	if err != nil {
		return false, err
	}
	return e.Bool(template.Scopes(passes))
}
