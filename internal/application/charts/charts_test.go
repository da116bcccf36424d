package charts_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/application/chart"
	"lockstep.dev/lockstep/internal/application/chart/charttest"
	"lockstep.dev/lockstep/internal/application/charts"
)

// fetcher is a Store with its own clock.
type fetcher struct {
	*testing.T
	store  *charts.Store
	woken  chan types.NamespacedName
	server *charttest.Server
	url    string
	now    time.Time
}

func newFetcher(t *testing.T) *fetcher {
	f := &fetcher{T: t, woken: make(chan types.NamespacedName, 10), server: &charttest.Server{User: "me", Password: "secret"}, now: time.Unix(0, 0)}
	http := httptest.NewServer(f.server)
	t.Cleanup(http.Close)
	f.url = http.URL
	f.store = charts.New(charts.Config{HTTP: http.Client(), Open: func(archive []byte) (*chart.Chart, error) { return chart.Open(chart.InProcess(), archive) }, Wake: func(who types.NamespacedName) { f.woken <- who }, Now: func() time.Time { return f.now }})
	for _, v := range []string{"1.0.0", "1.2.0", "1.10.0", "2.0.0-rc.1"} {
		f.server.Publish("web", v, charttest.Pack("web", v, nil))
	}
	return f
}

// get calls Get until there is a chart or an error other than ErrPending.
func (f *fetcher) get(s charts.Source) (*chart.Chart, error) {
	f.Helper()
	who := types.NamespacedName{Namespace: "ns", Name: "app"}
	c, err := f.store.Get(f.Context(), s, who)
	if !errors.Is(err, charts.ErrPending) {
		return c, err
	}
	if got := <-f.woken; got != who {
		f.Fatalf("%v is woken", got)
	}
	return f.store.Get(f.Context(), s, who)
}

func TestChartsAreFetched(t *testing.T) {
	f := newFetcher(t)
	oci := strings.Replace(f.url, "http://", "oci://", 1)
	for name, c := range map[string]struct {
		from charts.Source
		want string // a version, or part of an error
	}{
		"the newest, which is no pre-release": {charts.Source{Chart: "web", Repository: f.url + "/charts"}, "1.10.0"},
		"a version":                           {charts.Source{Chart: "web", Repository: f.url + "/charts/", Version: "1.2.0"}, "1.2.0"},
		"a version with a v":                  {charts.Source{Chart: "web", Repository: f.url + "/charts/", Version: "v1.2.0"}, "1.2.0"},
		"a pre-release, by its name":          {charts.Source{Chart: "web", Repository: f.url + "/charts", Version: "2.0.0-rc.1"}, "2.0.0-rc.1"},
		"a range":                             {charts.Source{Chart: "web", Repository: f.url + "/charts", Version: "~1.2"}, "1.2.0"},
		"an archive":                          {charts.Source{Chart: f.url + "/charts/web-1.0.0.tgz"}, "1.0.0"},
		"an archive of another version":       {charts.Source{Chart: f.url + "/charts/web-1.0.0.tgz", Version: "3.0.0"}, "there is no version 3.0.0"},
		"a registry":                          {charts.Source{Chart: oci + "/team/web", Version: "1.2.0"}, "1.2.0"},
		"the newest of a registry":            {charts.Source{Chart: "web", Repository: oci + "/team"}, "1.10.0"},
		"a tag":                               {charts.Source{Chart: oci + "/team/web:1.0.0"}, "1.0.0"},
		"a password":                          {charts.Source{Chart: "web", Repository: f.url + "/closed", User: "me", Password: "secret"}, "1.10.0"},
		"a wrong password":                    {charts.Source{Chart: "web", Repository: f.url + "/closed", User: "me"}, "401"},
		"a registry with a password":          {charts.Source{Chart: oci + "/closed/web:1.0.0", User: "me", Password: "secret"}, "1.0.0"},
		"a registry without":                  {charts.Source{Chart: oci + "/closed/web:1.0.0"}, "401"},
		"a version that there is not":         {charts.Source{Chart: "web", Repository: f.url + "/charts", Version: "9.9.9"}, "there is no version 9.9.9"},
		"a chart that there is not":           {charts.Source{Chart: "none", Repository: f.url + "/charts"}, "has no chart none"},
		"a repository that there is not":      {charts.Source{Chart: "web", Repository: f.url + "/nowhere"}, "404"},
		"a file":                              {charts.Source{Chart: "file:///etc/chart.tgz"}, "is not an address"},
		"a name without a repository":         {charts.Source{Chart: "web"}, "is not an address"},
		"a password in the address":           {charts.Source{Chart: "https://me:secret@127.0.0.1/x.tgz"}, "use chart.auth.secretRef"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := f.get(c.from)
			if err != nil {
				if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret@") {
					t.Errorf("%v, not %q", err, c.want)
				}
			} else if got.Version != c.want {
				t.Errorf("version %s, not %s", got.Version, c.want)
			}
		})
	}
}

func TestChartsAreFetchedOnce(t *testing.T) {
	f := newFetcher(t)
	exact, newest := charts.Source{Chart: "web", Repository: f.url + "/charts", Version: "1.0.0"}, charts.Source{Chart: "web", Repository: f.url + "/charts", Version: "1.x"}
	ask := func(s charts.Source, want string) {
		t.Helper()
		if c, err := f.get(s); err != nil || c.Version != want {
			t.Fatal(c, err)
		}
	}
	ask(exact, "1.0.0")
	ask(newest, "1.10.0")
	before := f.server.Asked("/charts/index.yaml")
	ask(exact, "1.0.0")
	ask(newest, "1.10.0")
	if n := f.server.Asked("/charts/index.yaml"); n != before {
		t.Errorf("the index was asked for %d times more", n-before)
	}
	// After youth, a newer version is looked for. Until it is known, the old one is returned.
	f.server.Publish("web", "1.11.0", charttest.Pack("web", "1.11.0", nil))
	f.now = f.now.Add(time.Hour)
	ask(exact, "1.0.0")
	ask(newest, "1.10.0")
	<-f.woken
	ask(newest, "1.11.0")
}

func TestAFailureIsTriedAgainLater(t *testing.T) {
	f := newFetcher(t)
	s := charts.Source{Chart: "late", Repository: f.url + "/charts", Version: "1.0.0"}
	var failed *charts.Failed
	if _, err := f.get(s); !errors.As(err, &failed) || failed.Again <= 0 {
		t.Fatal(err)
	}
	n := f.server.Asked("/charts/index.yaml")
	if _, err := f.get(s); !errors.As(err, &failed) {
		t.Fatal(err)
	}
	if f.server.Asked("/charts/index.yaml") != n {
		t.Error("it is tried again at once")
	}
	f.server.Publish("late", "1.0.0", charttest.Pack("late", "1.0.0", nil))
	f.now = f.now.Add(failed.Again)
	_, _ = f.get(s)
	<-f.woken
	if c, err := f.get(s); err != nil || c.Name != "late" {
		t.Fatal(c, err)
	}
}

func TestDownloadsAreBounded(t *testing.T) {
	endless := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				return
			}
		}
	}))
	defer endless.Close()
	f := newFetcher(t)
	if _, err := f.get(charts.Source{Chart: endless.URL + "/x.tgz"}); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Error(err)
	}
}
