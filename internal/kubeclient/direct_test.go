package kubeclient

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"
)

// echo answers with the body, the path and the token of a request, in one piece or, on request, in several.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	text := r.Method + " " + r.URL.RequestURI() + " " + r.Header.Get("Authorization") + " " + string(body)
	if r.URL.Query().Get("pieces") == "" {
		_, _ = io.WriteString(w, text)
		return
	}
	for _, b := range []byte(text) {
		_, _ = w.Write([]byte{b})
		_ = http.NewResponseController(w).Flush()
	}
}

// serve starts a server, and returns a client of it and the number of connections that were made.
func serve(t *testing.T, handler http.HandlerFunc) (*http.Client, *httptest.Server, *atomic.Int32) {
	t.Helper()
	connections := &atomic.Int32{}
	server := httptest.NewUnstartedServer(handler)
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	client, err := Direct(configOf(server))
	if err != nil || client == nil {
		t.Fatalf("no client: %v", err)
	}
	return client, server, connections
}

func configOf(server *httptest.Server) *rest.Config {
	return &rest.Config{Host: server.URL, BearerToken: "secret", TLSClientConfig: rest.TLSClientConfig{
		CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
	}}
}

func post(ctx context.Context, client *http.Client, url, body string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	answer, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	return string(text), err
}

func TestDirectRequestsFollowEachOtherOnOneConnection(t *testing.T) {
	client, server, connections := serve(t, echo)
	for _, path := range []string{"/a?b=c", "/a?pieces=1", "/"} {
		for _, body := range []string{"", "x", strings.Repeat("long", 100_000)} {
			got, err := post(t.Context(), client, server.URL+path, body[:min(len(body), 400_000)])
			if want := "POST " + path + " Bearer secret " + body; err != nil || got != want && len(body) < 2 || len(got) != len(want) {
				t.Errorf("%s: %.100q, %v", path, got, err)
			}
			if strings.Contains(path, "pieces") && body == "x" {
				break // the long one byte by byte takes its time
			}
		}
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

func TestDirectRequestsSideBySide(t *testing.T) {
	const most = 8
	client, server, connections := serve(t, echo)
	var group sync.WaitGroup
	for i := range most {
		group.Go(func() {
			for j := range 50 {
				path := fmt.Sprintf("/%d/%d", i, j)
				if got, err := post(t.Context(), client, server.URL+path, path); err != nil || got != "POST "+path+" Bearer secret "+path {
					t.Errorf("%s: %q, %v", path, got, err)
				}
			}
		})
	}
	group.Wait()
	if n := connections.Load(); n > most {
		t.Errorf("%d connections for %d requests at a time", n, most)
	}
}

func TestADirectRequestThatIsGivenUp(t *testing.T) {
	arrived, release := make(chan struct{}, 1), make(chan struct{})
	client, server, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/waits" {
			arrived <- struct{}{}
			<-release
		}
		echo(w, r)
	})
	defer close(release)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	if got, err := post(ctx, client, server.URL+"/waits", "x"); !errors.Is(err, context.Canceled) {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := post(t.Context(), client, server.URL+"/goes", "y"); err != nil || !strings.HasSuffix(got, " y") {
		t.Errorf("the next got %q, %v", got, err)
	}
}

func TestAServerThatClosesDirectConnections(t *testing.T) {
	client, server, connections := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/last" {
			w.Header().Set("Connection", "close")
		}
		echo(w, r)
	})
	for _, path := range []string{"/last", "/last", "/"} { // it says so
		if _, err := post(t.Context(), client, server.URL+path, "x"); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if n := connections.Load(); n != 3 {
		t.Errorf("%d connections", n)
	}
	server.CloseClientConnections() // it does not
	if _, err := post(t.Context(), client, server.URL+"/", "x"); err == nil {
		t.Error("a request on a connection that is closed succeeds; one that was sent must not be repeated")
	}
	if _, err := post(t.Context(), client, server.URL+"/", "x"); err != nil {
		t.Errorf("after that: %v", err)
	}
}

func TestNoDirectConnections(t *testing.T) {
	_, server, _ := serve(t, echo)
	for about, change := range map[string]func(*rest.Config){
		"through a proxy":     func(c *rest.Config) { c.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: "127.0.0.1:1"}) },
		"without TLS":         func(c *rest.Config) { c.Host, c.TLSClientConfig = "http://127.0.0.1:1", rest.TLSClientConfig{} },
		"over a transport":    func(c *rest.Config) { c.Transport = http.DefaultTransport },
		"by somebody's dials": func(c *rest.Config) { c.Dial = (&net.Dialer{}).DialContext },
	} {
		cfg := configOf(server)
		change(cfg)
		if client, err := Direct(cfg); client != nil || err != nil {
			t.Errorf("%s: %v, %v", about, client, err)
		}
	}
	stranger := configOf(server)
	stranger.CAData = nil
	client, err := Direct(stranger)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := post(t.Context(), client, server.URL, "x"); err == nil {
		t.Error("a server whose certificate nobody vouches for is trusted")
	}
}
