package http2client

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// echo answers with the method, the path, the token and the body of a request. If the query has
// pieces, it sends no content-length.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "text/x-echo")
	text := r.Method + " " + r.URL.RequestURI() + " " + r.Header.Get("Authorization") + " " + string(body)
	if r.URL.Query().Get("pieces") == "" {
		w.Header().Set("Content-Length", strconv.Itoa(len(text)))
		_, _ = io.WriteString(w, text)
		return
	}
	for len(text) > 0 {
		n := min(len(text), 1000)
		_, _ = io.WriteString(w, text[:n])
		text = text[n:]
		_ = http.NewResponseController(w).Flush()
	}
}

// serve starts a server, and returns a client of the server and the number of connections that were
// made.
func serve(t *testing.T, connections int, handler http.HandlerFunc) (*Client, *httptest.Server, *atomic.Int32) {
	t.Helper()
	made := &atomic.Int32{}
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			made.Add(1)
		}
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	return clientOf(t, connections, server.Listener.Addr().String(), server.Certificate()), server, made
}

func clientOf(t *testing.T, connections int, address string, trust *x509.Certificate) *Client {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(trust)
	c, err := New(Config{
		Address: address, Authority: "example.com", Connections: connections,
		TLS: func() (*tls.Config, error) {
			return &tls.Config{RootCAs: roots, ServerName: "example.com", NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12}, nil
		},
		Header: func() ([]Field, error) { return []Field{{Name: "authorization", Value: "Bearer secret"}}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

func ask(t *testing.T, c *Client, path, body string) {
	t.Helper()
	got, err := c.Do(t.Context(), 8, Request{Method: "POST", Path: path, Body: []byte(body)})
	want := "POST " + path + " Bearer secret " + body
	if err != nil || got.Code != 200 || string(got.Body) != want || got.ContentType != "text/x-echo" {
		t.Errorf("%s with %d bytes: %d, %q of %d bytes, %v", path, len(body), got.Code, got.Body[:min(len(got.Body), 100)], len(got.Body), err)
	}
}

func TestRequestsFollowEachOtherOnOneConnection(t *testing.T) {
	c, _, made := serve(t, 1, echo)
	for _, path := range []string{"/a?b=c", "/a?pieces=1", "/", "/" + strings.Repeat("long", 1000)} {
		for _, size := range []int{0, 1, 126, 127, 128, 16 << 10, 16<<10 + 1, BodyMax} {
			for range 20 { // more than the server takes at once
				ask(t, c, path, strings.Repeat("x", size))
			}
		}
	}
	if n := made.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

func TestRequestsSideBySide(t *testing.T) {
	const most = 4
	c, _, made := serve(t, most, echo)
	var group sync.WaitGroup
	for i := range 400 { // more than the server takes at a time
		group.Go(func() {
			for j := range 10 {
				ask(t, c, fmt.Sprintf("/%d/%d", i, j), strings.Repeat(strconv.Itoa(i), i*20))
			}
		})
	}
	group.Wait()
	if n := made.Load(); n > most {
		t.Errorf("%d connections", n)
	}
}

func TestLongAnswers(t *testing.T) {
	c, _, _ := serve(t, 1, func(w http.ResponseWriter, r *http.Request) {
		size, _ := strconv.Atoi(r.URL.Path[1:])
		_, _ = w.Write(bytes.Repeat([]byte("0123456789"), size/10))
	})
	for _, size := range []int{10, trusted + 10, windowStart + 10, 3*windowStart + 10} {
		got, err := c.Do(t.Context(), 1, Request{Method: "GET", Path: "/" + strconv.Itoa(size)})
		if err != nil || len(got.Body) != size/10*10 {
			t.Errorf("%d bytes: %d, %v", size, len(got.Body), err)
		}
	}
	if _, err := c.Do(t.Context(), 1, Request{Method: "GET", Path: "/" + strconv.Itoa(answerMax+windowStart)}); err == nil {
		t.Error("an answer without end is read to its end")
	}
	if got, err := c.Do(t.Context(), 1, Request{Method: "GET", Path: "/10"}); err != nil || len(got.Body) != 10 {
		t.Errorf("the next: %q, %v", got.Body, err)
	}
}

func TestWhatIsNotMadeHere(t *testing.T) {
	c, server, made := serve(t, 1, echo)
	if _, err := c.Do(t.Context(), 1, Request{Method: "POST", Path: "/", Body: make([]byte, BodyMax+1)}); !errors.Is(err, ErrTooLong) {
		t.Errorf("a long body: %v", err)
	}
	if made.Load() != 0 {
		t.Error("it connects for it")
	}
	old := httptest.NewUnstartedServer(http.HandlerFunc(echo))
	old.StartTLS()
	t.Cleanup(old.Close)
	old.TLS.NextProtos = nil
	c = clientOf(t, 1, old.Listener.Addr().String(), old.Certificate())
	if _, err := c.Do(t.Context(), 1, Request{Method: "POST", Path: "/"}); err == nil {
		t.Error("a server without HTTP/2 is talked to in it")
	}
	other := httptest.NewTLSServer(http.HandlerFunc(echo))
	t.Cleanup(other.Close)
	stranger := clientOf(t, 1, server.Listener.Addr().String(), server.Certificate())
	stranger.cfg.TLS = func() (*tls.Config, error) {
		return &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "example.com", MinVersion: tls.VersionTLS12}, nil
	}
	if _, err := stranger.Do(t.Context(), 1, Request{Method: "POST", Path: "/"}); err == nil {
		t.Error("a server whose certificate nobody vouches for is trusted")
	}
}

func TestARequestThatIsGivenUp(t *testing.T) {
	arrived, release := make(chan struct{}, 1), make(chan struct{})
	c, _, made := serve(t, 1, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/waits" {
			arrived <- struct{}{}
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
		echo(w, r)
	})
	defer close(release)
	for range 300 { // each would keep a stream occupied if it were not freed
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-arrived; cancel() }()
		if _, err := c.Do(ctx, 1, Request{Method: "POST", Path: "/waits", Body: []byte("x")}); !errors.Is(err, context.Canceled) {
			t.Fatalf("given up: %v", err)
		}
	}
	ask(t, c, "/goes", "y")
	if n := made.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

func TestAServerThatEndsConnections(t *testing.T) {
	c, server, made := serve(t, 1, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/last" {
			w.Header().Set("Connection", "close") // causes a GOAWAY
		}
		if r.URL.Path == "/broken" {
			panic(http.ErrAbortHandler) // causes a RST_STREAM
		}
		echo(w, r)
	})
	for range 3 { // the server announces the end
		ask(t, c, "/last", "x")
	}
	if n := made.Load(); n != 3 {
		t.Errorf("%d connections", n)
	}
	if _, err := c.Do(t.Context(), 1, Request{Method: "POST", Path: "/broken"}); err == nil {
		t.Error("a request that is not answered succeeds")
	}
	ask(t, c, "/", "x")
	server.CloseClientConnections() // the server does not announce it
	for {
		if _, err := c.Do(t.Context(), 1, Request{Method: "POST", Path: "/"}); err == nil {
			break // at most one may fail
		}
	}
	ask(t, c, "/", "x")
}

// framed starts a server that speaks HTTP/2 frame by frame. It calls header for each request on a
// connection, with the number of requests so far on all connections.
func framed(t *testing.T, header func(f *http2.Framer, stream uint32, requests int32)) (*Client, *atomic.Int32) {
	t.Helper()
	_, server, _ := serve(t, 1, echo)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", server.TLS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	requests := &atomic.Int32{}
	go func() {
		for {
			raw, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = raw.Close() }()
				preface := make([]byte, len(http2.ClientPreface))
				if _, err := io.ReadFull(raw, preface); err != nil {
					return
				}
				f := http2.NewFramer(raw, raw)
				_ = f.WriteSettings()
				for {
					got, err := f.ReadFrame()
					if err != nil {
						return
					}
					if h, ok := got.(*http2.HeadersFrame); ok {
						header(f, h.StreamID, requests.Add(1))
					}
				}
			}()
		}
	}()
	return clientOf(t, 1, listener.Addr().String(), server.Certificate()), requests
}

// TestAServerThatLooksAtNothing ends connections before the server has processed the requests on
// them: these requests are retried.
func TestAServerThatLooksAtNothing(t *testing.T) {
	c, requests := framed(t, func(f *http2.Framer, _ uint32, _ int32) { _ = f.WriteGoAway(0, http2.ErrCodeNo, nil) })
	if _, err := c.Do(t.Context(), 1, Request{Method: "POST", Path: "/"}); err == nil {
		t.Error("it succeeds")
	}
	if n := requests.Load(); n != unsentMax {
		t.Errorf("it was made %d times, want %d", n, unsentMax)
	}
}

// TestARequestThatIsRefusedIsMadeAgain checks that a request refused with REFUSED_STREAM, which
// says that the server has not processed it, is made again, and that a request reset with any other
// code is not.
func TestARequestThatIsRefusedIsMadeAgain(t *testing.T) {
	for code, want := range map[http2.ErrCode]int32{http2.ErrCodeRefusedStream: 2, http2.ErrCodeInternal: 1, http2.ErrCodeCancel: 1} {
		t.Run(code.String(), func(t *testing.T) {
			c, requests := framed(t, func(f *http2.Framer, stream uint32, requests int32) {
				if requests == 1 {
					_ = f.WriteRSTStream(stream, code)
					return
				}
				// :status 200
				_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: []byte{0x88}, EndHeaders: true, EndStream: true})
			})
			got, err := c.Do(t.Context(), 1, Request{Method: "POST", Path: "/"})
			if again := want == 2; again != (err == nil) || again && got.Code != http.StatusOK {
				t.Errorf("%d, %v", got.Code, err)
			}
			if n := requests.Load(); n != want {
				t.Errorf("it was made %d times, want %d", n, want)
			}
		})
	}
}

func TestWhoAsksIsLookedUpAgain(t *testing.T) {
	token := &atomic.Value{}
	token.Store("old")
	c, _, _ := serve(t, 1, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "new" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	asked := 0
	c.cfg.Header = func() ([]Field, error) {
		asked++
		return []Field{{Name: "authorization", Value: token.Load().(string)}}, nil
	}
	for i, want := range []int{401, 401, 200, 200} {
		if i == 2 {
			token.Store("new")
		}
		if got, err := c.Do(t.Context(), 1, Request{Method: "GET", Path: "/"}); err != nil || got.Code != want {
			t.Errorf("request %d: %d, %v", i, got.Code, err)
		}
	}
	if asked != 3 {
		t.Errorf("asked %d times", asked)
	}
}

// TestLooks checks connections that are silent, idle and old.
func TestLooks(t *testing.T) {
	c, _, made := serve(t, 1, echo)
	ask(t, c, "/", "x")
	idle := c.slots[0].conn
	for range idleMax + 1 {
		idle.checkHealth()
	}
	if idle.open() {
		t.Error("one without requests stays")
	}
	ask(t, c, "/", "x")
	old := c.slots[0].conn
	old.mu.Lock()
	old.made = old.made.Add(-2 * ageMax)
	old.mu.Unlock()
	old.checkHealth()
	if old.open() {
		t.Error("an old one takes requests")
	}
	ask(t, c, "/", "x")
	if n := made.Load(); n != 3 {
		t.Errorf("%d connections", n)
	}
	ours, theirs := net.Pipe()
	defer func() { _ = theirs.Close() }()
	go func() { _, _ = io.Copy(io.Discard, theirs) }()
	silent := &conn{net: ours, check: &TermCheck{}, calls: map[uint32]*call{1: {done: make(chan struct{})}}, settled: make(chan struct{}), made: time.Now()}
	silent.writer = http2.NewFramer((*outBuffer)(silent), nil)
	silent.healthTimer = time.AfterFunc(time.Hour, func() {})
	waiting := silent.calls[1]
	silent.checkHealth()
	silent.checkHealth()
	select {
	case <-waiting.done:
		if !errors.Is(waiting.err, errDead) {
			t.Errorf("%v", waiting.err)
		}
	default:
		t.Error("a request on one that says nothing waits for ever")
	}
}

func BenchmarkRequests(b *testing.B) {
	made := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = w.Write(make([]byte, 2000))
	}))
	made.EnableHTTP2 = true
	made.StartTLS()
	defer made.Close()
	body := make([]byte, 1500)
	roots := x509.NewCertPool()
	roots.AddCert(made.Certificate())
	c, _ := New(Config{Address: made.Listener.Addr().String(), Authority: "example.com", Connections: 1, TLS: func() (*tls.Config, error) {
		return &tls.Config{RootCAs: roots, ServerName: "example.com", NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12}, nil
	}})
	b.Run("here", func(b *testing.B) {
		b.SetParallelism(32)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := c.Do(b.Context(), 1, Request{Method: "POST", Path: "/api/v1/namespaces/default/pods", Body: body}); err != nil {
					b.Error(err)
				}
			}
		})
	})
	b.Run("by Go's client", func(b *testing.B) {
		b.SetParallelism(32)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				resp, err := made.Client().Post(made.URL+"/api/v1/namespaces/default/pods", "", bytes.NewReader(body))
				if err != nil {
					b.Error(err)
					continue
				}
				_, _ = io.ReadAll(resp.Body)
				_ = resp.Body.Close()
			}
		})
	})
}
