package manager

import (
	"context"

	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/nodeusage"
	"lockstep.dev/lockstep/internal/scheduler"
)

// readUsage returns a function that reads the use of nodes for the scheduler until its context is
// done. Without a configuration it returns at once.
func (m *Manager) readUsage(informers *informer.Set, api rest.Interface, sched *scheduler.Scheduler) (func(context.Context), error) {
	if m.cfg.Usage == nil {
		return func(context.Context) {}, nil
	}
	reader, err := nodeusage.New(nodeusage.Config{
		Usage: m.cfg.Usage, API: api, Nodes: informers.Nodes.List, Take: sched.SetUsage, Metrics: m.registry, Log: m.log,
	})
	if err != nil {
		return nil, err
	}
	return reader.Run, nil
}
