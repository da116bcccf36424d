package localcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/localcluster/backoff"
	"lockstep.dev/lockstep/internal/localcluster/realnodes"
)

// Cluster is a running local control plane.
type Cluster struct {
	config     Config
	files      layout
	identities map[string]identity
	caPEM      []byte
	ports      map[Component]*portLease
	peerPort   *portLease
	spawner    *spawner
	probe      *prober
	real       *realnodes.Spec // nil without real nodes
	components map[Component]*component
	stopOnce   sync.Once
	// started is set when Start has succeeded. Before that, a component that dies is not restarted,
	// because it would die again.
	started atomic.Bool

	eventLock sync.Mutex
}

// component is one process and its history. A component is in one of three states:
//
//	stopped ── start ──▶ running ── dies, Restart ──▶ (backoff) ──▶ running
//	   ▲                    │  │
//	   └────── stop ────────┘  └── dies, no Restart ──▶ stopped
type component struct {
	name Component

	lock      sync.Mutex
	wanted    bool
	proc      *process  // nil before the first start
	past      Usage     // usage of the runs before proc
	startedAt time.Time // start of proc
	restarts  int
	lastExit  string
	// stop, when closed, keeps watch from restarting the process; watcher is closed when watch has
	// returned.
	stop, watcher chan struct{}
}

// Start creates the cluster's files and starts its components. It returns when all components are
// healthy and the nodes exist. If it fails, nothing is left running.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	if err := config.defaultAndValidate(); err != nil {
		return nil, err
	}
	c := &Cluster{config: config, files: layout{config.Dir}, ports: map[Component]*portLease{},
		components: map[Component]*component{}}
	if err := c.prepare(); err != nil {
		c.releasePorts()
		return nil, fmt.Errorf("local cluster %s: %w", config.Name, err)
	}
	c.spawner = newSpawner()
	ctx, cancel := context.WithTimeoutCause(ctx, config.StartTimeout,
		fmt.Errorf("not ready within %s: %w", config.StartTimeout, context.DeadlineExceeded))
	defer cancel()
	if err := c.bringUp(ctx); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = errors.Join(cause, err)
		}
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*config.StopGrace)
		defer cancel()
		return nil, errors.Join(fmt.Errorf("local cluster %s: %w", config.Name, err), c.Stop(stop))
	}
	c.started.Store(true)
	c.event(Event{Kind: EventReady})
	return c, nil
}

// prepare creates everything that needs no process: directories, credentials, ports.
func (c *Cluster) prepare() (err error) {
	for _, dir := range c.files.directories() {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	ca, err := writePKI(c.files.pki(""))
	if err != nil {
		return fmt.Errorf("credentials: %w", err)
	}
	if c.caPEM, err = os.ReadFile(c.files.pki("ca.crt")); err != nil {
		return err
	}
	if c.identities, err = newIdentities(); err != nil {
		return err
	}
	if err := writeTokens(c.files.tokens(), c.identities); err != nil {
		return err
	}
	if err := writeAuditPolicy(c.files); err != nil {
		return err
	}
	for _, name := range c.config.components() {
		if c.ports[name], err = leasePort(); err != nil {
			return err
		}
		c.components[name] = &component{name: name}
	}
	if err = c.leasePrograms(); err != nil {
		return err
	}
	if c.peerPort, err = leasePort(); err != nil {
		return err
	}
	if c.probe, err = newProber(c.files, c.identities["admin"].token); err != nil {
		return err
	}
	if err := c.writeKubeconfigs(); err != nil {
		return err
	}
	if c.config.RealNodes == 0 {
		return nil
	}
	return c.prepareRealNodes(ca)
}

// bringUp starts the components in the order of their dependencies.
func (c *Cluster) bringUp(ctx context.Context) error {
	//   1. The API server waits for etcd by itself, so both start at the same time.
	for _, name := range []Component{Etcd, APIServer} {
		if err := c.start(name); err != nil {
			return err
		}
	}
	for _, name := range []Component{Etcd, APIServer} {
		if err := c.waitHealthy(ctx, name); err != nil {
			return err
		}
	}
	client, err := kubernetes.NewForConfig(c.RESTConfig())
	if err != nil {
		return err
	}
	//   2. Grant the rights that the other components need.
	if err := c.applyPolicies(ctx, client); err != nil {
		return err
	}
	//   3. Everything else concurrently: the nodes, Lockstep's API and then its manager and the
	//      programs, and the other components.
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return CreateNodes(ctx, client, c.config.Nodes) })
	group.Go(func() error {
		if c.config.Install != nil {
			if err := c.config.Install(ctx, c.RESTConfig()); err != nil {
				return fmt.Errorf("install: %w", err)
			}
		}
		if c.config.Await != nil {
			group.Go(func() error { return c.config.Await(ctx, c.RESTConfig()) })
		}
		if err := CreateNodeTopologies(ctx, c.RESTConfig(), c.config.Nodes); err != nil {
			return err
		}
		for _, name := range c.Components() {
			if name != Manager && c.config.program(name) == nil {
				continue
			}
			if err := c.StartComponent(ctx, name); err != nil {
				return err
			}
		}
		return nil
	})
	for _, name := range c.Components()[2:] {
		if name != Manager && c.config.program(name) == nil {
			group.Go(func() error { return c.StartComponent(ctx, name) })
		}
	}
	if c.config.RealNodes > 0 {
		group.Go(func() error { return c.joinRealNodes(ctx, client) })
	}
	return group.Wait()
}

// start starts a component that is not running.
func (c *Cluster) start(name Component) error {
	comp := c.components[name]
	if comp == nil {
		return fmt.Errorf("%s is not part of this cluster", name)
	}
	comp.lock.Lock()
	defer comp.lock.Unlock()
	if comp.wanted {
		return fmt.Errorf("%s is running already", name)
	}
	if err := c.run(comp); err != nil {
		return err
	}
	comp.wanted = true
	comp.stop, comp.watcher = make(chan struct{}), make(chan struct{})
	go c.watch(comp, comp.stop, comp.watcher)
	return nil
}

// run starts a process for comp. The caller holds comp.lock.
func (c *Cluster) run(comp *component) error {
	c.event(Event{Component: comp.name, Kind: EventStarting})
	proc, err := c.spawner.start(c.command(comp.name))
	if err != nil {
		return err
	}
	if comp.proc != nil {
		comp.past = comp.past.add(comp.proc.usage)
		comp.restarts++
	}
	comp.proc, comp.startedAt = proc, time.Now()
	return nil
}

// tailLines is the number of log lines reported for a dead component.
const tailLines = 20

// watch waits for comp's process to end, reports it, and restarts it if configured, until stop is
// closed.
func (c *Cluster) watch(comp *component, stop <-chan struct{}, done chan<- struct{}) {
	defer close(done)
	var pauses backoff.Restarts
	for {
		comp.lock.Lock()
		proc := comp.proc
		comp.lock.Unlock()
		began := time.Now()
		<-proc.done

		comp.lock.Lock()
		comp.lastExit = exitReason(proc.err)
		if !comp.wanted {
			comp.lock.Unlock()
			close(proc.noted)
			c.event(Event{Component: comp.name, Kind: EventStopped, Message: comp.lastExit})
			return
		}
		restart := c.config.Restart && c.started.Load()
		comp.wanted = restart
		comp.lock.Unlock()
		close(proc.noted)
		c.event(Event{Component: comp.name, Kind: EventDied, Message: comp.lastExit,
			LogTail: tail(c.files.log(comp.name), tailLines)})
		if !restart {
			return
		}
		select {
		case <-stop:
		case <-time.After(pauses.After(time.Since(began), waitStatus(proc.err))):
		}
		comp.lock.Lock()
		if !comp.wanted {
			comp.lock.Unlock()
			return
		}
		err := c.run(comp)
		if err != nil {
			comp.wanted = false
		}
		comp.lock.Unlock()
		if err != nil {
			c.event(Event{Component: comp.name, Kind: EventDied, Message: err.Error()})
			return
		}
	}
}

// event delivers e to the log and to OnEvent.
func (c *Cluster) event(e Event) {
	c.eventLock.Lock()
	defer c.eventLock.Unlock()
	e.Time = time.Now()
	c.config.Log.Info("local cluster", "cluster", c.config.Name, "event", e.Kind, "component", e.Component, "message",
		e.Message)
	if c.config.OnEvent != nil {
		c.config.OnEvent(e)
	}
}

// StopComponent stops a component gracefully and waits for its end. The component stays stopped
// until StartComponent.
func (c *Cluster) StopComponent(ctx context.Context, name Component) error {
	comp := c.components[name]
	if comp == nil {
		return fmt.Errorf("%s is not part of this cluster", name)
	}
	comp.lock.Lock()
	if comp.wanted {
		close(comp.stop)
	}
	comp.wanted = false
	proc, watcher := comp.proc, comp.watcher
	comp.lock.Unlock()
	if proc == nil {
		return nil
	}
	if err := proc.signal(syscall.SIGTERM); err == nil {
		grace := time.NewTimer(c.config.StopGrace)
		defer grace.Stop()
		select {
		case <-proc.done:
		case <-grace.C:
			_ = proc.signal(syscall.SIGKILL)
		case <-ctx.Done():
			_ = proc.signal(syscall.SIGKILL)
		}
	}
	<-proc.done
	<-watcher
	return nil
}

// StartComponent starts a component that was stopped or has died, and waits until it is healthy.
func (c *Cluster) StartComponent(ctx context.Context, name Component) error {
	if err := c.start(name); err != nil {
		return err
	}
	return c.waitHealthy(ctx, name)
}

// ManagerAddress returns the address of the manager's metrics, host:port.
func (c *Cluster) ManagerAddress() string { return fmt.Sprintf("127.0.0.1:%d", c.ports[Manager].port) }

// Kill ends a component with SIGKILL, like a crash. With Config.Restart the component is restarted.
func (c *Cluster) Kill(name Component) error {
	comp := c.components[name]
	if comp == nil {
		return fmt.Errorf("%s is not part of this cluster", name)
	}
	comp.lock.Lock()
	proc := comp.proc
	comp.lock.Unlock()
	if proc == nil {
		return fmt.Errorf("%s is not running", name)
	}
	if err := proc.signal(syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill %s: %w", name, err)
	}
	<-proc.noted
	return nil
}

// healthInterval is the interval of health checks while waiting: each costs a TLS handshake.
const healthInterval = 50 * time.Millisecond

func (c *Cluster) waitHealthy(ctx context.Context, name Component) error {
	comp := c.components[name]
	ticker := time.NewTicker(healthInterval)
	defer ticker.Stop()
	for {
		err := c.Healthy(ctx, name)
		if err == nil {
			c.event(Event{Component: name, Kind: EventReady})
			return nil
		}
		comp.lock.Lock()
		wanted, exit := comp.wanted, comp.lastExit
		comp.lock.Unlock()
		if !wanted {
			return fmt.Errorf("%s %s; its log %s ends:\n%s", name, exit, c.files.log(name), tail(c.files.log(name), tailLines))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not healthy: %w", name, err)
		case <-ticker.C:
		}
	}
}

// Healthy checks the health of a component and returns nil if it is healthy.
func (c *Cluster) Healthy(ctx context.Context, name Component) error {
	comp := c.components[name]
	if comp == nil {
		return fmt.Errorf("%s is not part of this cluster", name)
	}
	comp.lock.Lock()
	running := comp.proc != nil && comp.wanted
	comp.lock.Unlock()
	if !running {
		return fmt.Errorf("%s is not running", name)
	}
	if p := c.config.program(name); p != nil {
		return c.programReady(ctx, p)
	}
	return c.probe.healthy(ctx, name, c.ports[name].port, c.config.Nodes.Count)
}

// Stop stops all components, the last started first, and waits until all have ended. When ctx is
// done they are killed. Stop may be called more than once.
func (c *Cluster) Stop(ctx context.Context) error {
	var failed error
	c.stopOnce.Do(func() {
		list := c.config.components()
		// First the clients of the API server concurrently; then the API server; then etcd.
		var group sync.WaitGroup
		for _, name := range list[2:] {
			group.Go(func() { _ = c.StopComponent(ctx, name) })
		}
		group.Wait()
		for _, name := range []Component{APIServer, Etcd} {
			failed = errors.Join(failed, c.StopComponent(ctx, name))
		}
		c.spawner.close()
		c.releasePorts()
		failed = errors.Join(failed, RemoveRealNodes(c.config.Name, c.files.realNodes()))
		c.event(Event{Kind: EventStopped})
	})
	return failed
}

func (c *Cluster) releasePorts() {
	for _, lease := range c.ports {
		if lease != nil {
			lease.release()
		}
	}
	if c.peerPort != nil {
		c.peerPort.release()
	}
}

// RESTConfig returns the administrator's client configuration, without client-side rate limits.
func (c *Cluster) RESTConfig() *rest.Config { return c.restConfig(c.identities["admin"]) }

// ManagerRESTConfig returns the manager's client configuration, with the rights of a manager in a
// real cluster.
func (c *Cluster) ManagerRESTConfig() *rest.Config { return c.restConfig(c.identities["manager"]) }

// Kubeconfig returns the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return c.files.kubeconfig("admin") }

// ManagerKubeconfig returns the path of the manager's kubeconfig.
func (c *Cluster) ManagerKubeconfig() string { return c.files.kubeconfig("manager") }

// AuditLogPath returns the path of the API server's audit log; see audit.go for its format.
func (c *Cluster) AuditLogPath() string { return c.files.auditLog() }

// LogPath returns the path of a component's log.
func (c *Cluster) LogPath(name Component) string { return c.files.log(name) }

// Dir returns the cluster's directory.
func (c *Cluster) Dir() string { return c.config.Dir }

// Components returns the cluster's components in the order of starting.
func (c *Cluster) Components() []Component { return c.config.components() }
