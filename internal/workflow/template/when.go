package template

import (
	"fmt"
	"iter"
	"strings"

	"github.com/casbin/govaluate"
)

// Bounds of a cheap condition, and so of the parser's recursion. Each part may concatenate all
// texts before it, but no part may be a regular expression.
const (
	cheapWhenBytes = 8 << 10
	cheapWhenParts = 256
	cheapWhenDepth = 50
)

// When evaluates a condition whose tags have been resolved. run evaluates a condition that is not
// cheap. Bare words are strings, so that {{x}} == true can be written without quotes. An empty
// condition is true.
func When(condition string, run Run) (proceed bool, err error) {
	switch strings.TrimSpace(condition) {
	case "", "true":
		return true, nil
	case "false":
		return false, nil
	}
	if len(condition) > MaxTextBytes {
		return false, errTooLong
	}
	if cheapWhen(condition) {
		return decide(condition)
	}
	if run == nil {
		return false, fmt.Errorf("condition '%s': %w", shortCondition(condition), errNoRunner)
	}
	answer, err := run(evaluatorCondition, []byte(condition))
	return string(answer) == "true", err
}

// shortCondition truncates a condition for messages.
func shortCondition(condition string) string { return condition[:min(len(condition), 200)] }

func cheapWhen(condition string) bool {
	return len(condition) <= cheapWhenBytes &&
		strings.Count(condition, "(")+strings.Count(condition, "!") <= cheapWhenDepth &&
		!strings.Contains(condition, "=~") && !strings.Contains(condition, "!~") && parts(condition) <= cheapWhenParts
}

// decide evaluates any condition in this process.
func decide(condition string) (proceed bool, err error) {
	defer func() {
		if r := recover(); r != nil { // the library's parser panics on some texts
			err = fmt.Errorf("condition '%s': %v", shortCondition(condition), r)
		}
	}()
	parsed, err := govaluate.NewEvaluableExpression(condition)
	if err != nil {
		return false, fmt.Errorf("condition '%s': %w", shortCondition(condition), err)
	}
	tokens := parsed.Tokens()
	for i := range tokens {
		if tokens[i].Kind == govaluate.VARIABLE {
			tokens[i].Kind = govaluate.STRING
		}
	}
	if parsed, err = govaluate.NewEvaluableExpressionFromTokens(tokens); err != nil {
		return false, fmt.Errorf("condition '%s': %w", shortCondition(condition), err)
	}
	value, err := parsed.Evaluate(nil)
	if err != nil {
		return false, fmt.Errorf("condition '%s': %w", shortCondition(condition), err)
	}
	result, ok := value.(bool)
	if !ok {
		return false, fmt.Errorf("condition '%s' gives %.200v, not a boolean", shortCondition(condition), value)
	}
	return result, nil
}

// standIns are texts that a tag of a condition may stand for: a value, an operator, or nothing.
var standIns = []string{"1", "x", "==", ""}

// standInTags bounds the tags of a condition that CheckWhen judges.
const standInTags = 4

// CheckWhen returns an error if the text is not a condition whatever its tags stand for.
func (t *Text) CheckWhen() error {
	var tags []int
	for i := range t.parts {
		if t.parts[i].name != "" || t.parts[i].expr != nil {
			tags = append(tags, i)
		}
	}
	if len(tags) == 0 || len(tags) > standInTags || t.nested {
		return nil
	}
	total := 1
	for range tags {
		total *= len(standIns)
	}
	var first error
	for n := range total {
		words := make([]string, len(t.parts))
		for i := range t.parts {
			words[i] = t.parts[i].literal
		}
		for k, rest := 0, n; k < len(tags); k++ {
			words[tags[k]] = standIns[rest%len(standIns)]
			rest /= len(standIns)
		}
		condition := strings.Join(words, "")
		if strings.TrimSpace(condition) == "" || !cheapWhen(condition) {
			return nil
		}
		err := parses(condition)
		if err == nil {
			return nil
		}
		if first == nil {
			first = fmt.Errorf("condition '%s': %w", shortCondition(t.source), err)
		}
	}
	return first
}

// parses returns an error if a text is not a condition.
func parses(condition string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	_, err = govaluate.NewEvaluableExpression(condition)
	return err
}

// parts returns the approximate number of parts of a condition. A quoted text is one part.
func parts(condition string) int {
	n := 0
	for _, c := range unquoted(condition) {
		if strings.IndexByte("+-*/%&|<>=!?:,()~^[] \t\n'\"", c) >= 0 {
			n++
		}
	}
	return n
}

// unquoted iterates over the bytes of a text that are not inside quotes, and their indices. Of a quoted
// text only the first quote is among them.
func unquoted(text string) iter.Seq2[int, byte] {
	return func(yield func(int, byte) bool) {
		quote := byte(0)
		for i := 0; i < len(text); i++ {
			c := text[i]
			switch {
			case quote != 0 && c == '\\':
				i++
				continue
			case quote != 0:
				if c == quote {
					quote = 0
				}
				continue
			case c == '\'' || c == '"':
				quote = c
			}
			if !yield(i, c) {
				return
			}
		}
	}
}
