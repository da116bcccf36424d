package http2client

import (
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// switched is a term that a test ends.
type switched struct{ over, asked atomic.Bool }

func (s *switched) Holds() bool { s.asked.Store(true); return !s.over.Load() }

func TestWhatHasLostItsTermIsNotSent(t *testing.T) {
	var served atomic.Int32
	c, _, made := serve(t, 1, func(w http.ResponseWriter, r *http.Request) { served.Add(1); echo(w, r) })
	term := &switched{}
	do := func(term Term) error {
		_, err := c.Do(t.Context(), 1, Request{Method: "POST", Path: "/", Body: []byte("x"), Term: term})
		return err
	}
	if err := do(term); err != nil {
		t.Fatal(err)
	}
	term.over.Store(true)
	if err := do(term); !errors.Is(err, ErrLapsed) {
		t.Errorf("sent after its term: %v", err)
	}
	if n := served.Load(); n != 1 {
		t.Errorf("the server got %d requests", n)
	}
	// Requests without that term continue on another connection.
	for _, other := range []Term{nil, &switched{}} {
		if err := do(other); err != nil {
			t.Error(err)
		}
	}
	if n := made.Load(); n != 2 {
		t.Errorf("%d connections", n)
	}
}

// stoppedOnce is a term that ends while the process is stopped, just after the clock was read.
type stoppedOnce struct{ over atomic.Bool }

func (s *stoppedOnce) Holds() bool {
	if s.over.Swap(true) {
		return false
	}
	for began := time.Now(); time.Since(began) <= checkMax; {
		runtime.Gosched()
	}
	return true
}

func TestATermWhoseAnswerIsOldIsAskedAgain(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	check := &TermCheck{}
	defer check.Add(&stoppedOnce{})()
	go func() { _, _ = io.Copy(io.Discard, far) }()
	if _, err := check.Wrap(near).Write([]byte("x")); !errors.Is(err, ErrLapsed) {
		t.Errorf("sent after its term: %v", err)
	}
}

// TestTheTermIsAskedAgainWhenTheSocketHasRoom covers a process that is stopped while data is in the
// buffer: the term was checked long before the data is sent, and must be checked once more.
func TestTheTermIsAskedAgainWhenTheSocketHasRoom(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	check, term := &TermCheck{}, &switched{}
	defer check.Add(term)()
	const much = 256 << 20 // more than the kernel takes
	wrote := make(chan error, 1)
	sent := 0
	go func() {
		n, err := check.Wrap(near).Write(make([]byte, much))
		sent = n
		wrote <- err
	}()
	// Some of the data has been sent; the socket does not take the remainder yet.
	if _, err := io.ReadFull(far, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	term.over.Store(true)
	go func() { _, _ = io.Copy(io.Discard, far) }()
	select {
	case err := <-wrote:
		if !errors.Is(err, ErrLapsed) || sent == 0 || sent == much {
			t.Errorf("%d bytes sent: %v", sent, err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the write does not end")
	}
}

func TestAGateForgetsWhoLeft(t *testing.T) {
	g := &TermCheck{}
	a, b := &switched{}, &switched{}
	leaveA, leaveA2, leaveB := g.Add(a), g.Add(a), g.Add(b)
	a.over.Store(true)
	if g.allHold() {
		t.Error("open for a term that is over")
	}
	leaveA()
	if g.allHold() {
		t.Error("open for who entered twice and left once")
	}
	leaveA2()
	if !g.allHold() {
		t.Error("shut for who left")
	}
	leaveB()
	if !g.allHold() || len(g.terms) != 0 {
		t.Error("not empty")
	}
}
