// Package nri tells a container runtime which CPUs a container is to have before it makes the container, by the runtime's
// Node Resource Interface:
//
//	runtime ──CreateContainer──▶ Plugin ──Want──▶ what the agent's last pass found ──▶ cpuset.cpus of the new container
//	        ──UpdateContainer──▶               the same, in the place of what somebody asks for
//
// So there is no moment at which a container runs elsewhere, and the runtime knows the set: it does not write over it with
// an older one. All the rest (moves, the shared pool, drift) stays with the files. Where there is no such runtime, or the
// connection is lost, the files do everything, and a connection is tried again.
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

	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// DefaultSocket is where runtimes listen.
const DefaultSocket = "/var/run/nri/nri.sock"

// Wish is what a container is to have.
type Wish struct {
	CPUs cpuset.Set
	// Mems are memory nodes to bind to; nil: leave them alone.
	Mems *cpuset.Set
}

// Config says where and what. All fields are required.
type Config struct {
	Socket string
	// Want says what a container is to have, by the UID of its pod, its name, and the annotations of the pod as the runtime
	// knows them, which may be older than the API's. False: nothing is known, or it is not ours to say. It is called from
	// several goroutines.
	Want func(uid, container string, annotations map[string]string) (Wish, bool)
	Log  *slog.Logger
}

// Plugin is the runtime's counterpart. The methods that the runtime calls are exported for the library that it speaks through.
type Plugin struct {
	cfg       Config
	connected atomic.Bool

	mu    sync.Mutex
	names map[string]string // of containers, by ID
}

// New makes a Plugin.
func New(cfg Config) *Plugin { return &Plugin{cfg: cfg, names: map[string]string{}} }

const (
	// look is how often to look for the socket where there is none.
	look     = 10 * time.Second
	retryMin = time.Second
	retryMax = 30 * time.Second
	// endTimeout bounds how long a connection that was told to end may take.
	endTimeout = 2 * time.Second
	// pluginName and pluginIndex tell runtimes who this is, and when its turn is among others: late, so that it has the last
	// word on CPU sets.
	pluginName  = "lockstep-agent"
	pluginIndex = "90"
)

// Run keeps a connection to the runtime until ctx is done.
func (p *Plugin) Run(ctx context.Context) {
	delay := retryMin
	for ctx.Err() == nil {
		wait := look
		if _, err := os.Stat(p.cfg.Socket); err == nil {
			began := time.Now()
			err := p.session(ctx)
			if time.Since(began) > retryMax {
				delay = retryMin // it has worked for a while
			}
			if ctx.Err() == nil {
				p.cfg.Log.Warn("the container runtime is not connected; CPU sets are applied by files alone", "socket", p.cfg.Socket, "error", err, "again", delay)
			}
			wait, delay = delay, min(2*delay, retryMax)
		} else if !errors.Is(err, fs.ErrNotExist) {
			p.cfg.Log.Warn("the container runtime's socket", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// session is one connection.
func (p *Plugin) session(ctx context.Context) error {
	closed := make(chan struct{})
	var once sync.Once
	s, err := stub.New(p, stub.WithSocketPath(p.cfg.Socket), stub.WithPluginName(pluginName), stub.WithPluginIdx(pluginIndex),
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
	case <-time.After(endTimeout): // the library waits for a runtime that says nothing more
	}
	return ctx.Err()
}

// Connected says whether a runtime asks.
func (p *Plugin) Connected() bool { return p.connected.Load() }

// Name is a container's name by its ID, as the runtime says.
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

// Synchronize is called by the runtime first, with what is there. Their CPU sets are the files' work.
func (p *Plugin) Synchronize(_ context.Context, _ []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	p.mu.Lock()
	clear(p.names)
	p.mu.Unlock()
	p.learn(containers...)
	p.connected.Store(true)
	p.cfg.Log.Info("the container runtime asks for CPU sets", "socket", p.cfg.Socket, "containers", len(containers))
	return nil, nil
}

// CreateContainer is called by the runtime before it makes a container.
func (p *Plugin) CreateContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
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

// UpdateContainer is called by the runtime when somebody changes a container's resources.
func (p *Plugin) UpdateContainer(_ context.Context, pod *api.PodSandbox, c *api.Container, _ *api.LinuxResources) ([]*api.ContainerUpdate, error) {
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

// logger hands the library's words on.
type logger struct{ *slog.Logger }

func (l logger) Debugf(ctx context.Context, format string, args ...any) {
	l.DebugContext(ctx, "nri: "+fmt.Sprintf(format, args...))
}

// Infof is what the library says about each step, which is not for everyone.
func (l logger) Infof(ctx context.Context, format string, args ...any) {
	l.Debugf(ctx, format, args...)
}

func (l logger) Warnf(ctx context.Context, format string, args ...any) {
	l.WarnContext(ctx, "nri: "+fmt.Sprintf(format, args...))
}

func (l logger) Errorf(ctx context.Context, format string, args ...any) {
	l.ErrorContext(ctx, "nri: "+fmt.Sprintf(format, args...))
}
