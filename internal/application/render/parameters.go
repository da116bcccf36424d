package render

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/token"
)

// Parameter is one parameter of a template.
type Parameter struct {
	// Name is a path such as ports[].port.
	Name     string `json:"name"`
	Type     string `json:"type"`
	Required bool   `json:"required"`
	Default  string `json:"default,omitempty"`
	// Usage is the author's description, from a comment // +usage=.
	Usage string `json:"description,omitempty"`
}

// Unused returns the names of the properties that a template neither declares nor reads, and that
// therefore have no effect.
func (t *Template) Unused(properties []byte) []string {
	if t.main == nil || len(properties) == 0 || t.main.Reads.Parameters.all {
		return nil
	}
	var given map[string]json.RawMessage
	if err := json.Unmarshal(properties, &given); err != nil {
		return nil // rendering reports the error
	}
	var out []string
	for name := range given {
		if !t.main.Reads.Parameters.at(name) && !t.states.reads.Parameters.at(name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// parameterDepthMax bounds the depth to which parameters are listed.
const parameterDepthMax = 4

// Parameters lists a template's parameters, except those with // +ignore.
func (t *Template) Parameters() ([]Parameter, error) {
	var out []Parameter
	err := ask(t.run, evaluatorParameters, &compileRequest{t.wire}, &out)
	return out, err
}

func (t *evaluable) parameters() ([]Parameter, error) {
	if t.main == nil {
		return nil, fmt.Errorf("%s has no template", t.def)
	}
	var out []Parameter
	err := t.main.evaluate(nil, func(_ *instance, v cue.Value) error {
		out = listParameters(v.LookupPath(cue.ParsePath("parameter")), "", 0)
		return nil
	})
	return out, err
}

func listParameters(v cue.Value, prefix string, depth int) []Parameter {
	if depth > parameterDepthMax || v.IncompleteKind() != cue.StructKind {
		return nil
	}
	fields, err := v.Fields(cue.Optional(true))
	if err != nil {
		return nil
	}
	var out []Parameter
	for fields.Next() {
		field := fields.Value()
		usage, ignored := usageOf(field)
		if ignored {
			continue
		}
		p := Parameter{Name: prefix + fields.Selector().Unquoted(), Type: fmt.Sprint(field.IncompleteKind()), Usage: usage}
		if fields.Selector().ConstraintType() != 0 {
			p.Name = prefix + strings.TrimRight(fields.Selector().String(), "?!")
		}
		def, has := field.Default()
		if has && def.IncompleteKind() != cue.StructKind {
			if text, err := def.MarshalJSON(); err == nil {
				p.Default = string(text)
			}
		}
		p.Required = fields.Selector().ConstraintType() != cue.OptionalConstraint && p.Default == "" && !marksDefault(field.Source())
		out = append(out, p)
		if field.IncompleteKind() == cue.ListKind {
			out = append(out, listParameters(field.LookupPath(cue.MakePath(cue.AnyIndex)), p.Name+"[].", depth+1)...)
		} else {
			out = append(out, listParameters(field, p.Name+".", depth+1)...)
		}
	}
	return out
}

// marksDefault reports whether a field's source marks a default. One that comes from the context has no
// value here.
func marksDefault(source ast.Node) bool {
	switch x := source.(type) {
	case *ast.Field:
		return marksDefault(x.Value)
	case *ast.ParenExpr:
		return marksDefault(x.X)
	case *ast.UnaryExpr:
		return x.Op == token.MUL
	case *ast.BinaryExpr:
		return x.Op == token.OR && (marksDefault(x.X) || marksDefault(x.Y))
	}
	return false
}

func usageOf(v cue.Value) (usage string, ignored bool) {
	for _, group := range v.Doc() {
		for line := range strings.Lines(group.Text()) {
			line = strings.TrimSpace(line)
			if text, ok := strings.CutPrefix(line, "+usage="); ok && usage == "" {
				usage = text
			}
			ignored = ignored || line == "+ignore"
		}
	}
	return usage, ignored
}
