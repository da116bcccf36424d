package addon

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	kjson "k8s.io/apimachinery/pkg/util/json"
	kyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"lockstep.dev/lockstep/internal/unpack/yamldoc"
)

// yamlMax bounds the size of one YAML file. Definitions of kinds are large.
const yamlMax = 2 << 20

// documents returns the objects in a YAML file.
func documents(name string, text []byte) ([]map[string]any, error) {
	if err := yamldoc.Check(text, yamlMax, name); err != nil {
		return nil, err
	}
	var out []map[string]any
	for docs := kyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		data, err := yaml.YAMLToJSON(doc)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		value, err := decode(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if value == nil {
			continue
		}
		object, ok := value.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s: it has something that is no object", name)
		}
		out = append(out, object)
	}
}

// jsonOf returns a YAML file with one document as JSON.
func jsonOf(name string, text []byte) ([]byte, error) {
	if err := yamldoc.Check(text, yamlMax, name); err != nil {
		return nil, err
	}
	data, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return data, nil
}

// decode decodes JSON. Whole numbers become int64.
func decode(data []byte) (any, error) {
	var v any
	err := kjson.Unmarshal(data, &v)
	return v, err
}
