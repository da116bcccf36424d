package kubeclient

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// A request through Go's clients is handed from goroutine to goroutine: one for each request or connection writes, another
// reads, and each of them has to be woken. For a program that makes short requests by the hundreds a second that is most of
// what a request costs. Direct has the caller's goroutine do all of it, on a connection that is the request's alone meanwhile.

// Direct is an HTTP client for cfg that makes each request in the caller's goroutine, over HTTP/1.1, on as many connections as
// there are requests at a time: it is for a bounded number of them. Answers are read as a whole before they are returned, so it
// is not for watches. A request that fails on a connection that the server has closed meanwhile is not repeated.
//
// It returns nil where connections are not made by cfg alone: through a proxy, by plugins, without TLS.
func Direct(cfg *rest.Config) (*http.Client, error) {
	host, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", cfg.Host, err)
	}
	if host.Scheme != "https" || cfg.Transport != nil || cfg.Dial != nil || cfg.ExecProvider != nil || cfg.AuthProvider != nil || proxied(cfg, host) {
		return nil, nil
	}
	d := &direct{cfg: cfg, address: host.Host, server: host.Hostname(), sessions: tls.NewLRUClientSessionCache(0)}
	if host.Port() == "" {
		d.address = net.JoinHostPort(host.Hostname(), "443")
	}
	if _, err := d.tlsConfig(); err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", cfg.Host, err)
	}
	wrapped, err := rest.HTTPWrappersForConfig(cfg, d)
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", cfg.Host, err)
	}
	return &http.Client{Transport: wrapped, Timeout: cfg.Timeout}, nil
}

func proxied(cfg *rest.Config, host *url.URL) bool {
	proxy := cfg.Proxy
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	through, err := proxy(&http.Request{URL: host})
	return err != nil || through != nil
}

// direct is a http.RoundTripper.
type direct struct {
	cfg             *rest.Config
	address, server string
	sessions        tls.ClientSessionCache

	mu   sync.Mutex
	idle []*directConn // those used last are at the end
}

// directConn is a connection to the server.
type directConn struct {
	net.Conn
	reader *bufio.Reader
	made   time.Time
	used   time.Time
}

const (
	// idleMax is how long a connection may go without a request; servers close them after 90 s or more.
	idleMax = 30 * time.Second
	// ageMax is how long a connection lives, so that new certificates and servers that were added are found.
	ageMax = 10 * time.Minute
	// dialMax is how long connecting may take.
	dialMax = 30 * time.Second
)

// RoundTrip implements http.RoundTripper.
func (d *direct) RoundTrip(r *http.Request) (*http.Response, error) {
	c, err := d.take(r.Context())
	if err != nil {
		closeBody(r)
		return nil, err
	}
	stop := context.AfterFunc(r.Context(), func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	answer, keep, err := c.exchange(r)
	if !stop() {
		keep = false // its deadline is, or is about to be, in the past
	}
	switch {
	case err != nil:
		_ = c.Close()
		d.forget() // likely the others are as useless
		if ended := r.Context().Err(); ended != nil {
			err = ended
		}
		return nil, err
	case keep:
		d.give(c)
	default:
		_ = c.Close()
	}
	return answer, nil
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

// requests are buffers for requests on their way.
var requests = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// keptMax is how large a buffer may be that is kept for other requests.
const keptMax = 64 << 10

// exchange makes a request, and reads its answer. keep says that the connection can be used again.
func (c *directConn) exchange(r *http.Request) (answer *http.Response, keep bool, err error) {
	// In one piece: each write is a record of TLS and a system call.
	buffer := requests.Get().(*bytes.Buffer)
	buffer.Reset()
	err = r.Write(buffer) // which closes the request's body
	if err == nil {
		_, err = c.Write(buffer.Bytes())
	}
	if buffer.Cap() <= keptMax {
		requests.Put(buffer)
	}
	if err != nil {
		return nil, false, err
	}
	for {
		if answer, err = http.ReadResponse(c.reader, r); err != nil {
			return nil, false, err
		}
		if answer.StatusCode >= 200 {
			break
		}
		if answer.StatusCode == http.StatusSwitchingProtocols {
			return nil, false, errors.New("the server changes the protocol unasked")
		}
	}
	body, err := readAll(answer)
	if err != nil {
		return nil, false, err
	}
	_ = answer.Body.Close()
	answer.Body = io.NopCloser(bytes.NewReader(body))
	return answer, !answer.Close && !r.Close && c.reader.Buffered() == 0, nil
}

// sizeTrusted is the largest length by the server's word for which room is made at once.
const sizeTrusted = 1 << 20

func readAll(answer *http.Response) ([]byte, error) {
	if n := answer.ContentLength; n < 0 || n > sizeTrusted {
		return io.ReadAll(answer.Body)
	}
	body := make([]byte, answer.ContentLength)
	_, err := io.ReadFull(answer.Body, body)
	return body, err
}

// take is a connection that nobody uses.
func (d *direct) take(ctx context.Context) (*directConn, error) {
	now := time.Now()
	var old []*directConn
	d.mu.Lock()
	var c *directConn
	if n := len(d.idle); n > 0 {
		c = d.idle[n-1]
		d.idle[n-1] = nil
		d.idle = d.idle[:n-1]
	}
	for len(d.idle) > 0 && now.Sub(d.idle[0].used) > idleMax {
		old = append(old, d.idle[0])
		d.idle[0] = nil
		d.idle = d.idle[1:]
	}
	d.mu.Unlock()
	if c != nil && (now.Sub(c.used) > idleMax || now.Sub(c.made) > ageMax) {
		old, c = append(old, c), nil
	}
	for _, o := range old {
		_ = o.Close()
	}
	if c != nil {
		return c, nil
	}
	return d.dial(ctx)
}

func (d *direct) give(c *directConn) {
	c.used = time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.idle = append(d.idle, c)
}

// forget closes all connections that nobody uses.
func (d *direct) forget() {
	d.mu.Lock()
	idle := d.idle
	d.idle = nil
	d.mu.Unlock()
	for _, c := range idle {
		_ = c.Close()
	}
}

// CloseIdleConnections is what http.Client and client-go look for.
func (d *direct) CloseIdleConnections() { d.forget() }

func (d *direct) dial(ctx context.Context) (*directConn, error) {
	cfg, err := d.tlsConfig()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialMax)
	defer cancel()
	dialer := tls.Dialer{NetDialer: &net.Dialer{KeepAlive: 30 * time.Second}, Config: cfg}
	c, err := dialer.DialContext(ctx, "tcp", d.address)
	if err != nil {
		return nil, err
	}
	return &directConn{Conn: c, reader: bufio.NewReader(c), made: time.Now()}, nil
}

// tlsConfig reads certificates anew: their files may have been replaced.
func (d *direct) tlsConfig() (*tls.Config, error) {
	cfg, err := rest.TLSConfigFor(d.cfg)
	if err != nil {
		return nil, err
	}
	if cfg == nil {
		cfg = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	cfg = cfg.Clone()
	cfg.NextProtos = []string{"http/1.1"}
	cfg.ClientSessionCache = d.sessions
	if cfg.ServerName == "" {
		cfg.ServerName = d.server
	}
	return cfg, nil
}
