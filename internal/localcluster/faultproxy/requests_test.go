package faultproxy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"lockstep.dev/lockstep/internal/localcluster/faultproxy"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

func TestWithoutFaultsNothingIsChanged(t *testing.T) {
	w := newWorld(t)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+w.proxy.Addr()+pods+"?fieldManager=x", strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer token")
	got, err := w.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	if got.ProtoMajor != 2 || got.StatusCode != http.StatusCreated || got.Header.Get("Content-Type") != "application/json" {
		t.Errorf("the client got %s %d %v", got.Proto, got.StatusCode, got.Header)
	}
	at := w.last.Load()
	if at.ProtoMajor != 2 || at.Method != http.MethodPost || at.URL.RequestURI() != pods+"?fieldManager=x" ||
		at.Header.Get("Authorization") != "Bearer token" || *w.body.Load() != "body" {
		t.Errorf("the server got %s %s %s %v %q", at.Proto, at.Method, at.URL, at.Header, *w.body.Load())
	}
	if f := w.proxy.Faults(); len(f) > 0 {
		t.Errorf("faults: %v", f)
	}
}

// broken reports whether a request ended with its connection. The kind of error depends on what the
// client was doing.
func broken(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
}

// TestLostAnswers checks that the client sees each way of losing an answer, and that the server has
// done the work exactly if the fault says so.
func TestLostAnswers(t *testing.T) {
	streamOnly := func(a answer) error {
		var stream http2.StreamError
		if !errors.As(a.err, &stream) || a.code != 0 {
			return fmt.Errorf("want a reset stream and no answer, got %d, %w", a.code, a.err)
		}
		return nil
	}
	connection := func(a answer) error {
		if !broken(a.err) || a.code != 0 {
			return fmt.Errorf("want a broken connection and no answer, got %d, %w", a.code, a.err)
		}
		return nil
	}
	half := func(a answer) error {
		if a.err == nil || a.code != http.StatusCreated || a.body != answerText[:len(answerText)/2] {
			return fmt.Errorf("want half of the answer and an error, got %d %q, %w", a.code, a.body, a.err)
		}
		return nil
	}
	for name, c := range map[string]struct {
		fault  faultproxy.Fault
		like   func(answer) error
		worked int64
		others bool // what is under way on the same connection goes on
	}{
		"reset stream":                    {faultproxy.Fault{Lose: faultproxy.ResetStream}, streamOnly, 0, true},
		"reset stream after the work":     {faultproxy.Fault{Lose: faultproxy.ResetStream, Worked: true}, streamOnly, 1, true},
		"reset connection":                {faultproxy.Fault{Lose: faultproxy.ResetConnection}, connection, 0, false},
		"reset connection after the work": {faultproxy.Fault{Lose: faultproxy.ResetConnection, Worked: true}, connection, 1, false},
		"half a body":                     {faultproxy.Fault{Lose: faultproxy.HalfBody}, half, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			held, release := make(chan struct{}), make(chan struct{})
			hold := faultproxy.Fault{Before: func() { close(held); <-release }}
			w.proxy.Decide(func(q *faultproxy.Request) faultproxy.Fault {
				if q.URL.Path == other {
					return hold
				}
				return c.fault
			})
			beside := make(chan answer, 1)
			go func() { beside <- w.ask(t.Context(), other, "") }()
			<-held
			got := w.create(pods)
			if n := w.worked.Load(); n != c.worked {
				t.Errorf("the server worked %d times, want %d", n, c.worked)
			}
			close(release)
			if err := c.like(got); err != nil {
				t.Error(err)
			}
			another := <-beside
			if err := another.whole(); (err == nil) != c.others {
				t.Errorf("another request on the same connection: %v", err)
			}
			if diff := cmp.Diff(map[string]int{name: 1}, w.proxy.Faults()); diff != "" {
				t.Error(diff)
			}
			writes := w.proxy.Writes()
			if len(writes) != int(c.worked) || len(writes) > 0 && (!writes[0].Lost || writes[0].Code != http.StatusCreated) {
				t.Errorf("writes: %+v", writes)
			}
		})
	}
}

// TestAnswersInTheServersPlace checks that client-go takes replaced answers for the server's, with
// and without the work done.
func TestAnswersInTheServersPlace(t *testing.T) {
	for code, is := range map[int]func(error) bool{
		http.StatusForbidden: apierrors.IsForbidden, http.StatusNotFound: apierrors.IsNotFound, http.StatusConflict: apierrors.IsConflict,
		http.StatusGone: apierrors.IsResourceExpired, http.StatusTooManyRequests: apierrors.IsTooManyRequests,
		http.StatusInternalServerError: apierrors.IsInternalError, http.StatusServiceUnavailable: apierrors.IsServiceUnavailable,
		http.StatusGatewayTimeout: apierrors.IsTimeout,
	} {
		for _, worked := range []bool{false, true} {
			name, times := "answer "+strconv.Itoa(code), int64(0)
			if worked {
				name, times = name+" after the work", 1
			}
			t.Run(name, func(t *testing.T) {
				w := newWorld(t)
				w.fault(pods, faultproxy.Fault{Answer: code, Worked: worked, RetryAfter: "7"})
				got := w.create(pods)
				status := &apierrors.StatusError{}
				if err := json.Unmarshal([]byte(got.body), &status.ErrStatus); err != nil || got.err != nil {
					t.Fatal(err, got.err)
				}
				if got.code != code || int(status.ErrStatus.Code) != code || !is(status) || status.ErrStatus.Status != metav1.StatusFailure {
					t.Errorf("got %d %s", got.code, got.body)
				}
				if after, _ := apierrors.SuggestsClientDelay(status); got.header.Get("Retry-After") != "7" || status.ErrStatus.Details.RetryAfterSeconds != 7 {
					t.Errorf("Retry-After is %q, in the status %d", got.header.Get("Retry-After"), after)
				}
				if n := w.worked.Load(); n != times || len(w.proxy.Writes()) != int(times) {
					t.Errorf("the server worked %d times, want %d; writes %v", n, times, w.proxy.Writes())
				}
				if diff := cmp.Diff(map[string]int{name: 1}, w.proxy.Faults()); diff != "" {
					t.Error(diff)
				}
			})
		}
	}
}

func TestGoAway(t *testing.T) {
	w := newWorld(t)
	if a := w.create(other); a.whole() != nil {
		t.Fatal(a)
	}
	w.fault(pods, faultproxy.Fault{GoAway: true})
	if a := w.create(pods); a.whole() != nil {
		t.Errorf("the request itself: %v", a.whole())
	}
	if n := w.dials.Load(); n != 1 {
		t.Fatalf("%d connections before", n)
	}
	localtest.Eventually(t, "another connection", func() error {
		a := w.create(other)
		if err := a.whole(); err != nil {
			t.Fatal(err)
		}
		if w.dials.Load() < 2 {
			return errors.New("the client goes on with the old one")
		}
		return nil
	})
}

func TestDelay(t *testing.T) {
	w := newWorld(t)
	const delay = 50 * time.Millisecond
	w.fault(pods, faultproxy.Fault{Delay: delay})
	began := time.Now()
	if a := w.create(pods); a.whole() != nil || time.Since(began) < delay {
		t.Errorf("after %s: %v", time.Since(began), a.whole())
	}
	ctx, cancel := context.WithCancel(t.Context())
	w.proxy.Decide(func(*faultproxy.Request) faultproxy.Fault {
		cancel()
		return faultproxy.Fault{Delay: never}
	})
	if a := w.ask(ctx, pods, "x"); !errors.Is(a.err, context.Canceled) || w.worked.Load() != 1 {
		t.Errorf("a delayed request: %v; the server worked %d times, want once", a.err, w.worked.Load())
	}
}

// TestMoments checks the moments at which a test can hold a request, for example to kill the
// client.
func TestMoments(t *testing.T) {
	for name, c := range map[string]struct {
		at     func(f *faultproxy.Fault, moment func())
		worked int64
	}{
		"before the server has it": {func(f *faultproxy.Fault, moment func()) { f.Before = moment }, 0},
		"when the work is done":    {func(f *faultproxy.Fault, moment func()) { f.Done = moment }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			ctx, cancel := context.WithCancel(t.Context())
			worked, over := make(chan int64, 1), make(chan struct{})
			var f faultproxy.Fault
			c.at(&f, func() {
				worked <- w.worked.Load()
				cancel()
				<-over
			})
			w.fault(pods, f)
			if a := w.ask(ctx, pods, "x"); !errors.Is(a.err, context.Canceled) || a.code != 0 {
				t.Errorf("the client got %d, %v", a.code, a.err)
			}
			close(over)
			if n := <-worked; n != c.worked {
				t.Errorf("the server had worked %d times, want %d", n, c.worked)
			}
		})
	}
	t.Run("when the client has the answer", func(t *testing.T) {
		w := newWorld(t)
		answered, read := make(chan struct{}), make(chan struct{})
		w.fault(pods, faultproxy.Fault{Answered: func() { close(answered); <-read }})
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+w.proxy.Addr()+pods, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := w.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer got.Body.Close()
		data := make([]byte, len(answerText))
		n := 0
		for n < len(data) && err == nil {
			var more int
			more, err = got.Body.Read(data[n:])
			n += more
		}
		<-answered
		close(read)
		if string(data[:n]) != answerText {
			t.Errorf("got %q, %v", data[:n], err)
		}
	})
}

// TestCutAndDark checks that both reset connections in use, and that clients may connect again
// after a cut but not while the proxy is dark.
func TestCutAndDark(t *testing.T) {
	for name, c := range map[string]struct {
		act  func(*faultproxy.Proxy)
		dark bool
	}{
		"cut":  {func(p *faultproxy.Proxy) { p.Cut() }, false},
		"dark": {func(p *faultproxy.Proxy) { p.Dark(never) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			release := make(chan struct{})
			defer close(release)
			w.fault(pods, faultproxy.Fault{Before: func() { c.act(w.proxy); <-release }})
			if a := w.create(pods); !broken(a.err) {
				t.Errorf("what was under way: %v", a.err)
			}
			a := w.create(other)
			if (a.whole() != nil) != c.dark {
				t.Errorf("a new connection: %v", a.whole())
			}
			w.proxy.Dark(0)
			localtest.Eventually(t, "it is light again", func() error {
				a := w.create(other)
				return a.whole()
			})
		})
	}
}

func TestRequestsAreUnderstood(t *testing.T) {
	type is struct {
		Verb, Group, Resource, Namespace, Name string
		Write                                  bool
	}
	for request, want := range map[string]is{
		"GET /api/v1/namespaces/n/pods":                                  {"list", "", "pods", "n", "", false},
		"GET /api/v1/pods?watch=true":                                    {"watch", "", "pods", "", "", false},
		"GET /api/v1/namespaces/n/pods/a":                                {"get", "", "pods", "n", "a", false},
		"POST /api/v1/namespaces/n/pods/a/binding":                       {"create", "", "pods/binding", "n", "a", true},
		"PUT /apis/batch.volcano.sh/v1alpha1/namespaces/n/jobs/a/status": {"update", "batch.volcano.sh", "jobs/status", "n", "a", true},
		"PATCH /apis/core.oam.dev/v1beta1/resourcetrackers/a":            {"patch", "core.oam.dev", "resourcetrackers", "", "a", true},
		"DELETE /api/v1/namespaces/n/pods/a":                             {"delete", "", "pods", "n", "a", true},
		"DELETE /api/v1/namespaces/n/pods":                               {"deletecollection", "", "pods", "n", "", true},
		"GET /healthz":                                                   {"get", "", "", "", "", false},
	} {
		t.Run(request, func(t *testing.T) {
			w := newWorld(t)
			got := make(chan is, 1)
			w.proxy.Decide(func(q *faultproxy.Request) faultproxy.Fault {
				got <- is{q.Verb, q.Group, q.Resource, q.Namespace, q.Name, q.Write()}
				return faultproxy.Fault{Answer: http.StatusForbidden}
			})
			method, path, _ := strings.Cut(request, " ")
			r, err := http.NewRequestWithContext(t.Context(), method, "https://"+w.proxy.Addr()+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := w.client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_ = answer.Body.Close()
			if diff := cmp.Diff(want, <-got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestKubeconfigsLeadToTheProxy(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "sub", "to")
	kc := clientcmdapi.NewConfig()
	kc.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://elsewhere:6443", CertificateAuthority: "/ca"}
	kc.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: "t"}
	if err := clientcmd.WriteToFile(*kc, from); err != nil {
		t.Fatal(err)
	}
	if err := w.proxy.WriteKubeconfig(from, to); err != nil {
		t.Fatal(err)
	}
	got, err := clientcmd.LoadFromFile(to)
	if err != nil {
		t.Fatal(err)
	}
	if c := got.Clusters["c"]; c.Server != "https://"+w.proxy.Addr() || c.CertificateAuthority != "/ca" || got.AuthInfos["u"].Token != "t" {
		t.Errorf("got %+v %+v", c, got.AuthInfos["u"])
	}
}
