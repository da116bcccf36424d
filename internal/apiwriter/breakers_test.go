package apiwriter

import (
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// front is a TLS and HTTP/2 server before the API server, so that package http2client is part of
// the test. It answers requests itself as fault says; a status of 0 passes the request on.
type front struct {
	mu      sync.Mutex
	fault   func(*http.Request) (status int, header map[string]string, body string)
	faults  map[string]int // number of faults, by path
	begun   chan struct{}  // closed after begunAt faults
	begunAt int
}

func newFront(t testing.TB) *front {
	return &front{faults: map[string]int{}, begun: make(chan struct{}), begunAt: 8}
}

func (f *front) set(fault func(*http.Request) (int, map[string]string, string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

func (f *front) total() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for k := range maps.Values(f.faults) {
		n += k
	}
	return n
}

// before places the front before a server: cfg then connects through the front.
func (f *front) before(t testing.TB, cfg *rest.Config) {
	to, err := url.Parse(cfg.Host)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(rest.CopyConfig(cfg))
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Header.Del("Authorization")
		},
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		status, header, body := 0, map[string]string(nil), ""
		if f.fault != nil {
			status, header, body = f.fault(r)
		}
		if status != 0 {
			f.faults[r.URL.Path]++
			n := 0
			for k := range maps.Values(f.faults) {
				n += k
			}
			if n == f.begunAt {
				close(f.begun)
			}
		}
		f.mu.Unlock()
		if status == 0 {
			proxy.ServeHTTP(w, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		for k, v := range header {
			w.Header().Set(k, v)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	s.EnableHTTP2 = true
	s.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	s.StartTLS()
	t.Cleanup(s.Close)
	*cfg = rest.Config{Host: s.URL, BearerToken: "any", TLSClientConfig: rest.TLSClientConfig{
		CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}),
	}}
}

func refusal(code int) (int, map[string]string, string) {
	return code, map[string]string{"Content-Type": "application/json"}, fmt.Sprintf(
		`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"admission webhook \"w\" denied the request","code":%d}`, code)
}

// about matches creates in a namespace.
func about(ns, resource string) func(*http.Request) bool {
	return func(r *http.Request) bool {
		return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/namespaces/"+ns+"/"+resource)
	}
}

func (b *bench) configMap(ns, name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Annotations: map[string]string{CreatorAnnotation: "test"}}}
}

// canary makes and deletes n ConfigMaps, one write after the other, like a job whose steps depend
// on each other.
func (b *bench) canary(n int) <-chan struct{} {
	done := make(chan struct{})
	var next func(i int)
	next = func(i int) {
		if i == n {
			close(done)
			return
		}
		b.Create(Meta{Owner: "canary", Reason: "test"}, b.configMap(b.ns, fmt.Sprint("canary-", i)), func(o Object, err error) {
			if err != nil {
				b.Error(err)
				close(done)
				return
			}
			b.Delete(Meta{Owner: "canary", Reason: "test"}, o, DeleteOptions{}, func(err error) {
				if err != nil {
					b.Error(err)
				}
				next(i + 1)
			})
		})
	}
	next(0)
	return done
}

func (b *bench) namespace() string {
	b.Helper()
	return localtest.Namespace(b, b.client)
}

func await(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-t.Context().Done():
		t.Fatal("the test ended before " + what)
	case <-time.After(4 * time.Minute):
		t.Fatal(what + " did not happen")
	}
}

// TestFailuresOfOneNamespaceHoldUpNoOther checks that, while the server does not carry out the
// writes of one tenant, the writes of another go on at once. The failing writes probe less and less
// often, so the number of probes while the canary ran tells how long it took. Without breakers the
// canary waited for one failing write before each of its own.
func TestFailuresOfOneNamespaceHoldUpNoOther(t *testing.T) {
	const canaries = 300
	for name, answer := range map[string]func() (int, map[string]string, string){
		"503": func() (int, map[string]string, string) { return refusal(503) },
		"502 in plain text": func() (int, map[string]string, string) {
			return 502, map[string]string{"Content-Type": "text/plain"}, "bad gateway"
		},
		"500": func() (int, map[string]string, string) { return refusal(500) },
		"429 of a webhook, with Retry-After": func() (int, map[string]string, string) {
			code, header, body := refusal(429)
			return code, header, strings.Replace(body, `"code"`, `"details":{"retryAfterSeconds":1},"code"`, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFront(t)
			b := newBench(t, func(c *Config) { f.before(t, c.REST) })
			if b.sender.calls == nil {
				t.Fatal("nothing goes through package http2client")
			}
			faulty := b.namespace()
			match := about(faulty, "configmaps")
			f.set(func(r *http.Request) (int, map[string]string, string) {
				if match(r) {
					return answer()
				}
				return 0, nil, ""
			})
			b.run()
			o := newOutcomes()
			const n = 400
			for i := range n {
				b.Create(Meta{Owner: "faulty", Reason: "test"}, b.configMap(faulty, fmt.Sprint("c", i)), o.of(fmt.Sprint(i)))
			}
			await(t, "the first failures", f.begun)
			before := f.total()
			await(t, "the canary's end", b.canary(canaries))
			asked := f.total() - before
			t.Logf("%d failed before, and %d during the canary's %d writes; up to %d requests in flight", before, asked, 2*canaries, b.Limit())
			if asked > canaries/3 {
				t.Errorf("%d requests failed during %d writes of the canary", asked, 2*canaries)
			}
			if l := b.Limit(); l < limitStart/2 {
				t.Errorf("at most %d requests are in flight, because of one tenant's failures", l)
			}
			if lag := b.Latency(); lag > 5*time.Second {
				t.Errorf("the lag is %s: a write that fails counts as long as it waits", lag)
			}
			o.mu.Lock()
			if len(o.ended) != 0 {
				t.Errorf("%d of the failing writes ended", len(o.ended))
			}
			o.mu.Unlock()
			f.set(nil)
			b.flush()
			o.allOnce(t, n)
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.breakers.waiting != 0 || b.breakers.openCount() != 0 {
				t.Errorf("%d writes wait, %d scopes are down", b.breakers.waiting, b.breakers.openCount())
			}
		})
	}
}

// TestAResourceThatIsDownIsAskedByOne checks that only one write at a time probes when the writes
// of a resource fail in several namespaces. Writes of other resources go on, and a namespace
// without failures probes for itself.
func TestAResourceThatIsDownIsAskedByOne(t *testing.T) {
	const namespaces, each = 10, 20
	f := newFront(t)
	b := newBench(t, func(c *Config) { f.before(t, c.REST) })
	well := b.namespace()
	f.set(func(r *http.Request) (int, map[string]string, string) {
		if strings.HasSuffix(r.URL.Path, "/configmaps") && !strings.Contains(r.URL.Path, "/"+well+"/") {
			return refusal(503)
		}
		return 0, nil, ""
	})
	b.run()
	o := newOutcomes()
	for range namespaces {
		ns := b.namespace()
		for i := range each {
			b.Create(Meta{Owner: ns, Reason: "test"}, b.configMap(ns, fmt.Sprint("c", i)), o.of(fmt.Sprint(ns, i)))
		}
	}
	down := func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		r := b.breakers.all[breakerKey{resource: "configmaps"}]
		return r != nil && r.open
	}
	localtest.Eventually(t, "the resource is down", func() error {
		if !down() {
			return fmt.Errorf("it is not")
		}
		return nil
	})
	pods := newOutcomes()
	for i := range 50 {
		b.Create(Meta{Owner: "pods", Reason: "test"}, b.pod(fmt.Sprint("p", i), "uid"), func(obj Object, err error) { pods.of(fmt.Sprint(i))(obj, err) })
	}
	localtest.Eventually(t, "the pods are made", func() error {
		pods.mu.Lock()
		defer pods.mu.Unlock()
		if len(pods.ended) < 50 {
			return fmt.Errorf("%d are", len(pods.ended))
		}
		return nil
	})
	pods.allOnce(t, 50)
	if !down() {
		t.Error("an answer about pods says that ConfigMaps are back")
	}
	made := make(chan struct{})
	b.Create(Meta{Owner: "well", Reason: "test"}, b.configMap(well, "c"), func(_ Object, err error) {
		if err != nil {
			t.Error(err)
		}
		close(made)
	})
	await(t, "the write in a namespace that is well", made)
	f.set(nil)
	b.flush()
	o.allOnce(t, namespaces*each)
}

// TestAScopeIsDownWhenItsPartsAre records failures of breakers in a given order, and then checks
// which breakers are open.
func TestAScopeIsDownWhenItsPartsAre(t *testing.T) {
	maps, jobs := kind{resource: "configmaps"}, kind{resource: "jobs"}
	jobs.Group = "batch"
	type step struct {
		kind      kind
		namespace string
		failed    int  // failures in a row
		answered  bool // answered once, after the failures
	}
	for name, c := range map[string]struct {
		steps []step
		down  []string
	}{
		"a few failures are none":               {[]step{{kind: maps, namespace: "a", failed: outageAfter - 1}}, nil},
		"an answer between them":                {[]step{{kind: maps, namespace: "a", failed: outageAfter - 1, answered: true}, {kind: maps, namespace: "a", failed: outageAfter - 1}}, nil},
		"one namespace":                         {[]step{{kind: maps, namespace: "a", failed: 2 * outageAfter}}, []string{"configmaps/a"}},
		"two resources in one namespace":        {[]step{{kind: maps, namespace: "a", failed: outageAfter}, {kind: jobs, namespace: "a", failed: outageAfter}}, []string{"configmaps/a", "jobs/a"}},
		"a resource in two namespaces":          {[]step{{kind: maps, namespace: "a", failed: outageAfter}, {kind: maps, namespace: "b", failed: outageAfter}}, []string{"configmaps", "configmaps/a", "configmaps/b"}},
		"a third namespace was answered since":  {[]step{{kind: maps, namespace: "a", failed: outageAfter}, {kind: maps, namespace: "c", answered: true}, {kind: maps, namespace: "b", failed: outageAfter}}, []string{"configmaps/a", "configmaps/b"}},
		"two resources, each in two namespaces": {[]step{{kind: maps, namespace: "a", failed: outageAfter}, {kind: maps, namespace: "b", failed: outageAfter}, {kind: jobs, namespace: "a", failed: outageAfter}, {kind: jobs, namespace: "b", failed: outageAfter}}, []string{"", "configmaps", "configmaps/a", "configmaps/b", "jobs", "jobs/a", "jobs/b"}},
	} {
		t.Run(name, func(t *testing.T) {
			var s breakers
			now := time.Unix(1000, 0)
			for _, step := range c.steps {
				x := &write{verb: verbCreate, kind: step.kind, name: types.NamespacedName{Namespace: step.namespace, Name: "x"}}
				for range step.failed {
					now = now.Add(time.Millisecond)
					s.failed(x, 0, now)
				}
				if step.answered {
					now = now.Add(time.Millisecond)
					s.answered(x, now)
				}
			}
			var down []string
			for key, at := range s.all {
				if at.open {
					down = append(down, strings.TrimSuffix(key.resource+"/"+key.namespace, "/"))
				}
			}
			slices.Sort(down)
			if !slices.Equal(down, c.down) {
				t.Errorf("down are %q, want %q", down, c.down)
			}
		})
	}
}
