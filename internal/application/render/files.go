package render

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/ast/astutil"
	"cuelang.org/go/cue/build"
	"cuelang.org/go/cue/cuecontext"
	cueerrors "cuelang.org/go/cue/errors"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/token"
)

// Names of the evaluators of files.
const (
	evaluatorFiles = "cue.files"
	evaluatorFile  = "cue.file"
)

// filesBytesMax bounds the sum of the sizes of files that are evaluated together. It is larger than the
// bound of a template: the files of an addon contain definitions of kinds.
const filesBytesMax = 4 << 20

// Source is a file of CUE.
type Source struct{ Name, Text string }

// FilesRequest is a set of CUE files that are evaluated as one.
type FilesRequest struct {
	// Sources are the files. Their package clauses have no meaning.
	Sources []Source
	// Values has JSON values of top-level fields beside those in the files, such as parameter.
	Values map[string]json.RawMessage
	// Fields are the top-level fields to return.
	Fields []string
}

// FilesAnswer is what Files returns.
type FilesAnswer struct {
	// Fields has the JSON values of the requested fields that exist.
	Fields map[string]json.RawMessage
	// Strays are the paths of values, such as parameter.nmae, that no file declares.
	Strays []string `json:",omitempty"`
}

// Files evaluates CUE files together.
func Files(run Run, req *FilesRequest) (*FilesAnswer, error) {
	out := &FilesAnswer{}
	return out, ask(run, evaluatorFiles, req, out)
}

// DefinitionIn reads a file as ParseFile does, in an evaluator. The file has no fragments.
func DefinitionIn(run Run, file Source) (map[string]any, error) {
	var out exactMap
	err := ask(run, evaluatorFile, &file, &out)
	return out, err
}

// PackageOf returns the name in the package clause of a file, or "".
func PackageOf(file Source) (string, error) {
	f, err := parser.ParseFile(file.Name, file.Text, parser.PackageClauseOnly)
	if err != nil {
		return "", fmt.Errorf("%s: %w", file.Name, &Error{Definition: file.Name, Section: "package", Problems: problemsOf(err, file.Name)})
	}
	return f.PackageName(), nil
}

// evaluateFiles answers the requests of Files.
func evaluateFiles(req *FilesRequest) (*FilesAnswer, error) {
	size := 0
	for _, s := range req.Sources {
		size += len(s.Text)
	}
	if size > filesBytesMax {
		return nil, fmt.Errorf("the CUE files have %d bytes; the limit is %d", size, filesBytesMax)
	}
	fail := func(section string, err error) error {
		name := fileOf(err, req.Sources)
		return &Error{Definition: name, Section: section, Problems: problemsOf(err, name)}
	}
	ctx := cuecontext.New()
	inst := build.NewContext(build.Loader(loadPackage)).NewInstance("", loadPackage)
	for _, s := range req.Sources {
		file, err := parser.ParseFile(s.Name, s.Text, parser.ParseComments)
		if err == nil {
			err = missingPackages(file)
		}
		if err != nil {
			return nil, fail("CUE", err)
		}
		file.Decls = slices.DeleteFunc(file.Decls, func(d ast.Decl) bool { _, clause := d.(*ast.Package); return clause })
		// Only the files of one package refer to each other.
		file.Decls = slices.Insert(file.Decls, 0, ast.Decl(&ast.Package{Name: ast.NewIdent("main")}))
		adapt(file)
		tolerate(file)
		file.Unresolved = nil
		astutil.Resolve(file, func(token.Pos, string, ...any) {})
		if err := inst.AddSyntax(file); err != nil {
			return nil, fail("CUE", err)
		}
	}
	if err := inst.Complete(); err != nil {
		return nil, fail("CUE", err)
	}
	v, out := ctx.BuildInstance(inst), &FilesAnswer{Fields: map[string]json.RawMessage{}}
	for _, field := range slices.Sorted(maps.Keys(req.Values)) {
		value, err := decode(req.Values[field])
		if err != nil {
			return nil, err
		}
		at := cue.MakePath(cue.Str(field))
		out.Strays = append(out.Strays, straysOf(v.LookupPath(at), field, value)...)
		v = v.FillPath(at, ctx.BuildExpr(exprOf(value)))
	}
	if err := v.Err(); err != nil {
		return nil, fail("values", err)
	}
	for _, field := range req.Fields {
		at := v.LookupPath(cue.MakePath(cue.Str(field)))
		if !at.Exists() {
			continue
		}
		data, err := at.MarshalJSON()
		if err != nil {
			return nil, fail(field, err)
		}
		out.Fields[field] = data
	}
	return out, nil
}

// straysOf returns the paths of the fields of value that the declaration of the field does not have.
func straysOf(declared cue.Value, field string, value any) []string {
	fields, _ := value.(map[string]any)
	var out []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		at := declared.LookupPath(cue.MakePath(cue.Str(name)))
		if !at.Exists() {
			at = declared.LookupPath(cue.MakePath(cue.Str(name).Optional()))
		}
		if !at.Exists() {
			out = append(out, field+"."+name)
		}
	}
	return out
}

// fileOf returns the name of the file that an error is about, or of the first file.
func fileOf(err error, files []Source) string {
	var known cueerrors.Error
	if errors.As(err, &known) {
		for _, pos := range append(known.InputPositions(), known.Position()) {
			if slices.ContainsFunc(files, func(s Source) bool { return s.Name == pos.Filename() }) {
				return pos.Filename()
			}
		}
	}
	if len(files) == 0 {
		return ""
	}
	return files[0].Name
}
