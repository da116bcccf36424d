package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lockstep.dev/lockstep/internal/workflow/execapi"
)

// fakePlugin answers calls with texts, one after the other; the last one repeats. A text that begins
// with a status has that status.
func fakePlugin(t *testing.T, dir, name string, answers ...string) (execapi.Plugin, *[]map[string]any) {
	t.Helper()
	var calls []map[string]any
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, err := os.ReadFile(filepath.Join(dir, execapi.PluginDir(name), execapi.PluginToken))
		if err != nil || len(token) < 20 || r.Header.Get("Authorization") != "Bearer "+string(token) {
			http.Error(w, "who?", http.StatusForbidden)
			return
		}
		if r.Method != http.MethodPost || r.URL.Path != "/api/v1/template.execute" {
			http.NotFound(w, r)
			return
		}
		var call map[string]any
		if err := json.NewDecoder(r.Body).Decode(&call); err != nil {
			t.Error(err)
		}
		answer := answers[min(len(calls), len(answers)-1)]
		calls = append(calls, call)
		var code int
		if n, _ := fmt.Sscanf(answer, "%d", &code); n == 1 {
			http.Error(w, "the plugin says no", code)
			return
		}
		w.Write([]byte(answer))
	}))
	t.Cleanup(server.Close)
	return execapi.Plugin{Name: name, Port: int32(server.Listener.Addr().(*net.TCPAddr).Port)}, &calls
}

func TestRun(t *testing.T) {
	const done = `{"node": {"phase": "Succeeded", "message": "hello"}}`
	for name, c := range map[string]struct {
		a, b  []string // the answers of two plugins
		want  string   // a part of the message
		code  int
		calls string // of both
		waits string
	}{
		"the first takes it":               {[]string{done}, []string{done}, `"message":"hello"`, 0, "1 0", "[]"},
		"the second takes it":              {[]string{`{}`}, []string{done}, `"message":"hello"`, 0, "1 1", "[]"},
		"one runs no templates":            {[]string{"404"}, []string{done}, `"message":"hello"`, 0, "1 1", "[]"},
		"none takes it":                    {[]string{`{}`}, []string{`{"node": {}}`}, `"failed":true,"plain":true`, 64, "1 1", "[]"},
		"it fails":                         {[]string{`{"node": {"phase": "Failed", "message": "sorry"}}`}, []string{done}, `"message":"sorry"`, 1, "1 0", "[]"},
		"it is in error":                   {[]string{`{"node": {"phase": "Error", "message": "sorry"}}`}, []string{done}, `"failed":true`, 64, "1 0", "[]"},
		"it asks to be called again":       {[]string{`{}`}, []string{`{"node": {"phase": "Running"}, "requeue": "2m"}`, `{"node": {"phase": "Pending"}, "requeue": "30s"}`, done}, `"message":"hello"`, 0, "1 3", "[2m0s 30s]"},
		"it is not done and names no time": {[]string{`{"node": {"phase": "Running"}}`, done}, []string{done}, `"message":"hello"`, 0, "2 0", "[10s]"},
		"it forgets the template":          {[]string{`{"node": {"phase": "Running"}}`, `{}`}, []string{done}, "no longer knows", 64, "2 0", "[10s]"},
		"it is busy":                       {[]string{"503", "503", done}, []string{done}, `"message":"hello"`, 0, "3 0", "[500ms 1s]"},
		"it is never ready":                {[]string{"503"}, []string{done}, "503", 64, "25 0", ""},
		"it refuses":                       {[]string{"500"}, []string{done}, "the plugin says no", 64, "1 0", "[]"},
		"it does not speak JSON":           {[]string{"hello"}, []string{done}, "as the protocol says", 64, "1 0", "[]"},
		"a phase of another kind":          {[]string{`{"node": {"phase": "Skipped"}}`}, []string{done}, "phase 'Skipped'", 64, "1 0", "[]"},
		"a requeue that is no duration":    {[]string{`{"node": {"phase": "Running"}, "requeue": "soon"}`}, []string{done}, "requeue: 'soon'", 64, "1 0", "[]"},
		"outputs": {[]string{`{"node": {"phase": "Succeeded", "outputs": {"result": "r", "parameters": [{"name": "p", "value": "v"}, {"name": "n", "value": 3}],
			"artifacts": [{"name": "a", "s3": {"bucket": "b", "key": "k"}}]}}}`}, []string{done},
			`"result":"r","parameters":{"n":"3","p":"v"},"artifacts":[{"name":"a","location":{"name":"a","s3":{"bucket":"b","key":"k"}}}]`, 0, "1 0", "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			plan := &execapi.PluginPlan{
				Workflow: execapi.PluginWorkflow{Name: "w", Namespace: "ns", UID: "u"}, Template: json.RawMessage(`{"name": "t", "plugin": {"hello": {}}}`), Result: true,
			}
			a, callsA := fakePlugin(t, dir, "a", c.a...)
			b, callsB := fakePlugin(t, dir, "b", c.b...)
			plan.Plugins = []execapi.Plugin{a, b}
			waits := []time.Duration{}
			caller := Caller{Dir: dir, Host: "127.0.0.1", Log: func(string, ...any) {}, Wait: func(_ context.Context, d time.Duration) error {
				waits = append(waits, d)
				return nil
			}}
			if err := caller.Tokens(plan); err != nil {
				t.Fatal(err)
			}
			message, code := caller.Run(t.Context(), plan)
			if code != c.code || !strings.Contains(message, c.want) {
				t.Errorf("%d %s; want %d %s", code, message, c.code, c.want)
			}
			if got := fmt.Sprintf("%d %d", len(*callsA), len(*callsB)); got != c.calls {
				t.Errorf("calls %s, want %s", got, c.calls)
			}
			if got := fmt.Sprint(waits); c.waits != "" && got != c.waits {
				t.Errorf("waits %s, want %s", got, c.waits)
			}
			want := map[string]any{"workflow": map[string]any{"metadata": map[string]any{"name": "w", "namespace": "ns", "uid": "u"}}, "template": map[string]any{"name": "t", "plugin": map[string]any{"hello": map[string]any{}}}}
			if got := (*callsA)[0]; fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("called with %v", got)
			}
		})
	}
}

// TestAStopEndsTheWait checks that the kubelet's signal ends a plugin's wait.
func TestAStopEndsTheWait(t *testing.T) {
	dir := t.TempDir()
	p, _ := fakePlugin(t, dir, "a", `{"node": {"phase": "Running"}, "requeue": "10h"}`)
	plan := &execapi.PluginPlan{Template: json.RawMessage(`{}`), Plugins: []execapi.Plugin{p}}
	ctx, cancel := context.WithCancelCause(t.Context())
	caller := Caller{Dir: dir, Host: "127.0.0.1", Log: func(string, ...any) { cancel(errors.New("signal")) }}
	if err := caller.Tokens(plan); err != nil {
		t.Fatal(err)
	}
	if message, code := caller.Run(ctx, plan); code != execapi.ExitExecutor || !strings.Contains(message, "canceled") {
		t.Errorf("%d %s", code, message)
	}
}
