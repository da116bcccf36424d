package jobs

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

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
	// Ahead are jobs that are submitted just before those of each shape: each shape is measured
	// behind each of them. Empty is none, and so is a shape without jobs.
	Ahead []scenario.Shape
	// Weights are the weights of the queues of as many tenants, each of which submits each shape. Empty
	// is the system's default queue.
	Weights []int
	// PodTime is how long each pod runs; 0 is until it is deleted. The load then need not fit on the
	// nodes at once.
	PodTime time.Duration
	// Gangs are the values of --gang to measure: true, false or both.
	Gangs []bool
	// Systems are the names of the systems to measure, in alternation. Lockstep counts as a system
	// of its own for each value of WriterConcurrency. A name may be there twice, to compare a system
	// with itself.
	Systems []string
	// JobSyncs are the numbers of Jobs that stock Kubernetes syncs concurrently; 0 is its default.
	// Stock Kubernetes counts as a system of its own for each.
	JobSyncs []int
	// ClientLimits are the client limits of stock Kubernetes to measure; nil is none. Stock Kubernetes
	// counts as a system of its own for each. Empty is none only.
	ClientLimits []*system.Limit
	// Foreign are the kinds of the pods' creators, as of system.Options.Foreign; each shape is measured
	// with each. Empty is the systems' own jobs.
	Foreign []string
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
	// Pace, if set, makes runs that search the highest rate of jobs; each shape then has one job, which
	// is the one that is sent again and again.
	Pace *Pace
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
	for _, kind := range c.Foreign {
		if err := system.CheckForeign(kind); err != nil {
			return err
		}
		if len(c.FloorConcurrency) > 0 || c.Pace != nil || len(c.Weights) > 0 || len(c.Ahead) > 0 || slices.ContainsFunc(c.Systems, system.IsFile) {
			return errors.New("foreign pods: have no floor, rate, queues or jobs ahead, and no systems of files")
		}
	}
	c.FloorTries = cmp.Or(c.FloorTries, defaultFloorTries)
	switch {
	case len(c.Shapes) == 0:
		return errors.New("no shapes")
	case len(c.Gangs) == 0 || len(c.Systems) == 0:
		return errors.New("nothing to measure")
	case c.FloorTries < 0:
		return fmt.Errorf("floor tries: %d is negative", c.FloorTries)
	case len(c.Weights) == 1 || slices.ContainsFunc(c.Weights, func(w int) bool { return w < 1 }):
		return errors.New("queue weights: want two or more, all positive")
	case c.PodTime < 0 || len(c.Weights) > 0 && c.PodTime == 0:
		return errors.New("pod time: want a positive time, because places have to become free")
	case c.PodTime > 0 && (c.Kubeconfig != "" || len(c.FloorConcurrency) > 0):
		return errors.New("pod time: pods that end need fresh control planes, and have no floor")
	case c.PodTime > 0 && slices.ContainsFunc(c.Systems, system.IsFile):
		return errors.New("pod time: the template of a file has no such thing")
	case c.Pace != nil && (c.Pace.Search.Start <= 0 || c.Pace.Search.Growth <= 1 || c.Pace.Search.Max < 0 || c.Pace.StepTime < time.Second):
		return errors.New("rate: want a positive start, a growth above 1, and steps of at least a second")
	case c.Pace != nil && (len(c.FloorConcurrency) > 0 || c.Kubeconfig != ""):
		return errors.New("rate: needs fresh control planes, and has no floor")
	case c.Pace != nil && slices.ContainsFunc(c.Shapes, func(s scenario.Shape) bool { return s.Jobs != 1 }):
		return errors.New("rate: want shapes of one job, such as 1x20: jobs of 20 pods")
	case len(c.ClientLimits) > 0 && !slices.Contains(c.Systems, "kubernetes"):
		return errors.New("kubernetes client limits: the system kubernetes is not measured")
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
	for _, e := range c.loads() {
		if err := fits(nodes, podRequest(), c.atOnce(e)); err != nil {
			return fmt.Errorf("shape %s: %w", e.load(), err)
		}
	}
	return nil
}

// atOnce returns the number of pods for which there has to be room at a time.
func (c *Config) atOnce(e experiment) int {
	if c.PodTime > 0 {
		return max(e.shape.PodsPerJob, e.ahead.PodsPerJob)
	}
	return e.pods()
}

// experiment is one planned run.
type experiment struct {
	shape scenario.Shape
	// ahead is submitted before shape; without jobs it is nothing. Each of the queues with weights
	// gets a shape.
	ahead   scenario.Shape
	weights []int
	// foreign is the kind of the pods' creators; empty is the system's own jobs.
	foreign string
	gang    bool
	repeat  int
	sys     system.System
	// nth is 1 for a system, and 2 if the system is measured a second time to be compared with
	// itself, and so on.
	nth int
	// admission is what admits the pods.
	admission admission.Admission
}

// part is a part of a load: equal jobs of one queue.
type part struct {
	scenario.Shape
	analyse.Part
}

// parts returns the parts of the load in the order in which they are submitted.
func (e experiment) parts() (out []part) {
	if e.ahead.Jobs > 0 {
		out = append(out, part{e.ahead, analyse.Part{Name: e.ahead.String()}})
	}
	if len(e.weights) == 0 {
		return append(out, part{e.shape, analyse.Part{Name: e.shape.String()}})
	}
	for i, weight := range e.weights {
		out = append(out, part{e.shape, analyse.Part{Name: queueName(i), Weight: weight}})
	}
	return out
}

// queueName returns the name of the queue of the i-th tenant, counted from 0.
func queueName(i int) string { return fmt.Sprintf("tenant-%d", i+1) }

func (e experiment) jobs() (n int) {
	for _, p := range e.parts() {
		n += p.Jobs
	}
	return n
}

func (e experiment) pods() (n int) {
	for _, p := range e.parts() {
		n += p.Pods()
	}
	return n
}

// load returns the name of the load, by which reports group the runs.
func (e experiment) load() string {
	s := e.shape.String()
	if e.foreign != "" {
		s += " " + e.foreign
	}
	if e.ahead.Jobs > 0 {
		s = e.ahead.String() + "+" + s
	}
	if len(e.weights) > 0 {
		s = fmt.Sprintf("%d×%s", len(e.weights), s)
	}
	return s
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
	return Run{System: name, Scenario: scenario.Batch, Shape: e.load(), Gang: e.gang, Repeat: e.repeat,
		Settings: settings, Clients: e.sys.Clients(), Result: analyse.Result{Pods: e.pods()}}
}

// admissionSetting is the name in reports of the setting Config.Admissions, if something admits pods.
const admissionSetting = "admission"

// plan returns the runs in their order: systems alternate within each shape. A system without gangs
// is measured for the first value of Gangs only.
func (c *Config) plan() ([]experiment, error) {
	var out []experiment
	for _, load := range c.loads() {
		for repeat := range c.Repeat {
			for i, gang := range c.Gangs {
				load.gang, load.repeat = gang, repeat+1
				some, err := c.alternate(load, i == 0)
				if err != nil {
					return nil, err
				}
				out = append(out, some...)
			}
		}
	}
	return out, nil
}

// orNone returns values, or the zero value if there are none.
func orNone[V any](values []V) []V {
	if len(values) == 0 {
		return make([]V, 1)
	}
	return values
}

// loads returns the loads, of which each is measured with all systems.
func (c *Config) loads() (out []experiment) {
	for _, shape := range c.Shapes {
		for _, ahead := range orNone(c.Ahead) {
			for _, kind := range orNone(c.Foreign) {
				e := experiment{shape: shape, ahead: ahead, weights: c.Weights, foreign: kind}
				if kind == system.Pods { // a plain pod is a job of its own
					e.shape = scenario.Shape{Jobs: shape.Pods(), PodsPerJob: 1}
				}
				out = append(out, e)
			}
		}
	}
	return out
}

// alternate returns the experiment once for each system, with each of its settings. Systems without
// gangs are left out unless all is true.
func (c *Config) alternate(e experiment, all bool) (out []experiment, err error) {
	nth := map[string]int{}
	for _, name := range c.Systems {
		nth[name]++
		systems, err := c.variants(name, e.foreign)
		if err != nil {
			return nil, err
		}
		for _, sys := range systems {
			if !sys.Gangs() && !all {
				continue
			}
			one := e
			one.sys, one.nth, one.gang = sys, nth[name], e.gang && sys.Gangs()
			for _, one.admission = range c.Admissions {
				out = append(out, one)
			}
		}
	}
	return out, nil
}

// variants returns the named system once for each combination of its settings to measure, for pods of
// a kind of creators.
func (c *Config) variants(name, foreign string) ([]system.System, error) {
	options := []system.Options{{Manager: c.Lockstep, ManagerArgs: c.ManagerArgs, Foreign: foreign, Parameters: c.Parameters}}
	switch name {
	case "lockstep":
		options = vary(options, c.WriterConcurrency, func(o *system.Options, n int) { o.WriterConcurrency = n })
	case "kubernetes":
		options = vary(options, c.JobSyncs, func(o *system.Options, n int) { o.JobSyncs = n })
		options = vary(options, c.ClientLimits, func(o *system.Options, l *system.Limit) { o.ClientLimit = l })
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

// vary returns each of the options with each of the values; as they are if there are none.
func vary[V comparable](options []system.Options, values []V, set func(*system.Options, V)) (out []system.Options) {
	if len(values) == 0 {
		return options
	}
	for _, o := range options {
		for _, v := range slices.Compact(slices.Clone(values)) {
			set(&o, v)
			out = append(out, o)
		}
	}
	return out
}
