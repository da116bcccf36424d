// Package link is a TCP relay that simulates a distant network: data arrives late, and connections
// can be cut. The laboratory and tests put it between a client and an API server.
//
//	client ──▶ Link.Addr ──(half the round trip)──▶ server
//	       ◀──(half the round trip)──
package link

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// queueMax bounds the data in flight in one direction, in pieces of at most pieceBytes.
const (
	queueMax   = 1024
	pieceBytes = 32 << 10
)

// Link forwards connections to one address.
type Link struct {
	target   string
	oneWay   time.Duration
	listener net.Listener
	running  sync.WaitGroup

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
}

// New listens on a loopback port and forwards to target, host:port. roundTrip is the latency added
// to an exchange.
func New(target string, roundTrip time.Duration) (*Link, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &Link{target: target, oneWay: roundTrip / 2, listener: listener, conns: map[net.Conn]bool{}}
	l.running.Go(l.accept)
	return l, nil
}

// Addr returns the address for clients, host:port.
func (l *Link) Addr() string { return l.listener.Addr().String() }

// Cut breaks all connections and refuses new ones until Mend.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = true
	for c := range l.conns {
		_ = c.Close()
	}
}

// Mend ends Cut: the link accepts new connections again.
func (l *Link) Mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = false
}

// Close ends the link and its connections.
func (l *Link) Close() error {
	err := l.listener.Close()
	l.Cut()
	l.running.Wait()
	return err
}

// hold registers a connection to be closed with the link. It returns false if the link is cut.
func (l *Link) hold(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return false
	}
	l.conns[c] = true
	return true
}

func (l *Link) release(c net.Conn) {
	l.mu.Lock()
	delete(l.conns, c)
	l.mu.Unlock()
	_ = c.Close()
}

func (l *Link) accept() {
	for {
		c, err := l.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		l.running.Go(func() { l.forward(c) })
	}
}

func (l *Link) forward(near net.Conn) {
	defer l.release(near)
	if !l.hold(near) {
		return
	}
	far, err := net.Dial("tcp", l.target)
	if err != nil {
		return
	}
	defer l.release(far)
	if !l.hold(far) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { l.carry(far, near) })
	both.Go(func() { l.carry(near, far) })
	both.Wait()
}

type piece struct {
	data []byte
	due  time.Time
}

// carry copies data from from to to with a delay, and then passes on the end of the stream.
func (l *Link) carry(to, from net.Conn) {
	under := make(chan piece, queueMax)
	var delivery sync.WaitGroup
	delivery.Go(func() {
		for p := range under {
			time.Sleep(time.Until(p.due))
			if _, err := to.Write(p.data); err != nil {
				_ = from.Close()
			}
		}
		if half, ok := to.(*net.TCPConn); ok {
			_ = half.CloseWrite()
		}
	})
	for {
		data := make([]byte, pieceBytes)
		n, err := from.Read(data)
		if n > 0 {
			under <- piece{data[:n], time.Now().Add(l.oneWay)}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				_ = to.Close()
			}
			break
		}
	}
	close(under)
	delivery.Wait()
}
