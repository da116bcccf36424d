package http2client

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
)

// TestARequestWhoseConnectionIsLostIsNotMadeTwice resets connections with a request that the server
// has processed: the caller has to find out whether it took effect.
func TestARequestWhoseConnectionIsLostIsNotMadeTwice(t *testing.T) {
	type key struct{}
	var seen atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		seen.Add(1)
		_ = r.Context().Value(key{}).(net.Conn).Close()
	}))
	server.EnableHTTP2 = true
	server.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, key{}, c) }
	server.StartTLS()
	t.Cleanup(server.Close)
	c := clientOf(t, 1, server.Listener.Addr().String(), server.Certificate())
	if _, err := c.Do(t.Context(), 1, Request{Method: "POST", Path: "/", Body: []byte("x")}); err == nil {
		t.Error("a request without an answer succeeds")
	}
	if n := seen.Load(); n != 1 {
		t.Errorf("the server has seen the request %d times", n)
	}
}
