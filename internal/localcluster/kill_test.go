package localcluster

import (
	"log/slog"
	"os/exec"
	"testing"
)

// TestWhatWasKilledCanBeStartedAgain checks that when Kill returns, the cluster knows that the
// component has ended, and the component can be started at once.
func TestWhatWasKilledCanBeStartedAgain(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{config: Config{Log: slog.New(slog.DiscardHandler)}, files: layout{t.TempDir()}, spawner: newSpawner()}
	defer c.spawner.close()
	for range 200 {
		proc, err := c.spawner.start(command{path: sleep, args: []string{"60"}, log: c.files.dir + "/log"})
		if err != nil {
			t.Fatal(err)
		}
		comp := &component{name: APIServer, wanted: true, proc: proc, stop: make(chan struct{}), watcher: make(chan struct{})}
		c.components = map[Component]*component{APIServer: comp}
		go c.watch(comp, comp.stop, comp.watcher)
		if err := c.Kill(APIServer); err != nil {
			t.Fatal(err)
		}
		comp.lock.Lock()
		wanted, exit := comp.wanted, comp.lastExit
		comp.lock.Unlock()
		if wanted || exit != "killed by SIGKILL" {
			t.Fatalf("after its death: wanted %t, %q", wanted, exit)
		}
		<-comp.watcher
	}
}
