package template

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/casbin/govaluate"
)

// maxWhenBytes and maxWhenDepth bound a condition, and with them how deep its parser goes.
const (
	maxWhenBytes = 256 << 10
	maxWhenDepth = 200
)

// When decides a condition whose tags have been resolved. Bare words are strings, so that {{x}} == true can be written
// without quotes. No condition is true.
func When(condition string) (proceed bool, err error) {
	switch strings.TrimSpace(condition) {
	case "", "true":
		return true, nil
	case "false":
		return false, nil
	}
	if len(condition) > maxWhenBytes || strings.Count(condition, "(")+strings.Count(condition, "!") > maxWhenDepth {
		return false, fmt.Errorf("condition is longer than %d bytes or nested deeper than %d", maxWhenBytes, maxWhenDepth)
	}
	defer func() {
		if r := recover(); r != nil { // the library's parser is not proof against every text
			err = fmt.Errorf("condition '%s': %v", condition, r)
		}
	}()
	parsed, err := govaluate.NewEvaluableExpression(condition)
	if err != nil {
		return false, fmt.Errorf("condition '%s': %w", condition, err)
	}
	tokens := parsed.Tokens()
	for i := range tokens {
		if tokens[i].Kind == govaluate.VARIABLE {
			tokens[i].Kind = govaluate.STRING
		}
	}
	if parsed, err = govaluate.NewEvaluableExpressionFromTokens(tokens); err != nil {
		return false, fmt.Errorf("condition '%s': %w", condition, err)
	}
	value, err := parsed.Evaluate(nil)
	if err != nil {
		return false, fmt.Errorf("condition '%s': %w", condition, err)
	}
	result, ok := value.(bool)
	if !ok {
		return false, fmt.Errorf("condition '%s' gives %v, not a boolean", condition, value)
	}
	return result, nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
