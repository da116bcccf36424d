package http2client

import (
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Term is a condition that must hold when a request is sent. See package fence.
type Term interface {
	// Holds reports whether the request may be sent now.
	Holds() bool
}

// ErrLapsed says that a connection was closed because the term of a request on it no longer holds.
// Requests on the connection without an answer may have taken effect if they were sent before.
var ErrLapsed = errors.New("not sent, because the term in which the request was made is over")

// TermCheck stands between the buffers of a connection and its socket. It checks the terms before
// each system call that hands bytes to the kernel, because the process may be stopped at any moment
// before that, for any time.
type TermCheck struct {
	mu    sync.Mutex
	terms []Term
}

// Add adds t to the terms that are checked. remove removes it; a term that was added twice must be
// removed twice. t may be nil.
func (g *TermCheck) Add(t Term) (remove func()) {
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

// set replaces the terms that are checked.
func (g *TermCheck) set(terms []Term) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.terms = terms
}

// checkMax is the time after which the answers of terms are too old to be acted on.
const checkMax = time.Millisecond

// allHold reports whether all terms hold. It repeats a check during which the process was stopped.
// That happens often: a term's clock is read with a system call, and a pending stop takes effect
// when a system call returns. time.Now makes no system call, so that only some instructions lie
// between its last call and the one that sends. Without the repetition a program that does nothing
// but send was late after one stop in five, with it after one in 250.
func (g *TermCheck) allHold() bool {
	g.mu.Lock()
	terms := g.terms
	g.mu.Unlock()
	for {
		began := time.Now()
		if slices.ContainsFunc(terms, func(t Term) bool { return !t.Holds() }) {
			return false
		}
		if time.Since(began) < checkMax {
			return true
		}
	}
}

// Wrap returns a connection whose writes pass through the check. A write that finds a term lapsed
// fails with ErrLapsed. The data sent before remains incomplete, so the connection is no longer
// usable.
func (g *TermCheck) Wrap(c net.Conn) net.Conn {
	s, ok := c.(syscall.Conn)
	if !ok {
		return &checkedConn{Conn: c, terms: g}
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return &checkedConn{Conn: c, terms: g}
	}
	w := &checkedConn{Conn: c, terms: g, raw: raw}
	w.write = w.writeSome
	return w
}

// checkedConn is a connection whose writes pass a TermCheck.
type checkedConn struct {
	net.Conn
	terms *TermCheck

	mu    sync.Mutex
	raw   syscall.RawConn // nil if the connection is not a socket
	write func(fd uintptr) bool
	data  []byte // data of the current Write
	err   error
}

// Write implements net.Conn.
func (c *checkedConn) Write(p []byte) (int, error) {
	if c.raw == nil {
		if !c.terms.allHold() {
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

// writeSome writes data while the socket takes it. It reports whether the write has ended.
func (c *checkedConn) writeSome(fd uintptr) bool {
	for len(c.data) > 0 {
		if !c.terms.allHold() {
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
