package chart

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/v2"
)

// A chart's schema has the URL chartScheme+schemaFile, to which references in the schema are
// relative. Nothing else has this scheme.
const (
	chartScheme = "chart:///"
	schemaFile  = "values.schema.json"
)

// checkValues checks values against the schemas of a chart and of its dependencies.
func checkValues(c *v2.Chart, values map[string]any) error {
	if c.Schema != nil {
		if err := checkSchema(c, values); err != nil {
			return fmt.Errorf("%s: %w", c.Name(), err)
		}
	}
	for _, sub := range c.Dependencies() {
		switch given := values[sub.Name()].(type) {
		case nil:
		case map[string]any:
			if err := checkValues(sub, given); err != nil {
				return err
			}
		case common.Values:
			if err := checkValues(sub, given); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%s: the values are no object", sub.Name())
		}
	}
	return nil
}

// checkSchema checks values against the schema of one chart.
func checkSchema(c *v2.Chart, values map[string]any) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%s cannot be used: %v", schemaFile, r)
		}
	}()
	schema, err := jsonschema.UnmarshalJSON(bytes.NewReader(c.Schema))
	if err != nil {
		return fmt.Errorf("%s is not JSON: %w", schemaFile, err)
	}
	loader := chartFiles{c}
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(loader)
	if err := compiler.AddResource(chartScheme+schemaFile, schema); err != nil {
		return fmt.Errorf("%s: %w", schemaFile, err)
	}
	compiled, err := compiler.Compile(chartScheme + schemaFile)
	if err != nil {
		var elsewhere *elsewhereError
		if errors.As(err, &elsewhere) {
			return elsewhere
		}
		return fmt.Errorf("%s: %w", schemaFile, err)
	}
	if err := compiled.Validate(values); err != nil {
		_, text, found := strings.Cut(err.Error(), "\n") // the first line is about the schema's URL
		if !found {
			text = err.Error()
		}
		return fmt.Errorf("values do not fit %s: %s", schemaFile, strings.TrimSpace(text))
	}
	return nil
}

// chartFiles loads the references of a schema from the files of its chart only.
type chartFiles struct{ chart *v2.Chart }

// elsewhereError means that a schema refers to something outside its chart.
type elsewhereError struct{ address string }

func (e *elsewhereError) Error() string {
	return fmt.Sprintf("%s refers to %s, which is not in the chart: schemas are loaded from the chart alone", schemaFile, e.address)
}

// Load implements jsonschema.URLLoader.
func (l chartFiles) Load(address string) (any, error) {
	if name, ok := strings.CutPrefix(address, chartScheme); ok {
		for _, f := range l.chart.Files {
			if f != nil && path.Clean(f.Name) == name {
				return jsonschema.UnmarshalJSON(bytes.NewReader(f.Data))
			}
		}
		return nil, &elsewhereError{name}
	}
	return nil, &elsewhereError{address}
}
