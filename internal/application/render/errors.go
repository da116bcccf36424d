package render

import (
	"errors"
	"fmt"
	"strings"

	cueerrors "cuelang.org/go/cue/errors"
)

// Error describes what is wrong with a definition, or with the properties given to it.
type Error struct {
	// Definition is the definition's kind and name.
	Definition string
	// Section is the part of the definition, for example "template" or "healthPolicy".
	Section string
	// Problems has each problem with its field and line.
	Problems []Problem
	// Cause is the underlying error if it is not an error of CUE, or nil.
	Cause error
}

// Unwrap returns the error's cause.
func (e *Error) Unwrap() error { return e.Cause }

// Problem is one problem of a definition or its properties.
type Problem struct {
	// Field is a path such as parameter.image, or empty.
	Field string
	// Line is the line in the section, counted from 1; 0 if unknown.
	Line int
	// Message describes the problem.
	Message string
}

func (p Problem) String() string {
	s := p.Message
	if p.Field != "" {
		s = p.Field + ": " + s
	}
	if p.Line > 0 {
		s = fmt.Sprintf("line %d: %s", p.Line, s)
	}
	return s
}

func (e *Error) Error() string {
	parts := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		parts[i] = p.String()
	}
	return fmt.Sprintf("%s, %s: %s", e.Definition, e.Section, strings.Join(parts, "; "))
}

// problemsMax bounds the number of problems of an error, because the first ones show the cause.
const problemsMax = 5

// problemsOf converts errors of CUE. file is the name under which the section was compiled.
func problemsOf(err error, file string) []Problem {
	var known cueerrors.Error
	if err != nil && !errors.As(err, &known) {
		return []Problem{{Message: err.Error()}}
	}
	var out []Problem
	seen := map[Problem]bool{}
	for _, e := range cueerrors.Errors(err) {
		format, args := e.Msg()
		p := Problem{Field: strings.Join(e.Path(), "."), Message: fmt.Sprintf(format, args...)}
		for _, pos := range append(e.InputPositions(), e.Position()) {
			if pos.Filename() == file {
				p.Line = pos.Line()
				break
			}
		}
		if pos := e.Position(); pos.Filename() == file {
			p.Line = pos.Line()
		}
		if strings.Contains(p.Message, "errors in empty disjunction") {
			continue // only a heading; the errors follow
		}
		if seen[p] || len(out) == problemsMax {
			continue
		}
		seen[p] = true
		out = append(out, p)
	}
	return out
}

// asError returns err as an *Error of the definition d. It returns nil if err is nil.
func asError(d *Definition, section string, err error) error {
	var e *Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	out := &Error{Definition: d.String(), Section: section, Problems: problemsOf(err, section)}
	if known := cueerrors.Error(nil); !errors.As(err, &known) {
		out.Cause = err
	}
	return out
}
