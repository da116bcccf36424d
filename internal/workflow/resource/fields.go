package resource

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/itchyny/gojq"
	"github.com/tidwall/gjson"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/util/jsonpath"

	"lockstep.dev/lockstep/internal/workflow/execapi"
)

// filterTime bounds the running time of a jq filter.
const filterTime = 10 * time.Second

// conditions are the conditions that end the wait for an object.
type conditions struct {
	success, failure         labels.Selector
	successText, failureText string
}

func parseConditions(success, failure string) (*conditions, error) {
	if success == "" && failure == "" {
		return nil, nil
	}
	c := &conditions{successText: success, failureText: failure}
	var err error
	if success != "" {
		if c.success, err = labels.Parse(success); err != nil {
			return nil, fmt.Errorf("successCondition: %w", err)
		}
	}
	if failure != "" {
		if c.failure, err = labels.Parse(failure); err != nil {
			return nil, fmt.Errorf("failureCondition: %w", err)
		}
	}
	return c, nil
}

// hold reports whether the success condition holds or is absent. It returns an error if the
// failure condition holds.
func (c *conditions) hold(o object) (bool, error) {
	data, err := json.Marshal(o)
	if err != nil {
		return false, err
	}
	if c.failure != nil && c.failure.Matches(fields(data)) {
		return false, fmt.Errorf("failure condition '%s' evaluated true", c.failureText)
	}
	return c.success == nil || c.success.Matches(fields(data)), nil
}

// fields presents an object's fields as labels. Names are paths of gjson, such as
// status.conditions.0.type.
type fields []byte

// Has implements labels.Labels.
func (f fields) Has(name string) bool { return gjson.GetBytes(f, name).Exists() }

// Get implements labels.Labels.
func (f fields) Get(name string) string { return gjson.GetBytes(f, name).String() }

// Lookup implements labels.Labels.
func (f fields) Lookup(name string) (string, bool) {
	r := gjson.GetBytes(f, name)
	return r.String(), r.Exists()
}

// parameters reads the output parameters from o, which is nil if the object was deleted. A
// parameter that is empty or cannot be read has its default, if there is one.
func parameters(wanted []execapi.Field, o object) (map[string]string, error) {
	out := map[string]string{}
	for _, p := range wanted {
		value, err := "", error(nil)
		switch {
		case o == nil:
		case p.JSONPath != "":
			value, err = byJSONPath(p.JSONPath, o)
		case p.JQ != "":
			value, err = byJQ(p.JQ, o)
		}
		if (err != nil || value == "") && p.Default != nil {
			value, err = *p.Default, nil
		}
		if err != nil {
			return nil, fmt.Errorf("output parameter '%s': %w", p.Name, err)
		}
		out[p.Name] = value
	}
	return out, nil
}

func byJSONPath(path string, o object) (string, error) {
	j := jsonpath.New("parameter").AllowMissingKeys(true)
	if err := j.Parse(path); err != nil {
		return "", fmt.Errorf("jsonPath: %w", err)
	}
	var b bytes.Buffer
	if err := j.Execute(&b, o); err != nil {
		return "", fmt.Errorf("jsonPath: %w", err)
	}
	return b.String(), nil
}

func byJQ(filter string, o object) (string, error) {
	query, err := gojq.Parse(filter)
	if err != nil {
		return "", fmt.Errorf("jqFilter: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), filterTime)
	defer cancel()
	var lines []string
	for results := query.RunWithContext(ctx, o); ; {
		v, more := results.Next()
		if !more {
			return strings.Join(lines, "\n"), nil
		}
		switch v := v.(type) {
		case error:
			return "", fmt.Errorf("jqFilter: %w", v)
		case string:
			lines = append(lines, v)
		default:
			text, err := gojq.Marshal(v)
			if err != nil {
				return "", fmt.Errorf("jqFilter: %w", err)
			}
			lines = append(lines, string(text))
		}
	}
}
