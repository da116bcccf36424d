package http2client

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2/hpack"
)

// Config configures a Client.
type Config struct {
	// Address is the server's host and port.
	Address string
	// Authority is the :authority of requests, the host and port of their URL. Default: Address.
	Authority string
	// TLS returns the TLS configuration. It is called for each connection, so that certificates may
	// change.
	TLS func() (*tls.Config, error)
	// Header returns fields that are added to every request and identify the client, with names in
	// lower case. It is called again when the fields are older than headerMax, and after the server
	// has answered 401.
	Header func() ([]Field, error)
	// Connections is the maximum number of connections.
	Connections int
}

// Field is a header field. Its name is in lower case.
type Field = hpack.HeaderField

// Request is a request to the server.
type Request struct {
	Method string
	Path   string // with its query, escaped
	Header []Field
	Body   []byte
	// Term must hold when the request is sent; nil means that it may be sent at any time. Equal
	// terms are checked once.
	Term Term
}

// Answer is the server's response.
type Answer struct {
	Code        int
	ContentType string
	RetryAfter  string
	Body        []byte
}

var (
	// ErrTooLong says that a request is too long for this package. Nothing was sent.
	ErrTooLong = errors.New("the request is too long for this client")
	// ErrNoHTTP2 says that the server does not support HTTP/2. Nothing was sent.
	ErrNoHTTP2 = errors.New("the server does not speak HTTP/2")

	// errUnsent is for requests that the server has not processed, and that another connection may
	// carry.
	errUnsent = errors.New("the server closes the connection")
)

// BodyMax is the maximum size of a request's body, in bytes. A body is sent only when all of it
// fits into the flow-control window. BodyMax is half of the smallest window that servers grant, 64
// KiB, and that much always becomes available.
const BodyMax = 32 << 10

const (
	// headerMax is the maximum age of the fields from Config.Header.
	headerMax = 10 * time.Second
	// dialMax is the timeout of connecting.
	dialMax = 30 * time.Second
	// unsentMax is the maximum number of attempts for a request that the server does not process.
	unsentMax = 4
	// unauthorized is the status code of a request whose credentials the server does not accept.
	unauthorized = 401
)

// Client makes requests to one server. It connects when there is a request.
type Client struct {
	cfg    Config
	turn   atomic.Uint32
	slots  []slot
	header header
}

// New returns a client. It does not contact the server.
func New(cfg Config) (*Client, error) {
	if cfg.Address == "" || cfg.TLS == nil || cfg.Connections <= 0 {
		return nil, errors.New("wire: Address, TLS and Connections are required")
	}
	if cfg.Header == nil {
		cfg.Header = func() ([]Field, error) { return nil, nil }
	}
	cfg.Authority = cmp.Or(cfg.Authority, cfg.Address)
	return &Client{cfg: cfg, slots: make([]slot, cfg.Connections)}, nil
}

// Do makes a request on one of the first connections connections, in round-robin order.
func (c *Client) Do(ctx context.Context, connections int, r Request) (Answer, error) {
	if len(r.Body) > BodyMax {
		return Answer{}, ErrTooLong
	}
	fields, err := c.header.get(c.cfg.Header)
	if err != nil {
		return Answer{}, err
	}
	for tries := 1; ; tries++ {
		s := &c.slots[int(c.turn.Add(1)%uint32(max(1, min(connections, len(c.slots)))))]
		conn, err := s.get(ctx, c.cfg)
		if err != nil {
			return Answer{}, err
		}
		answer, err := conn.do(ctx, c.cfg.Authority, fields, r)
		if errors.Is(err, errUnsent) && tries < unsentMax {
			continue
		}
		if answer.Code == unauthorized {
			c.header.forget()
		}
		return answer, err
	}
}

// CloseIdleConnections closes connections without requests; others are closed after their requests.
// The client remains usable.
func (c *Client) CloseIdleConnections() {
	for i := range c.slots {
		s := &c.slots[i]
		s.mu.Lock()
		if s.conn != nil {
			s.conn.retire()
		}
		s.mu.Unlock()
	}
}

// header caches the fields of every request for headerMax.
type header struct {
	mu     sync.Mutex
	fields []Field
	until  time.Time
}

func (h *header) get(ask func() ([]Field, error)) ([]Field, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if now.Before(h.until) {
		return h.fields, nil
	}
	fields, err := ask()
	if err != nil {
		return nil, err
	}
	h.fields, h.until = fields, now.Add(headerMax)
	return fields, nil
}

func (h *header) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.until = time.Time{}
}

// slot has at most one connection at a time.
type slot struct {
	mu      sync.Mutex
	conn    *conn
	dialing *dialing
}

// dialing is a connection being opened, shared by all callers that wait for it.
type dialing struct {
	done chan struct{}
	conn *conn
	err  error
}

// get returns the slot's connection. It opens a new one if the slot has none that takes requests.
func (s *slot) get(ctx context.Context, cfg Config) (*conn, error) {
	s.mu.Lock()
	if s.conn != nil && s.conn.open() {
		defer s.mu.Unlock()
		return s.conn, nil
	}
	d := s.dialing
	if d == nil {
		d = &dialing{done: make(chan struct{})}
		s.dialing = d
		// Dial in the background, because one waiting caller may give up while others still wait.
		go func() {
			d.conn, d.err = dial(cfg)
			s.mu.Lock()
			s.conn, s.dialing = d.conn, nil
			s.mu.Unlock()
			close(d.done)
		}()
	}
	s.mu.Unlock()
	select {
	case <-d.done:
		return d.conn, d.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func dial(cfg Config) (*conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialMax)
	defer cancel()
	t, err := cfg.TLS()
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", cfg.Address, err)
	}
	plain, err := (&net.Dialer{KeepAlive: 30 * time.Second}).DialContext(ctx, "tcp", cfg.Address)
	if err != nil {
		return nil, err
	}
	if t.ServerName == "" {
		t = t.Clone()
		t.ServerName, _, _ = net.SplitHostPort(cfg.Address)
	}
	check := &TermCheck{}
	raw := tls.Client(check.Wrap(plain), t)
	if err := raw.HandshakeContext(ctx); err != nil {
		_ = plain.Close()
		return nil, err
	}
	if raw.ConnectionState().NegotiatedProtocol != "h2" {
		_ = raw.Close()
		return nil, fmt.Errorf("connecting to %s: %w", cfg.Address, ErrNoHTTP2)
	}
	c, err := newConn(ctx, raw, check)
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", cfg.Address, err)
	}
	return c, nil
}
