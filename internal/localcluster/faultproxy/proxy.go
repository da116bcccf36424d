package faultproxy

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// bodyMax bounds, in bytes, the bodies that are read as a whole: those of all requests, and those
// of answers that are lost, replaced or held.
const bodyMax = 64 << 20

// Config configures a Proxy.
type Config struct {
	// Server is a client configuration of the API server; only its address and its authority are
	// used.
	Server *rest.Config
	// CertFile and KeyFile are the proxy's serving certificate, which the clients must trust.
	CertFile, KeyFile string
}

// Proxy is a proxy in front of an API server.
type Proxy struct {
	cfg      Config
	target   *url.URL
	up       *http.Transport
	listener net.Listener
	server   *http.Server
	served   chan struct{}
	n        atomic.Int64
	decide   atomic.Pointer[func(*Request) Fault]

	mu     sync.Mutex
	dark   time.Time // until then no connection is accepted
	conns  map[net.Conn]bool
	writes []Write
	faults map[string]int
}

// Write is a write that the proxy forwarded to the server.
type Write struct {
	At                                     time.Time
	N                                      int
	Verb, Group, Resource, Namespace, Name string
	// Code is the status of the server's answer, 0 before it comes.
	Code int
	// Lost is true if the client did not get the server's answer.
	Lost bool
}

// New starts a proxy on a loopback port.
func New(cfg Config) (*Proxy, error) {
	target, err := url.Parse(cfg.Server.Host)
	if err != nil {
		return nil, err
	}
	tlsUp, err := rest.TLSConfigFor(cfg.Server)
	if err != nil {
		return nil, err
	}
	cert, err := tls.LoadX509KeyPair(cfg.CertFile, cfg.KeyFile)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		cfg: cfg, target: target, listener: listener, served: make(chan struct{}), conns: map[net.Conn]bool{},
		faults: map[string]int{},
		up:     &http.Transport{TLSClientConfig: tlsUp, ForceAttemptHTTP2: true, DisableCompression: true},
	}
	p.Decide(nil)
	p.server = &http.Server{
		Handler:     http.HandlerFunc(p.serve),
		TLSConfig:   &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
		ErrorLog:    log.New(io.Discard, "", 0), // resets are the purpose of the proxy
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		HTTP2:       &http.HTTP2Config{MaxConcurrentStreams: 250}, // the API server's own limit
	}
	go func() {
		defer close(p.served)
		_ = p.server.ServeTLS(&faultListener{listener, p}, "", "")
	}()
	return p, nil
}

type connKey struct{}

// Addr returns the address for clients, host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Close closes the proxy and its connections.
func (p *Proxy) Close() {
	_ = p.server.Close()
	<-p.served
	p.up.CloseIdleConnections()
}

// REST returns a client configuration whose requests go through the proxy.
func (p *Proxy) REST(cfg *rest.Config) *rest.Config {
	out := rest.CopyConfig(cfg)
	out.Host = "https://" + p.Addr()
	return out
}

// WriteKubeconfig writes a copy of a kubeconfig whose requests go through the proxy.
func (p *Proxy) WriteKubeconfig(from, to string) error {
	kc, err := clientcmd.LoadFromFile(from)
	if err != nil {
		return err
	}
	for _, c := range kc.Clusters {
		c.Server = "https://" + p.Addr()
	}
	data, err := clientcmd.Write(*kc)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o600)
}

// Decide sets the function that decides about every request from now on; nil means no faults. f
// must be safe for concurrent use.
func (p *Proxy) Decide(f func(*Request) Fault) {
	if f == nil {
		f = func(*Request) Fault { return Fault{} }
	}
	p.decide.Store(&f)
}

// Cut resets all connections. New connections are accepted.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		reset(c)
	}
	p.faults["cut"]++
}

// Dark resets all connections and accepts no new ones for the duration d.
func (p *Proxy) Dark(d time.Duration) {
	p.mu.Lock()
	p.dark = time.Now().Add(d)
	p.faults["dark"]++
	p.mu.Unlock()
	p.Cut()
}

// Writes returns the writes that were forwarded to the server, in order.
func (p *Proxy) Writes() []Write {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Write(nil), p.writes...)
}

// Faults returns how often each fault was injected.
func (p *Proxy) Faults() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string]int{}
	for k, v := range p.faults {
		out[k] = v
	}
	return out
}

func (p *Proxy) log(w Write) (index int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writes = append(p.writes, w)
	return len(p.writes) - 1
}

func (p *Proxy) logged(index, code int, lost bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writes[index].Code, p.writes[index].Lost = code, lost
}

func (p *Proxy) count(f *Fault) {
	if s := f.String(); s != "none" {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.faults[s]++
	}
}

// faultListener is the proxy's listener. It tracks connections, and resets new ones while the proxy
// is dark.
type faultListener struct {
	net.Listener
	p *Proxy
}

func (g *faultListener) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		g.p.mu.Lock()
		dark := time.Now().Before(g.p.dark)
		if !dark {
			t := &tracked{c, g.p}
			g.p.conns[t] = true
			g.p.mu.Unlock()
			return t, nil
		}
		g.p.mu.Unlock()
		reset(c)
	}
}

// tracked is a connection from a client.
type tracked struct {
	net.Conn
	p *Proxy
}

func (t *tracked) Close() error {
	t.p.mu.Lock()
	delete(t.p.conns, t)
	t.p.mu.Unlock()
	return t.Conn.Close()
}

// reset closes a connection so that the peer gets an error and pending data is discarded.
func reset(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if t, ok := c.(*tracked); ok {
		c = t.Conn
	}
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}
