package render

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/token"
	kjson "k8s.io/apimachinery/pkg/util/json"
)

// decode decodes JSON with whole numbers as int64, as Kubernetes objects have them.
func decode(data []byte) (any, error) {
	var v any
	if err := kjson.Unmarshal(data, &v); err != nil {
		return nil, err
	}
	return v, nil
}

func encode(v any) ([]byte, error) { return json.Marshal(v) }

// checkProperties returns an error if properties are too large or nested too deep.
func checkProperties(raw []byte) error {
	if len(raw) > propertiesBytesMax {
		return fmt.Errorf("properties of %d bytes; the limit is %d", len(raw), propertiesBytesMax)
	}
	depth, inString, escaped := 0, false, false
	for _, c := range raw {
		switch {
		case escaped:
			escaped = false
		case inString && c == '\\':
			escaped = true
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			if depth++; depth > propertiesDepthMax {
				return fmt.Errorf("properties are nested deeper than %d", propertiesDepthMax)
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}

// exprOf returns the CUE syntax of a decoded JSON value.
func exprOf(v any) ast.Expr {
	switch v := v.(type) {
	case map[string]any:
		fields := make([]ast.Decl, 0, len(v))
		for _, k := range slices.Sorted(maps.Keys(v)) {
			fields = append(fields, &ast.Field{Label: ast.NewString(k), Value: exprOf(v[k])})
		}
		return &ast.StructLit{Elts: fields}
	case []any:
		items := make([]ast.Expr, len(v))
		for i, item := range v {
			items[i] = exprOf(item)
		}
		return &ast.ListLit{Elts: items}
	case string:
		return ast.NewString(v)
	case bool:
		return ast.NewBool(v)
	case int64:
		return number(strconv.FormatInt(v, 10), token.INT)
	case int:
		return number(strconv.Itoa(v), token.INT)
	case float64:
		text := strconv.FormatFloat(v, 'g', -1, 64)
		if !strings.ContainsAny(text, ".e") {
			text += ".0"
		}
		return number(text, token.FLOAT)
	}
	return ast.NewNull()
}

// number returns a literal, or the negation of a literal.
func number(text string, kind token.Token) ast.Expr {
	if positive, ok := strings.CutPrefix(text, "-"); ok {
		return &ast.UnaryExpr{Op: token.SUB, X: ast.NewLit(kind, positive)}
	}
	return ast.NewLit(kind, text)
}
