package jobs

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"lockstep.dev/lockstep/internal/lab/admission"
	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/lab/series"
	"lockstep.dev/lockstep/internal/lab/system"
)

// Config configures an experiment.
type Config struct {
	series.Config
	// Scenario is the name of the scenario for the report; empty is scenario.Batch.
	Scenario string
	Shapes   []scenario.Shape
	// Gangs are the values of --gang to measure: true, false or both.
	Gangs []bool
	// Systems are the names of the systems to measure, in alternation. Lockstep counts as a system
	// of its own for each value of WriterConcurrency. A name may be there twice, to compare a system
	// with itself.
	Systems []string
	// JobSyncs are the numbers of Jobs that stock Kubernetes syncs concurrently; 0 is its default.
	// Stock Kubernetes counts as a system of its own for each.
	JobSyncs []int
	// Parameters are values of the parameters of a system that a file describes.
	Parameters map[string]string
	// Admissions are what admits the load's pods on fresh control planes; each system is measured
	// with each. Empty is none.
	Admissions []admission.Admission
	// FloorTries is how often the floor writes the whole load; 0 is the default.
	FloorTries int
	// WarmUpPods is the number of pods created and deleted through the system before the
	// measurement.
	WarmUpPods int
	// Kubeconfig is the path of the kubeconfig of an existing cluster that runs the system under
	// test; if empty, each run has a fresh cluster. AuditLog is the path of the existing cluster's
	// audit log on this machine; if empty, a watch is used.
	Kubeconfig, Context, AuditLog string
	// MetricsURLs are the addresses of the metrics of the existing cluster's controllers, by name.
	MetricsURLs map[string]string
	// OnStep is called for each step of the experiment. It must not block for long.
	OnStep func(Step)
}

// Step is the state of an experiment at one moment.
type Step struct {
	Run, Runs   int
	Case, Stage string
	// Done and Total count the current stage, if there is something to count.
	Done, Total int
}

// Complete sets defaults and validates the configuration.
func (c *Config) Complete() error {
	if c.OnStep == nil {
		c.OnStep = func(Step) {}
	}
	c.Scenario = cmp.Or(c.Scenario, scenario.Batch)
	if len(c.Admissions) == 0 {
		c.Admissions = []admission.Admission{{Kind: admission.None}}
	}
	c.FloorTries = cmp.Or(c.FloorTries, defaultFloorTries)
	switch {
	case len(c.Shapes) == 0:
		return errors.New("no shapes")
	case len(c.Gangs) == 0 || len(c.Systems) == 0:
		return errors.New("nothing to measure")
	case c.FloorTries < 0:
		return fmt.Errorf("floor tries: %d is negative", c.FloorTries)
	case c.ClientConcurrency < 1:
		return fmt.Errorf("client concurrency: %d is not positive", c.ClientConcurrency)
	case c.Kubeconfig != "" && len(c.Systems) > 1:
		return errors.New("an existing cluster has one system to measure: give one --system")
	case c.Kubeconfig != "" && (len(c.Admissions) > 1 || c.Admissions[0].Kind != admission.None):
		return errors.New("admission: an existing cluster is left as it is")
	case len(c.MetricsURLs) > 0 && c.Kubeconfig == "":
		return errors.New("metrics: those of fresh control planes are read without it; it is for an existing cluster")
	case c.AuditLog != "" && c.Kubeconfig == "":
		return errors.New("an audit log is of an existing cluster: name its kubeconfig too")
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
	names := map[string]string{}
	for _, name := range c.Systems {
		sys, err := system.New(name, system.Options{Parameters: c.Parameters})
		if err != nil {
			return err
		}
		if other, ok := names[sys.Name()]; ok && other != name {
			return fmt.Errorf("two systems are named %s", sys.Name())
		}
		names[sys.Name()] = name
	}
	if err := c.Config.Complete(); err != nil || c.Kubeconfig != "" {
		return err
	}
	return c.fit()
}

// fit returns an error if the simulated nodes cannot hold each shape.
func (c *Config) fit() error {
	n := c.Nodes
	if err := n.Complete(); err != nil {
		return err
	}
	node := analyse.Resources{MilliCPU: ptr.To(resource.MustParse(n.CPU)).MilliValue(), MemoryBytes: ptr.To(resource.MustParse(n.Memory)).Value(),
		Pods: int64(n.Pods)}
	nodes := map[string]analyse.Resources{}
	for i := range n.Count {
		nodes[strconv.Itoa(i)] = node
	}
	for _, shape := range c.Shapes {
		if err := fits(nodes, podRequest(), shape.Pods()); err != nil {
			return fmt.Errorf("shape %s: %w", shape, err)
		}
	}
	return nil
}

// experiment is one planned run.
type experiment struct {
	shape  scenario.Shape
	gang   bool
	repeat int
	sys    system.System
	// nth is 1 for a system, and 2 if the system is measured a second time to be compared with
	// itself, and so on.
	nth int
	// admission is what admits the pods.
	admission admission.Admission
}

// result returns the run that is to be measured.
func (e experiment) result() Run {
	name := e.sys.Name()
	if e.nth > 1 {
		name += fmt.Sprintf(" (%d)", e.nth)
	}
	settings := e.sys.Settings()
	if e.admission.Kind != admission.None && e.admission.Kind != "" {
		if settings == nil {
			settings = map[string]string{}
		}
		settings[admissionSetting] = e.admission.String()
	}
	return Run{System: name, Scenario: scenario.Batch, Shape: e.shape.String(), Gang: e.gang, Repeat: e.repeat,
		Settings: settings, Clients: e.sys.Clients(), Result: analyse.Result{Pods: e.shape.Pods()}}
}

// admissionSetting is the name in reports of the setting Config.Admissions, if something admits pods.
const admissionSetting = "admission"

// plan returns the runs in their order: systems alternate within each shape. A system without gangs
// is measured for the first value of Gangs only.
func (c *Config) plan() ([]experiment, error) {
	var out []experiment
	for _, shape := range c.Shapes {
		for repeat := range c.Repeat {
			for i, gang := range c.Gangs {
				nth := map[string]int{}
				for _, name := range c.Systems {
					nth[name]++
					systems, err := c.variants(name)
					if err != nil {
						return nil, err
					}
					for _, sys := range systems {
						if !sys.Gangs() && i > 0 {
							continue
						}
						for _, admits := range c.Admissions {
							out = append(out, experiment{shape, gang && sys.Gangs(), repeat + 1, sys, nth[name], admits})
						}
					}
				}
			}
		}
	}
	return out, nil
}

// variants returns the named system once for each of its settings to measure.
func (c *Config) variants(name string) ([]system.System, error) {
	options := []system.Options{{Manager: c.Lockstep, ManagerArgs: c.ManagerArgs, Parameters: c.Parameters}}
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
