package render

import (
	"errors"
	"fmt"
	"strings"

	cueerrors "cuelang.org/go/cue/errors"
)

// Error says what is wrong with a definition, or with the properties that were given to it.
type Error struct {
	// Definition is the definition's kind and name.
	Definition string
	// Section is the part of the definition, for example "template" or "healthPolicy".
	Section string
	// Problems are what is wrong, each with its field and line.
	Problems []Problem
	// Cause is an error that is not CUE's, or nil.
	Cause error
}

// Unwrap is the error's cause.
func (e *Error) Unwrap() error { return e.Cause }

// Problem is one thing that is wrong.
type Problem struct {
	// Field is a path such as parameter.image, or empty.
	Field string
	// Line in the section, from 1; 0 when it is not known.
	Line int
	// Message says what is wrong.
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

// problemsMax bounds the length of messages: the first problems tell the cause.
const problemsMax = 5

// problemsOf reads errors of CUE. file is the name under which the section was compiled.
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
			continue // a heading: the errors follow
		}
		if seen[p] || len(out) == problemsMax {
			continue
		}
		seen[p] = true
		out = append(out, p)
	}
	return out
}

// asError makes err an *Error of the definition, unless it is one.
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
