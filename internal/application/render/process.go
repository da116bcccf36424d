package render

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"cuelang.org/go/cue"
)

// HTTPRequest is a request that a trait sends while it is evaluated, or a chart that the template of a
// component renders.
type HTTPRequest struct {
	// Chart has the parameters of a call of vela/helm in JSON. If it is set, the other fields are not.
	Chart string `json:"chart,omitempty"`
	// Method is the HTTP method. Default GET.
	Method string `json:"method,omitempty"`
	URL    string `json:"url"`
	Body   string `json:"body,omitempty"`
	// Header has one value for each name.
	Header map[string]string `json:"header,omitempty"`
}

// Fetch sends a request and returns the response's body, which must be a JSON object; of a chart, it
// returns its objects as resources.
type Fetch func(*HTTPRequest) (map[string]any, error)

// process sends the request of a trait's section processing, and fills the section's output with
// the response.
//
//	processing: {
//		output: {token?: string}
//		http: {method: "GET", url: parameter.url, request: {header: "X-A": "b", body: "..."}}
//	}
func process(i *instance, v cue.Value, fetch Fetch) (cue.Value, error) {
	section := v.LookupPath(cue.ParsePath("processing.http"))
	if !section.Exists() {
		return v, errors.New("it has no http")
	}
	data, err := section.MarshalJSON()
	if err != nil {
		return v, err
	}
	var in struct {
		Method  string `json:"method"`
		URL     string `json:"url"`
		Request struct {
			Body   string            `json:"body"`
			Header map[string]string `json:"header"`
		} `json:"request"`
	}
	if err := json.Unmarshal(data, &in); err != nil {
		return v, fmt.Errorf("http: %w", err)
	}
	if fetch == nil {
		return v, errors.New("requests cannot be sent here")
	}
	answer, err := fetch(&HTTPRequest{Method: in.Method, URL: in.URL, Body: in.Request.Body, Header: in.Request.Header})
	if err != nil {
		return v, err
	}
	filled := v.FillPath(cue.ParsePath("processing.output"), i.ctx.BuildExpr(exprOf(answer)))
	if err := filled.LookupPath(cue.ParsePath("processing.output")).Err(); err != nil {
		return v, err
	}
	return filled, nil
}

// chartsMax and chartDepthMax bound the calls of vela/helm in a template.
const (
	chartsMax     = 16
	chartDepthMax = 4
)

// charts renders the charts for which a component's template calls vela/helm, and fills $returns of
// each call. A call may use what others return.
func charts(i *instance, v cue.Value, fetch Fetch) (cue.Value, error) {
	done := map[string]bool{}
	for range chartsMax {
		calls := chartCalls(nil, v, done)
		if len(calls) == 0 {
			return v, nil
		}
		var path []cue.Selector
		var params []byte
		var unready error
		for _, call := range calls {
			data, err := v.LookupPath(cue.MakePath(append(slices.Clone(call), cue.Str("$params"))...)).MarshalJSON()
			if err == nil {
				path, params = call, data
				break
			}
			if unready == nil {
				unready = fmt.Errorf("%s: %w", cue.MakePath(call...), err)
			}
		}
		if path == nil {
			return v, unready
		}
		done[cue.MakePath(path...).String()] = true
		answer, err := fetch(&HTTPRequest{Chart: string(params)})
		if err != nil {
			return v, err
		}
		v = v.FillPath(cue.MakePath(append(path, cue.Str("$returns"))...), i.ctx.BuildExpr(exprOf(answer)))
	}
	return v, fmt.Errorf("more than %d charts", chartsMax)
}

// chartCalls returns the paths of the calls of vela/helm that are not done.
func chartCalls(path []cue.Selector, v cue.Value, done map[string]bool) (calls [][]cue.Selector) {
	if len(path) > 0 && verb(v) == "render" {
		if !done[cue.MakePath(path...).String()] {
			calls = append(calls, path)
		}
		return calls
	}
	if k := v.IncompleteKind(); len(path) == chartDepthMax || k != cue.StructKind && k != cue.BottomKind {
		return nil
	}
	fields, err := v.Fields(cue.Hidden(true))
	if err != nil {
		return nil
	}
	for fields.Next() {
		if name := fields.Selector().String(); len(path) == 0 && (name == "parameter" || name == "context") {
			continue
		}
		calls = append(calls, chartCalls(append(slices.Clone(path), fields.Selector()), fields.Value(), done)...)
	}
	return calls
}
