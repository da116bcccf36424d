package link

import (
	"io"
	"net"
	"testing"
	"time"
)

func echo(t *testing.T) string {
	t.Helper()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	return server.Addr().String()
}

func say(c net.Conn, text string) (string, error) {
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	answer := make([]byte, len(text))
	_, err := io.ReadFull(c, answer)
	return string(answer), err
}

func TestALinkIsLateAndCanBeCut(t *testing.T) {
	const roundTrip = 40 * time.Millisecond
	l, err := New(echo(t), roundTrip)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", l.Addr())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := dial()
	began := time.Now()
	if got, err := say(c, "hello"); err != nil || got != "hello" {
		t.Fatalf("%q, %v", got, err)
	}
	if took := time.Since(began); took < roundTrip {
		t.Errorf("the answer was there after %s", took)
	}
	l.Cut()
	if _, err := say(c, "hello"); err == nil {
		t.Error("a connection outlives the cut")
	}
	if got, err := say(dial(), "hello"); err == nil {
		t.Errorf("a new connection got %q", got)
	}
	l.Mend()
	if got, err := say(dial(), "again"); err != nil || got != "again" {
		t.Errorf("after mending: %q, %v", got, err)
	}
}
