package request

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"lockstep.dev/lockstep/internal/workflow/execapi"
	"lockstep.dev/lockstep/internal/workflow/executor"
	"lockstep.dev/lockstep/internal/workflow/template"
)

const (
	// patience bounds a request without a timeout of its own.
	patience = 30 * time.Second
	// maxAnswer bounds a response body, in bytes.
	maxAnswer = 2 << 20
)

// Failure is the error for a response that is not a success. Other errors mean that there was no
// response, or that it could not be judged.
type Failure struct{ message string }

func (e *Failure) Error() string { return e.message }

// Send sends the plan's request and returns the response body. The body is valid even if the error
// is a Failure.
func Send(ctx context.Context, plan *execapi.RequestPlan) ([]byte, error) {
	bound := time.Duration(plan.TimeoutSeconds) * time.Second
	if bound == 0 {
		bound = patience
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	request, hidden, err := build(ctx, plan)
	if err != nil {
		return nil, err
	}
	response, err := client(plan, hidden).Do(request)
	if err != nil {
		return nil, explain(ctx, plan, bound, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err != nil {
		return nil, explain(ctx, plan, bound, err)
	}
	if len(body) > maxAnswer {
		return nil, fmt.Errorf("%s %s: the answer is larger than %d bytes", request.Method, shown(request.URL), maxAnswer)
	}
	return body, judge(plan, request, response, body)
}

// build builds the request; hidden are the names of headers with secret values.
func build(ctx context.Context, plan *execapi.RequestPlan) (request *http.Request, hidden []string, err error) {
	request, err = http.NewRequestWithContext(ctx, strings.ToUpper(plan.Method), plan.URL, bytes.NewReader(plan.Body))
	if err != nil {
		var address *url.Error
		if errors.As(err, &address) {
			err = address.Err // the URL may contain a secret
		}
		return nil, nil, fmt.Errorf("http: %w", err)
	}
	request.Header.Set("User-Agent", "lockstep-exec")
	// a header of the plan replaces a default, and may occur more than once
	given := map[string]bool{}
	for _, h := range plan.Headers {
		value := h.Value
		if h.File != "" {
			data, err := os.ReadFile(h.File)
			if err != nil {
				return nil, nil, fmt.Errorf("http.headers.%s: %w", h.Name, err)
			}
			value = strings.TrimSpace(string(data))
			hidden = append(hidden, h.Name)
		}
		if http.CanonicalHeaderKey(h.Name) == "Host" {
			request.Host = value
			continue
		}
		if name := http.CanonicalHeaderKey(h.Name); !given[name] {
			given[name] = true
			request.Header.Del(name)
		}
		request.Header.Add(h.Name, value)
	}
	return request, hidden, nil
}

// redirectsMax bounds the number of redirects.
const redirectsMax = 10

func client(plan *execapi.RequestPlan, hidden []string) *http.Client {
	transport := &http.Transport{
		Proxy:           http.ProxyFromEnvironment,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: plan.NoTLS}, //nolint:gosec // the template asks for it
	}
	return &http.Client{Transport: transport, CheckRedirect: func(next *http.Request, before []*http.Request) error {
		if len(before) >= redirectsMax {
			return fmt.Errorf("stopped after %d redirects", redirectsMax)
		}
		if first := before[0].URL; next.URL.Host != first.Host || next.URL.Scheme != first.Scheme {
			for _, name := range hidden { // a secret is only for the server that it was given for
				next.Header.Del(name)
			}
		}
		return nil
	}}
}

// shown returns a URL without parts that may be secret.
func shown(u *url.URL) string {
	clean := *u
	clean.RawQuery, clean.Fragment = "", ""
	return clean.Redacted()
}

func explain(ctx context.Context, plan *execapi.RequestPlan, bound time.Duration, err error) error {
	what := "http"
	if u, parseErr := url.Parse(plan.URL); parseErr == nil {
		what = shown(u)
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%s: no answer within %s", what, bound)
	}
	var address *url.Error
	if errors.As(err, &address) {
		err = address.Err // drops the URL
	}
	return fmt.Errorf("%s: %w", what, err)
}

// judge returns a Failure unless the response is a success.
func judge(plan *execapi.RequestPlan, request *http.Request, response *http.Response, body []byte) error {
	if plan.Success == "" {
		if response.StatusCode < 200 || response.StatusCode > 299 {
			return &Failure{fmt.Sprintf("received non-2xx response code: %d", response.StatusCode)}
		}
		return nil
	}
	condition, err := template.CompileExpr(plan.Success)
	if err != nil {
		return fmt.Errorf("http.successCondition: %w", err)
	}
	yes, err := condition.Bool(template.Typed{
		template.Runner: template.InProcess(),
		"request": map[string]any{
			"method": request.Method, "url": plan.URL, "body": string(plan.Body), "headers": listed(request.Header, plan.Headers),
		},
		"response": map[string]any{"statusCode": response.StatusCode, "body": string(body), "headers": listed(response.Header, nil)},
	})
	if err != nil {
		return fmt.Errorf("http.successCondition: %w", err)
	}
	if !yes {
		return &Failure{fmt.Sprintf("successCondition '%s' evaluated false", plan.Success)}
	}
	return nil
}

// listed returns headers as expressions see them. The values of secret headers are empty, because
// messages may show what a condition reads.
func listed(headers http.Header, given []execapi.Header) map[string]any {
	out := map[string]any{}
	for name, values := range headers {
		list := make([]any, 0, len(values))
		secret := slices.ContainsFunc(given, func(h execapi.Header) bool { return h.File != "" && http.CanonicalHeaderKey(h.Name) == name })
		for _, v := range values {
			if secret {
				v = ""
			}
			list = append(list, v)
		}
		out[name] = list
	}
	return out
}

// Run sends the plan's request and returns the termination message and the exit code of the
// container. put writes a WorkflowTaskResult; a nil put means to write it with the pod's service
// account.
func Run(ctx context.Context, plan *execapi.RequestPlan, put func(*execapi.Task, *execapi.Report) error) (message string, code int) {
	limit := cmp.Or(plan.MaxMessage, execapi.MaxMessage)
	report := execapi.Report{Plain: true}
	body, err := Send(ctx, plan)
	var failure *Failure
	if errors.As(err, &failure) {
		report.Message, code = execapi.Shorten(failure.message), 1
	} else if err != nil {
		return failed(limit, err)
	}
	wanted := plan.Result && code == 0
	if text := string(body); len(text) <= execapi.MaxResult && utf8.ValidString(text) {
		report.Result = &text
	} else if wanted {
		return failed(limit, fmt.Errorf("the answer is wanted as the result, and is no text of at most %d bytes", execapi.MaxResult))
	}
	if _, fits := report.Encode(limit); !fits && !wanted {
		report.Result = nil // it was included for users only
	}
	if message, err = executor.Compose(report, limit, plan.Task, put); err != nil {
		return failed(limit, err)
	}
	return message, code
}

func failed(limit int, err error) (string, int) {
	return execapi.Report{Plain: true, Failed: true, Message: execapi.Shorten(err.Error())}.Fit(limit), execapi.ExitExecutor
}
