package request

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep.dev/lockstep/internal/workflow/execapi"
)

// server answers according to the path: /status/404, /echo, /large/BYTES, /to?URL, /never.
func server(t *testing.T) *httptest.Server {
	t.Helper()
	stop := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Kind", "test")
		switch what, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/"); what {
		case "status":
			var code int
			fmt.Sscan(rest, &code)
			w.WriteHeader(code)
			fmt.Fprintf(w, "code %d", code)
		case "echo":
			body, _ := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%s %s token=%s kind=%v", r.Method, body, r.Header.Get("X-Token"), r.Header["X-List"])
		case "large":
			var size int
			fmt.Sscan(rest, &size)
			_, _ = w.Write([]byte(strings.Repeat("x", size)))
		case "random": // does not compress
			x := uint32(1)
			for range 30_000 {
				x ^= x << 13
				x ^= x >> 17
				x ^= x << 5
				fmt.Fprintf(w, "%c", 'a'+x%26)
			}
		case "binary":
			_, _ = w.Write([]byte{0xff, 0xfe, 0})
		case "to":
			http.Redirect(w, r, r.URL.RawQuery, http.StatusFound)
		case "loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "never":
			select {
			case <-stop:
			case <-r.Context().Done():
			}
		}
	}))
	t.Cleanup(func() { close(stop); s.Close() })
	return s
}

func TestAnswersAreJudged(t *testing.T) {
	s, other := server(t), server(t)
	secret := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(secret, []byte("hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	token := []execapi.Header{{Name: "X-Token", File: secret}}
	for name, c := range map[string]struct {
		plan             execapi.RequestPlan
		code             int
		result, message  string
		failed, tooLarge bool
	}{
		"a success has the body as its result": {plan: execapi.RequestPlan{URL: "/echo", Method: "post", Body: []byte("hello")},
			result: "POST hello token= kind=[]"},
		"headers, of which some are secrets, and may come twice": {plan: execapi.RequestPlan{URL: "/echo",
			Headers: append([]execapi.Header{{Name: "x-list", Value: "a"}, {Name: "X-List", Value: "b"}}, token...)},
			result: "GET  token=hunter2 kind=[a b]"},
		"another status than 2xx is a failure": {plan: execapi.RequestPlan{URL: "/status/404"},
			code: 1, result: "code 404", message: "received non-2xx response code: 404"},
		"a condition decides in place of the status": {plan: execapi.RequestPlan{URL: "/status/404", Success: "response.statusCode == 404"},
			result: "code 404"},
		"a condition over everything": {plan: execapi.RequestPlan{URL: "/echo", Method: "PUT", Body: []byte("q"), Headers: token,
			Success: `response.body contains "token=hunter2" && response.headers["X-Kind"][0] == "test" && request.method == "PUT" && request.body == "q" && request.headers["X-Token"][0] == ""`},
			result: "PUT q token=hunter2 kind=[]"},
		"a condition that is false": {plan: execapi.RequestPlan{URL: "/status/200", Success: `response.body contains "no"`},
			code: 1, result: "code 200", message: `successCondition 'response.body contains "no"' evaluated false`},
		"a condition that is no expression": {plan: execapi.RequestPlan{URL: "/status/200", Success: `response.body ==`},
			code: execapi.ExitExecutor, failed: true, message: "http.successCondition: unexpected token EOF"},
		"a condition that is no boolean": {plan: execapi.RequestPlan{URL: "/status/200", Success: `response.statusCode`},
			code: execapi.ExitExecutor, failed: true, message: "gives int, not a boolean"},
		"a condition that would take too much": {plan: execapi.RequestPlan{URL: "/status/200", Success: `all(1..2000, all(1..2000, true))`},
			code: execapi.ExitExecutor, failed: true, message: "memory budget exceeded"},
		"no answer": {plan: execapi.RequestPlan{URL: "http://127.0.0.1:1/x?key=hunter2"},
			code: execapi.ExitExecutor, failed: true, message: "connection refused"},
		"no answer in time": {plan: execapi.RequestPlan{URL: "/never", TimeoutSeconds: 1},
			code: execapi.ExitExecutor, failed: true, message: "no answer within 1s"},
		"a URL that is none": {plan: execapi.RequestPlan{URL: "http://a b/"},
			code: execapi.ExitExecutor, failed: true, message: "invalid character"},
		"a secret that is not there": {plan: execapi.RequestPlan{URL: "/echo", Headers: []execapi.Header{{Name: "A", File: "/nowhere"}}},
			code: execapi.ExitExecutor, failed: true, message: "http.headers.A: "},
		"a redirect is followed, with secrets on the same server": {plan: execapi.RequestPlan{URL: "/to?" + s.URL + "/echo", Headers: token},
			result: "GET  token=hunter2 kind=[]"},
		"a secret does not go to another server": {plan: execapi.RequestPlan{URL: "/to?" + other.URL + "/echo", Headers: token},
			result: "GET  token= kind=[]"},
		"redirects for ever":                       {plan: execapi.RequestPlan{URL: "/loop"}, code: execapi.ExitExecutor, failed: true, message: "stopped after 10 redirects"},
		"a body that nobody reads may be left out": {plan: execapi.RequestPlan{URL: "/large/300000"}},
		"a body that compresses fits":              {plan: execapi.RequestPlan{URL: "/large/20000", Result: true}, result: strings.Repeat("x", 20000)},
		"a body that is too large for a message":   {plan: execapi.RequestPlan{URL: "/random", Result: true, Task: &execapi.Task{}}, tooLarge: true},
		"a body that is too large for a result": {plan: execapi.RequestPlan{URL: "/large/300000", Result: true},
			code: execapi.ExitExecutor, failed: true, message: "is wanted as the result"},
		"a body that is too large to be read": {plan: execapi.RequestPlan{URL: "/large/3000000"},
			code: execapi.ExitExecutor, failed: true, message: "larger than"},
		"a body that is no text is no result": {plan: execapi.RequestPlan{URL: "/binary"}},
		"a body that is no text but wanted": {plan: execapi.RequestPlan{URL: "/binary", Result: true},
			code: execapi.ExitExecutor, failed: true, message: "is wanted as the result"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if strings.HasPrefix(c.plan.URL, "/") {
				c.plan.URL = s.URL + c.plan.URL
			}
			var put *execapi.Report
			message, code := Run(t.Context(), &c.plan, func(_ *execapi.Task, r *execapi.Report) error { put = r; return nil })
			if code != c.code {
				t.Errorf("exit code %d, want %d: %s", code, c.code, message)
			}
			report, ok := execapi.DecodeReport(message)
			if !ok || len(message) > execapi.MaxMessage {
				t.Fatalf("message of %d bytes: %s", len(message), message)
			}
			if strings.Contains(message, "hunter2") && !strings.Contains(c.result, "hunter2") {
				t.Errorf("a secret is shown: %s", message)
			}
			if (put != nil) != c.tooLarge || report.Elsewhere != c.tooLarge {
				t.Errorf("outputs elsewhere: %v", put)
			}
			if report.Failed != c.failed || !strings.Contains(report.Message, c.message) || c.message == "" && report.Message != "" {
				t.Errorf("failed %v, message %q", report.Failed, report.Message)
			}
			result := ""
			if report.Result != nil {
				result = *report.Result
			}
			if result != c.result {
				t.Errorf("result %.100q, want %.100q", result, c.result)
			}
		})
	}
}

func TestCertificatesAreVerifiedUnlessTheTemplateSaysNot(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	_, err := Send(t.Context(), &execapi.RequestPlan{URL: s.URL})
	var failure *Failure
	if err == nil || errors.As(err, &failure) || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("got %v", err)
	}
	body, err := Send(t.Context(), &execapi.RequestPlan{URL: s.URL, NoTLS: true})
	if err != nil || string(body) != "hello" {
		t.Errorf("got %s, %v", body, err)
	}
}
