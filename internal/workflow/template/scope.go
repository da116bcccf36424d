package template

import (
	"fmt"
	"strings"
)

// Value is the value of a variable.
type Value struct {
	Text   string
	Absent string // if not empty, the variable is known to have no value, for this reason
	// Typed, if not nil, is the value that expressions see in place of Text.
	Typed any
}

// Scope holds variables by their full names, such as inputs.parameters.message.
type Scope interface {
	// Lookup returns the variable's value, and whether it is known.
	Lookup(name string) (Value, bool)
	// Walk calls yield with every variable whose name starts with prefix.
	Walk(prefix string, yield func(name string, v Value))
}

// Names under which a scope may hold the clock and the seed for functions of expressions.
const (
	Clock = "now()"    // a Typed time.Time
	Seed  = "random()" // a text; equal seeds give equal random numbers
)

// Typed is a scope of typed values.
type Typed map[string]any

// Lookup implements Scope.
func (m Typed) Lookup(name string) (Value, bool) {
	value, found := m[name]
	return typed(value), found
}

// Walk implements Scope.
func (m Typed) Walk(prefix string, yield func(string, Value)) {
	for name, value := range m {
		if strings.HasPrefix(name, prefix) {
			yield(name, typed(value))
		}
	}
}

func typed(value any) Value {
	if value == nil {
		return Value{Absent: "has no value"}
	}
	return Value{Text: fmt.Sprint(value), Typed: value}
}

// Map is a scope of texts.
type Map map[string]string

// Lookup implements Scope.
func (m Map) Lookup(name string) (Value, bool) {
	text, found := m[name]
	return Value{Text: text}, found
}

// Walk implements Scope.
func (m Map) Walk(prefix string, yield func(string, Value)) {
	for name, text := range m {
		if strings.HasPrefix(name, prefix) {
			yield(name, Value{Text: text})
		}
	}
}

// Scopes is the union of scopes; the first scope that knows a name wins.
type Scopes []Scope

// Lookup implements Scope.
func (s Scopes) Lookup(name string) (Value, bool) {
	for _, scope := range s {
		if v, found := scope.Lookup(name); found {
			return v, true
		}
	}
	return Value{}, false
}

// Walk implements Scope.
func (s Scopes) Walk(prefix string, yield func(string, Value)) {
	for i := len(s) - 1; i >= 0; i-- { // the first scope is walked last, so that its values win
		s[i].Walk(prefix, yield)
	}
}
