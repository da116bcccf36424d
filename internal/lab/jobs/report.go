package jobs

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/series"
	"lockstep.dev/lockstep/internal/lab/system"
)

// Report is the report of one invocation. New fields may be added to its JSON without a new schema
// version; no field is removed or changes its meaning.
type Report struct {
	series.Report[*Run]
	// Sweep says what a sweep varied; nil in reports of other scenarios.
	Sweep *Sweep `json:"sweep,omitempty"`
	// Tune says what limits the system; nil in reports of other scenarios.
	Tune *Tune `json:"tune,omitempty"`
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
	// Parameters are the values of the parameters that a sweep varies.
	Parameters map[string]string `json:"parameters,omitempty"`
	// Error is the reason why the run has no result.
	Error string `json:"error,omitempty"`

	series.Circumstances
	// Clients are the client limits of the system.
	Clients []system.Client `json:"clients"`

	// Result is what the analysis found. Its Writes are null if the server's audit log was not
	// available, and its Curves are left out of the output to stdout.
	analyse.Result
	// FloorSeconds is the least time of the bare client until its last pod, and RatioToFloor is
	// ScheduleSeconds divided by it. They are null if no floor was measured, and if the run was
	// faster than the bare client: see Floor.None.
	FloorSeconds *float64 `json:"floorSeconds"`
	RatioToFloor *float64 `json:"ratioToFloor"`
	Floor        *Floor   `json:"floor,omitempty"`
	// Rate is the result of the scenario Rate, whose runs have no times of one load.
	Rate *Rate `json:"rate,omitempty"`

	CPUSeconds Usage `json:"cpuSeconds"`
	PeakRSSMiB Usage `json:"peakRSSMiB"`
}

// Usage is an amount per component: apiserver, etcd, manager, controllerManager, scheduler, nodes,
// client.
type Usage map[string]float64

// Floor is the result of the floor's measurement. Its figures are those of the best try.
type Floor struct {
	// None says why there is no floor; empty if there is one.
	None        string `json:"none,omitempty"`
	Order       string `json:"order,omitempty"`
	Concurrency int    `json:"concurrency"`
	Jobs        int    `json:"jobs"`
	Pods        int    `json:"pods"`
	// PodsSeconds is the time until the last pod; Seconds includes the statuses that follow.
	Seconds     float64 `json:"seconds"`
	PodsSeconds float64 `json:"podsSeconds"`
	// Tries are all times at which the whole load was written.
	Tries []Try `json:"tries"`
	// Calibration has the pods per second of a sample at each concurrency.
	Calibration []Calibration `json:"calibration"`
	// CPUSeconds is the CPU time of each process for the floor. Compared with the CPU time of the
	// run it shows where the ratio comes from.
	CPUSeconds Usage          `json:"cpuSeconds"`
	Curve      *analyse.Curve `json:"curve,omitempty"`
}

// Try is one time that the bare client wrote the whole load.
type Try struct {
	Order       string  `json:"order"`
	Concurrency int     `json:"concurrency"`
	PodsSeconds float64 `json:"podsSeconds"`
	Seconds     float64 `json:"seconds"`
	CPUSeconds  Usage   `json:"cpuSeconds"`
}

// Calibration is the result of one sample.
type Calibration struct {
	Concurrency int     `json:"concurrency"`
	PerSecond   float64 `json:"podsPerSecond"`
}

// DropCurves removes the curves from the report, which are for the page.
func (r *Report) DropCurves() {
	for _, run := range r.Runs {
		run.Curves = nil
		run.DropSamples()
		if run.Floor != nil {
			run.Floor.Curve = nil
		}
		if run.Rate != nil {
			for i := range run.Rate.Steps {
				run.Rate.Steps[i].Waits = nil
			}
		}
	}
}

// faults counts runs without a result, pods that failed or have no node, and violations.
func (r *Report) faults() (runs, failed, violations int) {
	for _, run := range r.Runs {
		if run.Error != "" {
			runs++
		}
		if run.Lost != "" {
			continue // what was checked with events that are missing says nothing
		}
		failed += run.Failed
		violations += len(run.Invariants.Violations)
	}
	return runs, failed, violations
}

// Faults returns an error if there are runs without a result or whose time ran out, failed or
// unscheduled pods, or violations.
func (r *Report) Faults() error {
	runs, failed, violations := r.faults()
	var late []error
	for _, run := range r.Runs {
		if run.Lost != "" {
			late = append(late, fmt.Errorf("%s: the observer lost events: %s", run.Title(), run.Lost))
		}
		if run.TimedOut != "" {
			late = append(late, fmt.Errorf("%s: %s", run.Title(), run.TimedOut))
		}
	}
	if runs+violations == 0 && (len(late) > 0 || failed == 0) {
		return errors.Join(late...)
	}
	return fmt.Errorf("%d runs without a result, %d pods failed or not scheduled, %d violations", runs, failed, violations)
}

// Outcome implements series.Run.
func (r *Run) Outcome() (failure *string, violations *[]string) {
	return &r.Error, &r.Invariants.Violations
}

// Title returns the name of the run within its report.
func (r *Run) Title() string {
	s := r.name() + " " + r.Shape
	if r.Gang {
		s += " gang"
	}
	return s
}

// label returns the name of the run among those of its shape, which equal runs share.
func (r *Run) label() string {
	if r.Gang {
		return r.variant() + gangSuffix
	}
	return r.variant()
}

// gangSuffix ends the label of a run with gangs.
const gangSuffix = ", gang"

// name returns the system with the settings that distinguish the run, and its repeat.
func (r *Run) name() string {
	if r.Repeat > 1 {
		return r.variant() + fmt.Sprintf(" #%d", r.Repeat)
	}
	return r.variant()
}

// variant returns the system with the settings that distinguish it.
func (r *Run) variant() string {
	s := r.System
	if n, ok := r.Settings[system.JobSyncs]; ok && n != strconv.Itoa(system.DefaultJobSyncs) {
		s += " syncs=" + n
	}
	if l, ok := r.Settings[system.ClientLimit]; ok && l != "unlimited" {
		s += " qps=" + l
	}
	if n, ok := r.Settings[system.WritesInFlight]; ok && n != "adaptive" {
		s += " w=" + n
	}
	if admits := r.Settings[admissionSetting]; admits != "" {
		s += ", " + admits
	}
	for _, name := range slices.Sorted(maps.Keys(r.Parameters)) {
		if !shown[name] {
			s += ", " + name + "=" + r.Parameters[name]
		}
	}
	return s
}

// shown are the parameters of sweeps that titles of runs have anyway.
var shown = map[string]bool{"shapes": true, "gang": true, "system": true, "admission": true, "writer-concurrency": true, "kubernetes-job-syncs": true}

// Repeated implements series.Run.
func (r *Run) Repeated() *int { return &r.Repeat }

// Line returns the results of the run in one line.
func (r *Run) Line() string {
	if r.Rate != nil {
		return r.Rate.sentence()
	}
	s := fmt.Sprintf("%s pods in %s (%s/s)", r.pods(), seconds(r.ScheduleSeconds), r.rate())
	if r.RatioToFloor != nil {
		s += fmt.Sprintf(", %s x floor (%s)", ratio(*r.RatioToFloor), seconds(*r.FloorSeconds))
	} else if r.Floor != nil {
		s += ", " + r.Floor.None
	}
	if r.Writes != nil {
		s += fmt.Sprintf(", %s writes/pod", r.writesPerPod())
	}
	return s
}
