// Package localtest starts local clusters for tests.
//
//	func TestSomething(t *testing.T) {
//		c := localtest.Start(t)                        // etcd and kube-apiserver, ready in some 4 s
//		client := kubernetes.NewForConfigOrDie(c.RESTConfig())
//
// One cluster can serve all tests of a package, each in a namespace of its own:
//
//	func TestMain(m *testing.M) { localtest.Main(m) }
//	func TestSomething(t *testing.T) { c := localtest.Shared(t) ... }
//
// By default a cluster is etcd (without fsync) and kube-apiserver only: options add the rest. The
// cluster's processes end with the test process, however that ends. The cluster's directory is
// removed unless the test process is killed.
package localtest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"lockstep.dev/lockstep/internal/install"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/faultproxy"
)

// Option changes the configuration of a test's cluster.
type Option func(*localcluster.Config)

// WithControllerManager adds kube-controller-manager: garbage collection, namespace deletion,
// service accounts, and Kubernetes' own Deployments and Jobs.
func WithControllerManager() Option {
	return func(c *localcluster.Config) { c.WithoutControllerManager = false }
}

// WithScheduler adds the stock kube-scheduler.
func WithScheduler() Option {
	return func(c *localcluster.Config) { c.WithScheduler = true }
}

// WithNodes adds KWOK and simulated nodes; zero fields of nodes get their defaults.
func WithNodes(nodes localcluster.Nodes) Option {
	return func(c *localcluster.Config) { c.WithoutKwok, c.Nodes = false, nodes }
}

// WithManager adds the manager, which command starts; flags are appended to command.
func WithManager(command ...string) Option {
	return func(c *localcluster.Config) { c.ManagerCommand = command }
}

// WithInstall installs Lockstep's API (CRDs, all policies, RBAC) in the cluster.
func WithInstall() Option {
	return func(c *localcluster.Config) { c.Install = install.With(install.Options{CPUs: true}) }
}

// WithApplications does the same as WithInstall, and the cluster admits applications when it has
// started. The start takes about five seconds longer: until then the API server does not know the
// type that the policy about authors changes.
func WithApplications() Option {
	return func(c *localcluster.Config) {
		WithInstall()(c)
		c.Await = install.AwaitApplications
	}
}

// WithConfig changes the configuration by change.
func WithConfig(change func(*localcluster.Config)) Option { return change }

// Long skips a test that takes a minute or more, unless LOCKSTEP_LONG is set, as `make test-lab` does.
func Long(t testing.TB) {
	t.Helper()
	if os.Getenv("LOCKSTEP_LONG") == "" {
		t.Skip("it takes long: make test-lab")
	}
}

// Start starts a cluster for t and stops it when t ends. The test fails at once if lockstep-kube
// has not been built.
func Start(t testing.TB, options ...Option) *localcluster.Cluster {
	t.Helper()
	config, err := newConfig(options)
	if err != nil {
		t.Fatal(err)
	}
	c, err := start(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the cluster's logs were in %s", c.Dir())
		}
		if err := stop(c); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Proxy starts a proxy in front of a cluster's API server that injects faults.
func Proxy(c *localcluster.Cluster) (*faultproxy.Proxy, error) {
	return faultproxy.New(faultproxy.Config{Server: c.RESTConfig(),
		CertFile: filepath.Join(c.Dir(), "pki", "serving.crt"), KeyFile: filepath.Join(c.Dir(), "pki", "serving.key")})
}

func newConfig(options []Option) (localcluster.Config, error) {
	kube, err := localcluster.FindKube()
	if err != nil {
		return localcluster.Config{}, err
	}
	dir, err := os.MkdirTemp("", "lockstep-test-")
	if err != nil {
		return localcluster.Config{}, err
	}
	config := localcluster.Config{
		Name:                     filepath.Base(dir),
		Dir:                      dir,
		KubeBinary:               kube,
		NotDurable:               true,
		WithoutControllerManager: true,
		WithoutKwok:              true,
		StopGrace:                2 * time.Second,
		// A quarter of the CPU time of an API server that has just started goes into garbage collection.
		ServerGOGC: 200,
		// A claim that the controller sees before its volume is retried after this time; the
		// default is 15 s.
		ExtraArgs: map[localcluster.Component][]string{localcluster.ControllerManager: {"--pvclaimbinder-sync-period=1s"}},
	}
	for _, o := range options {
		o(&config)
	}
	return config, nil
}

func start(config localcluster.Config) (*localcluster.Cluster, error) {
	c, err := localcluster.Start(context.Background(), config)
	if err != nil {
		_ = os.RemoveAll(config.Dir)
		return nil, err
	}
	return c, nil
}

func stop(c *localcluster.Cluster) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := c.Stop(ctx); err != nil {
		return err
	}
	return os.RemoveAll(c.Dir())
}

// shared is the cluster of Shared. All tests of a package run in one process, so each package has
// its own.
var shared struct {
	once    sync.Once
	options []Option
	cluster *localcluster.Cluster
	err     error
}

// beside lists the clusters that Beside started.
var beside []*localcluster.Cluster

// Beside returns an additional cluster that lives as long as the package's tests: an etcd and a
// kube-apiserver. The package's TestMain must call Main. Beside is not safe for concurrent use.
func Beside(t testing.TB, options ...Option) *localcluster.Cluster {
	t.Helper()
	config, err := newConfig(options)
	if err != nil {
		t.Fatal(err)
	}
	c, err := start(config)
	if err != nil {
		t.Fatal(err)
	}
	beside = append(beside, c)
	return c
}

// parallel is the default of -parallel, the number of tests that run concurrently. Tests wait for
// control planes more than they compute, so it exceeds the number of processors.
const parallel = "4"

// Main runs a package's tests, which may use Shared, Beside and Postgres, and stops their clusters and
// the database after the tests. It does not return.
func Main(m *testing.M, options ...Option) {
	shared.options = options
	if err := flag.Set("test.parallel", parallel); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	for _, c := range append(beside, shared.cluster) {
		if c == nil {
			continue
		}
		if err := stop(c); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	if database.stop != nil {
		database.stop()
	}
	os.Exit(code)
}

// Shared returns the package's cluster, which the first caller starts. The package's TestMain must
// call Main.
func Shared(t testing.TB) *localcluster.Cluster {
	t.Helper()
	shared.once.Do(func() {
		var config localcluster.Config
		if config, shared.err = newConfig(shared.options); shared.err == nil {
			shared.cluster, shared.err = start(config)
		}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.cluster
}
