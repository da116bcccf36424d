package wire

import (
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
)

// Term is what the sender of a request must have when it is sent. See package fence.
type Term interface {
	// Holds reports whether the request may be sent now.
	Holds() bool
}

// ErrLapsed says that a connection was given up because the term of a request on it does not hold any more. Requests on it that
// have no answer may have taken effect if they were sent before that.
var ErrLapsed = errors.New("not sent, because the term in which the request was made is over")

// Gate stands between the buffers of a connection and its socket. It asks the terms of what is sent before each system call that
// hands bytes to the kernel, because a process may be stopped at any moment before that, for any time.
type Gate struct {
	mu    sync.Mutex
	terms []Term
}

// Enter has the gate ask t until leave is called, once for each Enter. t may be nil.
func (g *Gate) Enter(t Term) (leave func()) {
	if t == nil {
		return func() {}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.terms = append(slices.Clip(g.terms), t)
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		i := slices.Index(g.terms, t)
		g.terms = slices.Concat(g.terms[:i], g.terms[i+1:])
	}
}

// set has the gate ask these terms and no others.
func (g *Gate) set(terms []Term) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.terms = terms
}

func (g *Gate) open() bool {
	g.mu.Lock()
	terms := g.terms
	g.mu.Unlock()
	for _, t := range terms {
		if !t.Holds() {
			return false
		}
	}
	return true
}

// Wrap returns a connection whose writes go through the gate. A write that finds the gate shut fails with ErrLapsed, and what it
// had sent by then remains incomplete, so the connection is of no use any more.
func (g *Gate) Wrap(c net.Conn) net.Conn {
	s, ok := c.(syscall.Conn)
	if !ok {
		return &gated{Conn: c, gate: g}
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return &gated{Conn: c, gate: g}
	}
	w := &gated{Conn: c, gate: g, raw: raw}
	w.write = w.writeSome
	return w
}

// gated is a connection behind a gate.
type gated struct {
	net.Conn
	gate *Gate

	mu    sync.Mutex
	raw   syscall.RawConn // nil: the connection is no socket
	write func(fd uintptr) bool
	data  []byte // of the Write under way
	err   error
}

// Write implements net.Conn.
func (c *gated) Write(p []byte) (int, error) {
	if c.raw == nil {
		if !c.gate.open() {
			return 0, ErrLapsed
		}
		return c.Conn.Write(p)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.data, c.err = p, nil
	err := c.raw.Write(c.write)
	sent := len(p) - len(c.data)
	c.data = nil
	if c.err != nil {
		err = c.err
	}
	return sent, err
}

// writeSome is called when the socket has room, and says whether the write has ended.
func (c *gated) writeSome(fd uintptr) bool {
	for len(c.data) > 0 {
		if !c.gate.open() {
			c.err = ErrLapsed
			return true
		}
		n, err := syscall.Write(int(fd), c.data)
		switch {
		case err == syscall.EINTR:
		case err == syscall.EAGAIN:
			return false
		case err != nil:
			c.err = os.NewSyscallError("write", err)
			return true
		default:
			c.data = c.data[n:]
		}
	}
	return true
}
