package applications

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	"lockstep.dev/lockstep/internal/localcluster"
)

// profileSeconds is how long a profile is; a shorter phase ends it by closing the connection, and is given none.
const profileSeconds = 10

// profile collects a CPU profile of the manager into the results' folder. The function it returns waits for it, and adds a
// profile of the memory.
func (t *trial) profile(ctx context.Context, what string) (wait func()) {
	if !t.cfg.Profile {
		return func() {}
	}
	port := 0
	for _, s := range t.cluster.Status() {
		if s.Name == localcluster.Manager {
			port = s.Port
		}
	}
	var getting sync.WaitGroup
	getting.Go(func() {
		if err := t.fetch(ctx, fmt.Sprintf("http://127.0.0.1:%d/debug/pprof/profile?seconds=%d", port, profileSeconds), what+".pprof"); err != nil {
			t.say("no profile: %v", err)
		}
	})
	return func() {
		getting.Wait()
		if err := t.fetch(ctx, fmt.Sprintf("http://127.0.0.1:%d/debug/pprof/heap?gc=1", port), what+"-heap.pprof"); err != nil {
			t.say("no profile of memory: %v", err)
		}
	}
}

func (t *trial) fetch(ctx context.Context, url, name string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	f, err := os.Create(filepath.Join(t.cfg.OutDir, name))
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(f, res.Body)
	return err
}
