// Package nri tells a container runtime which CPUs a container must have before the runtime creates
// the container, through the runtime's Node Resource Interface:
//
//	runtime ──CreateContainer──▶ Plugin ──Want──▶ wanted state ──▶ cpuset.cpus of the new container
//	        ──UpdateContainer──▶                  the same, in place of the requested CPUs
//
// So a container never runs on other CPUs, and the runtime knows the set and does not overwrite it
// with an older one. The wanted state is the result of the agent's last pass. All other work
// (moves, the shared pool, drift) is done through the cgroup files. If there is no such runtime, or
// the connection is lost, the files do everything, and the connection is retried.
package nri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// DefaultSocket is the socket on which runtimes listen.
const DefaultSocket = "/var/run/nri/nri.sock"

// Assignment is the CPU set that a container must have.
type Assignment struct {
	CPUs cpuset.Set
	// Mems are memory nodes to bind to; nil leaves them unchanged.
	Mems *cpuset.Set
}

// Config configures a Plugin. All fields are required.
type Config struct {
	Socket string
	// Want returns the wanted CPUs of a container, given the UID of its pod, its name, and the
	// pod's annotations as the runtime knows them, which may be older than the API's. It returns
	// false if nothing is known about the container, or if the agent does not control it. It is
	// called from several goroutines.
	Want func(uid, container string, annotations map[string]string) (Assignment, bool)
	Log  *slog.Logger
}

// Plugin is the agent's side of the connection. The methods that the runtime calls are exported for
// the NRI library.
type Plugin struct {
	cfg       Config
	connected atomic.Bool

	mu    sync.Mutex
	names map[string]string // of containers, by ID
}

// New returns a Plugin.
func New(cfg Config) *Plugin { return &Plugin{cfg: cfg, names: map[string]string{}} }

const (
	// look is the interval at which a missing socket is looked for.
	look = 10 * time.Second
	// retryMax bounds the delay before a lost connection is made again.
	retryMax = 30 * time.Second
	// endTimeout bounds the time to end a connection.
	endTimeout = 2 * time.Second
	// pluginName and pluginIndex identify the plugin to runtimes. The index orders plugins: it is
	// late, so that this plugin has the last word on CPU sets.
	pluginName  = "lockstep-agent"
	pluginIndex = "90"
)

// Run maintains a connection to the runtime until ctx is done.
func (p *Plugin) Run(ctx context.Context) {
	failures := controlloop.Backoff{Max: retryMax}
	for ctx.Err() == nil {
		wait := look
		if _, err := os.Stat(p.cfg.Socket); err == nil {
			err := p.session(ctx)
			now := time.Now()
			failures.Failed(now)
			wait = failures.Left(now)
			if ctx.Err() == nil {
				p.cfg.Log.Warn("the container runtime is not connected; CPU sets are applied by files alone", "socket", p.cfg.Socket, "error", err, "again", wait)
			}
		} else if !errors.Is(err, fs.ErrNotExist) {
			p.cfg.Log.Warn("the container runtime's socket", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// session runs one connection.
func (p *Plugin) session(ctx context.Context) error {
	closed := make(chan struct{})
	var once sync.Once
	s, err := stub.New(p, stub.WithSocketPath(p.cfg.Socket), stub.WithPluginName(pluginName),
		stub.WithPluginIdx(pluginIndex),
		stub.WithLogger(logger{p.cfg.Log}), stub.WithOnClose(func() { once.Do(func() { close(closed) }) }))
	if err != nil {
		return err
	}
	defer p.connected.Store(false)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	select {
	case err := <-ended:
		return err
	case <-closed:
		return errors.New("the runtime has closed the connection")
	case <-ctx.Done():
	}
	select {
	case <-ended:
	case <-time.After(endTimeout): // the library waits for an answer that never comes
	}
	return ctx.Err()
}

// Connected reports whether a runtime is connected and synchronized.
func (p *Plugin) Connected() bool { return p.connected.Load() }

// Name returns a container's name by its ID, as the runtime reported it.
func (p *Plugin) Name(id string) (string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	name, found := p.names[id]
	return name, found
}

func (p *Plugin) learn(containers ...*api.Container) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range containers {
		p.names[c.GetId()] = c.GetName()
	}
}

// Synchronize is called by the runtime first, with the existing containers. Their CPU sets are
// applied through the files.
func (p *Plugin) Synchronize(_ context.Context, _ []*api.PodSandbox,
	containers []*api.Container) ([]*api.ContainerUpdate, error) {
	p.mu.Lock()
	clear(p.names)
	p.mu.Unlock()
	p.learn(containers...)
	p.connected.Store(true)
	p.cfg.Log.Info("the container runtime asks for CPU sets", "socket", p.cfg.Socket, "containers", len(containers))
	return nil, nil
}

// CreateContainer is called by the runtime before it creates a container.
func (p *Plugin) CreateContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment,
	[]*api.ContainerUpdate, error) {
	p.learn(c)
	want, found := p.cfg.Want(pod.GetUid(), c.GetName(), pod.GetAnnotations())
	if !found {
		return nil, nil, nil
	}
	adjust := &api.ContainerAdjustment{}
	adjust.SetLinuxCPUSetCPUs(want.CPUs.String())
	if want.Mems != nil {
		adjust.SetLinuxCPUSetMems(want.Mems.String())
	}
	return adjust, nil, nil
}

// UpdateContainer is called by the runtime when a client changes a container's resources.
func (p *Plugin) UpdateContainer(_ context.Context, pod *api.PodSandbox, c *api.Container,
	_ *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	want, found := p.cfg.Want(pod.GetUid(), c.GetName(), pod.GetAnnotations())
	if !found {
		return nil, nil
	}
	update := &api.ContainerUpdate{}
	update.SetContainerId(c.GetId())
	update.SetLinuxCPUSetCPUs(want.CPUs.String())
	if want.Mems != nil {
		update.SetLinuxCPUSetMems(want.Mems.String())
	}
	return []*api.ContainerUpdate{update}, nil
}

// RemoveContainer is called by the runtime when a container is gone.
func (p *Plugin) RemoveContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.names, c.GetId())
	return nil
}

// logger passes the library's messages to the agent's log.
type logger struct{ *slog.Logger }

func (l logger) Debugf(ctx context.Context, format string, args ...any) {
	l.DebugContext(ctx, "nri: "+fmt.Sprintf(format, args...))
}

// Infof logs at debug level, because the library reports every step.
func (l logger) Infof(ctx context.Context, format string, args ...any) {
	l.Debugf(ctx, format, args...)
}

func (l logger) Warnf(ctx context.Context, format string, args ...any) {
	l.WarnContext(ctx, "nri: "+fmt.Sprintf(format, args...))
}

func (l logger) Errorf(ctx context.Context, format string, args ...any) {
	l.ErrorContext(ctx, "nri: "+fmt.Sprintf(format, args...))
}
