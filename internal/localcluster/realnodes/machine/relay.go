package machine

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"
)

// dialTimeout bounds how long a relay waits for a connection to the other side.
const dialTimeout = 10 * time.Second

// relay forwards connections to an address until ctx is done.
func relay(ctx context.Context, listener net.Listener, network, address string) {
	context.AfterFunc(ctx, func() { listener.Close() })
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			slog.Warn("accept", "error", err)
			time.Sleep(10 * time.Millisecond) // out of file descriptors
			continue
		}
		go func() {
			defer conn.Close()
			other, err := net.DialTimeout(network, address, dialTimeout)
			if err != nil {
				slog.Warn("relay", "to", address, "error", err)
				return
			}
			join(conn, other, conn)
		}()
	}
}

// join copies in both directions until both have ended, and closes the connections. It reads from a
// through first, which may have buffered data of a.
func join(a, b net.Conn, first io.Reader) {
	defer a.Close()
	defer b.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(a, b)
		closeWrite(a)
	}()
	_, _ = io.Copy(b, first)
	closeWrite(b)
	<-done
}

// closeWrite tells the peer that no more data comes; the peer may still send.
func closeWrite(c net.Conn) {
	if c, ok := c.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
	}
}

// listenUnix listens on a path, which it removes first if an earlier run left it.
func listenUnix(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return net.Listen("unix", path)
}

// serveConnect serves an HTTP CONNECT proxy: the API server's route to kubelets, pods and webhooks.
func serveConnect(ctx context.Context, listener net.Listener) {
	server := &http.Server{ReadHeaderTimeout: dialTimeout, Handler: http.HandlerFunc(connect)}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	_ = server.Serve(listener)
}

func connect(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		http.Error(w, "only CONNECT", http.StatusMethodNotAllowed)
		return
	}
	other, err := net.DialTimeout("tcp", r.Host, dialTimeout)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	hijacker, ok := w.(http.Hijacker)
	if !ok {
		other.Close()
		http.Error(w, "cannot take the connection over", http.StatusInternalServerError)
		return
	}
	conn, buffered, err := hijacker.Hijack()
	if err != nil {
		other.Close()
		return
	}
	if _, err := io.WriteString(conn, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		conn.Close()
		other.Close()
		return
	}
	join(conn, other, buffered)
}
