package series

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lockstep.dev/lockstep/internal/lab/observe"
	"lockstep.dev/lockstep/internal/lab/page"
	"lockstep.dev/lockstep/internal/lab/rig"
	"lockstep.dev/lockstep/internal/lab/system"
	"lockstep.dev/lockstep/internal/localcluster"
)

// SystemsConfig configures a scenario that measures systems of batch jobs under one load, each on a
// fresh control plane.
type SystemsConfig struct {
	Config
	// Systems are the names of the systems to measure, in alternation, and Parameters the values of
	// those of files.
	Systems    []string
	Parameters map[string]string
}

// Complete sets defaults and validates the configuration.
func (c *SystemsConfig) Complete() error {
	if len(c.Systems) == 0 {
		return errors.New("no system")
	}
	for _, name := range c.Systems {
		if _, err := c.system(name); err != nil {
			return err
		}
	}
	if err := c.Nodes.Complete(); err != nil {
		return err
	}
	return c.Config.Complete()
}

func (c *SystemsConfig) system(name string) (system.System, error) {
	writes := 0
	if len(c.WriterConcurrency) > 0 {
		writes = c.WriterConcurrency[0]
	}
	return system.New(name, system.Options{Manager: c.Lockstep, ManagerArgs: c.ManagerArgs, Parameters: c.Parameters, WriterConcurrency: writes})
}

// Effective returns the configuration for the report; of has what is of the scenario alone.
func (c *SystemsConfig) Effective(scenario string, of map[string]any) map[string]any {
	of["scenario"], of["systems"], of["nodes"], of["nodeCPU"], of["nodePods"] = scenario, c.Systems, c.Nodes.Count, c.Nodes.CPU, c.Nodes.Pods
	of["etcdDurable"], of["managerArgs"], of["repeat"] = c.Durable, c.ManagerArgs, c.Repeat
	return of
}

// SystemRun is what the runs of such a scenario have in common.
type SystemRun struct {
	System   string `json:"system"`
	Scenario string `json:"scenario"`
	Repeat   int    `json:"repeat"`
	// Settings are the limits and options that the system ran with, and Clients its client limits.
	Settings map[string]string `json:"settings,omitempty"`
	Clients  []system.Client   `json:"clients,omitempty"`
	Verdict
	// LagSeconds is how late the client that drives the load was at most.
	LagSeconds float64  `json:"lagSeconds"`
	Used       rig.Used `json:"used"`
}

// PlanSystems plans a run of each system, Repeat times in alternation.
func PlanSystems[R Run](c *SystemsConfig, scenario string, plan func(system.System, SystemRun) Planned[R]) (out []Planned[R], err error) {
	for repeat := range c.Repeat {
		for _, name := range c.Systems {
			sys, err := c.system(name)
			if err != nil {
				return nil, err
			}
			out = append(out, plan(sys, SystemRun{System: sys.Name(), Scenario: scenario, Repeat: repeat + 1, Settings: sys.Settings(), Clients: sys.Clients()}))
		}
	}
	return out, nil
}

// StartSystem starts a fresh control plane with a system; change changes its configuration.
func (c *SystemsConfig) StartSystem(ctx context.Context, title string, sys system.System, change func(*localcluster.Config)) (*Trial, error) {
	t, err := c.StartTrial(ctx, title, sys.Jobs(), func(cluster *localcluster.Config) {
		cluster.ManagerCommand, cluster.Install, cluster.ExtraArgs = nil, nil, map[localcluster.Component][]string{}
		sys.Configure(cluster)
		change(cluster)
	})
	if err == nil {
		t.Log.Source.(*observe.AuditLog).Users = sys.Users()
	}
	return t, err
}

// Title implements Run.
func (r *SystemRun) Title() string {
	if r.Repeat > 1 {
		return fmt.Sprintf("%s %s #%d", r.System, r.Scenario, r.Repeat)
	}
	return r.System + " " + r.Scenario
}

// Repeated implements Run.
func (r *SystemRun) Repeated() *int { return &r.Repeat }

// ClientOf is the client limit of one program of one system.
type ClientOf struct {
	System string
	system.Client
}

// ClientsOf adds the client limits of a system to those of others.
func ClientsOf(others []ClientOf, name string, clients []system.Client) []ClientOf {
	for _, c := range clients {
		if c := (ClientOf{name, c}); !slices.Contains(others, c) {
			others = append(others, c)
		}
	}
	return others
}

// ClientLimits is the section of a page with the client limits of all systems side by side, if there
// are any.
func ClientLimits(clients []ClientOf) []page.Section {
	t := page.Table{Columns: []page.Column{{Title: "System", Key: true}, {Title: "Client", Key: true},
		{Title: "QPS", Right: true, Help: "requests per second that the client allows itself"},
		{Title: "Burst", Right: true, Help: "requests that it may send at once before that"}}}
	for _, c := range clients {
		t.Rows = append(t.Rows, []page.Cell{page.Text(c.System), page.Text(c.Name), page.Text(c.QPS), page.Text(c.Burst)})
	}
	if len(t.Rows) == 0 {
		return nil
	}
	return []page.Section{{Title: "Client limits", Tables: []page.Table{t}}}
}
