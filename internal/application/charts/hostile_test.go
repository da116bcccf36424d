package charts_test

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/application/chart"
	"lockstep.dev/lockstep/internal/application/charts"
	"lockstep.dev/lockstep/internal/egress"
)

// guarded returns a store whose requests may go to 127.0.0.1 but to no other address of this
// machine.
func guarded(t *testing.T) *fetcher {
	t.Helper()
	g, err := egress.New(egress.Config{Allow: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	f := newFetcher(t)
	f.store = charts.New(charts.Config{HTTP: g, Open: func(archive []byte) (*chart.Chart, error) { return chart.Open(chart.InProcess(), archive) }, Wake: func(who types.NamespacedName) { f.woken <- who }})
	return f
}

// forbidden starts a server at another address of this machine, which must not get requests.
func forbidden(t *testing.T) (address string, asked *atomic.Int64) {
	t.Helper()
	asked = new(atomic.Int64)
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Skip("there is no second loopback address:", err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		fmt.Fprint(w, "s3cr3t-bytes")
	})}}
	s.Start()
	t.Cleanup(s.Close)
	return l.Addr().String(), asked
}

// answering starts a server that gives the same answer to all requests.
func answering(t *testing.T, status int, header map[string]string, body string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for k, v := range header {
			w.Header().Set(k, v)
		}
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// TestServersOfChartsLeadToNoOtherPlace checks that a server that users choose cannot lead the
// manager to a place to which users may not send it themselves.
func TestServersOfChartsLeadToNoOtherPlace(t *testing.T) {
	f := guarded(t)
	other, asked := forbidden(t)
	index := func(url string) string {
		return answering(t, 200, nil, "apiVersion: v1\nentries:\n  web:\n  - version: 1.0.0\n    urls: [\""+url+"\"]\n")
	}
	oci := func(url string) string { return strings.Replace(url, "http://", "oci://", 1) + "/team/web:1.0.0" }
	for name, c := range map[string]struct {
		from charts.Source
		want string
	}{
		"a repository":              {charts.Source{Chart: "web", Repository: "http://" + other}, egress.Flag},
		"an archive":                {charts.Source{Chart: "http://" + other + "/web.tgz"}, egress.Flag},
		"a registry":                {charts.Source{Chart: "oci://" + other + "/web:1.0.0"}, egress.Flag},
		"an address in an index":    {charts.Source{Chart: "web", Repository: index("http://" + other + "/web.tgz")}, egress.Flag},
		"a file in an index":        {charts.Source{Chart: "web", Repository: index("file:///etc/passwd")}, "does not"},
		"a redirect":                {charts.Source{Chart: answering(t, 302, map[string]string{"Location": "http://" + other}, "") + "/x.tgz"}, egress.Flag},
		"a redirect to a file":      {charts.Source{Chart: answering(t, 302, map[string]string{"Location": "file:///etc/passwd"}, "") + "/x.tgz"}, "http:// or https://"},
		"a redirect to metadata":    {charts.Source{Chart: answering(t, 302, map[string]string{"Location": "http://169.254.169.254/latest"}, "") + "/x.tgz"}, "metadata"},
		"a registry's token server": {charts.Source{Chart: oci(answering(t, 401, map[string]string{"Www-Authenticate": `Bearer realm="http://` + other + `/token"`}, ""))}, egress.Flag},
	} {
		_, err := f.get(c.from)
		if err == nil || strings.Contains(err.Error(), "s3cr3t") || c.want != "does not" && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
	if _, err := f.get(charts.Source{Chart: "web", Repository: f.url + "/charts"}); err != nil {
		t.Error(err) // allowed addresses still work
	}
}

func TestErrorsOfChartsHoldNothingOfWhatWasRead(t *testing.T) {
	const secret = "s3cr3t-bytes"
	f := guarded(t)
	for _, body := range []string{secret, "entries: " + secret, "entries: {web: " + secret + "}", "entries: {web: [{urls: [" + secret + ":x]}]}", "{\"" + secret,
		"entries:\n  web:\n  - version: 1.0.0\n    urls: ['http://[" + secret + "']", "entries:\n  web:\n  - version: " + secret, `{"entries": {"web": 5, "` + secret + `": {`,
		`{"layers": "` + secret + `"}`, `{"layers": [{"mediaType": "application/vnd.cncf.helm.chart.content.v1.tar+gzip", "digest": "` + secret + `"}]}`} {
		for _, status := range []int{200, 403, 500} {
			url := answering(t, status, map[string]string{"Www-Authenticate": secret}, body)
			oci := strings.Replace(url, "http://", "oci://", 1)
			for _, from := range []charts.Source{{Chart: "web", Repository: url}, {Chart: url + "/x.tgz"}, {Chart: oci + "/a/b:1.0.0"}, {Chart: oci + "/a/b"}} {
				if _, err := f.get(from); err == nil || strings.Contains(err.Error(), secret) {
					t.Errorf("%s as %s: %v", body, from.String(), err)
				}
			}
		}
	}
	url := strings.Replace(answering(t, 401, map[string]string{"Www-Authenticate": secret}, secret), "http://", "oci://", 1)
	if _, err := f.get(charts.Source{Chart: url + "/a/b:1.0.0"}); err == nil || strings.Contains(err.Error(), secret) {
		t.Error(err)
	}
}

// largeIndex returns an index of many charts, one of which is web.
func largeIndex(size int, url string) string {
	var b bytes.Buffer
	b.WriteString("apiVersion: v1\nentries:\n")
	entry := func(name, version string) {
		fmt.Fprintf(&b, "  - annotations:\n      note: |\n        lines\n        of text:\n\n        %s\n    name: %s\n    urls:\n    - %s\n    version: %s\n", strings.Repeat("x", 100), name, url, version)
	}
	for i := 0; b.Len() < size/2; i++ {
		fmt.Fprintf(&b, "  other%d:\n", i)
		entry("other", "9.9.9")
	}
	b.WriteString("  \"web\":\n")
	for _, v := range []string{"1.0.0", "1.10.0", "1.2.0"} {
		entry("web", v)
	}
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, "  some%d:\n", i)
		entry("some", "9.9.9")
	}
	b.WriteString("generated: \"2030-01-01T00:00:00Z\"\n")
	return b.String()
}

func TestLargeIndexesAreReadAndCostLittle(t *testing.T) {
	f := guarded(t)
	for name, c := range map[string]struct {
		index string
		want  string // a version or an error
	}{
		"a large index":               {largeIndex(20<<20, f.url+"/charts/web-1.10.0.tgz"), "1.10.0"},
		"a small index":               {largeIndex(10<<10, f.url+"/charts/web-1.10.0.tgz"), "1.10.0"},
		"one without the chart":       {strings.Replace(largeIndex(2<<20, ""), `"web"`, "else", 1), "has no chart web"},
		"one long line":               {"entries: [" + strings.Repeat("a,", 10<<20), "a line of more than"},
		"many values":                 {"entries:\n  web:\n" + strings.Repeat("  - a\n", 5<<20), "index.yaml"},
		"one version that is much":    {"entries:\n  web:\n  - a: [\n" + strings.Repeat("      a,\n", 1<<20), "about one version"},
		"JSON of many values":         {`{"entries": {"web": [` + strings.Repeat("{},", 4<<20) + `{}]}}`, "index.yaml"},
		"JSON that is long":           {`{"entries": {"web": [` + strings.Repeat("{},", 8<<20) + `{}]}}`, "index.yaml"},
		"aliases":                     {"a: &a " + strings.Repeat("x", 200<<10) + "\nentries: {web: [" + strings.Repeat("*a,", 50<<10) + "]}\n", "aliases"},
		"aliases, in one version":     {"entries:\n  web:\n  - a: &a " + strings.Repeat("x", 60<<10) + "\n    b: [" + strings.Repeat("*a,", 15<<10) + "]\n" + strings.Repeat("# x\n", 200<<10), "about one version"},
		"a list that never ends":      {"entries:\n  web:\n" + strings.Repeat("  - version: 1.0.0\n", 1<<20), "versions of the chart"},
		"values that are other types": {"entries:\n  web: 5\n", "index.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			url := answering(t, 200, nil, c.index)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got, err := f.get(charts.Source{Chart: "web", Repository: url, Version: "1.x"})
			runtime.ReadMemStats(&after)
			switch {
			case err != nil && !strings.Contains(err.Error(), c.want), err == nil && got.Version != c.want:
				t.Errorf("%v, %v; want %s", got, err, c.want)
			}
			if made := (after.TotalAlloc - before.TotalAlloc) >> 20; made > 256 {
				t.Errorf("%d MiB were allocated", made)
			}
		})
	}
}
