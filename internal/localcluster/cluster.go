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

	"lockstep.dev/lockstep/internal/localcluster/again"
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
	// started is set when Start has succeeded. Before, a component that dies is not started again: it would die again.
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
	past      Usage     // of the runs before proc
	startedAt time.Time // of proc
	restarts  int
	lastExit  string
	// stop, closed, keeps the goroutine that watches the process from starting another; watcher is closed when it has ended.
	stop, watcher chan struct{}
}

// Start makes the cluster's files and starts its components. It returns when all are healthy and the nodes exist. When
// it fails, nothing is left running.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	if err := config.defaultAndValidate(); err != nil {
		return nil, err
	}
	c := &Cluster{config: config, files: layout{config.Dir}, ports: map[Component]*portLease{}, components: map[Component]*component{}}
	if err := c.prepare(); err != nil {
		c.releasePorts()
		return nil, fmt.Errorf("local cluster %s: %w", config.Name, err)
	}
	c.spawner = newSpawner()
	ctx, cancel := context.WithTimeoutCause(ctx, config.StartTimeout, fmt.Errorf("not ready within %s: %w", config.StartTimeout, context.DeadlineExceeded))
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

// prepare makes everything that needs no process: directories, credentials, ports.
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

// bringUp starts the components as their needs are met.
func (c *Cluster) bringUp(ctx context.Context) error {
	// 1. The API server waits for etcd by itself; starting both at once hides the one's start behind the other's.
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
	// 2. What the others need to be allowed to do.
	if err := c.applyPolicies(ctx, client); err != nil {
		return err
	}
	// 3. The rest at once: the nodes, Lockstep's API and then its manager, and the other components.
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
		if c.components[Manager] == nil {
			return nil
		}
		return c.StartComponent(ctx, Manager)
	})
	for _, name := range c.Components()[2:] {
		if name != Manager {
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

// run starts a process for comp, whose lock is held.
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

// tailLines of a dead component's log are reported.
const tailLines = 20

// watch waits for comp's process to end, reports it, and starts it again if that is wanted, until it is to stop.
func (c *Cluster) watch(comp *component, stop <-chan struct{}, done chan<- struct{}) {
	defer close(done)
	var pauses again.Pauses
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
		c.event(Event{Component: comp.name, Kind: EventDied, Message: comp.lastExit, LogTail: tail(c.files.log(comp.name), tailLines)})
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

// event passes e on.
func (c *Cluster) event(e Event) {
	c.eventLock.Lock()
	defer c.eventLock.Unlock()
	e.Time = time.Now()
	c.config.Log.Info("local cluster", "cluster", c.config.Name, "event", e.Kind, "component", e.Component, "message", e.Message)
	if c.config.OnEvent != nil {
		c.config.OnEvent(e)
	}
}

// StopComponent ends a component in order and waits for its end; it stays stopped until StartComponent.
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

// StartComponent starts a component that was stopped, or that died, and waits until it is healthy.
func (c *Cluster) StartComponent(ctx context.Context, name Component) error {
	if err := c.start(name); err != nil {
		return err
	}
	return c.waitHealthy(ctx, name)
}

// ManagerAddress is where the manager serves its metrics, host:port.
func (c *Cluster) ManagerAddress() string { return fmt.Sprintf("127.0.0.1:%d", c.ports[Manager].port) }

// Kill ends a component with SIGKILL, as a crash would. With Config.Restart it is started again; WaitHealthy waits for
// that.
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

// WaitHealthy waits until a component answers its health check, or has ended for good.
func (c *Cluster) WaitHealthy(ctx context.Context, name Component) error {
	if c.components[name] == nil {
		return fmt.Errorf("%s is not part of this cluster", name)
	}
	return c.waitHealthy(ctx, name)
}

// healthInterval is between two health checks while waiting: each costs a TLS handshake.
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

// Healthy asks a component how it is; nil is well.
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
	return c.probe.healthy(ctx, name, c.ports[name].port, c.config.Nodes.Count)
}

// Stop ends all components, the last started first, and waits until all have ended. When ctx ends they are killed. It
// may be called more than once.
func (c *Cluster) Stop(ctx context.Context) error {
	var failed error
	c.stopOnce.Do(func() {
		list := c.config.components()
		// Those in front of the API server at once; then it; then etcd.
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

// RESTConfig is the administrator's client configuration, without client-side rate limits.
func (c *Cluster) RESTConfig() *rest.Config { return c.restConfig(c.identities["admin"]) }

// ManagerRESTConfig is the manager's, with the rights that it has in a real cluster.
func (c *Cluster) ManagerRESTConfig() *rest.Config { return c.restConfig(c.identities["manager"]) }

// Kubeconfig is the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return c.files.kubeconfig("admin") }

// ManagerKubeconfig is the path of the manager's kubeconfig.
func (c *Cluster) ManagerKubeconfig() string { return c.files.kubeconfig("manager") }

// AuditLogPath is the path of the API server's audit log; see audit.go for its format.
func (c *Cluster) AuditLogPath() string { return c.files.auditLog() }

// LogPath is the path of a component's log.
func (c *Cluster) LogPath(name Component) string { return c.files.log(name) }

// Dir is the cluster's directory.
func (c *Cluster) Dir() string { return c.config.Dir }

// Components lists the cluster's components in the order of starting.
func (c *Cluster) Components() []Component { return c.config.components() }
