package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/install"
	"lockstep.dev/lockstep/internal/localcluster"
)

// Spec configures the cluster that Up starts.
type Spec struct {
	Name  string
	Nodes localcluster.Nodes
	// RealNodes is the number of nodes that run containers.
	RealNodes int
	// WithAgent runs Lockstep's agent on each real node.
	WithAgent bool
	// The manager and kube-controller-manager are included by default; the stock kube-scheduler is
	// not.
	WithoutManager, WithoutControllerManager, WithScheduler bool
	NotDurable                                              bool
	// ExtraArgs are appended to the components' flags.
	ExtraArgs map[localcluster.Component][]string
	// Restart restarts a component that has died.
	Restart bool
	// Kubeconfig, if set, is the path for a copy of the administrator's kubeconfig; MergeInto, if
	// set, is the kubeconfig to which a context for the cluster is added.
	Kubeconfig, MergeInto string
	// KubeBinary is the path of lockstep-kube; Executable is the path of lockstep.
	KubeBinary, Executable string
}

// Command is the hidden verb of lockstep that runs a supervisor; its argument is the cluster's
// name.
const Command = "local-supervisor"

// File descriptors that the supervisor inherits from Up: the pipe to Up, and the lock of the
// cluster's directory.
const (
	eventsFD = 3
	lockFD   = 4
)

// message is one line, in JSON, on the supervisor's pipe to Up.
type message struct {
	Event *localcluster.Event `json:"event,omitempty"`
	// Error is the error of a start that failed.
	Error string `json:"error,omitempty"`
	Ready bool   `json:"ready,omitempty"`
}

// Up starts a cluster in the background and returns when it is ready. When ctx is done the start is
// undone; when force is done it is aborted at once. onEvent is called with the events of the start.
func Up(ctx, force context.Context, spec Spec, onEvent func(localcluster.Event)) (*State, error) {
	p, err := stateDirOf(spec.Name)
	if err != nil {
		return nil, err
	}
	if s, err := p.read(); err == nil && localcluster.Alive(s.Supervisor, s.SupervisorTicks) {
		return nil, fmt.Errorf("local cluster %s is running already: 'lockstep down --name %s' ends it", spec.Name, spec.Name)
	}
	lock, err := acquire(p)
	if err != nil {
		return nil, fmt.Errorf("local cluster %s is being started or ended: %w", spec.Name, err)
	}
	// The supervisor keeps the lock: it has the same open file.
	ready := false
	defer func() {
		if !ready {
			_ = os.Remove(p.lock())
		}
		lock.Close()
	}()
	// Remove what a killed supervisor left.
	if err := clean(ctx, p); err != nil {
		return nil, err
	}
	if err := checkCopy(spec); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return nil, err
	}
	if err := writeFile(p.spec(), spec); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(p.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	events, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer events.Close()
	cmd := exec.Command(spec.Executable, Command, spec.Name)
	cmd.Dir = p.dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{theirs, lock}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return nil, err
	}
	reaped := make(chan struct{})
	go func() { _ = cmd.Wait(); close(reaped) }()

	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })()
	defer context.AfterFunc(force, func() { _ = cmd.Process.Kill() })()
	lines := json.NewDecoder(events)
	failure := ""
	for {
		var m message
		if err := lines.Decode(&m); err != nil {
			break // the supervisor has ended
		}
		switch {
		case m.Event != nil:
			onEvent(*m.Event)
		case m.Error != "":
			failure = m.Error
		case m.Ready && ctx.Err() == nil:
			ready = true
			return p.read()
		}
	}
	<-reaped
	down := clean(context.WithoutCancel(ctx), p)
	switch {
	case ctx.Err() != nil:
		return nil, errors.Join(fmt.Errorf("local cluster %s: interrupted, nothing is left: %w", spec.Name, ctx.Err()), down)
	case failure != "":
		return nil, errors.Join(errors.New(failure), down)
	}
	return nil, errors.Join(fmt.Errorf("local cluster %s: its supervisor ended unexpectedly", spec.Name), down)
}

// Run runs the supervisor of the named cluster. It returns when the cluster has been stopped.
func Run(name string) error {
	p, err := stateDirOf(name)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(p.spec())
	if err != nil {
		return err
	}
	var spec Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		return err
	}
	syscall.CloseOnExec(eventsFD)
	syscall.CloseOnExec(lockFD)
	defer os.NewFile(lockFD, "lock").Close()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// The terminal in which `up` ran may be closed.
	signal.Ignore(syscall.SIGHUP)

	pipe := os.NewFile(eventsFD, "events")
	s := &supervisor{files: p, spec: spec, log: slog.New(slog.NewJSONHandler(os.Stderr, nil)), up: json.NewEncoder(pipe)}
	s.state = State{
		Name: name, Phase: PhaseStarting, CreatedAt: time.Now(), Durable: !spec.NotDurable, Nodes: spec.Nodes,
		RealNodes:  spec.RealNodes,
		Dir:        p.dir,
		Kubeconfig: filepath.Join(p.dir, "admin.kubeconfig"), AuditLog: filepath.Join(p.dir, "audit.log"),
		Supervisor: os.Getpid(), SupervisorTicks: localcluster.StartOf(os.Getpid()),
	}
	s.record()
	cluster, err := localcluster.Start(ctx, s.config())
	if err == nil {
		s.lock.Lock()
		s.cluster = cluster
		s.lock.Unlock()
		err = s.writeKubeconfigs()
	}
	if err != nil {
		s.setPhase(PhaseFailed)
		s.tell(message{Error: err.Error()})
		if cluster != nil {
			err = errors.Join(err, s.stop(cluster))
		}
		return err
	}
	s.setPhase(PhaseReady)
	s.tell(message{Ready: true})
	pipe.Close()

	<-ctx.Done()
	stop() // a second signal ends the supervisor, and with it the components
	return s.stop(cluster)
}

// acquire locks the cluster's directory. It waits up to lockTimeout, because a process that has
// just been killed has its lock until the kernel has cleaned up. Only the holder of the lock may
// remove the lock's file.
func acquire(p stateDir) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(p.lock()), 0o700); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(lockTimeout); ; time.Sleep(10 * time.Millisecond) {
		lock, err := os.OpenFile(p.lock(), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil && isAt(lock, p.lock()) {
			return lock, nil
		}
		lock.Close()
		if err == nil {
			continue // the last holder has removed the file after it was opened here
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%s is held by another process: %w", p.lock(), err)
		}
	}
}

// isAt reports whether f is the file at path.
func isAt(f *os.File, path string) bool {
	own, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(own, there)
}

// lockTimeout bounds the wait of acquire.
const lockTimeout = 5 * time.Second

// supervisor starts a cluster and records its state.
type supervisor struct {
	files stateDir
	spec  Spec
	log   *slog.Logger
	// telling is held while a message is written to up, which goes to `up` as long as it listens.
	telling sync.Mutex
	up      *json.Encoder

	// recording is held while the state is recorded. A cluster may report an event while it holds
	// its locks, so nothing of the cluster is called while lock is held.
	recording sync.Mutex
	lock      sync.Mutex
	state     State
	cluster   recorded // nil until the cluster has started
}

// recorded is the part of a cluster that is recorded.
type recorded interface {
	Status() []localcluster.ComponentStatus
	RESTConfig() *rest.Config
}

func (s *supervisor) config() localcluster.Config {
	config := localcluster.Config{
		Name: s.spec.Name, Dir: s.files.dir, KubeBinary: s.spec.KubeBinary,
		NotDurable: s.spec.NotDurable, Nodes: s.spec.Nodes, RealNodes: s.spec.RealNodes, Restart: s.spec.Restart,
		WithScheduler:            s.spec.WithScheduler,
		WithoutControllerManager: s.spec.WithoutControllerManager, ExtraArgs: s.spec.ExtraArgs,
		Log: s.log, OnEvent: s.onEvent, Install: s.install, Await: install.AwaitApplications,
	}
	if s.spec.WithAgent {
		config.AgentCommand = []string{s.spec.Executable, "agent"}
	}
	if !s.spec.WithoutManager {
		config.ManagerCommand = []string{s.spec.Executable, "manager",
			"--archive=" + filepath.Join(s.files.dir, "archive.db"),
			// The cluster's user may reach all services of this machine anyway.
			"--allow-requests-to=127.0.0.0/8,::1"}
		if !s.spec.WithScheduler {
			// Without kube-scheduler the manager places the pods that name no scheduler too, such
			// as those of Deployments.
			config.ManagerCommand = append(config.ManagerCommand,
				"--scheduler-name="+
					strings.Join([]string{schedulingv1beta1.SchedulerLockstep, schedulingv1beta1.SchedulerVolcano,
						corev1.DefaultSchedulerName}, ","))
		}
	}
	return config
}

func (s *supervisor) install(ctx context.Context, cfg *rest.Config) error {
	opts := install.Options{CPUs: s.spec.WithAgent || s.spec.Nodes.Topology != ""}
	if err := install.With(opts)(ctx, cfg); err != nil || s.spec.RealNodes == 0 {
		return err
	}
	return localcluster.ShareArtifacts(ctx, cfg, s.files.dir)
}

func (s *supervisor) stop(cluster *localcluster.Cluster) error {
	s.setPhase(PhaseStopping)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return cluster.Stop(ctx)
}

// onEvent sends an event of the cluster to `up` and records it.
func (s *supervisor) onEvent(e localcluster.Event) {
	s.tell(message{Event: &e})
	s.lock.Lock()
	if e.Kind == localcluster.EventDied {
		s.state.Deaths = append(s.state.Deaths, Death{e.Time, e.Component, e.Message, e.LogTail})
		s.state.Deaths = s.state.Deaths[max(0, len(s.state.Deaths)-deathsKept):]
	}
	s.lock.Unlock()
	// The cluster may hold its locks while it reports, so its state is read in another goroutine.
	go s.record()
}

func (s *supervisor) setPhase(phase Phase) {
	s.lock.Lock()
	s.state.Phase = phase
	s.lock.Unlock()
	s.record()
}

// record writes the state to its file. A write error is only logged, because the cluster works
// without the file.
func (s *supervisor) record() {
	s.recording.Lock()
	defer s.recording.Unlock()
	s.lock.Lock()
	cluster := s.cluster
	s.lock.Unlock()
	var components []localcluster.ComponentStatus
	var server string
	if cluster != nil {
		components, server = cluster.Status(), cluster.RESTConfig().Host
	}
	s.lock.Lock()
	s.state.Components, s.state.Server = components, server
	state := s.state
	s.lock.Unlock()
	if err := writeFile(s.files.state(), state); err != nil {
		s.log.Error("cannot record the state", "error", err)
	}
}

// tell sends m to `up`. It ignores errors, because `up` may have ended.
func (s *supervisor) tell(m message) {
	s.telling.Lock()
	defer s.telling.Unlock()
	_ = s.up.Encode(m)
}

// Down stops the named cluster and removes all of its files, even if its supervisor was killed. It
// returns ErrNoCluster if there is no such cluster.
func Down(ctx context.Context, name string) error {
	p, err := stateDirOf(name)
	if err != nil {
		return err
	}
	if _, err := os.Stat(p.dir); err != nil {
		return fmt.Errorf("%s: %w", name, ErrNoCluster)
	}
	state, err := p.read()
	if err != nil && !errors.Is(err, ErrNoCluster) {
		return err
	}
	if state != nil {
		if err := end(ctx, state.Supervisor, state.SupervisorTicks, stopTimeout); err != nil {
			return fmt.Errorf("supervisor: %w", err)
		}
	}
	lock, err := acquire(p)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := clean(ctx, p); err != nil {
		return err
	}
	return os.Remove(p.lock())
}

// clean removes everything that is left of a cluster whose supervisor has ended. The caller holds
// the lock.
func clean(ctx context.Context, p stateDir) error {
	state, err := p.read()
	if err != nil && !errors.Is(err, ErrNoCluster) {
		return err
	}
	if err == nil {
		// The supervisor records the state until it ends: the last record lists the components that
		// it left running.
		for _, c := range state.Components {
			if err := end(ctx, c.PID, c.StartTicks, 0); err != nil {
				return fmt.Errorf("%s: %w", c.Name, err)
			}
		}
		if err := removeKubeconfigs(state); err != nil {
			return err
		}
	}
	if err := localcluster.RemoveRealNodes(filepath.Base(p.dir), localcluster.RealNodesDir(p.dir)); err != nil {
		return err
	}
	return os.RemoveAll(p.dir)
}

// stopTimeout is how long a supervisor may take to stop its cluster.
const stopTimeout = 70 * time.Second

// end sends SIGTERM to a recorded process and waits up to grace for its end; then it sends SIGKILL.
func end(ctx context.Context, pid int, ticks localcluster.StartTicks, grace time.Duration) error {
	if !localcluster.Alive(pid, ticks) {
		return nil
	}
	_ = syscall.Kill(pid, syscall.SIGTERM)
	gone := func(context.Context) (bool, error) { return !localcluster.Alive(pid, ticks), nil }
	if grace > 0 && wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, grace, true, gone) == nil {
		return nil
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	if err := wait.PollUntilContextTimeout(context.WithoutCancel(ctx), 20*time.Millisecond, 5*time.Second, true,
		gone); err != nil {
		return fmt.Errorf("process %d does not end", pid)
	}
	return ctx.Err()
}

// Get returns the current state of the named cluster.
func Get(ctx context.Context, name string) (*State, error) {
	p, err := stateDirOf(name)
	if err != nil {
		return nil, err
	}
	s, err := p.read()
	if err != nil {
		return nil, err
	}
	if err := localcluster.Refresh(ctx, p.dir, s.Nodes.Count, s.Components); err != nil && s.Phase == PhaseReady {
		return nil, err
	}
	if !localcluster.Alive(s.Supervisor, s.SupervisorTicks) {
		s.Phase = PhaseFailed
	}
	for _, c := range s.Components {
		if s.Phase == PhaseReady && !c.Healthy {
			s.Phase = PhaseDegraded
		}
	}
	return s, nil
}
