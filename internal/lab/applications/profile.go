package applications

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"lockstep.dev/lockstep/internal/localcluster"
)

// profileSeconds is the length of one profile. A phase has as many profiles as fit its length, and
// `go tool pprof` adds them up; the last one extends into the time at rest.
const profileSeconds = 5

// profile collects consecutive CPU profiles of the manager in the directory of the results. wait
// waits for the last one, and adds a profile of all allocations.
func (t *trial) profile(ctx context.Context, what string) (wait func()) {
	if !t.cfg.Profile {
		return func() {}
	}
	const from = "/debug/pprof/"
	var getting sync.WaitGroup
	ended := make(chan struct{})
	getting.Go(func() {
		for i := 1; ; i++ {
			if err := t.fetch(ctx, fmt.Sprintf("%sprofile?seconds=%d", from, profileSeconds), fmt.Sprintf("%s-%02d.pprof", what, i)); err != nil {
				t.Say("no profile: %v", err)
				return
			}
			select {
			case <-ended:
				return
			default:
			}
		}
	})
	return func() {
		close(ended)
		getting.Wait()
		if err := t.fetch(ctx, from+"allocs?gc=1", what+"-allocs.pprof"); err != nil {
			t.Say("no profile of what was allocated: %v", err)
		}
	}
}

// live runs the manager's garbage collector, saves a profile of the live heap, and records its
// size.
func (t *trial) live(ctx context.Context, p *Phase) error {
	if err := t.fetch(ctx, "/debug/pprof/heap?gc=1", strings.ReplaceAll(p.Name, " ", "-")+"-heap.pprof"); err != nil {
		return err
	}
	bytes, err := t.metric(ctx, "go_memstats_heap_alloc_bytes")
	p.LiveMiB = round(bytes / (1 << 20))
	return err
}

// fetch saves the manager's response to a request for path under name in the results.
func (t *trial) fetch(ctx context.Context, path, name string) error {
	data, err := t.ask(ctx, path)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(t.cfg.OutDir, name), data, 0o644)
}

// ask returns the response of the manager's metrics server to a GET request for path.
func (t *trial) ask(ctx context.Context, path string) ([]byte, error) {
	port := 0
	for _, s := range t.Status() {
		if s.Name == localcluster.Manager {
			port = s.Port
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", port, path), nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", path, res.Status)
	}
	return data, err
}
