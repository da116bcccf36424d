package artifacts

import (
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"lockstep.dev/lockstep/internal/workflow/execapi"
)

// TestRedirects checks that content goes where a server refers to, with the methods PUT and GET, and
// that secrets go to no other server.
func TestRedirects(t *testing.T) {
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte(`{"access_token":"t0ken","token_type":"bearer"}`))
	}))
	t.Cleanup(tokens.Close)
	dir := t.TempDir()
	secret := file(t, "s3cret", dir, "secret")
	oauth := &execapi.OAuth2{ClientID: secret, ClientSecret: secret, TokenURL: file(t, tokens.URL, dir, "url")}
	for name, path := range map[string]string{"HTTP": "/files/x?op=CREATE", "WebHDFS": "/webhdfs/v1/x?delegation=d&op=CREATE&overwrite=true"} {
		for auth, at := range map[string]execapi.HTTP{
			"headers":  {Headers: []execapi.Header{{Name: "X-Token", File: secret}}},
			"password": {Username: secret, Password: secret},
			"token":    {OAuth2: oauth},
		} {
			t.Run(name+" with "+auth, func(t *testing.T) {
				var mu sync.Mutex
				var kept string
				var seen []string
				secrets := func(r *http.Request) bool { return r.Header.Get("X-Token")+r.Header.Get("Authorization") != "" }
				other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					mu.Lock()
					defer mu.Unlock()
					seen = append(seen, "other "+r.Method+" "+r.URL.Query().Get("op"))
					if secrets(r) {
						t.Error("a secret went to another server")
					}
					switch r.Method {
					case http.MethodPut:
						text, _ := io.ReadAll(r.Body)
						kept = string(text)
					default:
						io.WriteString(w, kept)
					}
				}))
				t.Cleanup(other.Close)
				first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					mu.Lock()
					defer mu.Unlock()
					text, _ := io.ReadAll(r.Body)
					seen = append(seen, r.Method+" "+r.URL.Query().Get("op"))
					if name == "WebHDFS" && len(text) > 0 {
						t.Error("the name node got the content")
					}
					if !secrets(r) {
						http.Error(w, "who?", http.StatusUnauthorized)
						return
					}
					http.Redirect(w, r, other.URL+r.URL.RequestURI(), http.StatusTemporaryRedirect)
				}))
				t.Cleanup(first.Close)
				at := at
				at.URL = first.URL + path
				l := execapi.Location{HTTP: &at}
				if report := upload(t, l, "content"); report.Failed {
					t.Fatal(report.Message)
				}
				to := filepath.Join(t.TempDir(), "in")
				if err := Load(t.Context(), &execapi.ArtifactPlan{Load: []execapi.Load{{Name: "in", From: l, To: to}}}); err != nil {
					t.Fatal(err)
				}
				if content(t, to) != "content" {
					t.Error("the content differs")
				}
				if report := Delete(t.Context(), &execapi.ArtifactPlan{Delete: []execapi.Delete{{Name: "x", At: l}}}); report.Failed {
					t.Error(report.Message)
				}
				want := "PUT CREATE, other PUT CREATE, GET CREATE, other GET CREATE, DELETE CREATE, other DELETE CREATE"
				if name == "WebHDFS" {
					want = "PUT CREATE, other PUT CREATE, GET OPEN, other GET OPEN, DELETE DELETE, other DELETE DELETE"
				}
				if got := strings.Join(seen, ", "); got != want {
					t.Errorf("requests are %s, want %s", got, want)
				}
			})
		}
	}
}
