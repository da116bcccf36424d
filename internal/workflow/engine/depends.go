package engine

import (
	"fmt"
	"slices"
	"strings"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// dag is a dag template with its conditions parsed.
type dag struct {
	tasks      []*step
	index      map[string]int
	deps       [][]int // indexes of the tasks that a task waits for
	dependents [][]int
	targets    []int
	needed     []bool // tasks that are a target or that a target depends on
	failFast   bool
}

// condition decides from the results of other tasks whether a task runs. nil means that the task
// always runs.
type condition func(result func(task, result string) bool) bool

// results are the names of task results that a depends condition may test.
var results = map[string]bool{
	"Succeeded": true, "Failed": true, "Errored": true, "Skipped": true, "Omitted": true, "Daemoned": true,
	"AnySucceeded": true, "AllFailed": true,
}

func compileDAG(t *wf.DAGTemplate) (*dag, error) {
	d := &dag{index: map[string]int{}, failFast: t.FailFast == nil || *t.FailFast}
	n := len(t.Tasks)
	d.deps, d.dependents, d.needed = make([][]int, n), make([][]int, n), make([]bool, n)
	for i := range t.Tasks {
		if _, twice := d.index[t.Tasks[i].Name]; twice {
			return nil, fmt.Errorf("dag.tasks.%s: name is not unique", t.Tasks[i].Name)
		}
		d.index[t.Tasks[i].Name] = i
	}
	for i := range t.Tasks {
		task := &t.Tasks[i]
		full := asStep(task)
		s, err := compileStep(&full, i)
		if err != nil {
			return nil, fmt.Errorf("dag.tasks.%s: %w", task.Name, err)
		}
		d.tasks = append(d.tasks, s)
		names := task.Dependencies
		if task.ContinueOn != nil && slices.ContainsFunc(t.Tasks, func(other wf.DAGTask) bool { return other.Depends != "" }) {
			return nil, fmt.Errorf("dag.tasks.%s.continueOn: cannot be used in a dag with depends; write %s.Failed or %s.Errored "+
				"in the depends of the next tasks", task.Name, task.Name, task.Name)
		}
		if task.Depends != "" {
			if len(names) > 0 {
				return nil, fmt.Errorf("dag.tasks.%s: has both dependencies and depends", task.Name)
			}
			if s.depends, names, err = parseDepends(task.Depends, t); err != nil {
				return nil, fmt.Errorf("dag.tasks.%s.depends: %w", task.Name, err)
			}
		} else if len(names) > 0 {
			s.depends = allOf(names, t)
		}
		for _, name := range names {
			j, found := d.index[name]
			if !found {
				return nil, fmt.Errorf("dag.tasks.%s: dependency '%s' not defined", task.Name, name)
			}
			d.deps[i] = append(d.deps[i], j)
			d.dependents[j] = append(d.dependents[j], i)
		}
	}
	if cycle := d.cycle(); cycle != "" {
		return nil, fmt.Errorf("dag.tasks: dependency cycle detected: %s", cycle)
	}
	for _, name := range strings.Fields(t.Target) {
		i, found := d.index[name]
		if !found {
			return nil, fmt.Errorf("dag.target: task '%s' not defined", name)
		}
		d.targets = append(d.targets, i)
	}
	if t.Target == "" {
		for i := range d.tasks {
			if len(d.dependents[i]) == 0 {
				d.targets = append(d.targets, i)
			}
		}
	}
	for stack := append([]int(nil), d.targets...); len(stack) > 0; {
		i := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if !d.needed[i] {
			d.needed[i] = true
			stack = append(stack, d.deps[i]...)
		}
	}
	return d, nil
}

// cycle returns the names of the tasks of a dependency cycle, or "" if there is none.
func (d *dag) cycle() string {
	waits := make([]int, len(d.tasks))
	var ready []int
	for i := range d.tasks {
		if waits[i] = len(d.deps[i]); waits[i] == 0 {
			ready = append(ready, i)
		}
	}
	for k := 0; k < len(ready); k++ {
		for _, j := range d.dependents[ready[k]] {
			if waits[j]--; waits[j] == 0 {
				ready = append(ready, j)
			}
		}
	}
	if len(ready) == len(d.tasks) {
		return ""
	}
	at := 0
	for waits[at] == 0 {
		at++
	}
	// Follow the unfinished dependencies until a task comes up again.
	place := map[int]int{}
	var names []string
	for {
		if start, again := place[at]; again {
			return strings.Join(append(names[start:], d.tasks[at].Name), "->")
		}
		place[at] = len(names)
		names = append(names, d.tasks[at].Name)
		for _, j := range d.deps[at] {
			if waits[j] > 0 {
				at = j
				break
			}
		}
	}
}

// ancestor reports whether task is a direct or indirect dependency of of. The search is
// breadth-first.
func (d *dag) ancestor(of, task int) bool {
	seen := map[int]bool{}
	for queue := []int{of}; len(queue) > 0; queue = queue[1:] {
		for _, j := range d.deps[queue[0]] {
			if j == task {
				return true
			}
			if !seen[j] {
				seen[j] = true
				queue = append(queue, j)
			}
		}
	}
	return false
}

// ended returns the condition for a task name without a result: the task is done, and its phase
// lets its dependents run.
func ended(name string, t *wf.DAGTemplate) condition {
	allowed := []string{"Succeeded", "Skipped", "Daemoned"}
	for i := range t.Tasks {
		if c := t.Tasks[i].ContinueOn; t.Tasks[i].Name == name && c != nil {
			if c.Failed {
				allowed = append(allowed, "Failed")
			}
			if c.Error {
				allowed = append(allowed, "Errored")
			}
		}
	}
	return func(result func(string, string) bool) bool {
		for _, a := range allowed {
			if result(name, a) {
				return true
			}
		}
		return false
	}
}

func allOf(names []string, t *wf.DAGTemplate) condition {
	conditions := make([]condition, len(names))
	for i, name := range names {
		conditions[i] = ended(name, t)
	}
	return func(result func(string, string) bool) bool {
		for _, c := range conditions {
			if !c(result) {
				return false
			}
		}
		return true
	}
}

// parseDepends parses a condition over tasks: names, with or without a result, &&, ||, ! and
// parentheses. It also returns the names of the tasks.
func parseDepends(text string, t *wf.DAGTemplate) (condition, []string, error) {
	p := dependsParser{text: text, dag: t, seen: map[string]bool{}}
	c, err := p.or(0)
	if err == nil && p.peek() != "" {
		err = fmt.Errorf("unexpected '%s' in '%s'", p.peek(), text)
	}
	return c, p.names, err
}

type dependsParser struct {
	text  string
	dag   *wf.DAGTemplate
	at    int
	names []string
	seen  map[string]bool
}

func word(c byte) bool {
	return c == '-' || c == '_' || c == '.' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// peek returns the next token without consuming it.
func (p *dependsParser) peek() string {
	for p.at < len(p.text) && strings.IndexByte(" \t\r\n", p.text[p.at]) >= 0 {
		p.at++
	}
	rest := p.text[p.at:]
	switch {
	case rest == "":
		return ""
	case strings.HasPrefix(rest, "&&"), strings.HasPrefix(rest, "||"):
		return rest[:2]
	}
	n := 0
	for n < len(rest) && word(rest[n]) {
		n++
	}
	return rest[:max(n, 1)]
}

func (p *dependsParser) next() string {
	token := p.peek()
	p.at += len(token)
	return token
}

func (p *dependsParser) or(depth int) (condition, error) {
	return p.chain("||", func() (condition, error) {
		return p.chain("&&", func() (condition, error) { return p.unary(depth) })
	})
}

func (p *dependsParser) chain(operator string, operand func() (condition, error)) (condition, error) {
	left, err := operand()
	for err == nil && p.peek() == operator {
		p.next()
		var right condition
		right, err = operand()
		a, all := left, operator == "&&"
		left = func(result func(string, string) bool) bool {
			if all {
				return a(result) && right(result)
			}
			return a(result) || right(result)
		}
	}
	return left, err
}

func (p *dependsParser) unary(depth int) (condition, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxDepth)
	}
	switch token := p.next(); {
	case token == "!":
		c, err := p.unary(depth + 1)
		return func(result func(string, string) bool) bool { return !c(result) }, err
	case token == "(":
		c, err := p.or(depth + 1)
		if err == nil && p.next() != ")" {
			err = fmt.Errorf("missing ')' in '%s'", p.text)
		}
		return c, err
	case token != "" && word(token[0]):
		name, result, asked := strings.Cut(token, ".")
		if asked && !results[result] {
			return nil, fmt.Errorf("task result '%s' for task '%s' is invalid", result, name)
		}
		if result == "AnySucceeded" || result == "AllFailed" {
			loops := func(t wf.DAGTask) bool { return t.WithItems != nil || t.WithParam != "" || t.WithSequence != nil }
			if i := slices.IndexFunc(p.dag.Tasks, func(t wf.DAGTask) bool { return t.Name == name }); i >= 0 && !loops(p.dag.Tasks[i]) {
				return nil, fmt.Errorf("'%s' is the result of a loop, and task '%s' has none of withItems, withParam, withSequence",
					result, name)
			}
		}
		if !p.seen[name] {
			p.seen[name] = true
			p.names = append(p.names, name)
		}
		if !asked {
			return ended(name, p.dag), nil
		}
		return func(ask func(string, string) bool) bool { return ask(name, result) }, nil
	default:
		return nil, fmt.Errorf("unexpected '%s' in '%s'", token, p.text)
	}
}
