package chart

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	kjson "k8s.io/apimachinery/pkg/util/json"

	"lockstep.dev/lockstep/internal/unpack/yamldoc"
)

// Run sends a request to the evaluator of that name, in another process or in this one (InProcess),
// and returns the answer.
type Run = func(evaluator string, request []byte) ([]byte, error)

// Names of the evaluators.
const (
	evaluatorOpen   = "chart.open"
	evaluatorRender = "chart.render"
	evaluatorValues = "chart.values"
)

// InProcess returns a Run that evaluates in this process, without limits. Use it only in programs
// whose users render their own charts.
func InProcess() Run {
	table := Evaluators()
	return func(evaluator string, request []byte) ([]byte, error) {
		f := table[evaluator]
		if f == nil {
			return nil, fmt.Errorf("there is no evaluator %s", evaluator)
		}
		return f(context.Background(), request)
	}
}

// Evaluators returns the evaluators by the names that callers of Run use.
func Evaluators() map[string]func(context.Context, []byte) ([]byte, error) {
	return map[string]func(context.Context, []byte) ([]byte, error){
		evaluatorOpen: func(_ context.Context, request []byte) ([]byte, error) {
			_, data, err := cut(request)
			if err != nil {
				return nil, err
			}
			answer, err := open(data)
			if err != nil {
				return nil, err
			}
			return json.Marshal(answer)
		},
		evaluatorRender: func(_ context.Context, request []byte) ([]byte, error) {
			head, data, err := cut(request)
			if err != nil {
				return nil, err
			}
			// kjson decodes whole numbers as int64.
			req := &Request{}
			if err := kjson.Unmarshal(head, req); err != nil {
				return nil, err
			}
			answer, err := archive(data).release(req)
			if err != nil {
				return nil, err
			}
			return json.Marshal(answer)
		},
		evaluatorValues: func(_ context.Context, request []byte) ([]byte, error) {
			_, data, err := cut(request)
			if err != nil {
				return nil, err
			}
			return yamldoc.ToJSON(data, "its text")
		},
	}
}

type openAnswer struct{ Name, Version string }

// Values parses YAML values. Whole numbers become int64.
func Values(run Run, text string) (map[string]any, error) {
	var out map[string]any
	return out, ask(run, evaluatorValues, nil, []byte(text), &out)
}

// ask sends a request to an evaluator and decodes the answer. A request consists of the length of
// its head (4 bytes, big-endian), the head in JSON, and data.
func ask(run Run, name string, head any, data []byte, answer any) error {
	if run == nil {
		return errors.New("charts cannot be rendered here")
	}
	first, err := json.Marshal(head)
	if err != nil {
		return err
	}
	request := make([]byte, 4, 4+len(first)+len(data))
	binary.BigEndian.PutUint32(request, uint32(len(first)))
	out, err := run(name, append(append(request, first...), data...))
	if err != nil {
		return err
	}
	return kjson.Unmarshal(out, answer)
}

func cut(request []byte) (head, data []byte, err error) {
	if len(request) < 4 || uint64(len(request)-4) < uint64(binary.BigEndian.Uint32(request)) {
		return nil, nil, errors.New("the request is cut off")
	}
	n := 4 + int(binary.BigEndian.Uint32(request))
	return request[4:n], request[n:], nil
}
