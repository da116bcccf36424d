// Package charttest packs charts for tests and serves them over HTTP.
package charttest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// Pack packs the files of a chart. Paths are relative to the chart's folder: Chart.yaml,
// templates/x.yaml.
func Pack(name, version string, files map[string]string) []byte {
	all := map[string]string{"Chart.yaml": fmt.Sprintf("apiVersion: v2\nname: %s\nversion: %s\n", name, version)}
	maps.Copy(all, files)
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	t := tar.NewWriter(z)
	for _, f := range slices.Sorted(maps.Keys(all)) {
		must(t.WriteHeader(&tar.Header{Name: name + "/" + f, Mode: 0o644, Size: int64(len(all[f]))}))
		_, err := t.Write([]byte(all[f]))
		must(err)
	}
	must(t.Close())
	must(z.Close())
	return b.Bytes()
}

func must(err error) {
	if err != nil {
		panic(err) // cannot happen: writes go to memory
	}
}

// Server serves charts as a repository under /charts/ and as an OCI registry. Under /closed/, and
// for registry names that begin with closed/, it asks for a password.
type Server struct {
	// User and Password are required under /closed/.
	User, Password string

	mu     sync.Mutex
	charts []published
	asked  map[string]int
}

type published struct {
	name, version string
	archive       []byte
}

// Publish adds a chart.
func (s *Server) Publish(name, version string, archive []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.charts = append(s.charts, published{name, version, archive})
}

// Asked returns the number of requests for a path.
func (s *Server) Asked(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[path]
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked == nil {
		s.asked = map[string]int{}
	}
	s.asked[r.URL.Path]++
	user, password, _ := r.BasicAuth()
	known := user == s.User && password == s.Password
	switch {
	case r.URL.Path == "/token":
		if strings.Contains(r.URL.Query().Get("scope"), ":closed/") && !known {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"token": "granted"})
	case strings.HasPrefix(r.URL.Path, "/closed/") && !known:
		w.WriteHeader(http.StatusUnauthorized)
	case strings.HasPrefix(r.URL.Path, "/charts/"), strings.HasPrefix(r.URL.Path, "/closed/"):
		s.repository(w, r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:])
	case strings.HasPrefix(r.URL.Path, "/v2/"):
		if r.Header.Get("Authorization") != "Bearer granted" {
			w.Header().Set("Www-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="test"`, r.Host))
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		s.registry(w, strings.Split(strings.TrimPrefix(r.URL.Path, "/v2/"), "/"))
	default:
		http.NotFound(w, r)
	}
}

func (s *Server) repository(w http.ResponseWriter, file string) {
	if file == "index.yaml" {
		entries := map[string][]map[string]any{}
		for _, c := range s.charts {
			entries[c.name] = append(entries[c.name], map[string]any{
				"version": c.version, "digest": digest(c.archive), "urls": []string{c.name + "-" + c.version + ".tgz"},
			})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": "v1", "entries": entries})
		return
	}
	for _, c := range s.charts {
		if file == c.name+"-"+c.version+".tgz" {
			_, _ = w.Write(c.archive)
			return
		}
	}
	w.WriteHeader(http.StatusNotFound)
}

// registry answers a request for path, such as NAME... manifests TAG.
func (s *Server) registry(w http.ResponseWriter, path []string) {
	if len(path) < 3 {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	name, what, which := path[len(path)-3], path[len(path)-2], path[len(path)-1]
	var tags []string
	for _, c := range s.charts {
		switch {
		case c.name != name:
		case what == "manifests" && c.version == which:
			_ = json.NewEncoder(w).Encode(map[string]any{"layers": []any{map[string]any{
				"mediaType": "application/vnd.cncf.helm.chart.content.v1.tar+gzip", "digest": "sha256:" + digest(c.archive), "size": len(c.archive),
			}}})
			return
		case what == "blobs" && which == "sha256:"+digest(c.archive):
			_, _ = w.Write(c.archive)
			return
		case what == "tags":
			tags = append(tags, c.version)
		}
	}
	if tags != nil {
		_ = json.NewEncoder(w).Encode(map[string]any{"tags": tags})
		return
	}
	w.WriteHeader(http.StatusNotFound)
}
