package render

import (
	"encoding/json"
	"errors"
	"fmt"

	"cuelang.org/go/cue"
)

// HTTPRequest is a request that a trait makes while it is evaluated.
type HTTPRequest struct {
	// Method is GET where it is empty.
	Method string `json:"method,omitempty"`
	URL    string `json:"url"`
	Body   string `json:"body,omitempty"`
	// Header has one value for each name.
	Header map[string]string `json:"header,omitempty"`
}

// Fetch sends a request and returns what the body of the answer says, which is a struct in JSON.
type Fetch func(*HTTPRequest) (map[string]any, error)

// process does what the section processing asks for: its output is what the answer to its request says.
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
