package template

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/parser"
	"github.com/expr-lang/expr/vm"
)

// maxExprBytes bounds the source of an expression, and with it how deep the parser goes.
const maxExprBytes = 16 << 10

// Expr is a compiled expression. It can be evaluated by several goroutines at once.
type Expr struct {
	source  string
	program *vm.Program
	refs    []ref
	calls   []string // functions of ours that it calls, sprig's with their prefix
}

// ref is a variable that an expression uses: inputs.parameters['a-b'] is {inputs parameters a-b}.
type ref struct {
	keys    []string
	guarded bool // by ?. or ??: it may be missing
}

// disabled are built-in functions that read a clock, or make large results of small arguments and are replaced by ours.
var disabled = []string{"now", "repeat", "replace", "join", "uniq"}

// CompileExpr compiles an expression of expr-lang.
func CompileExpr(source string) (*Expr, error) {
	if len(source) > maxExprBytes {
		return nil, fmt.Errorf("expression is longer than %d bytes", maxExprBytes)
	}
	tree, err := parser.Parse(source)
	if err != nil {
		return nil, fmt.Errorf("%s", firstLine(err))
	}
	e := &Expr{source: source}
	c := collector{expr: e}
	c.visit(tree.Node, nil, false)
	options := []expr.Option{
		expr.Env(map[string]any{}), expr.AllowUndefinedVariables(),
		expr.Optimize(false), // which would build constant ranges before any bound applies
		expr.Patch(bounding{}),
	}
	for _, name := range disabled {
		options = append(options, expr.DisableBuiltin(name))
	}
	e.program, err = expr.Compile(source, options...)
	if err != nil {
		return nil, fmt.Errorf("%s", firstLine(err))
	}
	return e, nil
}

// firstLine drops the picture of the source that expr's errors have below the message.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// Names calls yield with the variables that the expression uses; guarded ones may be missing.
func (e *Expr) Names(yield func(name string, guarded bool)) {
	for _, r := range e.refs {
		yield(strings.Join(r.keys, "."), r.guarded)
	}
}

// Eval evaluates the expression. An *UnresolvedError names a variable that the scope does not know.
func (e *Expr) Eval(scope Scope) (any, error) {
	b := &budget{left: maxWork}
	value, err := e.eval(scope, b)
	return value, err
}

// Text evaluates the expression to the text of its value.
func (e *Expr) Text(scope Scope) (string, error) {
	b := &budget{left: maxWork}
	value, err := e.eval(scope, b)
	if err != nil {
		return "", err
	}
	if value == nil {
		return "", errors.New("expression has no value")
	}
	if err := b.charge(value); err != nil {
		return "", err
	}
	if s, ok := value.(string); ok {
		return s, nil
	}
	return fmt.Sprintf("%v", value), nil
}

// Bool evaluates the expression, which must give a boolean.
func (e *Expr) Bool(scope Scope) (bool, error) {
	value, err := e.Eval(scope)
	if err != nil {
		return false, err
	}
	result, ok := value.(bool)
	if !ok {
		return false, fmt.Errorf("expression %q gives %T, not a boolean", e.source, value)
	}
	return result, nil
}

func (e *Expr) eval(scope Scope, b *budget) (any, error) {
	env := map[string]any{}
	for _, r := range e.refs {
		if err := r.bind(env, scope); err != nil {
			return nil, err
		}
	}
	b.bind(env, e.calls, momentOf(scope, e.source, e.calls))
	value, err := vm.Run(e.program, env)
	if err != nil {
		if b.exceeded != nil {
			return nil, b.exceeded
		}
		return nil, fmt.Errorf("%s", firstLine(err))
	}
	return value, nil
}

// bind puts the variable into env, as nested maps.
func (r ref) bind(env map[string]any, scope Scope) error {
	name := strings.Join(r.keys, ".")
	v, found := scope.Lookup(name)
	below := map[string]any{}
	scope.Walk(name+".", func(key string, v Value) {
		set(below, strings.Split(strings.TrimPrefix(key, name+"."), "."), text(v))
	})
	switch {
	case len(below) > 0: // more variables below it go before its own text
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

// bindAbove puts a typed variable into env of which r is a member.
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

// set puts value at the end of the path of keys. A map goes before a text where both want the place.
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

// collector finds the variables and functions that an expression uses.
type collector struct{ expr *Expr }

// visit walks node; local are the names that let has bound.
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

// variable records a chain of members as one variable, as far as its keys are constant.
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
			c.expr.refs = append(c.expr.refs, ref{append([]string{n.Value}, keys...), guarded})
			return
		case *ast.ChainNode:
			node = n.Node
		case *ast.MemberNode:
			guarded = guarded || n.Optional
			if key, ok := n.Property.(*ast.StringNode); ok {
				keys = append([]string{key.Value}, keys...)
			} else {
				keys = nil // a computed key: all that is below may be meant
				c.visit(n.Property, local, guarded)
			}
			node = n.Node
		default:
			c.visit(node, local, guarded)
			return
		}
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
