package manager

import (
	"context"

	"lockstep.dev/lockstep/internal/application/chart"
	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/sandbox"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// Evaluators returns the functions that a manager runs in child processes. A program that runs a
// manager must begin with sandbox.Main(Evaluators()).
func Evaluators() sandbox.Table {
	table := sandbox.Table{}
	for _, more := range []map[string]func(context.Context, []byte) ([]byte, error){
		render.NewEngine().Evaluators(), chart.Evaluators(), template.Evaluators(),
	} {
		for name, f := range more {
			table[name] = f
		}
	}
	return table
}
