package controller_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/controller"
	"lockstep.dev/lockstep/internal/egress"
)

// TestApplicationsReachPublicAddressesAlone checks that every feature that sends requests for an
// Application refuses addresses that are not public, also after a redirect, and the metadata
// addresses of clouds by address and by name, and that the error names the flag that would allow
// the address. In this test 127.0.0.1 stands for a public address.
func TestApplicationsReachPublicAddressesAlone(t *testing.T) {
	e := connect(t)
	elsewhere.Store(e.ns, true)
	defer elsewhere.Delete(e.ns)
	var asked atomic.Int64
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Skip("there is no second loopback address:", err)
	}
	private := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"a": "s3cr3t-bytes"}`)
	}), ConnState: func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			asked.Add(1)
		}
	}}}
	private.Start()
	defer private.Close()
	var redirected atomic.Int64
	public := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		redirected.Add(1)
		http.Redirect(w, r, private.URL+r.URL.Path, http.StatusTemporaryRedirect)
	}))
	defer public.Close()
	requests, err := egress.New(egress.Config{Allow: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	stop, err := runWith(e.c, controller.Config{
		IdleAfter: 20 * time.Millisecond, Metrics: prometheus.NewRegistry(), Requests: requests,
		Owns: func(key string) bool { return strings.HasPrefix(key, e.ns+"/") },
	}, func(w apiwriter.Writer) apiwriter.Writer { return w })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()

	step := func(kind, properties string) string {
		return "components: []\nworkflow:\n  steps:\n  - {name: one, type: " + kind + ", properties: {" + properties + "}}\n"
	}
	ways := map[string]func(url string) string{
		"step":    func(url string) string { return step("request", fmt.Sprintf("url: %q", url)) },
		"webhook": func(url string) string { return step("webhook", fmt.Sprintf("url: {value: %q}, data: {a: b}", url)) },
		"notification": func(url string) string {
			return step("notification", fmt.Sprintf("slack: {url: {value: %q}, message: {text: hello}}", url))
		},
		"manifests": func(url string) string {
			return fmt.Sprintf("components:\n- {name: m, type: ref-objects, properties: {urls: [%q]}}\n", url)
		},
		"chart": func(url string) string {
			return fmt.Sprintf("components:\n- {name: c, type: helmchart, properties: {chart: {source: web, repoURL: %q, version: 1.0.0}, release: {name: x}}}\n", url)
		},
	}
	places := map[string]string{
		"private": private.URL, "redirect": public.URL, "this-machine": "http://[::1]:9",
		"metadata": "http://169.254.169.254/latest/meta-data", "metadata-name": "http://metadata.google.internal/computeMetadata/v1",
	}
	var names []string
	for way, spec := range ways {
		for place, url := range places {
			names = append(names, way+"-"+place)
			e.app(way+"-"+place, spec(url))
		}
	}
	host, port, _ := net.SplitHostPort(l.Addr().String())
	names = append(names, "email")
	e.app("email", step("notification", fmt.Sprintf(
		"email: {from: {address: a@example.com, password: {value: p}, host: %q, port: %s}, to: [b@example.com], content: {subject: s, body: b}}", host, port)))
	for _, name := range names {
		e.until(name, func(a *oam.Application) error {
			status, err := json.Marshal(a.Status)
			if err != nil || strings.Contains(string(status), "s3cr3t") {
				t.Errorf("%s: %v: %s", name, err, status)
			}
			if !strings.Contains(string(status), egress.Flag) {
				return fmt.Errorf("the status does not name the flag")
			}
			return nil
		})
	}
	e.app("canary", withComponents("", "three"))
	e.until("canary", inPhase(oam.PhaseRunning))
	if n := asked.Load(); n != 0 {
		t.Errorf("there were %d connections to an address that is not public", n)
	}
	if n := redirected.Load(); n < int64(len(ways)) {
		t.Errorf("%d requests were redirected; want one of each way at least", n)
	}
}
