// Package rig is the control plane of one measurement: fresh, on a disk, gone afterwards. When something failed its logs are
// put beside the results. What a measurement leaves that was killed, the next one removes: see stale.go.
package rig

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"lockstep.dev/lockstep/internal/localcluster"
)

// clusterName is the name of every control plane here.
const clusterName = "bench"

// stopTimeout bounds the end of a control plane.
const stopTimeout = 30 * time.Second

// Rig is a control plane under way.
type Rig struct {
	*localcluster.Cluster
	home   *home
	outDir string

	lock sync.Mutex
	died string                   // what there is to say about components that did
	dead []localcluster.Component // those
}

// Start brings a control plane up. Name, Dir and OnEvent of cfg are its own; starting is told what is started. outDir, the
// folder of the results, gets the logs of a measurement that failed.
func Start(ctx context.Context, cfg localcluster.Config, outDir string, starting func(localcluster.Component)) (*Rig, error) {
	state, err := stateDir()
	if err != nil {
		return nil, err
	}
	if _, err := removeStale(state); err != nil {
		slog.Warn("what killed measurements left could not be removed", "folder", state, "error", err)
	}
	r := &Rig{outDir: outDir}
	if r.home, err = newHome(state); err != nil {
		return nil, err
	}
	cfg.Name, cfg.Dir = clusterName, r.home.dir
	cfg.OnEvent = func(e localcluster.Event) {
		switch e.Kind {
		case localcluster.EventDied:
			r.lock.Lock()
			r.dead = append(r.dead, e.Component)
			r.died += fmt.Sprintf("%s %s; its log ends:\n%s\n", e.Component, e.Message, e.LogTail)
			r.lock.Unlock()
		case localcluster.EventStarting:
			starting(e.Component)
		}
	}
	if r.Cluster, err = localcluster.Start(ctx, cfg); err != nil {
		return nil, errors.Join(err, r.home.remove())
	}
	return r, nil
}

// Broken is an error when a component has died. What there is to say about that, Stop says.
func (r *Rig) Broken() error {
	r.lock.Lock()
	defer r.lock.Unlock()
	if len(r.dead) == 0 {
		return nil
	}
	return fmt.Errorf("%s ended by itself", r.dead[0])
}

// Stop ends the control plane, ctx done or not. It fails if a component had died, and keeps the logs if the measurement
// failed before ctx was done.
func (r *Rig) Stop(ctx context.Context, failed bool) error {
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	err := r.Cluster.Stop(stop)
	r.lock.Lock()
	defer r.lock.Unlock()
	if r.died != "" {
		err = errors.Join(err, errors.New(r.died))
	}
	if failed && ctx.Err() == nil {
		err = errors.Join(err, r.keepLogs())
	}
	return errors.Join(err, r.home.remove())
}

// keepLogs copies the logs to the results, and is an error that says where they are.
func (r *Rig) keepLogs() error {
	to, err := os.MkdirTemp(r.outDir, "logs-")
	if err == nil {
		err = os.CopyFS(to, os.DirFS(filepath.Join(r.home.dir, "logs")))
	}
	if err != nil {
		return fmt.Errorf("keep the logs: %w", err)
	}
	return fmt.Errorf("the logs are in %s", to)
}

// Client is the key of this process among Usages: it makes the load.
const Client localcluster.Component = "client"

// Usages is the CPU time and memory of every component so far, and the CPU time of this process.
func (r *Rig) Usages() (map[localcluster.Component]localcluster.Usage, error) {
	out := map[localcluster.Component]localcluster.Usage{Client: {CPU: OwnCPU()}}
	for _, c := range r.Components() {
		u, err := r.Usage(c)
		if err != nil {
			return nil, fmt.Errorf("usage of %s: %w", c, err)
		}
		out[c] = u
	}
	return out, nil
}

// OwnCPU is the CPU time that this process has used so far.
func OwnCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// stateDir is where control planes live while they are measured: on a disk, not in a memory file system, because etcd's
// fsync is part of what is measured.
func stateDir() (string, error) {
	base := os.Getenv("XDG_STATE_HOME")
	if base == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", err
		}
		base = filepath.Join(home, ".local", "state")
	}
	dir := filepath.Join(base, "lockstep", "bench")
	return dir, os.MkdirAll(dir, 0o700)
}
