// Package managertest runs managers for tests: in the test's process, or in a process of their own
// that can be killed.
//
//	func TestMain(m *testing.M) { managertest.Main(m, localtest.WithControllerManager(), localtest.WithInstall()) }
//	func TestSomething(t *testing.T) { c := managertest.Shared(t) ... }
package managertest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"lockstep.dev/lockstep/internal/cli"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/manager"
	"lockstep.dev/lockstep/internal/sandbox"
)

// Main is localtest.Main for a test binary that is a manager when run as "TESTBINARY manager ...".
// It does not return.
func Main(m *testing.M, options ...localtest.Option) {
	sandbox.Main(manager.Evaluators())
	if len(os.Args) > 1 && os.Args[1] == "manager" {
		os.Exit(cli.Run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	localtest.Main(m, options...)
}

// Option changes the configuration of a manager.
type Option func(*manager.Config)

// Run runs a manager of a cluster in this process until stop is called. Every call of stop returns
// the result of the manager. The manager connects through a proxy, so that Refuse, Hold, Delay and
// Lose act on the same requests as in production.
func Run(c *localcluster.Cluster, options ...Option) (stop func() error, err error) {
	proxy, err := localtest.Proxy(c)
	if err != nil {
		return nil, err
	}
	proxy.Decide(Decide)
	cfg := manager.Config{REST: proxy.REST(c.ManagerRESTConfig()), Log: localtest.Log()}
	for _, o := range options {
		o(&cfg)
	}
	m, err := manager.New(cfg)
	if err != nil {
		proxy.Close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		err := m.Run(ctx)
		if err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, "the manager has ended:", err)
		}
		ended <- err
	}()
	return sync.OnceValue(func() error {
		defer proxy.Close()
		cancel()
		return <-ended
	}), nil
}

// Start runs a manager of a cluster until the test ends.
func Start(t testing.TB, c *localcluster.Cluster, options ...Option) {
	t.Helper()
	stop, err := Run(c, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// shared is the manager of Shared. Tests of one package run in one process, so each package has its
// own.
var shared struct {
	once sync.Once
	err  error
}

// Shared returns localtest's shared cluster with a manager that lives as long as the package's
// tests. Only the options of the first call count. The package's TestMain must call Main.
func Shared(t testing.TB, options ...Option) *localcluster.Cluster {
	t.Helper()
	c := localtest.Shared(t)
	shared.once.Do(func() { _, shared.err = Run(c, options...) })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return c
}
