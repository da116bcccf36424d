package external

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/egress"
)

// Bounds on requests of steps and plans to other systems.
const (
	RequestTimeout    = 30 * time.Second
	requestTimeoutMax = 5 * time.Minute
	ResponseBytesMax  = 1 << 20
)

// Request is an HTTP request of a step or a plan.
type Request struct {
	Method  string `json:"method"`
	URL     string `json:"url"`
	Request struct {
		Timeout           string            `json:"timeout,omitempty"`
		Body              string            `json:"body,omitempty"`
		Header            map[string]string `json:"header,omitempty"`
		HeadersFromSecret []struct {
			Name   string `json:"name"`
			Secret string `json:"secret"`
			Key    string `json:"key"`
		} `json:"headersFromSecret,omitempty"`
	} `json:"request"`
	TLS *struct{} `json:"tls_config,omitempty"`

	timeout time.Duration
}

// NewRequest reads a request from a step's parameters, validates it and sets defaults.
func NewRequest(params map[string]any) (*Request, error) {
	data, err := json.Marshal(params)
	if err != nil {
		return nil, err
	}
	r := &Request{timeout: RequestTimeout}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("the request: %w", err)
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	return r, nil
}

// check rejects a request that cannot be sent, and sets defaults.
func (r *Request) check() error {
	u, err := url.Parse(r.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("%q is not an address that begins with http:// or https://", r.URL)
	}
	if r.TLS != nil {
		return errors.New("tls_config is not supported")
	}
	if r.Method == "" {
		r.Method = http.MethodGet
	}
	if t := r.Request.Timeout; t != "" {
		if r.timeout, err = time.ParseDuration(t); err != nil || r.timeout <= 0 || r.timeout > requestTimeoutMax {
			return fmt.Errorf("timeout %q is not a duration of up to %s", t, requestTimeoutMax)
		}
	}
	return nil
}

// Client sends requests and e-mails of Applications to other systems.
type Client struct {
	Guard *egress.Guard
	Now   func() time.Time
}

// secretReader returns one value of a Secret.
type secretReader func(ctx context.Context, name, key string) (string, error)

// Request sends a step's request and returns the response, whatever its status code.
func (x *Client) Request(ctx context.Context, r *Request, secret secretReader) (render.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	sent := *r
	sent.Request.Header = maps.Clone(r.Request.Header)
	for _, h := range r.Request.HeadersFromSecret {
		value, err := secret(ctx, h.Secret, h.Key)
		if err != nil {
			return render.Answer{}, fmt.Errorf("header %s: %w", h.Name, err)
		}
		if sent.Request.Header == nil {
			sent.Request.Header = map[string]string{}
		}
		sent.Request.Header[h.Name] = value
	}
	body, headers, status, err := x.exchange(ctx, &sent)
	if err != nil {
		return render.Answer{}, err
	}
	header := map[string]any{}
	for k, values := range headers {
		list := make([]any, len(values))
		for i, value := range values {
			list[i] = value
		}
		header[k] = list
	}
	return render.Answer{Returns: map[string]any{"body": string(body), "header": header, "statusCode": int64(status)}}, nil
}

// exchange sends a request and returns the response, whatever its status code.
func (x *Client) exchange(ctx context.Context, r *Request) (body []byte, header http.Header, status int, _ error) {
	req, err := http.NewRequestWithContext(ctx, r.Method, r.URL, strings.NewReader(r.Request.Body))
	if err != nil {
		return nil, nil, 0, err
	}
	for k, v := range r.Request.Header {
		req.Header.Set(k, v)
	}
	res, err := x.Guard.Do(req)
	if err != nil {
		return nil, nil, 0, err
	}
	if body, err = egress.ReadAll(res, ResponseBytesMax); err != nil {
		return nil, nil, 0, fmt.Errorf("%s %s: %w", r.Method, req.URL.Host, err)
	}
	return body, res.Header, res.StatusCode, nil
}

// Body returns the body of a successful response.
func (x *Client) Body(ctx context.Context, r *render.HTTPRequest) ([]byte, error) {
	request := &Request{Method: r.Method, URL: r.URL}
	request.Request.Body, request.Request.Header = r.Body, r.Header
	if err := request.check(); err != nil {
		return nil, err
	}
	body, _, status, err := x.exchange(ctx, request)
	if err == nil && status >= http.StatusBadRequest {
		err = fmt.Errorf("%s answers %d %s", r.URL, status, http.StatusText(status))
	}
	return body, err
}
