package render

import (
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/token"

	"lockstep.dev/lockstep/internal/rawjson"
)

// inputUse holds the parts of its inputs that a program reads, as far as its source shows. It may
// hold more than the program reads, but never less.
type inputUse struct {
	Parameter bool
	// Parameters are the properties that are read or declared.
	Parameters fieldUse
	Context    fieldUse
	// loops has, by loop variable, the strings that the variable takes. It is set only while a file
	// is analysed.
	loops map[string][]string
}

// fieldUse is the part of a value that is read: all of it, or some of its fields.
type fieldUse struct {
	all    bool
	fields map[string]*fieldUse
}

func (l *fieldUse) add(path []string) {
	if l.all {
		return
	}
	if len(path) == 0 {
		l.all, l.fields = true, nil
		return
	}
	if l.fields == nil {
		l.fields = map[string]*fieldUse{}
	}
	next := l.fields[path[0]]
	if next == nil {
		next = &fieldUse{}
		l.fields[path[0]] = next
	}
	next.add(path[1:])
}

// at reports whether the field of that name, or a part of it, is read.
func (l *fieldUse) at(field string) bool { return l.all || l.fields[field] != nil }

// atApplication reports whether the Application's components, policies or workflow are read.
func (l *fieldUse) atApplication() bool { return slices.ContainsFunc(applicationFields, l.at) }

// of returns the part of a value that is read. It returns values other than structs whole.
func (l *fieldUse) of(value any) any {
	fields, ok := value.(map[string]any)
	if !ok || l.all {
		return value
	}
	out := make(map[string]any, len(l.fields))
	for name, inner := range l.fields {
		if v, ok := fields[name]; ok {
			out[name] = inner.of(v)
		}
	}
	return out
}

// field returns the use of the field of that name; nil means that it is not read.
func (l *fieldUse) field(name string) *fieldUse {
	if l.all {
		return l
	}
	return l.fields[name]
}

// read is like of for a JSON value. It decodes only the fields that are read.
func (l *fieldUse) read(data []byte) (any, error) {
	if l.all || len(data) == 0 || data[0] != '{' {
		return decode(data)
	}
	out := make(map[string]any, len(l.fields))
	var failed error
	err := rawjson.Members(data, func(m rawjson.Member) bool {
		name := string(m.Name)
		if strings.Contains(name, "\\") {
			if failed = json.Unmarshal(data[m.Start:m.Start+len(name)+2], &name); failed != nil {
				return false
			}
		}
		if inner := l.fields[name]; inner != nil {
			out[name], failed = inner.read(data[m.From:m.End])
		}
		return failed == nil
	})
	return out, errors.Join(failed, err)
}

// live returns the part of the context, including the properties and live objects, that is read.
func (l *fieldUse) live(live *Live) (map[string]any, error) {
	looked := l.of(live.Context.values(l.atApplication())).(map[string]any)
	if inner := l.field("parameter"); inner != nil {
		looked["parameter"] = map[string]any{}
		if len(live.Properties) > 0 {
			parameter, err := inner.read(live.Properties)
			if err != nil {
				return nil, err
			}
			looked["parameter"] = parameter
		}
	}
	if inner := l.field("output"); inner != nil && live.Output != nil {
		output, err := inner.read(live.Output)
		if err != nil {
			return nil, err
		}
		looked["output"] = output
	}
	if l = l.field("outputs"); l != nil && live.Outputs != nil {
		outputs := map[string]any{}
		for name, data := range live.Outputs {
			if inner := l.field(name); inner != nil {
				output, err := inner.read(data)
				if err != nil {
					return nil, err
				}
				outputs[name] = output
			}
		}
		looked["outputs"] = outputs
	}
	return looked, nil
}

// add adds the reads of other.
func (r *inputUse) add(other *inputUse) {
	r.Parameter = r.Parameter || other.Parameter
	r.Parameters.join(&other.Parameters)
	r.Context.join(&other.Context)
}

func (l *fieldUse) join(other *fieldUse) {
	if other.all {
		l.add(nil)
	}
	if l.all {
		return
	}
	for name, inner := range other.fields {
		if l.fields == nil {
			l.fields = map[string]*fieldUse{}
		}
		if l.fields[name] == nil {
			l.fields[name] = &fieldUse{}
		}
		l.fields[name].join(inner)
	}
}

// inputUseOf returns the inputs that a file reads.
func inputUseOf(f *ast.File) *inputUse {
	r := &inputUse{loops: loopsOf(f)}
	for _, d := range f.Decls {
		field, ok := d.(*ast.Field)
		if !ok {
			continue
		}
		switch name, _, _ := ast.LabelName(field.Label); name {
		case "context":
			// A declaration of context other than _ may read all of it.
			if id, ok := field.Value.(*ast.Ident); !ok || id.Name != "_" {
				r.Context.add(nil)
			}
		case "parameter":
			r.declare(field.Value)
		}
	}
	ast.Walk(f, r.visit, nil)
	r.loops = nil
	return r
}

// loopsOf returns the loops over literal strings: for k in ["a", "b"] and for _, k in {x: "a", y:
// "b"}. It leaves out a variable name that also has another use in the file.
func loopsOf(f *ast.File) map[string][]string {
	loops, other := map[string][]string{}, map[string]bool{}
	ast.Walk(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ForClause:
			if n.Key != nil {
				other[n.Key.Name] = true
			}
			if n.Value == nil {
				break
			}
			if texts, ok := textsIn(n.Source); ok {
				loops[n.Value.Name] = append(loops[n.Value.Name], texts...)
			} else {
				other[n.Value.Name] = true
			}
		case *ast.LetClause:
			other[n.Ident.Name] = true
		case *ast.Field:
			if id, ok := n.Label.(*ast.Ident); ok {
				other[id.Name] = true
			}
		case *ast.Alias:
			other[n.Ident.Name] = true
		}
		return true
	}, nil)
	for name := range other {
		delete(loops, name)
	}
	return loops
}

// textsIn returns the values of a list or struct of literal strings.
func textsIn(e ast.Expr) ([]string, bool) {
	var values []ast.Expr
	switch e := e.(type) {
	case *ast.ListLit:
		values = e.Elts
	case *ast.StructLit:
		for _, d := range e.Elts {
			field, ok := d.(*ast.Field)
			if !ok {
				return nil, false
			}
			values = append(values, field.Value)
		}
	default:
		return nil, false
	}
	var texts []string
	for _, v := range values {
		lit, ok := v.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return nil, false
		}
		text, err := strconv.Unquote(lit.Value)
		if err != nil {
			return nil, false
		}
		texts = append(texts, text)
	}
	return texts, true
}

// declare adds the properties that an expression declares.
func (r *inputUse) declare(e ast.Expr) {
	if id, ok := e.(*ast.Ident); ok && id.Name == "_" {
		return // nothing is declared
	}
	lit, ok := e.(*ast.StructLit)
	if !ok {
		r.Parameters.add(nil) // declared in another place
		return
	}
	for _, elt := range lit.Elts {
		switch elt := elt.(type) {
		case *ast.Field:
			name, _, err := ast.LabelName(elt.Label)
			if err != nil {
				r.Parameters.add(nil) // a pattern of names
				return
			}
			r.Parameters.add([]string{name})
		case *ast.CommentGroup, *ast.Attribute, *ast.Ellipsis:
		default:
			r.Parameters.add(nil)
			return
		}
	}
}

// visit adds the inputs that a node reads, and reports whether the node's children must be visited.
func (r *inputUse) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.Field:
		// A label is a name and reads no field, unless the label is an expression.
		if _, ok := n.Label.(*ast.Ident); !ok {
			ast.Walk(n.Label, r.visit, nil)
		}
		if n.Value != nil {
			ast.Walk(n.Value, r.visit, nil)
		}
		for _, a := range n.Attrs {
			ast.Walk(a, r.visit, nil)
		}
		return false
	case *ast.SelectorExpr, *ast.IndexExpr:
		path, base, inner := r.chain(n.(ast.Expr))
		id, ok := base.(*ast.Ident)
		if !ok {
			return true
		}
		for _, path := range path.all() {
			r.use(id.Name, path)
		}
		for _, e := range inner {
			ast.Walk(e, r.visit, nil)
		}
		return false
	case *ast.Ident:
		r.use(n.Name, nil)
	}
	return true
}

func (r *inputUse) use(name string, path []string) {
	switch name {
	case "parameter":
		r.Parameter = true
		r.Parameters.add(path)
	case "context":
		r.Context.add(path)
	}
}

// steps are the parts of a path, each with its possible names.
type steps [][]string

// pathsMax bounds the paths of one expression. A path that is cut off reads more.
const pathsMax = 256

// all returns all possible paths.
func (s steps) all() [][]string {
	out := [][]string{nil}
	for _, names := range s {
		if len(out)*len(names) > pathsMax {
			break
		}
		var longer [][]string
		for _, path := range out {
			for _, name := range names {
				longer = append(longer, append(slices.Clone(path), name))
			}
		}
		out = longer
	}
	return out
}

// chain splits base.a["b"][i].c into the path as far as it is known, the base, and the index
// expressions.
func (r *inputUse) chain(e ast.Expr) (path steps, base ast.Expr, inner []ast.Expr) {
	path, base, inner, _ = r.unchain(e)
	return path, base, inner
}

// unchain is like chain. open is set if the path may still be extended.
func (r *inputUse) unchain(e ast.Expr) (path steps, base ast.Expr, inner []ast.Expr, open bool) {
	var names []string
	switch e := e.(type) {
	case *ast.ParenExpr:
		return r.unchain(e.X)
	case *ast.SelectorExpr:
		path, base, inner, open = r.unchain(e.X)
		text, _, err := ast.LabelName(e.Sel)
		names, open = []string{text}, open && err == nil
	case *ast.IndexExpr:
		path, base, inner, open = r.unchain(e.X)
		names = r.textsOf(e.Index)
		if names == nil {
			inner, open = append(inner, e.Index), false
		}
	default:
		return nil, e, nil, true
	}
	if open {
		path = append(path, names)
	}
	return path, base, inner, open
}

// textsOf returns the possible values of an index, or nil if they are unknown.
func (r *inputUse) textsOf(index ast.Expr) []string {
	switch index := index.(type) {
	case *ast.BasicLit:
		if index.Kind == token.STRING {
			if text, err := strconv.Unquote(index.Value); err == nil {
				return []string{text}
			}
		}
	case *ast.Ident:
		return r.loops[index.Name]
	}
	return nil
}
