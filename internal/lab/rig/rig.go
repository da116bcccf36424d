// Package rig runs the control plane of one measurement: fresh, on a disk, and deleted afterwards.
// If the measurement failed, the logs of the control plane are copied next to the results. Start
// also deletes the control planes that killed measurements left behind: see stale.go.
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

// clusterName is the name of every control plane of a measurement.
const clusterName = "bench"

// stopTimeout bounds the stop of a control plane.
const stopTimeout = 30 * time.Second

// Rig is a running control plane.
type Rig struct {
	*localcluster.Cluster
	workDir *workDir
	outDir  string

	lock sync.Mutex
	died string                   // messages about the components that died, with the ends of their logs
	dead []localcluster.Component // the components that died
}

// Start starts a control plane. It overwrites Name, Dir and OnEvent of cfg, and calls starting for
// each component that is started. outDir, the directory of the results, receives the logs of a
// failed measurement.
func Start(ctx context.Context, cfg localcluster.Config, outDir string, starting func(localcluster.Component)) (*Rig, error) {
	state, err := StateDir()
	if err != nil {
		return nil, err
	}
	if _, err := removeStale(state); err != nil {
		slog.Warn("what killed measurements left could not be removed", "folder", state, "error", err)
	}
	r := &Rig{outDir: outDir}
	if r.workDir, err = newWorkDir(state); err != nil {
		return nil, err
	}
	cfg.Name, cfg.Dir = clusterName, r.workDir.dir
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
		return nil, errors.Join(err, r.workDir.remove())
	}
	return r, nil
}

// Broken returns an error if a component has died. Stop returns the details.
func (r *Rig) Broken() error {
	r.lock.Lock()
	defer r.lock.Unlock()
	if len(r.dead) == 0 {
		return nil
	}
	return fmt.Errorf("%s ended by itself", r.dead[0])
}

// Stop stops the control plane, whether ctx is done or not. It returns an error if a component has
// died. It keeps the logs if failed is true and ctx is not done.
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
	return errors.Join(err, r.workDir.remove())
}

// keepLogs copies the logs to the results. It returns an error that says where they are.
func (r *Rig) keepLogs() error {
	to, err := os.MkdirTemp(r.outDir, "logs-")
	if err == nil {
		err = os.CopyFS(to, os.DirFS(filepath.Join(r.workDir.dir, "logs")))
	}
	if err != nil {
		return fmt.Errorf("keep the logs: %w", err)
	}
	return fmt.Errorf("the logs are in %s", to)
}

// Client is the key of this process in Usages: it drives the load.
const Client localcluster.Component = "client"

// Usages returns the CPU time and memory of every component so far, and the CPU time of this
// process. A nil Rig has no components.
func (r *Rig) Usages() (map[localcluster.Component]localcluster.Usage, error) {
	out := map[localcluster.Component]localcluster.Usage{Client: {CPU: ownCPU()}}
	if r == nil {
		return out, nil
	}
	for _, c := range r.Components() {
		u, err := r.Usage(c)
		if err != nil {
			return nil, fmt.Errorf("usage of %s: %w", c, err)
		}
		out[c] = u
	}
	return out, nil
}

// ownCPU returns the CPU time that this process has used so far.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// StateDir returns the directory for control planes under measurement. It is on a disk, not in a
// memory file system, because etcd's fsync is part of the measurement.
func StateDir() (string, error) {
	dir, err := localcluster.StateDir()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, "bench")
	return dir, os.MkdirAll(dir, 0o700)
}
