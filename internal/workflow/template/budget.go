package template

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/vm/runtime"
)

// maxWork bounds one evaluation in units of work: a byte or an element that a function or operator reads or writes is
// one unit, a turn of a loop is turnWork. The whole is some tens of milliseconds and megabytes at most.
const (
	maxWork  = 4 << 20
	turnWork = 10
)

var errBudget = errors.New("expression needs too much time or memory")

// budget is the work that is left to one evaluation.
type budget struct {
	left     int
	exceeded error
}

func (b *budget) spend(n int) error {
	if n < 0 || n > b.left {
		b.left, b.exceeded = 0, errBudget
		return errBudget
	}
	b.left -= n
	return nil
}

// charge spends the size of a value written out in full: what is shared inside of it counts as often as it occurs.
func (b *budget) charge(value any) error {
	switch v := value.(type) {
	case nil, bool, int, int64, float64:
		return b.spend(1)
	case string:
		return b.spend(1 + len(v))
	case []byte:
		return b.spend(1 + len(v))
	case []any:
		for _, item := range v {
			if err := b.charge(item); err != nil {
				return err
			}
		}
		return b.spend(1)
	case map[string]any:
		for key, item := range v {
			if err := b.spend(len(key)); err != nil {
				return err
			}
			if err := b.charge(item); err != nil {
				return err
			}
		}
		return b.spend(1)
	}
	switch v := reflect.ValueOf(value); v.Kind() {
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if err := b.charge(v.Index(i).Interface()); err != nil {
				return err
			}
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			if err := errors.Join(b.charge(it.Key().Interface()), b.charge(it.Value().Interface())); err != nil {
				return err
			}
		}
	}
	return b.spend(1)
}

// The functions that bounding puts into an expression. Their names cannot be written by users: see CompileExpr's parser,
// which takes them, and bind, which then replaces them.
const (
	chargeName = "__charge"
	turnName   = "__turn"
	addName    = "__add"
)

func (b *budget) bindGuards(env map[string]any) {
	env[chargeName] = func(v any) (any, error) { return v, b.charge(v) }
	env[turnName] = func(v any) (any, error) { return v, b.spend(turnWork) }
	env[addName] = func(x, y any) (sum any, err error) {
		if err := errors.Join(b.charge(x), b.charge(y)); err != nil {
			return nil, err
		}
		defer func() {
			if r := recover(); r != nil { // how the library reports operands that have no sum
				err = fmt.Errorf("%v", r)
			}
		}()
		return runtime.Add(x, y), nil
	}
}

// bounding rewrites an expression so that its loops, operators and built-in functions spend from the budget.
type bounding struct{}

// Visit implements ast.Visitor. Children come before their parents.
func (bounding) Visit(node *ast.Node) {
	switch n := (*node).(type) {
	case *ast.BinaryNode:
		switch n.Operator {
		case "+":
			ast.Patch(node, call(addName, n.Left, n.Right))
		case "&&", "||", "and", "or", "??", "..":
		default:
			n.Left, n.Right = charged(n.Left), charged(n.Right)
		}
	case *ast.BuiltinNode:
		for i, arg := range n.Arguments {
			if _, predicate := arg.(*ast.PredicateNode); !predicate {
				n.Arguments[i] = charged(arg)
			}
		}
		ast.Patch(node, call(chargeName, n))
	case *ast.PredicateNode:
		n.Node = call(turnName, n.Node)
	}
}

func charged(n ast.Node) ast.Node {
	switch n.(type) {
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.NilNode, *ast.PredicateNode:
		return n
	}
	return call(chargeName, n)
}

func call(name string, args ...ast.Node) ast.Node {
	return &ast.CallNode{Callee: &ast.IdentifierNode{Value: name}, Arguments: args}
}
