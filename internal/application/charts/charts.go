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
)

// The bounds of downloads.
const (
	downloadTimeout = 2 * time.Minute
	downloadsMax    = 4   // at the same time
	entriesMax      = 512 // charts that are known, under way or failed
	bytesMax        = 64 << 20
	// youth is how long it is known which chart is the newest that a range of versions allows.
	youth = 5 * time.Minute
	// After a download that failed the next is tried: after retryFirst, then twice that, and so on to retryMax.
	retryFirst = 5 * time.Second
	retryMax   = 5 * time.Minute
)

// ErrPending is for charts that are on their way.
var ErrPending = errors.New("the chart is being fetched")

// Source says which chart is asked for.
type Source struct {
	// Chart is a chart's name in Repository, an address that begins with oci://, or one of an archive.
	Chart string
	// Repository is the address of a repository, as https://charts.example.com.
	Repository string
	// Version is a version, a range of versions, or empty for the newest that is not a pre-release.
	Version string
	// User and Password are given to the server that the chart, or its index, comes from; to no other.
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

// check says what is wrong with a source.
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

// Failed is why a chart could not be had, and when it is tried again.
type Failed struct {
	Err   error
	Again time.Duration
}

func (f *Failed) Error() string { return f.Err.Error() }

func (f *Failed) Unwrap() error { return f.Err }

// Doer sends a request and returns the answer.
type Doer interface {
	Do(*http.Request) (*http.Response, error)
}

// Config says what a Store works with. HTTP is required.
type Config struct {
	// HTTP sends the requests. In a manager it is the guard of package egress: sources are chosen by users.
	HTTP Doer
	// Open reads what was downloaded. Required.
	Open func(archive []byte) (*chart.Chart, error)
	// Wake is called for those who wait for a chart, when it is there or cannot be had. It does not block.
	Wake func(who types.NamespacedName)
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Store keeps charts.
type Store struct {
	cfg   Config
	slots chan struct{}
	// parsing is held while what was fetched is parsed, which takes many times its size; not while it is fetched.
	parsing sync.Mutex

	mu      sync.Mutex
	entries map[Source]*entry
	bytes   int
}

// entry is what is known of one source.
type entry struct {
	chart   *chart.Chart
	err     error
	at      time.Time // of the last answer
	asked   time.Time
	pending bool
	tries   int
	waiting map[types.NamespacedName]bool
}

// New returns an empty store.
func New(cfg Config) *Store {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Store{cfg: cfg, slots: make(chan struct{}, downloadsMax), entries: map[Source]*entry{}}
}

// Get returns a chart; ErrPending, and wakes who asks when there is an answer; or *Failed. Downloads end with ctx.
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
		e = &entry{waiting: map[types.NamespacedName]bool{}}
		s.entries[from] = e
	}
	e.asked = now
	switch {
	case e.pending:
		e.waiting[who] = true
	case e.chart != nil && (exact(from.Version) || now.Sub(e.at) < youth):
		return e.chart, nil
	case e.err != nil && now.Sub(e.at) < retryDelay(e.tries):
		return nil, &Failed{e.err, retryDelay(e.tries) - now.Sub(e.at)}
	default:
		e.pending, e.waiting[who] = true, true
		go s.fetch(ctx, from, e)
	}
	if e.chart != nil {
		return e.chart, nil // as it was, until it is known that there is a newer one
	}
	if e.err != nil {
		return nil, &Failed{e.err, downloadTimeout} // told sooner
	}
	return nil, fmt.Errorf("%s: %w", &from, ErrPending)
}

func retryDelay(tries int) time.Duration { return min(retryFirst<<min(tries, 10), retryMax) }

// fetch answers those who wait for a chart.
func (s *Store) fetch(ctx context.Context, from Source, e *entry) {
	s.slots <- struct{}{}
	ctx, cancel := context.WithTimeout(ctx, downloadTimeout)
	c, err := s.download(ctx, from)
	cancel()
	<-s.slots
	s.mu.Lock()
	if err != nil {
		e.err, e.tries = fmt.Errorf("%s: %w", &from, err), e.tries+1
	} else {
		if e.chart != nil {
			s.bytes -= e.chart.Size()
		}
		e.chart, e.err, e.tries = s.same(c), nil, 0
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

// same is the chart as it is already kept under another source. The caller holds mu.
func (s *Store) same(c *chart.Chart) *chart.Chart {
	for _, e := range s.entries {
		if e.chart != nil && e.chart.Digest == c.Digest {
			return e.chart
		}
	}
	return c
}

// room drops what has not been asked for longest, and says whether there is room for one more. The caller holds mu.
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
