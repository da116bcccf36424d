package report

import (
	"time"

	"lockstep.dev/lockstep/internal/lab/analyse"
)

// SchemaVersion is the version of the JSON. New fields may be added without a new version; no field
// is removed or changes its meaning.
const SchemaVersion = "v1"

// Report is the report of one invocation of the laboratory.
type Report struct {
	SchemaVersion string    `json:"schemaVersion"`
	Version       string    `json:"lockstepVersion"`
	Time          time.Time `json:"time"`
	Machine       Machine   `json:"machine"`
	// Config is the effective configuration, including defaults.
	Config map[string]any `json:"config"`
	Runs   []Run          `json:"runs"`
}

// Machine describes the machine of the measurement.
type Machine struct {
	Hostname  string `json:"hostname"`
	OS        string `json:"os"`
	Arch      string `json:"arch"`
	Kernel    string `json:"kernel"`
	CPU       string `json:"cpu"`
	CPUs      int    `json:"cpus"`
	MemoryMiB int64  `json:"memoryMiB"`
	Go        string `json:"go"`
	// CPULimit, in CPUs, and MemoryLimitMiB are the cgroup limits of the process; zero means none.
	CPULimit       float64 `json:"cpuLimit,omitempty"`
	MemoryLimitMiB int64   `json:"memoryLimitMiB,omitempty"`
}

// Run is the result of one system under one shape of load.
type Run struct {
	System   string `json:"system"`
	Scenario string `json:"scenario"`
	Shape    string `json:"shape"`
	Gang     bool   `json:"gang"`
	// Repeat is the number of the run among equal runs, from 1.
	Repeat int `json:"repeat"`
	// Settings are the limits and options that the system ran with.
	Settings map[string]string `json:"settings"`
	// Error is the reason why the run has no result.
	Error string `json:"error,omitempty"`

	Pods      int `json:"pods"`
	Created   int `json:"created"`
	Scheduled int `json:"scheduled"`
	Failed    int `json:"failed"`

	// The times count from the first job's create: JobsSeconds until the last job's create,
	// CreateSeconds until the last pod was CREATED, ScheduleSeconds until the last pod was
	// SCHEDULED.
	JobsSeconds           float64 `json:"jobsSeconds"`
	FirstScheduledSeconds float64 `json:"firstScheduledSeconds"`
	CreateSeconds         float64 `json:"createSeconds"`
	ScheduleSeconds       float64 `json:"scheduleSeconds"`
	// FloorSeconds and RatioToFloor are null if no floor was measured.
	FloorSeconds *float64 `json:"floorSeconds"`
	RatioToFloor *float64 `json:"ratioToFloor"`
	Floor        *Floor   `json:"floor,omitempty"`

	// Writes counts the system's own writes until everything was at rest, without heartbeats; null
	// if the server's audit log was not available.
	Writes                     map[string]int            `json:"writes"`
	WritesPerPod               float64                   `json:"writesPerPod"`
	WritesPerPodUntilScheduled float64                   `json:"writesPerPodUntilScheduled"`
	WritesByActor              map[string]map[string]int `json:"writesByActor,omitempty"`
	Refused                    map[string]int            `json:"refused,omitempty"`

	// LatencyMs is the time from a job's creation until its pods are SCHEDULED.
	LatencyMs  analyse.Percentiles `json:"latencyMs"`
	Stalls     Stalls              `json:"stalls"`
	CPUSeconds Usage               `json:"cpuSeconds"`
	PeakRSSMiB Usage               `json:"peakRSSMiB"`
	Invariants Invariants          `json:"invariants"`

	// Curves is nil in the output to stdout.
	Curves *Curves `json:"curves,omitempty"`
}

// Usage is an amount per component: apiserver, etcd, manager, controllerManager, scheduler, nodes,
// client.
type Usage map[string]float64

// Stalls are gaps of more than a second between consecutive SCHEDULED pods.
type Stalls struct {
	Count          int       `json:"count"`
	LongestSeconds float64   `json:"longestSeconds"`
	AtSeconds      []float64 `json:"atSeconds,omitempty"`
}

// Invariants are the results of the checks.
type Invariants struct {
	Checked                   int      `json:"checked"`
	Violations                []string `json:"violations"`
	LongestPartialGangSeconds float64  `json:"longestPartialGangSeconds"`
}

// Floor is the result of the floor's measurement.
type Floor struct {
	Concurrency int     `json:"concurrency"`
	Jobs        int     `json:"jobs"`
	Pods        int     `json:"pods"`
	Seconds     float64 `json:"seconds"`
	// PodsSeconds is the time until the last pod; Seconds includes the statuses that follow.
	PodsSeconds float64 `json:"podsSeconds"`
	// Calibration has the pods per second of a sample at each concurrency.
	Calibration []Calibration `json:"calibration"`
	// CPUSeconds is the CPU time of each process for the floor. Compared with the CPU time of the
	// run it shows where the ratio comes from.
	CPUSeconds Usage          `json:"cpuSeconds"`
	Curve      *analyse.Curve `json:"curve,omitempty"`
}

// Calibration is the result of one sample.
type Calibration struct {
	Concurrency   int     `json:"concurrency"`
	PodsPerSecond float64 `json:"podsPerSecond"`
}

// Curves are the curves that the page draws.
type Curves struct {
	Created            analyse.Curve `json:"created"`
	Scheduled          analyse.Curve `json:"scheduled"`
	CreatedPerSecond   []int         `json:"createdPerSecond"`
	ScheduledPerSecond []int         `json:"scheduledPerSecond"`
}

// Fill copies the result of the analysis into the run.
func (r *Run) Fill(a analyse.Result) {
	r.Pods, r.Created, r.Scheduled, r.Failed = a.Pods, a.Created, a.Scheduled, a.Failed
	r.JobsSeconds, r.FirstScheduledSeconds = a.JobsSeconds, a.FirstScheduledSeconds
	r.CreateSeconds, r.ScheduleSeconds = a.CreateSeconds, a.ScheduleSeconds
	r.Writes, r.WritesByActor, r.Refused = a.Writes, a.WritesByActor, a.Refused
	r.WritesPerPod, r.WritesPerPodUntilScheduled = a.WritesPerPod, a.WritesPerPodUntilScheduled
	r.LatencyMs = a.LatencyMs
	r.Stalls = Stalls(a.Stalls)
	r.Invariants = Invariants(a.Invariants)
	if r.Invariants.Violations == nil {
		r.Invariants.Violations = []string{} // an empty list in JSON instead of null
	}
	r.Curves = &Curves{Created: a.Curves.Created, Scheduled: a.Curves.Scheduled,
		CreatedPerSecond: a.Curves.CreatedPerSecond, ScheduledPerSecond: a.Curves.ScheduledPerSecond}
}

// WithoutCurves returns a copy of the report without curves.
func (r *Report) WithoutCurves() *Report {
	out := *r
	out.Runs = make([]Run, len(r.Runs))
	for i, run := range r.Runs {
		run.Curves = nil
		if run.Floor != nil {
			floor := *run.Floor
			floor.Curve = nil
			run.Floor = &floor
		}
		out.Runs[i] = run
	}
	return &out
}

// Faults counts the problems that a caller should report: runs without a result, failed pods,
// violations.
func (r *Report) Faults() (runs, failed, violations int) {
	for i := range r.Runs {
		if r.Runs[i].Error != "" {
			runs++
		}
		failed += r.Runs[i].Failed
		violations += len(r.Runs[i].Invariants.Violations)
	}
	return runs, failed, violations
}
