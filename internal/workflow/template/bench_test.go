package template

import (
	"context"
	"strings"
	"testing"

	"lockstep.dev/lockstep/internal/sandbox"
)

func BenchmarkEvaluate(b *testing.B) {
	pool, err := sandbox.New(sandbox.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	run := Run(func(evaluator string, request []byte) ([]byte, error) {
		return pool.Do(context.Background(), "ns", evaluator, request)
	})
	scope := []Scope{Map{"workflow.name": "w", "inputs.parameters.n": "3", "inputs.parameters.message": strings.Repeat("m", 200)}, Typed{Runner: run}}
	for _, text := range []struct{ name, source string }{
		{"variables", "echo {{workflow.name}} {{inputs.parameters.message}} {{inputs.parameters.n}}"},
		{"cheap expression", "{{=asInt(inputs.parameters.n) + 1}}"},
		{"expression in a child", "{{=inputs.parameters.message matches '^m+$'}}"},
	} {
		b.Run(text.name, func(b *testing.B) {
			parsed, err := Parse(text.source)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if _, err := parsed.Resolve(scope); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	for _, condition := range []struct{ name, text string }{{"cheap condition", "'Succeeded' == Succeeded && 3 > 2"}, {"condition in a child", "'Succeeded' =~ 'Succ'"}} {
		b.Run(condition.name, func(b *testing.B) {
			for b.Loop() {
				if ok, err := When(condition.text, run); err != nil || !ok {
					b.Fatal(err)
				}
			}
		})
	}
}
