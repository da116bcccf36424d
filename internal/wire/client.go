package wire

import (
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

// Config says which server, and how it is connected to.
type Config struct {
	// Address is the server's host and port.
	Address string
	// Authority is what requests call the server, the host and port of their URL.
	Authority string
	// TLS is asked before each connection, so that certificates may change.
	TLS func() (*tls.Config, error)
	// Header are fields of every request, with names in lower case: who makes it. They are asked for anew when they are older
	// than headerMax, and when the server does not accept them.
	Header func() ([]Field, error)
	// Connections is how many there may be.
	Connections int
}

// Field is a field of a header. Its name is in lower case.
type Field = hpack.HeaderField

// Request is what is asked of the server.
type Request struct {
	Method string
	Path   string // with its query, escaped
	Header []Field
	Body   []byte
	// Term must hold when the request is sent; nil: it may be sent at any time. Equal terms are asked once.
	Term Term
}

// Answer is what the server says.
type Answer struct {
	Code        int
	ContentType string
	RetryAfter  string
	Body        []byte
}

var (
	// ErrTooLong says that a request is too long to be made here. Nothing was sent.
	ErrTooLong = errors.New("the request is too long for package wire")
	// ErrNoHTTP2 says that the server does not speak HTTP/2. Nothing was sent.
	ErrNoHTTP2 = errors.New("the server does not speak HTTP/2")

	// errUnsent is of requests that the server has not looked at, and that another connection may carry.
	errUnsent = errors.New("the server closes the connection")
)

// BodyMax is the longest body of a request, in bytes. Bodies are sent when there is room for all of them, and half of the least
// room that servers give is always to be had.
const BodyMax = 32 << 10

const (
	// headerMax is how old Config.Header's answer may be.
	headerMax = 10 * time.Second
	// dialMax is how long connecting may take.
	dialMax = 30 * time.Second
	// unsentMax is how often a request is made that the server does not look at.
	unsentMax = 4
	// unauthorized is the code of requests whose header the server does not accept.
	unauthorized = 401
)

// Client makes requests of one server. It connects when there is something to ask.
type Client struct {
	cfg    Config
	turn   atomic.Uint32
	slots  []slot
	header header
}

// New returns a client; it does not contact the server.
func New(cfg Config) (*Client, error) {
	if cfg.Address == "" || cfg.TLS == nil || cfg.Connections <= 0 {
		return nil, errors.New("wire: Address, TLS and Connections are required")
	}
	if cfg.Header == nil {
		cfg.Header = func() ([]Field, error) { return nil, nil }
	}
	if cfg.Authority == "" {
		cfg.Authority = cfg.Address
	}
	return &Client{cfg: cfg, slots: make([]slot, cfg.Connections)}, nil
}

// Do makes a request on one of the first so many connections, which take turns.
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

// CloseIdleConnections closes connections that nobody uses. The client can be used on.
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

// header keeps the fields of every request for a while.
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

// slot has one connection at a time.
type slot struct {
	mu      sync.Mutex
	conn    *conn
	dialing *dialing
}

// dialing is a connection that is being made, for all who want it.
type dialing struct {
	done chan struct{}
	conn *conn
	err  error
}

// get is the slot's connection, made if there is none that takes requests.
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
		go func() { // whoever waits for it may give up; others may not
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
	gate := &Gate{}
	raw := tls.Client(gate.Wrap(plain), t)
	if err := raw.HandshakeContext(ctx); err != nil {
		_ = plain.Close()
		return nil, err
	}
	if raw.ConnectionState().NegotiatedProtocol != "h2" {
		_ = raw.Close()
		return nil, fmt.Errorf("connecting to %s: %w", cfg.Address, ErrNoHTTP2)
	}
	c, err := newConn(ctx, raw, gate)
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", cfg.Address, err)
	}
	return c, nil
}
