package data

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"lockstep.dev/lockstep/internal/workflow/artifacts"
	"lockstep.dev/lockstep/internal/workflow/execapi"
	"lockstep.dev/lockstep/internal/workflow/executor"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// Run runs the plan and returns the termination message and the exit code. A result that is too
// large for the message is passed to put; if put is nil, it becomes a WorkflowTaskResult.
func Run(ctx context.Context, plan *execapi.DataPlan, put func(*execapi.Task, *execapi.Report) error) (message string, code int) {
	limit := cmp.Or(plan.MaxMessage, execapi.MaxMessage)
	result, err := Result(ctx, plan)
	if err == nil && len(result) > execapi.MaxResult {
		err = fmt.Errorf("data: the result has %d bytes, more than %d", len(result), execapi.MaxResult)
	}
	if err == nil {
		report := execapi.Report{Plain: true, Result: &result}
		if _, fits := report.Encode(limit); !fits && !plan.Result {
			report.Result = nil // nobody reads it
		}
		message, err = executor.Compose(report, limit, plan.Task, put)
	}
	if err != nil {
		return execapi.Report{Plain: true, Failed: true, Message: execapi.Shorten(err.Error())}.Fit(limit), execapi.ExitExecutor
	}
	return message, 0
}

// Result returns the transformed list of paths as JSON.
func Result(ctx context.Context, plan *execapi.DataPlan) (string, error) {
	paths, err := artifacts.Paths(ctx, plan.From)
	if err != nil {
		return "", fmt.Errorf("data.source.artifactPaths: %w", err)
	}
	list := make([]any, len(paths))
	for i := range paths {
		list[i] = paths[i]
	}
	return Transform(list, plan.Expressions)
}

// Transform passes a value through expressions, which see it as data, and returns the last value as
// JSON.
func Transform(value any, expressions []string) (string, error) {
	text, err := json.Marshal(value)
	for i := 0; err == nil && i < len(expressions); i++ {
		if text, err = transform(text, expressions[i]); err != nil {
			err = fmt.Errorf("data.transformation[%d].expression: %w", i, err)
		}
	}
	return string(text), err
}

func transform(text []byte, source string) ([]byte, error) {
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		return nil, err
	}
	if _, err := template.CompileExpr(source); err != nil {
		return nil, err
	}
	e, err := template.CompileExpr("toJson(\n" + source + "\n)") // the lines keep a comment at the end apart
	if err != nil {
		return nil, err
	}
	out, err := e.Text(template.Typed{template.Runner: template.InProcess(), "data": value})
	return []byte(out), err
}
