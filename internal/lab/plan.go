package lab

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/lab/system"
	"lockstep.dev/lockstep/internal/localcluster"
)

// Config says what to measure.
type Config struct {
	Shapes []scenario.Shape
	// Gangs has what --gang asks for: true, false or both.
	Gangs []bool
	// Systems are measured in alternation.
	Systems []string
	// ManagerArgs are more flags for the manager.
	ManagerArgs []string
	// WriterConcurrency are the manager's settings to measure, each as if it were a system of its own; 0 is adaptive.
	WriterConcurrency []int
	// JobSyncs are the settings of stock Kubernetes to measure: how many Jobs it syncs at once; 0 is its default.
	JobSyncs []int
	Repeat   int
	// Nodes are the simulated nodes of the control planes.
	Nodes localcluster.Nodes
	// Durable runs etcd with fsync.
	Durable bool
	// ClientConcurrency is how many jobs the client creates at once.
	ClientConcurrency int
	// WarmUpPods are created and deleted through the system before it is measured.
	WarmUpPods int
	// FloorConcurrency are the concurrencies that the floor's calibration tries; empty leaves the floor out.
	FloorConcurrency []int
	// Kubeconfig names an existing cluster, with the system under test running in it, instead of fresh ones. AuditLog is the
	// path of its audit log when this machine has it; without, a watch must do.
	Kubeconfig, Context, AuditLog string
	// Timeout bounds each run from the first job to the last pod.
	Timeout time.Duration
	// OutDir gets the results.
	OutDir string
	// Lockstep and Kube are the paths of the programs.
	Lockstep, Kube string
	Version        string
	// Progress is told what goes on. It must not block for long.
	Progress func(Progress)
}

// Progress is a moment of an experiment.
type Progress struct {
	Run, Runs int
	Case      string
	Stage     string
	// Done of Total, where there is something to count.
	Done, Total int
	// Result is a line to keep: what came of a run, or what is left of it.
	Result string
}

// Validate says what is wrong with a configuration.
func (c *Config) Validate() error {
	switch {
	case len(c.Shapes) == 0:
		return errors.New("no shapes")
	case len(c.Gangs) == 0 || len(c.Systems) == 0:
		return errors.New("nothing to measure")
	case c.Repeat < 1:
		return fmt.Errorf("repeat: %d is not positive", c.Repeat)
	case c.ClientConcurrency < 1:
		return fmt.Errorf("client concurrency: %d is not positive", c.ClientConcurrency)
	case c.Kubeconfig != "" && len(c.Systems) > 1:
		return errors.New("an existing cluster has one system to measure: give one --system")
	case c.AuditLog != "" && c.Kubeconfig == "":
		return errors.New("an audit log is of an existing cluster: name its kubeconfig too")
	case c.Timeout <= 0:
		return fmt.Errorf("timeout: %s is not positive", c.Timeout)
	}
	for _, n := range c.WriterConcurrency {
		if n < 0 {
			return fmt.Errorf("writer concurrency: %d is negative", n)
		}
	}
	for _, n := range c.JobSyncs {
		if n < 0 {
			return fmt.Errorf("kubernetes job syncs: %d is negative", n)
		}
	}
	for _, n := range c.FloorConcurrency {
		if n < 1 {
			return fmt.Errorf("floor concurrency: %d is not positive", n)
		}
	}
	for _, name := range c.Systems {
		if _, err := system.New(name, system.Options{}); err != nil {
			return err
		}
	}
	return nil
}

// experiment is one run to make.
type experiment struct {
	shape  scenario.Shape
	gang   bool
	repeat int
	sys    system.System
}

func (e experiment) String() string {
	name := fmt.Sprintf("%s %s", e.sys.Name(), e.shape)
	if e.gang {
		name += " gang"
	}
	if n, ok := e.sys.Settings()[system.WritesInFlight]; ok && n != "adaptive" {
		name += " writes=" + n
	}
	if n, ok := e.sys.Settings()[system.JobSyncs]; ok && n != strconv.Itoa(system.DefaultJobSyncs) {
		name += " syncs=" + n
	}
	if e.repeat > 1 {
		name += fmt.Sprintf(" #%d", e.repeat)
	}
	return name
}

// plan lists the runs in their order: systems alternate within each shape. A system without gangs runs once where others
// run with and without.
func (c *Config) plan() ([]experiment, error) {
	var out []experiment
	for _, shape := range c.Shapes {
		for repeat := range c.Repeat {
			for i, gang := range c.Gangs {
				for _, name := range c.Systems {
					systems, err := c.variants(name)
					if err != nil {
						return nil, err
					}
					for _, sys := range systems {
						if !sys.Gangs() && i > 0 {
							continue
						}
						out = append(out, experiment{shape, gang && sys.Gangs(), repeat + 1, sys})
					}
				}
			}
		}
	}
	return out, nil
}

// variants are the settings of a system to measure.
func (c *Config) variants(name string) ([]system.System, error) {
	options := []system.Options{{Manager: c.Lockstep, ManagerArgs: c.ManagerArgs}}
	vary := func(settings []int, set func(*system.Options, int)) {
		var varied []system.Options
		for _, n := range slices.Compact(slices.Clone(settings)) {
			o := options[0]
			set(&o, n)
			varied = append(varied, o)
		}
		if len(varied) > 0 {
			options = varied
		}
	}
	switch name {
	case "lockstep":
		vary(c.WriterConcurrency, func(o *system.Options, n int) { o.WriterConcurrency = n })
	case "kubernetes":
		vary(c.JobSyncs, func(o *system.Options, n int) { o.JobSyncs = n })
	}
	var out []system.System
	for _, o := range options {
		sys, err := system.New(name, o)
		if err != nil {
			return nil, err
		}
		out = append(out, sys)
	}
	return out, nil
}
