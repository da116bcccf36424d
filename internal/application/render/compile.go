package render

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/ast/astutil"
	"cuelang.org/go/cue/build"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/token"
	cuejson "cuelang.org/go/encoding/json"
)

// Bounds on evaluation.
const (
	templateBytesMax   = 256 << 10
	propertiesBytesMax = 1 << 20
	propertiesDepthMax = 64
	// repeatMax bounds the count arguments of builtins that make long values from short ones.
	repeatMax = 4096
	// evaluationsMax is the number of evaluations after which an instance is discarded, together
	// with the memory that it has accumulated.
	evaluationsMax = 256
	// idleMax is the number of idle instances that are kept of a template.
	idleMax = 2
)

// program is a piece of CUE, compiled once for each concurrent evaluation.
type program struct {
	def     *Definition
	section string
	source  string
	facts

	mu   sync.Mutex
	idle []*instance
}

// instance is a compiled program with its own CUE context, because only one goroutine may use a
// context at a time.
type instance struct {
	ctx  *cue.Context
	root cue.Value
	uses int
}

// compileProgram compiles source, and returns an error if that fails.
func compileProgram(d *Definition, section, source string) (*program, error) {
	p := &program{def: d, section: section, source: source}
	i, err := p.compile()
	if err != nil {
		return nil, asError(d, section, err)
	}
	p.idle = append(p.idle, i)
	return p, nil
}

func (p *program) compile() (*instance, error) {
	if len(p.source) > templateBytesMax {
		return nil, fmt.Errorf("it has %d bytes; the limit is %d", len(p.source), templateBytesMax)
	}
	file, err := parser.ParseFile(p.section, p.source, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	if err := missingPackages(file); err != nil {
		return nil, err
	}
	if err := missingOperations(file); err != nil {
		return nil, err
	}
	if p.def.Kind != Component && imports(file, helmPackage) {
		return nil, fmt.Errorf("package %s is for the templates of components", helmPackage)
	}
	adapt(file)
	if p.def.Kind == WorkflowStep {
		numberFields(file)
	} else {
		tolerate(file)
	}
	if p.Reads == nil {
		// Set at the first compilation, before other goroutines see the program.
		p.Reads, p.Wording = inputUseOf(file), stringUseOf(file)
		p.Declared, p.Selected = declaredBy(file), selectedIn(file)
		p.Processes = p.def.Kind == Trait && declares(file, "processing") || p.def.Kind == Component && imports(file, helmPackage)
	}
	file.Unresolved = nil
	astutil.Resolve(file, func(token.Pos, string, ...any) {})
	ctx := cuecontext.New()
	builds := build.NewContext(build.Loader(loadPackage))
	inst := builds.NewInstance("", loadPackage)
	if err := inst.AddSyntax(file); err != nil {
		return nil, err
	}
	if err := inst.Complete(); err != nil {
		return nil, err
	}
	root := ctx.BuildInstance(inst)
	// A value that does not compile has no source. A value that only lacks its parameters has one.
	if err := root.Err(); err != nil && root.Source() == nil {
		return nil, err
	}
	return &instance{ctx: ctx, root: root}, nil
}

// take returns an instance for the caller's exclusive use. The caller returns it with give.
func (p *program) take() (*instance, error) {
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		i := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		return i, nil
	}
	p.mu.Unlock()
	return p.compile()
}

func (p *program) give(i *instance) {
	if i.uses++; i.uses >= evaluationsMax {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) < idleMax {
		p.idle = append(p.idle, i)
	}
}

// evaluate calls use with the program's value for the given inputs. Inputs are JSON or Go values by
// the name of the top-level field. The instance is not used again after an error.
func (p *program) evaluate(inputs map[string]any, use func(i *instance, v cue.Value) error) error {
	i, err := p.take()
	if err != nil {
		return asError(p.def, p.section, err)
	}
	// Unify both inputs at once: each unification evaluates the whole template.
	given := &ast.StructLit{}
	for _, name := range []string{"parameter", "context"} {
		in, ok := inputs[name]
		if !ok {
			continue
		}
		var expr ast.Expr
		if raw, ok := in.([]byte); ok {
			if expr, err = cuejson.Extract(name, raw); err != nil {
				return asError(p.def, p.section, err)
			}
		} else {
			// Convert the value to syntax: a plain Go value would be data without a source, and
			// empty where a template embeds it.
			expr = exprOf(in)
		}
		given.Elts = append(given.Elts, &ast.Field{Label: ast.NewIdent(name), Value: expr})
	}
	v := i.root.Unify(i.ctx.BuildExpr(given))
	if err := use(i, v); err != nil {
		return asError(p.def, p.section, err)
	}
	p.give(i)
	return nil
}

// adapt rewrites a template for this version of CUE. It declares parameter and context if they are
// missing, removes unused imports, rewrites sums and multiples of lists as calls of list.Concat and
// list.Repeat, and bounds the builtins that repeat.
func adapt(f *ast.File) {
	for _, name := range []string{"parameter", "context"} {
		if !declares(f, name) {
			f.Decls = append(f.Decls, &ast.Field{Label: ast.NewIdent(name), Value: ast.NewIdent("_")})
		}
	}
	lists := listLabels(f)
	rewrite := func(c astutil.Cursor) bool {
		switch n := c.Node().(type) {
		case *ast.BinaryExpr:
			if n.Op == token.ADD && (isList(n.X, lists) || isList(n.Y, lists)) {
				c.Replace(callOf("Concat", ast.NewList(n.X, n.Y)))
			} else if n.Op == token.MUL && isList(n.X, lists) {
				c.Replace(callOf("Repeat", n.X, bounded(n.Y)))
			} else if n.Op == token.MUL && isList(n.Y, lists) {
				c.Replace(callOf("Repeat", n.Y, bounded(n.X)))
			}
		case *ast.CallExpr:
			boundCall(n)
		case *ast.Field:
			ownComments(n)
		}
		return true
	}
	astutil.Apply(f, nil, rewrite)
	tidyImports(f)
}

// tolerate rewrites conditions and loops over optional fields so that a missing field means false,
// or an empty list. Other versions of CUE skip what depends on a missing field; this version
// reports an error. Steps are not rewritten, because they are evaluated as far as possible in
// another way.
func tolerate(f *ast.File) {
	optional := map[string]bool{}
	ast.Walk(f, func(n ast.Node) bool {
		if field, ok := n.(*ast.Field); ok && field.Constraint == token.OPTION {
			if name, _, err := ast.LabelName(field.Label); err == nil {
				optional[name] = true
			}
		}
		return true
	}, nil)
	if len(optional) == 0 {
		return
	}
	ast.Walk(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfClause:
			if hangsOn(n.Condition, optional) {
				n.Condition = orElse(n.Condition, ast.NewBool(false))
			}
		case *ast.ForClause:
			if hangsOn(n.Source, optional) {
				n.Source = orElse(n.Source, ast.NewList())
			}
		}
		return true
	}, nil)
}

// orElse returns the expression "e, or other if e has no value".
func orElse(e, other ast.Expr) ast.Expr {
	return &ast.ParenExpr{X: ast.NewBinExpr(token.OR, &ast.UnaryExpr{Op: token.MUL, X: &ast.ParenExpr{X: e}}, other)}
}

// hangsOn reports whether the value of e depends on the value of a field with one of the names. A
// test whether the field exists does not count.
func hangsOn(e ast.Expr, names map[string]bool) bool {
	switch e := e.(type) {
	case *ast.ParenExpr:
		return hangsOn(e.X, names)
	case *ast.UnaryExpr:
		return e.Op != token.MUL && hangsOn(e.X, names)
	case *ast.BinaryExpr:
		if _, ok := e.Y.(*ast.BottomLit); ok && (e.Op == token.EQL || e.Op == token.NEQ) {
			return false
		}
		return hangsOn(e.X, names) || hangsOn(e.Y, names)
	}
	found := false
	ast.Walk(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			name, _, err := ast.LabelName(n.Sel)
			found = found || err == nil && names[name]
		case *ast.IndexExpr:
			if lit, ok := n.Index.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				name, err := strconv.Unquote(lit.Value)
				found = found || err == nil && names[name]
			}
		}
		return !found
	}, nil)
	return found
}

// declares reports whether a file has a top-level field of that name.
func declares(f *ast.File, name string) bool {
	return slices.ContainsFunc(f.Decls, func(d ast.Decl) bool {
		field, ok := d.(*ast.Field)
		if !ok {
			return false
		}
		label, _, err := ast.LabelName(field.Label)
		return err == nil && label == name
	})
}

// ownComments attaches the JSON patch directives before "patch: operations: ..." to patch itself.
// CUE attaches such comments to the inner field, which is right for directives about lists only.
func ownComments(f *ast.Field) {
	if name, _, err := ast.LabelName(f.Label); err != nil || name != "patch" {
		return
	}
	inner, ok := f.Value.(*ast.StructLit)
	if !ok || inner.Lbrace.IsValid() || len(inner.Elts) != 1 {
		return
	}
	for _, group := range ast.Comments(f) {
		for _, line := range group.List {
			if strings.Contains(line.Text, "+patchStrategy=json") {
				inner.Lbrace, inner.Rbrace = token.Blank.Pos(), token.Blank.Pos()
				return
			}
		}
	}
}

// listPackage is the name under which rewritten templates import the package list. No template uses
// this name.
const listPackage = "listOfLockstep"

// callOf returns a call of a function of the package list.
func callOf(function string, args ...ast.Expr) ast.Expr {
	return ast.NewCall(ast.NewSel(ast.NewIdent(listPackage), function), args...)
}

// bounded returns the expression n, which fails to evaluate if n exceeds repeatMax.
func bounded(n ast.Expr) ast.Expr {
	limit := &ast.UnaryExpr{Op: token.LEQ, X: ast.NewLit(token.INT, strconv.Itoa(repeatMax))}
	return &ast.ParenExpr{X: ast.NewBinExpr(token.AND, &ast.ParenExpr{X: n}, limit)}
}

// boundCall bounds the count arguments of list.Range(start, limit, step), list.Repeat(x, n) and
// strings.Repeat(s, n).
func boundCall(call *ast.CallExpr) {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return
	}
	pkg, ok := sel.X.(*ast.Ident)
	if !ok || pkg.Name == listPackage {
		return
	}
	name, _, err := ast.LabelName(sel.Sel)
	if err != nil {
		return
	}
	switch {
	case name == "Repeat" && len(call.Args) == 2, name == "Range" && len(call.Args) == 3:
		call.Args[1] = bounded(call.Args[1])
	}
}

// listLabels returns the labels of fields that hold lists, as far as the syntax shows.
func listLabels(f *ast.File) map[string]bool {
	lists := map[string]bool{}
	for range 2 { // fields may be defined by fields
		ast.Walk(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Field:
				if name, _, err := ast.LabelName(n.Label); err == nil && isList(n.Value, lists) {
					lists[name] = true
				}
			case *ast.LetClause:
				if isList(n.Expr, lists) {
					lists[n.Ident.Name] = true
				}
			}
			return true
		}, nil)
	}
	return lists
}

// isList reports whether the syntax of e shows that e is a list.
func isList(e ast.Expr, lists map[string]bool) bool {
	switch e := e.(type) {
	case *ast.ListLit:
		return true
	case *ast.ParenExpr:
		return isList(e.X, lists)
	case *ast.UnaryExpr:
		return e.Op == token.MUL && isList(e.X, lists)
	case *ast.BinaryExpr:
		switch e.Op {
		case token.OR, token.AND, token.ADD:
			return isList(e.X, lists) || isList(e.Y, lists)
		}
	case *ast.Ident:
		return lists[e.Name]
	case *ast.SelectorExpr:
		name, _, err := ast.LabelName(e.Sel)
		return err == nil && lists[name]
	case *ast.CallExpr:
		sel, ok := e.Fun.(*ast.SelectorExpr)
		if !ok {
			return false
		}
		pkg, ok := sel.X.(*ast.Ident)
		if !ok {
			return false
		}
		name, _, _ := ast.LabelName(sel.Sel)
		return pkg.Name == listPackage ||
			pkg.Name == "list" &&
				(name == "Concat" || name == "Repeat" || name == "Range" || name == "FlattenN" || name == "Sort")
	}
	return false
}

// tidyImports removes unused imports, which would be errors, and adds the import that adapt uses.
func tidyImports(f *ast.File) {
	used := map[string]bool{}
	ast.Walk(f, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if id, ok := sel.X.(*ast.Ident); ok {
				used[id.Name] = true
			}
		}
		return true
	}, nil)
	var decls []ast.Decl
	for _, d := range f.Decls {
		imports, ok := d.(*ast.ImportDecl)
		if !ok {
			decls = append(decls, d)
			continue
		}
		kept := &ast.ImportDecl{Import: imports.Import}
		for _, spec := range imports.Specs {
			if used[importName(spec)] {
				kept.Specs = append(kept.Specs, spec)
			}
		}
		if len(kept.Specs) > 0 {
			decls = append(decls, kept)
		}
	}
	if used[listPackage] {
		spec := ast.NewImport(ast.NewIdent(listPackage), "list")
		at := 0
		for at < len(decls) {
			if _, ok := decls[at].(*ast.Package); !ok {
				break
			}
			at++
		}
		decls = append(decls[:at:at], append([]ast.Decl{&ast.ImportDecl{Specs: []*ast.ImportSpec{spec}}}, decls[at:]...)...)
	}
	f.Decls = decls
}

// importName returns the name under which an import is used in the file.
func importName(spec *ast.ImportSpec) string {
	if spec.Name != nil {
		return spec.Name.Name
	}
	path, err := strconv.Unquote(spec.Path.Value)
	if err != nil {
		return ""
	}
	if i := strings.LastIndexByte(path, ':'); i >= 0 {
		return path[i+1:]
	}
	return path[strings.LastIndexByte(path, '/')+1:]
}
