package render

import (
	"encoding/json"
	"errors"
	"fmt"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/cuecontext"
)

// valueFromMax bounds the length of an expression, in bytes.
const valueFromMax = 16 << 10

// valueFrom returns the value of a path or an expression over the fields of v, as JSON.
func valueFrom(ctx *cue.Context, v cue.Value, expression string) (json.RawMessage, error) {
	if len(expression) > valueFromMax {
		return nil, fmt.Errorf("an expression of more than %d bytes", valueFromMax)
	}
	if path := cue.ParsePath(expression); path.Err() == nil {
		if at := v.LookupPath(path); at.Exists() {
			return at.MarshalJSON()
		}
	}
	got := ctx.CompileString(expression, cue.Scope(v), cue.InferBuiltins(true))
	if err := got.Err(); err != nil {
		return nil, err
	}
	return got.MarshalJSON()
}

// ValueFrom evaluates an expression, such as a component's output, over values by their top-level
// names.
func ValueFrom(run Run, expression string, values map[string]any) (json.RawMessage, error) {
	var answer json.RawMessage
	return answer, ask(run, evaluatorValue, &expressionRequest{expression, values}, &answer)
}

func evaluateValue(expression string, values map[string]any) (json.RawMessage, error) {
	ctx := cuecontext.New()
	out, err := valueFrom(ctx, ctx.BuildExpr(exprOf(values)), expression)
	if err != nil {
		return nil, fmt.Errorf("%s: %s", expression, firstProblem(err))
	}
	return out, nil
}

// conditionMax bounds the length of a condition, in bytes.
const conditionMax = 4 << 10

// Condition evaluates a condition over values by their top-level names.
func Condition(run Run, condition string, values map[string]any) (bool, error) {
	var answer bool
	return answer, ask(run, evaluatorCondition, &expressionRequest{condition, values}, &answer)
}

func evaluateCondition(condition string, values map[string]any) (bool, error) {
	if len(condition) > conditionMax {
		return false, fmt.Errorf("a condition of more than %d bytes", conditionMax)
	}
	ctx := cuecontext.New()
	scope := ctx.BuildExpr(exprOf(values))
	v := ctx.CompileString(condition, cue.Scope(scope), cue.InferBuiltins(true))
	yes, err := v.Bool()
	if err != nil {
		return false, errors.New(firstProblem(err))
	}
	return yes, nil
}

func firstProblem(err error) string {
	if problems := problemsOf(err, ""); len(problems) > 0 {
		return problems[0].String()
	}
	return err.Error()
}
