package bench

import (
	"slices"
	"time"

	"lockstep.dev/lockstep/internal/lab/capacity"
	"lockstep.dev/lockstep/internal/lab/jobs"
	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/localcluster"
)

// batches are the scenarios of batch jobs, and inExistingClusters those that --kubeconfig is for.
var (
	batches = []string{scenario.Batch, scenario.BatchShapes, scenario.BatchWorkers, scenario.Admission, scenario.Contention,
		scenario.Mixed, scenario.Queues, scenario.Rate, scenario.Queued, scenario.ClientLimits, scenario.ForeignPods, scenario.Enqueue}
	// beside are those that are about a difference between the built-in systems.
	beside             = []string{scenario.Contention, scenario.Mixed, scenario.ClientLimits, scenario.ForeignPods, scenario.Enqueue}
	inExistingClusters = []string{scenario.Batch, scenario.BatchShapes, scenario.Contention, scenario.Mixed, scenario.Queued}
)

// preset sets the flags that a scenario of batch jobs fixes and the user has not set. There
// is no floor unless flags about it are set: settings of one system are compared under one load, or
// something else than a time is the question, or the floors of all shapes would take an hour. preset returns the value of --gang.
func (f *flags) preset(gang string) string {
	if f.Scenario = f.scenario; f.scenario == scenario.Batch {
		return gang
	}
	set := f.cmd.Flags().Changed
	if f.scenario == scenario.BatchShapes {
		if !set("gang") {
			gang = "both"
		}
		if !set("floor-tries") {
			f.FloorTries = 1 // the shapes are many
		}
	}
	f.withoutFloor = f.withoutFloor || !set("floor-concurrency") && !set("floor-tries")
	if !set("shapes") {
		f.Shapes = f.load()
	}
	switch f.scenario {
	case scenario.BatchWorkers:
		if !set("writer-concurrency") {
			f.WriterConcurrency = scenario.Workers
		}
	case scenario.Admission:
		if !set("admission") {
			f.admissions = scenario.Admissions
		}
	case scenario.Mixed:
		if !set("ahead") {
			f.ahead = []string{"none", scenario.Shape{Jobs: 1, PodsPerJob: 10_000}.Scaled(f.scale).String()}
		}
	case scenario.Queues:
		if !set("queue-weights") {
			f.Weights = []int{1, 2, 3}
		}
		f.full(set, 5*time.Second)
	case scenario.Rate:
		f.Pace = f.pace(set)
	case scenario.ClientLimits:
		if !set("kubernetes-client-limits") {
			f.limits = scenario.Limits
		}
	case scenario.ForeignPods:
		if !set("foreign") {
			f.Foreign = scenario.Foreign
		}
	case scenario.Enqueue:
		f.full(set, 5*time.Second)
	case scenario.Queued:
		if !set("client-concurrency") {
			f.ClientConcurrency = 1024
		}
	}
	if slices.Contains(beside, f.scenario) && f.Kubeconfig == "" && !set("system") {
		f.Systems = []string{"lockstep", "kubernetes"}
	}
	return gang
}

// load returns the shapes of the scenario.
func (f *flags) load() []scenario.Shape {
	var s scenario.Shape
	switch f.scenario {
	case scenario.BatchShapes:
		return scenario.Shapes(f.scale)
	case scenario.Admission:
		s = scenario.Shape{Jobs: 1, PodsPerJob: 10_000}
	case scenario.Mixed:
		s = scenario.Shape{Jobs: 200, PodsPerJob: 1}
	case scenario.ClientLimits:
		s = scenario.Shape{Jobs: 50, PodsPerJob: 20}
	case scenario.Rate:
		return []scenario.Shape{{Jobs: 1, PodsPerJob: 1}}
	case scenario.Queued:
		s = scenario.Shape{Jobs: 10_000, PodsPerJob: 1}
	case scenario.Queues:
		s = scenario.Shape{Jobs: 400, PodsPerJob: 5}
	default:
		s = scenario.Shape{Jobs: 500, PodsPerJob: 20}
	}
	return []scenario.Shape{s.Scaled(f.scale)}
}

// The first rate of jobs, in jobs per second, and the shortest step.
const (
	jobsRateStart = 20
	jobsStepMin   = 5 * time.Second
)

// pace returns how rates are tried. At scale 1 a step is 20 s long.
func (f *flags) pace(set func(string) bool) *jobs.Pace {
	p := &jobs.Pace{StepTime: max(jobsStepMin, time.Duration(20*f.scale*float64(time.Second))),
		Search: capacity.Search{Start: jobsRateStart, Growth: f.paced.Growth, Max: f.paced.Max}}
	if set("rate-step") {
		p.StepTime = f.paced.StepTime
	}
	if set("rate-start") {
		p.Search.Start = f.paced.Start
	}
	return p
}

// full sets nodes that the load fills, and the time after which its pods end. At scale 1 the nodes
// have room for 1,000 pods.
func (f *flags) full(set func(string) bool, podTime time.Duration) {
	f.PodTime = podTime
	if set("pod-time") {
		f.PodTime = f.paced.PodTime
	}
	nodes := localcluster.Nodes{Count: max(2, int(100*f.scale+0.5)), CPU: "1", Memory: "4Gi", Pods: 110}
	if !set("nodes") {
		f.Nodes.Count = nodes.Count
	}
	if !set("node-cpu") {
		f.Nodes.CPU = nodes.CPU
	}
	if !set("node-memory") {
		f.Nodes.Memory = nodes.Memory
	}
}
