package template

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/parser"
	"github.com/expr-lang/expr/vm"
)

// Bounds of the source of an expression, and so of the parser's recursion, and of the number of
// variables.
const (
	maxExprBytes = 16 << 10
	maxExprVars  = 256
)

// Expr is a parsed expression. It is safe for concurrent use.
type Expr struct {
	source string
	refs   []ref
	calls  []string // names of the functions that it calls, sprig's with their prefix

	// program is set if the expression is cheap, and nodes is the number of its nodes. See cheap.
	program *vm.Program
	nodes   int
}

// ref is a variable that an expression uses: inputs.parameters['a-b'] is {inputs parameters a-b}.
type ref struct {
	keys    []string
	guarded bool // by ?. or ??: the variable may be missing
}

// CompileExpr parses an expression of expr-lang, and compiles it if it is cheap. Errors in other
// expressions are found only by Check or by evaluation.
func CompileExpr(source string) (*Expr, error) {
	if len(source) > maxExprBytes {
		return nil, fmt.Errorf("expression is longer than %d bytes", maxExprBytes)
	}
	tree, err := parser.Parse(source)
	if err != nil {
		return nil, errors.New(firstLine(err))
	}
	e := &Expr{source: source}
	c := collector{expr: e, seen: map[string]bool{}}
	c.visit(tree.Node, nil, false)
	if c.err != nil {
		return nil, c.err
	}
	if len(e.refs) > maxExprVars {
		return nil, fmt.Errorf("expression has more than %d variables", maxExprVars)
	}
	if nodes, ok := cheap(tree.Node); ok && len(source) <= cheapSourceMax {
		e.nodes = nodes
		if e.program, err = compileProgram(source); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// Check returns an error if the expression does not compile. run compiles an expression that is not
// cheap.
func (e *Expr) Check(run Run) error {
	if e.program != nil {
		return nil
	}
	_, err := e.ask(run, &question{Source: e.source, As: asCheck})
	return err
}

// firstLine returns an error's message without the excerpt of the source that expr adds on further
// lines.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// Names calls yield with the variables of the expression; guarded ones may be missing.
func (e *Expr) Names(yield func(name string, guarded bool)) {
	for _, r := range e.refs {
		yield(strings.Join(r.keys, "."), r.guarded)
	}
}

// Text evaluates the expression and returns its value as text. The error is an *UnresolvedError if
// the scope does not know a variable.
func (e *Expr) Text(scope Scope) (string, error) { return e.evaluate(scope, asText, newBudget()) }

// Bool evaluates the expression, whose value must be a boolean.
func (e *Expr) Bool(scope Scope) (bool, error) {
	text, err := e.evaluate(scope, asBool, newBudget())
	return text == "true", err
}

// evaluate evaluates a cheap expression in this process, within the budget. The Run of the scope
// evaluates all others.
func (e *Expr) evaluate(scope Scope, as string, left *budget) (string, error) {
	env := map[string]any{}
	for _, r := range e.refs {
		if err := r.bind(env, scope); err != nil {
			return "", err
		}
	}
	if e.program != nil {
		if work := workOf(e.nodes, e.source, env); work <= min(left.work, cheapWorkMax) {
			left.work -= work
			return runProgram(e.program, e.source, as, env, e.calls, nil)
		}
	}
	q := question{Source: e.source, As: as, Calls: e.calls}
	q.Now, q.Seed = momentOf(scope, e.calls)
	var err error
	if q.Vars, err = appendValue(nil, env, 0); err == nil && len(q.Vars) > varsBytesMax {
		err = errVars // the last value is the one that is too large
	}
	if err != nil {
		return "", err
	}
	return e.ask(RunnerOf(scope), &q)
}

func (e *Expr) ask(run Run, q *question) (string, error) {
	if run == nil {
		return "", errNoRunner
	}
	request, err := json.Marshal(q)
	if err != nil {
		return "", err
	}
	answer, err := run(evaluatorExpression, request)
	return string(answer), err
}

// bind adds the variable to env, as nested maps.
func (r ref) bind(env map[string]any, scope Scope) error {
	name := strings.Join(r.keys, ".")
	v, found := scope.Lookup(name)
	below := map[string]any{}
	scope.Walk(name+".", func(key string, v Value) {
		set(below, strings.Split(strings.TrimPrefix(key, name+"."), "."), text(v))
	})
	switch {
	case len(below) > 0: // variables below this one take precedence over its own text
		set(env, r.keys, below)
	case found:
		set(env, r.keys, text(v))
	case r.bindAbove(env, scope):
	case r.guarded:
		set(env, r.keys, nil)
	default:
		return &UnresolvedError{name}
	}
	return nil
}

// bindAbove adds to env the typed variable of which r is a member. It reports whether such a
// variable exists.
func (r ref) bindAbove(env map[string]any, scope Scope) bool {
	for n := len(r.keys) - 1; n > 0; n-- {
		if v, found := scope.Lookup(strings.Join(r.keys[:n], ".")); found && v.Typed != nil {
			set(env, r.keys[:n], v.Typed)
			return true
		}
	}
	return false
}

func text(v Value) any {
	if v.Absent != "" {
		return nil
	}
	if v.Typed != nil {
		return v.Typed
	}
	return v.Text
}

// set stores value at the path of keys. A map has precedence over a text at the same path.
func set(m map[string]any, keys []string, value any) {
	for ; len(keys) > 1; keys = keys[1:] {
		next, ok := m[keys[0]].(map[string]any)
		if !ok {
			next = map[string]any{}
			m[keys[0]] = next
		}
		m = next
	}
	if old, ok := m[keys[0]].(map[string]any); ok {
		if more, ok := value.(map[string]any); ok {
			maps.Copy(old, more)
		}
		return
	}
	m[keys[0]] = value
}

// collector finds the variables and functions of an expression.
type collector struct {
	expr *Expr
	seen map[string]bool // variables, by keys and guarded
	err  error           // a fault that every evaluation has
}

// visit walks node; local are the names bound by let.
func (c *collector) visit(node ast.Node, local []string, guarded bool) {
	visit := func(nodes ...ast.Node) {
		for _, n := range nodes {
			if n != nil {
				c.visit(n, local, guarded)
			}
		}
	}
	switch n := node.(type) {
	case *ast.IdentifierNode, *ast.MemberNode:
		c.variable(node, local, guarded)
	case *ast.ChainNode:
		visit(n.Node)
	case *ast.UnaryNode:
		visit(n.Node)
	case *ast.BinaryNode:
		if n.Operator == "??" {
			c.visit(n.Left, local, true)
			visit(n.Right)
			return
		}
		visit(n.Left, n.Right)
	case *ast.SliceNode:
		visit(n.Node, n.From, n.To)
	case *ast.CallNode:
		c.function(n.Callee, local)
		c.path(n)
		visit(n.Arguments...)
	case *ast.BuiltinNode:
		c.expr.calls = append(c.expr.calls, n.Name)
		visit(n.Arguments...)
	case *ast.PredicateNode:
		visit(n.Node)
	case *ast.ConditionalNode:
		visit(n.Cond, n.Exp1, n.Exp2)
	case *ast.VariableDeclaratorNode:
		visit(n.Value)
		c.visit(n.Expr, append(local[:len(local):len(local)], n.Name), guarded)
	case *ast.SequenceNode:
		visit(n.Nodes...)
	case *ast.ArrayNode:
		visit(n.Nodes...)
	case *ast.MapNode:
		visit(n.Pairs...)
	case *ast.PairNode:
		visit(n.Key, n.Value)
	}
}

// variable records a chain of members as one variable, up to the first computed key.
func (c *collector) variable(node ast.Node, local []string, guarded bool) {
	var keys []string
	for {
		switch n := node.(type) {
		case *ast.IdentifierNode:
			for _, name := range local {
				if n.Value == name {
					return
				}
			}
			r := ref{append([]string{n.Value}, keys...), guarded}
			if id := fmt.Sprintf("%t %q", guarded, r.keys); !c.seen[id] {
				c.seen[id] = true
				c.expr.refs = append(c.expr.refs, r)
			}
			return
		case *ast.ChainNode:
			node = n.Node
		case *ast.MemberNode:
			guarded = guarded || n.Optional
			if key, ok := n.Property.(*ast.StringNode); ok {
				keys = append([]string{key.Value}, keys...)
			} else {
				keys = nil // a computed key: any variable below may be used
				c.visit(n.Property, local, guarded)
			}
			node = n.Node
		default:
			c.visit(node, local, guarded)
			return
		}
	}
}

// path checks the path of a call of jsonpath, if it is a literal.
func (c *collector) path(call *ast.CallNode) {
	if name, is := call.Callee.(*ast.IdentifierNode); !is || name.Value != "jsonpath" || len(call.Arguments) != 2 {
		return
	}
	if literal, is := call.Arguments[1].(*ast.StringNode); is && c.err == nil {
		_, c.err = parsePath(literal.Value)
	}
}

func (c *collector) function(callee ast.Node, local []string) {
	switch n := callee.(type) {
	case *ast.IdentifierNode:
		c.expr.calls = append(c.expr.calls, n.Value)
		return
	case *ast.MemberNode:
		root, isName := n.Node.(*ast.IdentifierNode)
		if name, ok := n.Property.(*ast.StringNode); ok && isName && root.Value == "sprig" {
			c.expr.calls = append(c.expr.calls, "sprig."+name.Value)
			return
		}
	}
	c.visit(callee, local, false)
}
