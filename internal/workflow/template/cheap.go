package template

import (
	"github.com/expr-lang/expr/ast"
)

// Bounds of a cheap expression. A value in it consists of literals and variables, each at most once
// per node that names it, and each operator reads or writes such values once. So an expression of n
// nodes with variables of s bytes takes less than n * n * s units of work, where a unit is one byte
// read or written.
const (
	cheapSourceMax = 2048 // bytes
	cheapWorkMax   = 4 << 20
	itemWork       = 16 // cost of an element of a list or map besides its bytes
)

// cheapOperators are operators that take time and memory in proportion to the size of their
// operands.
var cheapOperators = map[string]bool{
	"==": true, "!=": true, "<": true, "<=": true, ">": true, ">=": true, "&&": true, "||": true, "and": true, "or": true,
	"??": true, "in": true,
	"+": true, "-": true, "*": true, "/": true, "%": true, "contains": true, "startsWith": true, "endsWith": true,
}

// cheapFunctions are functions that return no more bytes than their arguments have.
var cheapFunctions = map[string]bool{"asInt": true, "asFloat": true, "int": true, "float": true, "len": true,
	"string": true}

// cheap returns the number of nodes of an expression that consists only of literals, variables and
// their members, cheapOperators, cheapFunctions and conditionals. For any other expression ok is
// false: with loops, definitions, ranges, patterns or other functions, the work and the result may
// exceed any multiple of the size of the inputs.
func cheap(node ast.Node) (nodes int, ok bool) {
	all := func(parts ...ast.Node) (int, bool) {
		nodes := 1
		for _, p := range parts {
			n, ok := cheap(p)
			if !ok {
				return 0, false
			}
			nodes += n
		}
		return nodes, true
	}
	switch n := node.(type) {
	case *ast.NilNode, *ast.BoolNode, *ast.IntegerNode, *ast.FloatNode, *ast.StringNode, *ast.IdentifierNode:
		return 1, true
	case *ast.UnaryNode:
		return all(n.Node)
	case *ast.BinaryNode:
		if cheapOperators[n.Operator] {
			return all(n.Left, n.Right)
		}
	case *ast.ChainNode:
		return all(n.Node)
	case *ast.MemberNode:
		return all(n.Node, n.Property)
	case *ast.ConditionalNode:
		return all(n.Cond, n.Exp1, n.Exp2)
	case *ast.ArrayNode:
		return all(n.Nodes...)
	case *ast.BuiltinNode:
		if cheapFunctions[n.Name] {
			return all(n.Arguments...)
		}
	case *ast.CallNode:
		if name, is := n.Callee.(*ast.IdentifierNode); is && cheapFunctions[name.Value] {
			return all(n.Arguments...)
		}
	}
	return 0, false
}

// workOf returns an upper bound on the work of a cheap expression with the given number of nodes.
// The bound exceeds cheapWorkMax if a variable has an unknown type.
func workOf(nodes int, source string, env map[string]any) int {
	size, known := sizeOf(env, cheapWorkMax)
	if !known || nodes > cheapSourceMax {
		return cheapWorkMax + 1
	}
	return nodes * nodes * min(size+len(source), cheapWorkMax)
}

// sizeOf returns the approximate size of a value in bytes; it stops counting above most. known is
// false if a value has an unknown type.
func sizeOf(value any, most int) (size int, known bool) {
	switch v := value.(type) {
	case nil, bool, int, int64, float64:
		return itemWork, true
	case string:
		return itemWork + len(v), true
	case []any:
		for _, item := range v {
			n, known := sizeOf(item, most-size)
			if size += n; !known || size > most {
				return size, known
			}
		}
		return size + itemWork, true
	case map[string]any:
		for key, item := range v {
			n, known := sizeOf(item, most-size)
			if size += n + len(key); !known || size > most {
				return size, known
			}
		}
		return size + itemWork, true
	}
	return 0, false
}
