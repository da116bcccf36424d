package faultproxy_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/localcluster/faultproxy"
)

// answerText is the server's answer to everything but a watch.
const answerText = `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}`

// eventText is an event of a watch; the server sends one each millisecond.
const eventText = `{"type":"ADDED","object":{"kind":"Pod","apiVersion":"v1"}}` + "\n"

// never is longer than any test.
const never = time.Hour

// world is a server, a proxy in front of it and a client of the proxy, over TLS and HTTP/2.
type world struct {
	*testing.T
	proxy  *faultproxy.Proxy
	client *http.Client
	worked atomic.Int64 // requests that the server has got
	events atomic.Int64 // what it has sent to watches
	dials  atomic.Int64 // connections of the client
	last   atomic.Pointer[http.Request]
	body   atomic.Pointer[string] // of the last request
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t}
	server := httptest.NewUnstartedServer(http.HandlerFunc(w.serve))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	dir := t.TempDir()
	key, err := x509.MarshalPKCS8PrivateKey(server.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, data := range map[string][]byte{"crt": authority, "key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.proxy, err = faultproxy.New(faultproxy.Config{
		Server:   &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: authority}},
		CertFile: filepath.Join(dir, "crt"), KeyFile: filepath.Join(dir, "key"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.proxy.Close)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	transport := &http.Transport{
		ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			w.dials.Add(1)
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	w.client = &http.Client{Transport: transport}
	return w
}

func (w *world) serve(out http.ResponseWriter, r *http.Request) {
	w.worked.Add(1)
	body, _ := io.ReadAll(r.Body)
	text := string(body)
	w.body.Store(&text)
	w.last.Store(r)
	out.Header().Set("Content-Type", "application/json")
	if r.URL.Query().Get("watch") == "" {
		out.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(out, answerText)
		return
	}
	for {
		_, _ = io.WriteString(out, eventText)
		_ = http.NewResponseController(out).Flush()
		w.events.Add(1)
		select {
		case <-time.After(time.Millisecond):
		case <-r.Context().Done():
			return
		}
	}
}

// fault injects a fault into every request for a path.
func (w *world) fault(path string, f faultproxy.Fault) {
	w.proxy.Decide(func(q *faultproxy.Request) faultproxy.Fault {
		if q.URL.Path != path {
			return faultproxy.Fault{}
		}
		return f
	})
}

const (
	pods  = "/api/v1/namespaces/n/pods"
	other = "/api/v1/namespaces/n/configmaps"
)

// answer is the client's view of an answer. code is 0 if there was none; err is the reason why the
// answer is incomplete.
type answer struct {
	code   int
	header http.Header
	body   string
	err    error
}

// ask sends a request: POST if it has a body, else GET.
func (w *world) ask(ctx context.Context, path, body string) answer {
	method, reader := http.MethodGet, io.Reader(nil)
	if body != "" {
		method, reader = http.MethodPost, strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(ctx, method, "https://"+w.proxy.Addr()+path, reader)
	if err != nil {
		return answer{err: err}
	}
	got, err := w.client.Do(r)
	if err != nil {
		return answer{err: err}
	}
	defer got.Body.Close()
	data, err := io.ReadAll(got.Body)
	return answer{got.StatusCode, got.Header, string(data), err}
}

// create sends a write.
func (w *world) create(path string) answer {
	return w.ask(w.Context(), path, `{"metadata":{"name":"a"}}`)
}

// whole returns an error if the answer is not the complete answer of the server.
func (a *answer) whole() error {
	if a.err != nil || a.code != http.StatusCreated || a.body != answerText {
		return fmt.Errorf("got %d %q, %v", a.code, a.body, a.err)
	}
	return nil
}
