package engine

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/clip"
	"lockstep.dev/lockstep/internal/workflow/locks"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// member is a step or task of a frame.
type member struct {
	frame    *frame
	step     *step
	base     string // name of its node, or of the nodes of its loop without their index
	children []*child
	open     int   // number of children that are not done
	group    *node // the TaskGroup node of a loop in a dag
	branch   wf.NodePhase

	aggregates map[string]string // outputs of a finished loop; see aggregate
}

// child is one call of a member.
type child struct {
	member *member
	body   *wf.WorkflowStep // with variables resolved
	node   *node
	item   template.Map
	passes []template.Scope
	exit   *node
	hooks  *hooks
	done   bool
}

// start runs the member: it is skipped if its condition is false, called once, or called once per
// item.
func (m *member) start(edges []*node, parent *node) {
	if !m.step.loops() {
		m.open = 1
		m.call(&child{member: m}, m.base, edges, parent)
		return
	}
	passes := m.frame.passes(m.step, m.base)
	if condition, err := m.step.when.Resolve(passes); err == nil {
		if proceed, err := when(condition, passes); err == nil && !proceed {
			m.alone(wf.PhaseSkipped, fmt.Sprintf("when '%s' evaluated false", condition), edges, parent)
			return
		}
	}
	items, err := m.items()
	if err != nil {
		m.open = 1
		m.run(&child{member: m}, call{failure: err}, m.base, edges, parent)
		return
	}
	if len(items) == 0 {
		m.alone(wf.PhaseSkipped, "Skipped, empty params", edges, parent)
		return
	}
	if m.frame.t.dag != nil {
		m.group = &node{}
		c := m.describe(call{}, m.base, edges, parent)
		m.frame.run.begin(m.group, &c, wf.NodeTaskGroup)
		m.group.owner = nil // the children of the group notify the member
		edges, parent = []*node{m.group}, m.group
	}
	m.open = len(items)
	for i, item := range items {
		if m.frame.run.ended {
			return
		}
		index, scope := describeItem(item)
		name := fmt.Sprintf("%s(%d:%s)", m.base, i, index)
		m.call(&child{member: m, item: scope}, name, edges, parent)
	}
}

// alone gives the member a single node that runs no template.
func (m *member) alone(phase wf.NodePhase, message string, edges []*node, parent *node) {
	m.open = 1
	c := &child{member: m, node: &node{}}
	m.children = append(m.children, c)
	m.skip(c, m.base, phase, message, edges, parent)
}

func (m *member) skip(c *child, name string, phase wf.NodePhase, message string, edges []*node, parent *node) {
	described := m.describe(call{owner: c}, name, edges, parent)
	if !m.frame.run.begin(c.node, &described, wf.NodeSkipped) {
		c.node.set(phase, message)
	}
}

// describe completes c with the fields that all calls of the member share.
func (m *member) describe(c call, name string, edges []*node, parent *node) call {
	f := m.frame
	c.name, c.display = name, name[len(m.base)-len(m.step.Name):]
	c.member = c.display
	c.target = target{m.step.Template, m.step.TemplateRef, m.step.full.Inline}
	c.from, c.boundary, c.edges, c.parent, c.frame = f.t, f.node, edges, parent, f
	c.depth, c.onExit = f.call.depth+1, f.call.onExit
	c.wantResult = f.t.wants(m.step.Name)
	return c
}

// call resolves the step for one item, and runs or skips it. The condition is evaluated first: the
// arguments of a skipped step, such as outputs of another skipped step, need not exist.
func (m *member) call(c *child, name string, edges []*node, parent *node) {
	if m.frame.run.full(name) {
		c.node = &node{}
		m.children = append(m.children, c)
		return
	}
	c.passes = m.frame.passes(m.step, name)
	if c.item != nil {
		c.passes = append(c.passes, c.item)
	}
	body, described := &m.step.WorkflowStep, call{}
	condition, err := m.step.when.Resolve(c.passes, c.strict()...)
	if err != nil {
		described.failure = fmt.Errorf("when: %w", err)
	} else {
		proceed, err := when(condition, c.passes)
		if err == nil && !proceed {
			c.node = &node{}
			m.children = append(m.children, c)
			m.skip(c, name, wf.PhaseSkipped, fmt.Sprintf("when '%s' evaluated false", condition), edges, parent)
			return
		}
		described.failure = err
	}
	if described.failure == nil && m.step.program.HasTags() {
		body = body.DeepCopy()
		described.failure = m.apply(body, c)
	}
	c.body = body
	if described.failure == nil {
		described.args, described.failure = linkArtifacts(body.Arguments, c.passes)
		m.frame.run.keep(parametersBytes(described.args.Parameters) + artifactsBytes(described.args.Artifacts))
	}
	m.run(c, described, name, edges, parent)
}

// strict are the namespaces in which the child's variables must have a value.
func (c *child) strict() []string {
	if c.item == nil {
		return []string{"steps.", "tasks."}
	}
	return []string{"steps.", "tasks.", template.Item}
}

// apply resolves the variables of the child's body. An argument whose value is an output of a node
// that did not run is left out if the called template has a value for it.
func (m *member) apply(body *wf.WorkflowStep, c *child) error {
	err := m.step.program.Apply(body, c.passes, c.strict()...)
	var absent *template.AbsentError
	called := target{m.step.Template, m.step.TemplateRef, m.step.full.Inline}
	if !errors.As(err, &absent) || called.hasTags() {
		return err
	}
	t, _, missing := m.frame.run.find(called, m.frame.t.scope)
	if missing != nil {
		return err
	}
	full := m.step.WorkflowStep.DeepCopy()
	full.Arguments.Parameters = slices.DeleteFunc(full.Arguments.Parameters, func(p wf.Parameter) bool {
		if p.Value == nil || !slices.ContainsFunc(t.Inputs.Parameters, func(in wf.Parameter) bool {
			return in.Name == p.Name && (in.Default != nil || in.Value != nil)
		}) {
			return false
		}
		_, err := resolveText(string(*p.Value), c.passes)
		return errors.As(err, &absent)
	})
	if len(full.Arguments.Parameters) == len(m.step.Arguments.Parameters) {
		return err
	}
	rest, err := compileStep(full, m.step.index)
	if err != nil {
		return err
	}
	*body = *full
	return rest.program.Apply(body, c.passes, c.strict()...)
}

// run executes a call of the member as soon as the template's parallelism allows.
func (m *member) run(c *child, described call, name string, edges []*node, parent *node) {
	described = m.describe(described, name, edges, parent)
	described.owner = c
	if c.body != nil {
		described.target.template, described.target.ref = c.body.Template, c.body.TemplateRef
	}
	if described.target.inline != nil {
		described.outer = c.passes
	}
	c.node = &node{} // a placeholder until the call may start
	m.children = append(m.children, c)
	r := m.frame.run
	c.hooks = &hooks{run: r, name: name, from: m.frame.t, boundary: m.frame.node, finished: c.finish,
		onExit: m.frame.call.onExit}
	if c.body != nil {
		c.hooks.spec = c.body.Hooks
	}
	m.frame.admit(func() {
		if c.node = r.execute(described); c.node.run != nil {
			c.changed(c.node)
		}
	}, func() {
		m.skip(c, name, wf.PhaseOmitted, "omitted: another one failed before this was started", edges, parent)
	})
}

func (c *child) changed(n *node) {
	if c.hooks != nil && len(c.hooks.spec) > 0 {
		c.node, c.hooks.parent = n, n
		c.hooks.consider(append(c.passes, self{c}))
	}
}

// fulfilled handles that the child's node is done or runs as a daemon.
func (c *child) fulfilled(n *node) {
	c.node = n
	if c.done {
		return // a daemon, which counted as done before, has ended
	}
	if n.Daemon() {
		n.run.unlock(locks.HolderKey(n.run.Workflow.Namespace, n.run.Workflow.Name, n.ID))
	}
	if c.hooks == nil {
		c.finish()
		return
	}
	c.changed(n)
	if c.exit == nil && n.Phase.Completed() && c.startExit(n) {
		return
	}
	c.finish()
}

// startExit runs the step's exit handler. It reports whether there is one to run.
func (c *child) startExit(n *node) bool {
	hook, found := wf.LifecycleHook{}, false
	if c.body != nil {
		hook, found = c.body.Hooks[wf.ExitHook]
		if c.body.OnExit != "" && !found {
			hook, found = wf.LifecycleHook{Template: c.body.OnExit}, true
		}
	}
	if !found || c.member.frame.run.Workflow.Spec.Shutdown == wf.ShutdownTerminate {
		return false
	}
	f, name := c.member.frame, n.Name+".onExit"
	passes := append([]template.Scope{f.run.globalsFor(name)}, append(c.passes, self{c})...)
	if hook.Expression != "" {
		if run, err := evaluate(hook.Expression, passes); err == nil && !run {
			return false
		}
	}
	args, err := resolveArguments(hook.Arguments, passes)
	if err == nil {
		args, err = linkArtifacts(args, passes)
	}
	c.exit = f.run.execute(call{
		name: name, display: n.DisplayName + ".onExit", target: target{template: hook.Template, ref: hook.TemplateRef},
		args: args, failure: err, from: f.t, boundary: f.node, parent: n.parent, edges: []*node{n}, owner: exitOf{c},
		depth:  f.call.depth + 1,
		onExit: true, hooked: true,
	})
	return true
}

// exitOf is the owner of a child's exit handler node.
type exitOf struct{ *child }

func (e exitOf) changed(*node)   {}
func (e exitOf) fulfilled(*node) { e.finish() }

// finish notifies the member once the node, its exit handler and its hooks are done.
func (c *child) finish() {
	exitDone := c.exit == nil || c.exit.Phase.Fulfilled() || c.exit.Daemon()
	if c.done || !c.node.Phase.Fulfilled() && !c.node.Daemon() || !exitDone || c.hooks != nil && c.hooks.open > 0 {
		return
	}
	c.done = true
	m := c.member
	if c.node.Phase.FailedOrError() && !continues(m.step.ContinueOn, c.node.Phase) {
		m.frame.childFailed = true
	}
	if c.hooks != nil {
		m.frame.release()
	}
	if m.open--; m.open > 0 {
		return
	}
	if m.group != nil {
		phase := wf.PhaseSucceeded
		for _, c := range m.children {
			if c.node.Phase.FailedOrError() {
				phase = c.node.Phase
			}
		}
		m.group.set(phase, "")
	}
	m.frame.memberDone(m)
}

// node returns the node that represents the member.
func (m *member) node() *node {
	if m.group != nil {
		return m.group
	}
	return m.children[len(m.children)-1].node
}

func (m *member) outbound() []*node {
	if m.group != nil {
		return m.group.outbound()
	}
	var out []*node
	for _, c := range m.children {
		out = append(out, c.node.outbound()...)
	}
	return out
}

// items returns the items that the member loops over.
func (m *member) items() ([]json.RawMessage, error) {
	from, passes := m.step.full, m.frame.passes(m.step, m.base)
	if m.step.loop.HasTags() {
		from = (&wf.WorkflowStep{WithItems: from.WithItems, WithParam: from.WithParam, WithSequence: from.WithSequence}).DeepCopy()
		if err := m.step.loop.Apply(from, passes, "steps.", "tasks.", "inputs.", "workflow."); err != nil {
			return nil, err
		}
	}
	var items []json.RawMessage
	switch {
	case from.WithSequence != nil:
		return sequence(from.WithSequence)
	case from.WithParam != "":
		if err := json.Unmarshal([]byte(from.WithParam), &items); err != nil {
			return nil, fmt.Errorf("withParam value could not be parsed as a JSON list: %s: %w", shorten(from.WithParam), err)
		}
	default:
		for _, item := range from.WithItems {
			items = append(items, item.Raw)
		}
	}
	if len(items) > maxItems {
		return nil, fmt.Errorf("loop has %d items, more than %d", len(items), maxItems)
	}
	return items, nil
}

func shorten(s string) string { return clip.Text(s, 200) }

func sequence(s *wf.Sequence) ([]json.RawMessage, error) {
	number := func(name string, v *intstr.IntOrString, otherwise int) (int, error) {
		if v == nil {
			return otherwise, nil
		}
		n, err := strconv.Atoi(strings.TrimSpace(v.String()))
		if err != nil {
			return 0, fmt.Errorf("withSequence.%s: '%s' is not a number", name, v.String())
		}
		return n, nil
	}
	start, err := number("start", s.Start, 0)
	if err != nil {
		return nil, err
	}
	end, step := 0, 1
	if s.Count != nil {
		count, err := number("count", s.Count, 0)
		if err != nil {
			return nil, err
		}
		if count < 0 || count > maxItems {
			return nil, fmt.Errorf("withSequence.count: %d is not between 0 and %d", count, maxItems)
		}
		end = start + count - 1
	} else if end, err = number("end", s.End, 0); err != nil {
		return nil, err
	} else if end < start {
		step = -1
	}
	if math.Abs(float64(end)-float64(start)) >= maxItems {
		return nil, fmt.Errorf("withSequence has more than %d items", maxItems)
	}
	format := cmp.Or(s.Format, "%d")
	var items []json.RawMessage
	size := 0
	for i := start; (end-i)*step >= 0; i += step {
		text := fmt.Sprintf(format, i)
		if strings.Contains(text, "%!") {
			return nil, fmt.Errorf("withSequence.format: '%s' is not a format for one number", format)
		}
		if size += len(text); size > template.MaxTextBytes {
			return nil, fmt.Errorf("withSequence.format: the items have more than %d bytes together", template.MaxTextBytes)
		}
		raw, _ := json.Marshal(text)
		items = append(items, raw)
	}
	return items, nil
}

// describeItem returns the part of a node name that stands for the item, and the item's variables.
func describeItem(raw json.RawMessage) (string, template.Map) {
	scope := template.Map{}
	index := plain(raw)
	scope["item"] = index
	var fields map[string]json.RawMessage
	if len(raw) > 0 && raw[0] == '{' && json.Unmarshal(raw, &fields) == nil {
		var parts []string
		for _, key := range sortedKeys(fields) {
			text := plain(fields[key])
			scope["item."+key] = text
			parts = append(parts, key+":"+text)
		}
		slices.Sort(parts) // a-b:1 comes before a:1
		index = strings.Join(parts, ",")
	}
	var elements []json.RawMessage
	if len(raw) > 0 && raw[0] == '[' && json.Unmarshal(raw, &elements) == nil {
		var parts []string
		for _, element := range elements {
			parts = append(parts, plain(element))
		}
		index = "[" + strings.Join(parts, " ") + "]"
	}
	return strings.NewReplacer("(", "", ")", "").Replace(index), scope
}

// plain returns a JSON value as text: a string without quotes, any other value compact.
func plain(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil && len(raw) > 0 && raw[0] == '"' {
		return text
	}
	compact, err := json.Marshal(raw)
	if err != nil {
		return string(raw)
	}
	return string(compact)
}

// lookup returns a variable of the member; rest is the name after "steps.<member>.".
func (m *member) lookup(rest string) (template.Value, bool) {
	if len(m.children) == 0 && m.group == nil {
		return template.Value{}, false
	}
	looped := m.step.loops() && (len(m.children) != 1 || m.children[0].item != nil)
	if !looped {
		return m.value(m.children[0].node, rest)
	}
	if m.open > 0 {
		return template.Value{}, false
	}
	if text, found := m.aggregate()[rest]; found {
		return template.Value{Text: text}, true
	}
	if m.group != nil {
		return m.value(m.group, rest)
	}
	return template.Value{}, false
}

// value returns a variable of one node.
func (m *member) value(n *node, rest string) (template.Value, bool) {
	v := nodeValues(n)
	if text, found := v[rest]; found {
		return template.Value{Text: text}, true
	}
	if !strings.HasPrefix(rest, "outputs.") || !n.Phase.Fulfilled() {
		return template.Value{}, false
	}
	if n.Phase == wf.PhaseSkipped || n.Phase == wf.PhaseOmitted {
		if name, found := strings.CutPrefix(rest, "outputs.parameters."); found {
			if text := m.outputDefault(name); text != nil {
				return template.Value{Text: string(*text)}, true
			}
		}
		return template.Value{Absent: fmt.Sprintf("node %s was %s", n.DisplayName, n.Phase)}, true
	}
	return template.Value{}, false
}

// outputDefault returns the default of an output parameter of the called template, for a call that
// did not run.
func (m *member) outputDefault(name string) *wf.AnyString {
	t, _, err := m.frame.run.find(target{m.step.Template, m.step.TemplateRef, m.step.full.Inline}, m.frame.t.scope)
	if err != nil {
		return nil
	}
	for i := range t.Outputs.Parameters {
		if p := &t.Outputs.Parameters[i]; p.Name == name && p.ValueFrom != nil {
			return p.ValueFrom.Default
		}
	}
	return nil
}

func (m *member) walk(yield func(string, template.Value)) {
	if len(m.children) == 0 {
		return
	}
	if m.step.loops() && m.open == 0 {
		for rest, text := range m.aggregate() {
			yield(rest, template.Value{Text: text})
		}
		return
	}
	for rest, text := range nodeValues(m.children[0].node) {
		yield(rest, template.Value{Text: text})
	}
}

// nodeValues returns the variables of a node that have a value.
func nodeValues(n *node) template.Map {
	v := template.Map{"id": n.ID, "status": string(n.Phase)}
	if n.Phase == "" {
		delete(v, "status")
	}
	stamp := func(name string, t time.Time) {
		if !t.IsZero() {
			v[name] = t.UTC().Format(time.RFC3339)
		}
	}
	stamp("startedAt", n.StartedAt.Time)
	stamp("finishedAt", n.FinishedAt.Time)
	if n.PodIP != "" {
		v["ip"] = n.PodIP
	}
	if n.HostNodeName != "" {
		v["hostNodeName"] = n.HostNodeName
	}
	if out := n.Outputs; out != nil {
		if out.ExitCode != nil {
			v["exitCode"] = *out.ExitCode
		}
		if out.Result != nil {
			v["outputs.result"] = *out.Result
		}
		for _, p := range out.Parameters {
			if p.Value != nil {
				v["outputs.parameters."+p.Name] = string(*p.Value)
			}
		}
		for _, a := range out.Artifacts {
			v["outputs.artifacts."+a.Name] = artifactText(a)
		}
	}
	return v
}

// aggregate returns the outputs of a loop's children that did not fail, collected into lists.
// Values that are JSON are inserted as JSON.
func (m *member) aggregate() map[string]string {
	if m.aggregates != nil {
		return m.aggregates
	}
	results, parameters := []any{}, []map[string]any{}
	byName := map[string][]any{}
	for _, c := range m.children {
		out := c.node.Outputs
		if out == nil || c.node.Phase.FailedOrError() && !c.node.Daemon() {
			continue
		}
		if out.Result != nil {
			results = append(results, jsonOr(*out.Result))
		}
		if len(out.Parameters) > 0 {
			of := map[string]any{}
			for _, p := range out.Parameters {
				if p.Value != nil {
					of[p.Name] = string(*p.Value)
					byName[p.Name] = append(byName[p.Name], jsonOr(string(*p.Value)))
				}
			}
			parameters = append(parameters, of)
		}
	}
	m.aggregates = map[string]string{}
	put := func(name string, v any) {
		text, _ := json.Marshal(v)
		m.aggregates[name] = string(text)
	}
	put("outputs.result", results)
	put("outputs.parameters", parameters)
	for name, list := range byName {
		put("outputs.parameters."+name, list)
	}
	return m.aggregates
}

func jsonOr(text string) any {
	if json.Valid([]byte(text)) {
		return json.RawMessage(text)
	}
	return text
}

// self is the scope of a child's own variables, for the child's hooks: siblings may not include
// them.
type self struct{ *child }

func (s self) prefix() string {
	return (&siblings{frame: s.member.frame}).prefix() + s.member.step.Name + "."
}

func (s self) Lookup(name string) (template.Value, bool) {
	rest, found := strings.CutPrefix(name, s.prefix())
	if !found || s.node == nil {
		return template.Value{}, false
	}
	return s.member.value(s.node, rest)
}

func (s self) Walk(prefix string, yield func(string, template.Value)) {
	for rest, text := range nodeValues(s.node) {
		if name := s.prefix() + rest; strings.HasPrefix(name, prefix) {
			yield(name, template.Value{Text: text})
		}
	}
}
