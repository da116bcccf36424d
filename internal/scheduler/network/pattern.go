package network

import (
	"fmt"
	"regexp"
	"regexp/syntax"
)

// Bounds of patterns. The API server holds new objects to the first; the second bounds the memory of a
// compiled pattern, in which counted repetitions multiply.
const (
	patternBytesMax = 512
	patternStepsMax = 20_000
)

// compilePattern compiles a regular expression, or returns why it is not valid.
func compilePattern(text string) (*regexp.Regexp, error) {
	if len(text) > patternBytesMax {
		return nil, fmt.Errorf("the pattern has %d bytes, more than %d", len(text), patternBytesMax)
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, err
	}
	if steps(parsed) > patternStepsMax {
		return nil, fmt.Errorf("the pattern is too large: its repetitions make more than %d steps", patternStepsMax)
	}
	return regexp.Compile(text)
}

// steps estimates the size of a compiled expression.
func steps(e *syntax.Regexp) int {
	n := 1 + len(e.Rune)
	for _, sub := range e.Sub {
		n += steps(sub)
	}
	if e.Op == syntax.OpRepeat {
		n *= max(e.Min, e.Max, 1)
	}
	return n
}
