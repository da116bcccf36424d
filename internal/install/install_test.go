package install_test

import (
	"net/http"
	"testing"

	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/install"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

func TestMain(m *testing.M) { localtest.Main(m) }

// writes counts the requests that change something.
type writes struct {
	next  http.RoundTripper
	count int
}

func (w *writes) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet {
		w.count++
	}
	return w.next.RoundTrip(r)
}

func TestApplyWritesOnlyWhatDiffers(t *testing.T) {
	cfg := localtest.Shared(t).RESTConfig()
	counter := &writes{}
	counted := rest.CopyConfig(cfg)
	counted.Wrap(func(next http.RoundTripper) http.RoundTripper {
		counter.next = next
		return counter
	})
	if err := install.Apply(t.Context(), counted); err != nil {
		t.Fatal(err)
	}
	if counter.count == 0 {
		t.Fatal("the first Apply wrote nothing")
	}
	counter.count = 0
	if err := install.Apply(t.Context(), counted); err != nil {
		t.Fatal(err)
	}
	if counter.count != 0 {
		t.Errorf("a second Apply wrote %d times, want 0", counter.count)
	}
}
