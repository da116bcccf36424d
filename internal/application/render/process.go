package render

import (
	"encoding/json"
	"errors"
	"fmt"

	"cuelang.org/go/cue"
)

// HTTPRequest is a request that a trait sends while it is evaluated.
type HTTPRequest struct {
	// Method is the HTTP method. Default GET.
	Method string `json:"method,omitempty"`
	URL    string `json:"url"`
	Body   string `json:"body,omitempty"`
	// Header has one value for each name.
	Header map[string]string `json:"header,omitempty"`
}

// Fetch sends a request and returns the response's body, which must be a JSON object.
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
	answer, err := fetch(&HTTPRequest{in.Method, in.URL, in.Request.Body, in.Request.Header})
	if err != nil {
		return v, err
	}
	filled := v.FillPath(cue.ParsePath("processing.output"), i.ctx.BuildExpr(exprOf(answer)))
	if err := filled.LookupPath(cue.ParsePath("processing.output")).Err(); err != nil {
		return v, err
	}
	return filled, nil
}
