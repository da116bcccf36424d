// Package incluster is a client of the API server for programs in a pod. It uses the pod's service
// account and only the standard library.
package incluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// credentials is the directory where the kubelet mounts the service account's token.
const credentials = "/var/run/secrets/kubernetes.io/serviceaccount"

const (
	// patience bounds one request.
	patience = 30 * time.Second
	// attempts is the maximum number of attempts at a request that gets no answer or a temporary
	// refusal.
	attempts = 5
	// maxAnswer bounds a response body, in bytes.
	maxAnswer = 16 << 20
)

// Client sends requests to the API server.
type Client struct {
	Namespace string
	base      string
	dir       string
	http      *http.Client
}

// StatusError is the error for a response that is not a success.
type StatusError struct {
	Code    int
	Message string
}

func (e *StatusError) Error() string { return fmt.Sprintf("%s (HTTP %d)", e.Message, e.Code) }

// Is reports whether err is a response with the given status code.
func Is(err error, code int) bool {
	var status *StatusError
	return errors.As(err, &status) && status.Code == code
}

// New returns a client for the pod that this program runs in.
func New() (*Client, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("not in a pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
	}
	return NewFor("https://"+net.JoinHostPort(host, port), credentials)
}

// NewFor returns a client for an API server, with the files token, ca.crt and namespace in the
// directory dir.
func NewFor(base, dir string) (*Client, error) {
	c := &Client{base: base, dir: dir}
	namespace, err := os.ReadFile(filepath.Join(dir, "namespace"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, errors.New("the pod has no service account token: automountServiceAccountToken is false")
	}
	if err != nil {
		return nil, err
	}
	c.Namespace = strings.TrimSpace(string(namespace))
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s: no certificate", filepath.Join(dir, "ca.crt"))
	}
	c.http = &http.Client{Timeout: patience, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: false,
	}}
	return c, nil
}

// Do sends body as JSON and decodes the response into out; both may be nil. A request that gets no
// answer, or that the server refuses because it is busy, is sent again, so requests must be safe to
// repeat. A DELETE that is sent again succeeds if the object does not exist or has another UID than
// the request says.
func (c *Client) Do(ctx context.Context, method, path, contentType string, body, out any) error {
	return c.do(ctx, method, path, contentType, body, out, unknown)
}

// Create is Do for a POST to a collection. The request is sent again only if the server has not
// carried it out, so there is at most one object.
func (c *Client) Create(ctx context.Context, collection string, body, out any) error {
	return c.do(ctx, http.MethodPost, collection, "application/json", body, out, unsent)
}

// outcome says what has become of a request, in the order of what is safe to repeat.
type outcome int

const (
	final   outcome = iota // the answer is final
	unsent                 // the server has not carried out the request
	unknown                // the server may have carried out the request
)

// do repeats a request whose outcome is unsent, or unknown if that is what repeat says.
func (c *Client) do(ctx context.Context, method, path, contentType string, body, out any, repeat outcome) error {
	var data []byte
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return err
		}
	}
	wait := 100 * time.Millisecond
	lost := false
	for attempt := 1; ; attempt++ {
		was, err := c.once(ctx, method, path, contentType, data, out)
		if lost && method == http.MethodDelete && (Is(err, http.StatusNotFound) || Is(err, http.StatusConflict)) {
			return nil
		}
		lost = lost || was == unknown
		if err == nil || was == final || was > repeat || attempt == attempts {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(wait):
			wait *= 2
		}
	}
}

func (c *Client) once(ctx context.Context, method, path, contentType string, data []byte, out any) (outcome, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(data))
	if err != nil {
		return final, err
	}
	// The token is read each time, because the kubelet renews it.
	token, err := os.ReadFile(filepath.Join(c.dir, "token"))
	if err != nil {
		return final, err
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", "lockstep-exec")
	if len(data) > 0 {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := c.http.Do(request)
	var network *net.OpError
	if errors.As(err, &network) && network.Op == "dial" {
		return unsent, err
	}
	if err != nil {
		return unknown, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return unknown, err
	}
	if response.StatusCode >= 300 {
		var status struct{ Message string }
		if json.Unmarshal(answer, &status) != nil || status.Message == "" {
			status.Message = response.Status
		}
		was := final
		switch {
		case response.StatusCode == http.StatusTooManyRequests:
			was = unsent
		case response.StatusCode >= 500:
			was = unknown
		}
		return was, &StatusError{Code: response.StatusCode, Message: status.Message}
	}
	if out == nil {
		return final, nil
	}
	return final, json.Unmarshal(answer, out)
}
