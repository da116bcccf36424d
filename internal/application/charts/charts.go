package charts

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/application/chart"
	"lockstep.dev/lockstep/internal/controlloop"
)

// Bounds on downloads.
const (
	downloadTimeout = 2 * time.Minute
	downloadsMax    = 4   // at the same time
	entriesMax      = 512 // charts cached, under way or failed
	bytesMax        = 64 << 20
	// youth is how long the newest version found for a range of versions is used before the store
	// looks again.
	youth = 5 * time.Minute
	// retryFirst is the first delay after a failed download.
	retryFirst = 5 * time.Second
)

// ErrPending means that the chart is being fetched.
var ErrPending = errors.New("the chart is being fetched")

// Source identifies a chart.
type Source struct {
	// Chart is the chart's name in Repository, a URL that begins with oci://, or the URL of an
	// archive.
	Chart string
	// Repository is the URL of a repository, such as https://charts.example.com.
	Repository string
	// Version is a version, a range of versions, or empty for the newest version that is not a
	// pre-release.
	Version string
	// User and Password are sent only to the server of the chart or its index.
	User, Password string
}

func (s *Source) String() string {
	name := s.Chart
	if s.Repository != "" {
		name = strings.TrimSuffix(s.Repository, "/") + "/" + name
	}
	if s.Version != "" {
		name += " " + s.Version
	}
	return name
}

// check returns an error if a source is invalid.
func (s *Source) check() error {
	if s.Chart == "" {
		return errors.New("chart.source must be given")
	}
	for name, address := range map[string]string{"chart.repoURL": s.Repository, "chart.source": s.Chart} {
		if name == "chart.source" && s.Repository != "" && !strings.Contains(address, "://") || address == "" {
			continue
		}
		u, err := url.Parse(address)
		if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" && u.Scheme != "oci" {
			return fmt.Errorf("%s: %q is not an address that begins with https://, http:// or oci://", name, address)
		}
		if u.User != nil {
			return fmt.Errorf("%s: a password is not part of an address: use chart.auth.secretRef", name)
		}
	}
	return nil
}

// Failed says why a chart could not be fetched, and how long to wait before the next attempt.
type Failed struct {
	Err   error
	Again time.Duration
}

func (f *Failed) Error() string { return f.Err.Error() }

func (f *Failed) Unwrap() error { return f.Err }

// Doer sends a request and returns the response.
type Doer interface {
	Do(*http.Request) (*http.Response, error)
}

// Config configures a Store. HTTP, Open and Wake are required.
type Config struct {
	// HTTP sends the requests. In a manager it is the guard of package egress, because users choose
	// the sources.
	HTTP Doer
	// Open reads a downloaded archive.
	Open func(archive []byte) (*chart.Chart, error)
	// Wake is called for each caller of Get that waits for a chart, when the chart is available or
	// has failed. Wake must not block.
	Wake func(who types.NamespacedName)
	// Now returns the current time. Default time.Now.
	Now func() time.Time
}

// Store caches charts.
type Store struct {
	cfg     Config
	fetcher *Fetcher
	slots   chan struct{}

	mu      sync.Mutex
	entries map[Source]*entry
	bytes   int
}

// entry is the cached state of one source.
type entry struct {
	chart   *chart.Chart
	err     error
	at      time.Time // time of the last answer
	asked   time.Time
	pending bool
	backoff controlloop.Backoff
	waiting map[types.NamespacedName]bool
}

// New returns an empty store.
func New(cfg Config) *Store {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Store{cfg: cfg, fetcher: &Fetcher{HTTP: cfg.HTTP}, slots: make(chan struct{}, downloadsMax), entries: map[Source]*entry{}}
}

// Get returns a chart, or ErrPending, or *Failed. After ErrPending, who is woken when there is an
// answer. Downloads end with ctx.
func (s *Store) Get(ctx context.Context, from Source, who types.NamespacedName) (*chart.Chart, error) {
	if err := from.check(); err != nil {
		return nil, err
	}
	now := s.cfg.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[from]
	if e == nil {
		if !s.room() {
			return nil, &Failed{errors.New("too many charts are being fetched; it is tried again"), retryFirst}
		}
		e = &entry{waiting: map[types.NamespacedName]bool{}, backoff: controlloop.Backoff{Min: retryFirst}}
		s.entries[from] = e
	}
	e.asked = now
	switch {
	case e.pending:
		e.waiting[who] = true
	case e.chart != nil && (exact(from.Version) || now.Sub(e.at) < youth):
		return e.chart, nil
	case e.err != nil && e.backoff.Left(now) > 0:
		return nil, &Failed{e.err, e.backoff.Left(now)}
	default:
		e.pending, e.waiting[who] = true, true
		go s.fetch(ctx, from, e)
	}
	if e.chart != nil {
		return e.chart, nil // return the known chart until a newer one is known
	}
	if e.err != nil {
		return nil, &Failed{e.err, downloadTimeout} // the caller is woken earlier
	}
	return nil, fmt.Errorf("%s: %w", &from, ErrPending)
}

// fetch downloads a chart and wakes the callers that wait for it.
func (s *Store) fetch(ctx context.Context, from Source, e *entry) {
	s.slots <- struct{}{}
	ctx, cancel := context.WithTimeout(ctx, downloadTimeout)
	c, err := s.download(ctx, from)
	cancel()
	<-s.slots
	s.mu.Lock()
	if err != nil {
		e.err = fmt.Errorf("%s: %w", &from, err)
		e.backoff.Failed(s.cfg.Now())
	} else {
		if e.chart != nil {
			s.bytes -= e.chart.Size()
		}
		e.chart, e.err = s.same(c), nil
		e.backoff.Succeeded()
		s.bytes += e.chart.Size()
	}
	e.at, e.pending = s.cfg.Now(), false
	waiting := e.waiting
	e.waiting = map[types.NamespacedName]bool{}
	s.room()
	s.mu.Unlock()
	for who := range waiting {
		s.cfg.Wake(who)
	}
}

// same returns the cached chart with the same digest, or c. The caller holds mu.
func (s *Store) same(c *chart.Chart) *chart.Chart {
	for _, e := range s.entries {
		if e.chart != nil && e.chart.Digest == c.Digest {
			return e.chart
		}
	}
	return c
}

// room drops the entries that were requested least recently until the bounds are met, and reports
// whether there is room for one more. The caller holds mu.
func (s *Store) room() bool {
	for len(s.entries) >= entriesMax || s.bytes > bytesMax {
		var oldest Source
		var found *entry
		for from, e := range s.entries {
			if !e.pending && (found == nil || e.asked.Before(found.asked)) {
				oldest, found = from, e
			}
		}
		if found == nil {
			return false
		}
		if found.chart != nil {
			s.bytes -= found.chart.Size()
		}
		delete(s.entries, oldest)
	}
	return true
}
