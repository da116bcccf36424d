package serve

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
)

func address(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestPathsOfOneAddressAreOneServer(t *testing.T) {
	var p Paths
	at := address(t)
	p.Check(at, "GET /good", func() error { return nil })
	p.Check(at, "GET /bad", func() error { return errors.New("not today") })
	p.Check("", "GET /nowhere", func() error { return nil })
	stop, err := p.Start(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/good": "200 ok", "/bad": "503 not today", "/nowhere": "404"} {
		resp, err := http.Get("http://" + at + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if got := resp.Status[:4] + string(body); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	var other Paths
	other.Check(at, "GET /", func() error { return nil })
	other.Check(address(t), "GET /", func() error { return nil })
	if _, err := other.Start(slog.New(slog.DiscardHandler)); err == nil {
		t.Error("an address that is taken was had")
	}
	stop()
	if _, err := http.Get("http://" + at + "/good"); err == nil {
		t.Error("it serves after the end")
	}
}
